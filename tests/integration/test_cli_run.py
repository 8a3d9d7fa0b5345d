"""``retexo run`` and its run directory: what it says, what it leaves, what it refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from retexo_fl.cli import run_command
from retexo_fl.federation.checkpoints import CHECKPOINT_VERSION
from tests.support.cli import PROGRAM, TINY, CommandLine, Ended, environment, sentence
from tests.support.runs import events_of, model_bytes, result_of

#: The same three rounds in every test; long enough to be stopped in between.
KEYS = ("--rounds", "3", "--hidden", "8", "--clients", "3", "--quiet")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended well; not to be changed."""
    run = tmp_path_factory.mktemp("finished") / "run"
    assert run_command(["run", *KEYS, "--out", str(run)]) == 0
    return run


@pytest.fixture
def stopped(finished: Path, tmp_path: Path) -> Path:
    """A run that was stopped with a checkpoint."""
    return stop(finished, tmp_path / "stopped")


def stop(finished: Path, run: Path) -> Path:
    shutil.copytree(finished, run)
    for name in ("result.json", "report.html", "ledger.csv"):
        (run / name).unlink()
    (run / "status.json").write_text('{"state": "running", "error": null}\n')
    return run


def by_itself(*arguments: str | Path, cwd: Path) -> Ended:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return Ended(code=done.returncode, out=done.stdout, err=done.stderr)


# ---- what a run says and leaves -----------------------------------------------------------------


def test_default_run_in_an_empty_directory_ends_with_a_report(tmp_path: Path) -> None:
    ended = by_itself("run", cwd=tmp_path)
    assert ended.code == 0, ended.err
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("digits-sage-")
    assert ended.out.splitlines()[-1] == f"report          {run / 'report.html'}"
    assert "\x1b" not in ended.out + ended.err
    memory, head, profile = ended.err.splitlines()[:3]
    assert memory.startswith("retexo: memory: about 3")
    assert head == "digits, sage, 5 clients, engine inline"
    assert profile.startswith("profile lean, by default: basis-rows sums, ")
    assert (run / "report.html").stat().st_size > 10_000
    assert result_of(run)["test_accuracy"] > 0.85
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_quiet_run_prints_its_result_only(retexo: CommandLine) -> None:
    ended = retexo("run", *TINY, "--out", "run")
    assert ended.err == ""
    assert [line.split("  ")[0] for line in ended.out.splitlines()] == [
        *("test accuracy", "bytes moved", "report")
    ]


def test_run_replayed_from_its_configuration_gives_equal_weights(
    retexo: CommandLine, finished: Path
) -> None:
    retexo.done("run", "--config", finished / "config.toml", "--out", "again", "--quiet")
    assert model_bytes(Path("again")) == model_bytes(finished)
    assert Path("again/config.toml").read_text() == (finished / "config.toml").read_text()
    retexo.done("run", *KEYS, "--seed", "1", "--out", "other")
    assert model_bytes(Path("other")) != model_bytes(finished)


def test_run_directory_with_odd_characters_is_shown_in_one_line(
    retexo: CommandLine, stopped: Path
) -> None:
    odd = stopped.rename(stopped.with_name("it's a run"))
    told = retexo.refused("run", *TINY, "--out", odd)
    assert told.endswith(f"--resume {odd}`")
    retexo.done("run", "--resume", odd, "--quiet")
    assert result_of(odd)["attempts"] == 2


def test_version_and_help_succeed(retexo: CommandLine) -> None:
    assert retexo.done("--version").startswith("retexo-fl ")
    assert "--help" in retexo.done("--help")


@pytest.mark.parametrize("arguments", [(), ("partition",)])
def test_no_command_shows_the_commands(retexo: CommandLine, arguments: tuple[str, ...]) -> None:
    ended = retexo(*arguments)
    assert (ended.code, ended.err) == (2, "")
    assert "Commands" in ended.out


@pytest.mark.parametrize(
    "command",
    [
        *("", "run", "plan", "report", "datasets", "partition", "partition make"),
        "partition check",
    ],
)
def test_help_shows_an_example_within_80_columns(
    retexo: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = retexo.done(*command.split(), "--help")
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    example = shown[shown.index("Example") :]
    assert "$ retexo " in example
    assert "[/" not in shown


def test_help_of_run_shows_panels_choices_and_defaults(retexo: CommandLine) -> None:
    shown = " ".join(retexo.done("run", "--help").replace("│", " ").split())
    for panel in ("Graph", "Model and training", "Faults and time", "Where it runs"):
        assert f"─ {panel} ─" in shown
    assert "--rounds N Rounds per layer; end to end, of the whole model (at least 1)." in shown
    assert "(inline, flower, deployment). [default: inline]" in shown
    assert "─ Deployment ─" in shown


def test_datasets_without_a_folder_says_how_to_give_one(retexo: CommandLine) -> None:
    shown = retexo.done("datasets")
    assert "digits" in shown
    assert "--data-dir DIR" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_plan_explains_itself_and_gives_json(retexo: CommandLine) -> None:
    keys = ("--clients", "3", "--rounds", "10", "--boundary-plan", "rows")
    shown = retexo.done("plan", *keys)
    for word in ("boundary nodes", "vectors", "cover", "lossless", "gamma", "equation 2"):
        assert word in shown
    assert max(map(len, shown.splitlines())) <= 80
    facts = json.loads(retexo.done("plan", *keys, "--json"))
    rows, cover = facts["plans"]["rows"], facts["plans"]["cover"]
    assert rows["vectors"] == sum(row["vectors_out"] for row in facts["clients"])
    # More nodes of one client border on the other than the other way round.
    assert cover["vectors"] <= facts["better_of_rows_and_sums"] < rows["vectors"]
    assert list(rows["algorithms"]) == ["lazy", "standard", "bns", "drop", "central"]
    assert cover["algorithms"]["bns"] is None
    for name, volume in rows["algorithms"].items():
        line = next(line for line in shown.splitlines() if line.startswith(f"{name} "))
        assert line.endswith(f" {volume['gamma']:.2f}")


def test_plan_of_one_client_and_round_counts_them_as_one(retexo: CommandLine) -> None:
    shown = retexo.done("plan", "--clients", "1", "--rounds", "1", "--layers", "1")
    assert shown.startswith("digits over 1 client, cut by random: 1-layer sage, 1 round\n")
    assert "lazy       1 exchange, one before each layer's 1 round\n" in shown
    assert "standard   end to end, 1 round: exchanges forward and backward in each\n" in shown


def test_plan_puts_the_configured_algorithm_and_plan_first(retexo: CommandLine) -> None:
    keys = ("--clients", "3", "--algorithm", "standard", "--boundary-plan", "cover")
    shown = retexo.done("plan", *keys)
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.index("standard  ") < shown.index("lazy  ")
    assert shown.index("rows and sums (cover)") < shown.index("\nrows  ")
    facts = json.loads(retexo.done("plan", *keys, "--json"))
    assert (facts["algorithm"], facts["boundary_plan"]) == ("standard", "cover")
    assert next(iter(facts["plans"]["rows"]["algorithms"])) == "standard"


def test_plan_of_attention_keeps_rows(retexo: CommandLine) -> None:
    keys = ("--clients", "2", "--model", "gat", "--hidden", "8", "--boundary-plan", "cover")
    facts = json.loads(retexo.done("plan", *keys, "--json"))
    assert facts["boundary_plan"] == "rows"
    assert list(facts["plans"]) == ["rows"]
    assert facts["better_of_rows_and_sums"] is None


def test_plan_predicts_the_raw_bytes_of_the_run(retexo: CommandLine) -> None:
    keys = [word for word in KEYS if word != "--quiet"]
    plan = json.loads(retexo.done("plan", *keys, "--profile", "retexo", "--json"))["plans"]["rows"]
    predicted = plan["algorithms"]["lazy"]
    retexo.done("run", *KEYS, "--profile", "retexo", "--out", "run")
    measured = result_of(Path("run"))["bytes"]["raw"]
    assert measured["boundary"] == predicted["boundary"]
    assert measured["total"] == predicted["total"]


def test_report_is_written_again(retexo: CommandLine, stopped: Path) -> None:
    assert retexo.done("report", stopped) == f"{stopped / 'report.html'}\n"
    assert (stopped / "report.html").exists()


# ---- run directories that are refused -----------------------------------------------------------


def test_out_that_holds_a_run_is_refused(
    retexo: CommandLine, finished: Path, stopped: Path
) -> None:
    told = retexo.refused("run", *TINY, "--out", finished)
    assert re.match(f"out: {finished} .*another run; .*another directory", told)
    assert "--resume" not in told
    told = retexo.refused("run", *TINY, "--out", stopped)
    assert re.match(f"out: {stopped} .*another run; .*another directory", told)
    assert told.endswith(f"--resume {stopped}`")


def test_out_that_cannot_be_a_new_directory_is_refused(retexo: CommandLine) -> None:
    Path("file").write_text("mine")
    Path("full").mkdir()
    Path("full/mine").touch()
    expected = {
        "file": "exists .*; expected a new",
        "full": "exists .*not an empty directory; expected a new",
        "file/run": ".*; expected",
        "x" * 300: r".*\(File name too long\)",
    }
    for engine in ("inline", "flower"):
        for out, problem in expected.items():
            told = retexo.refused("run", *TINY, "--engine", engine, "--out", out)
            assert re.match(f"out: {Path(out).absolute()} {problem}", told)
    assert sorted(path.name for path in Path().iterdir()) == ["file", "full"]
    Path("empty").mkdir()
    retexo.done("run", *TINY, "--out", "empty")


def test_out_below_a_folder_that_cannot_be_written_to_is_refused(
    retexo: CommandLine, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    if os.access(locked, os.W_OK):
        locked = Path("/proc")  # where not even root can make anything
    told = retexo.refused("run", *TINY, "--out", locked / "run")
    assert re.match(f"out: {locked / 'run'} cannot be made", told)


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("nowhere", r".*config\.toml.*missing.*; expected a run directory"),
        (".", r".*config\.toml.*missing.*; expected a run directory"),
        ("x" * 300, r".*\(File name too long\)"),
    ],
)
def test_resume_of_nothing_is_refused(retexo: CommandLine, out: str, expected: str) -> None:
    told = retexo.refused("run", "--resume", out)
    assert re.match(f"resume: {Path(out).absolute()}{expected}$", told)


def test_resume_of_a_finished_run_is_refused(retexo: CommandLine, finished: Path) -> None:
    told = retexo.refused("run", "--resume", finished)
    assert re.match(f"resume: .*{finished} .*finished", told)


def test_resume_without_a_checkpoint_is_refused(retexo: CommandLine, stopped: Path) -> None:
    (stopped / "checkpoint.safetensors").unlink()
    told = retexo.refused("run", "--resume", stopped)
    assert re.match(f"resume: {stopped} .*no checkpoint.*; .*new directory", told)
    told = retexo.refused("run", *TINY, "--out", stopped)
    assert re.match(f"out: {stopped} .*another run; .*another directory", told)
    assert "--resume" not in told


@pytest.mark.parametrize(
    ("option", "value"),
    [("rounds", "9"), ("seed", "0"), ("model", "gcn"), ("clients", "2"), ("out", "elsewhere")],
)
def test_resume_with_other_options_is_refused(
    retexo: CommandLine, stopped: Path, option: str, value: str
) -> None:
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    told = retexo.refused("run", "--resume", stopped, f"--{option}", value)
    assert re.match(f"{option}: .*with --resume", told)
    told = retexo.refused("run", "--resume", stopped, "--config", stopped / "config.toml")
    assert re.match("config: .*with --resume", told)
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("engine", ["inline", "flower"])
def test_resume_from_a_damaged_checkpoint_is_refused(
    retexo: CommandLine, stopped: Path, engine: str
) -> None:
    path = stopped / "checkpoint.safetensors"
    whole = path.read_bytes()
    history = (stopped / "metrics.jsonl").read_bytes()
    for damaged in (b"", whole[:100], whole[:-1], b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}"):
        path.write_bytes(damaged)
        told = retexo.refused("run", "--resume", stopped, "--engine", engine)
        assert told.startswith(f"resume: {path}: damaged (")
        assert (stopped / "metrics.jsonl").read_bytes() == history
    version = f'\\"version\\": {CHECKPOINT_VERSION}'.encode()
    assert version in whole
    path.write_bytes(whole.replace(version, b'\\"version\\": 7'))
    told = retexo.refused("run", "--resume", stopped, "--engine", engine)
    assert told == f"resume: {path}: version 7; expected {CHECKPOINT_VERSION}"


def test_resume_with_a_damaged_configuration_is_refused(retexo: CommandLine, stopped: Path) -> None:
    path = stopped / "config.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 'three'"))
    told = retexo.refused("run", "--resume", stopped)
    assert re.match(f"{path}: rounds: got 'three' .*str; expected int", told)


def test_resume_finishes_with_the_weights_of_the_undisturbed_run(
    retexo: CommandLine, finished: Path, stopped: Path
) -> None:
    retexo.done("run", "--resume", stopped, "--quiet")
    assert model_bytes(stopped) == model_bytes(finished)
    assert events_of(stopped)[-1]["test_accuracy"] == events_of(finished)[-1]["test_accuracy"]


@pytest.mark.parametrize("place", ["nowhere", ".", "file"])
def test_report_on_what_is_no_run_is_refused(retexo: CommandLine, place: str) -> None:
    Path("file").touch()
    told = retexo.refused("report", place)
    assert told.startswith(f"{place}: ")
    assert re.search(r"expected .*result\.json or metrics\.jsonl", told)
    assert [path.name for path in Path().iterdir()] == ["file"]


# ---- the same input, refused before Flower starts -----------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--dataset", "nonesuch"), "dataset: 'nonesuch' .*unknown"),
        (("--dataset", "synthetic:size=3"), "synthetic: 'size=3' .*unknown"),
        (("--clients", "1798"), "clients: got 1798; expected 1 to 1797"),
        (("--split", "published"), "split: .*'digits'.*no published split"),
        (("--partitions", "nowhere"), "nowhere: .*part-0"),
        (("--rounds", "0"), "rounds: got 0; expected"),
        (("--model", "math:pi"), "model: "),
        (("--aggregator", "math:pi"), "aggregator "),
    ],
)
def test_flower_is_not_started_for_bad_input(
    retexo: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    expected: str,
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess.Popen, "__init__", started)
    told = retexo.refused("run", "--engine", "flower", *arguments, "--out", "new")
    assert re.match(expected, told)
    assert list(Path().iterdir()) == []


# ---- in processes of their own ------------------------------------------------------------------


def test_bad_input_ends_a_process_with_exit_code_2(tmp_path: Path) -> None:
    told = sentence(
        by_itself("run", b"--out=\xff".decode("utf-8", "surrogateescape"), cwd=tmp_path), code=2
    )
    assert told.startswith("out: got '\\udcff'; expected ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    ["plan --help | true", "datasets | head -1 >/dev/null", "datasets | true", "plan --help >&-"],
)
def test_output_that_nobody_reads_ends_quietly(tmp_path: Path, command: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{PROGRAM[0]} -m retexo_fl {command}; echo ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.stderr == ""
    assert done.stdout == "0\n"


def test_output_to_a_full_device_is_a_named_failure(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PROGRAM, "datasets"],
            cwd=tmp_path,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=500,
        )
    assert done.returncode == 1
    assert done.stderr == "retexo: error: standard output: No space left on device\n"
