"""Going on after an interruption, in one process; kills of real processes are in tests/system."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.cli import run_command
from retexo_fl.client.preparation import load_parts, make_parts
from retexo_fl.config import free_keys
from retexo_fl.errors import (
    CheckpointError,
    ConfigurationError,
    PartitionError,
    RunDirectoryError,
)
from retexo_fl.federation import checkpoints
from retexo_fl.federation.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from retexo_fl.federation.run_directory import check_resumable
from retexo_fl.graph import write_partitions
from retexo_fl.report import write_report
from retexo_fl.run_log.events import Event, Started
from retexo_fl.run_status import write_status
from retexo_fl.simulation.inline_engine import run_inline
from tests.support.each_choice import by_day
from tests.support.runs import (
    Interrupter,
    configured,
    events_of,
    ledger_of,
    model_bytes,
    page_of,
    result_of,
    train,
)

KEYS: dict[str, Any] = {"rounds": 8, "clients": 3, "hidden": 16, "layers": 3, "model": "gcn"}


def interrupted(out: Path, event: int, **keys: Any) -> Path:
    with pytest.raises(KeyboardInterrupt):
        train(out, Interrupter(event), **keys)
    assert json.loads((out / "status.json").read_text())["state"] == "interrupted"
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole") / "run", **KEYS)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted in its second stage; to be copied."""
    return interrupted(tmp_path_factory.mktemp("half") / "run", 16, **KEYS)


# start, exchange, 8 rounds, stage_end: event 11 is the end of stage 0, event 12 the next exchange.
@pytest.mark.parametrize(
    "event",
    by_day([4, 9, 10, 11, 12, 13, 20, 30], *(4, 10, 11, 12, 30), others=pytest.mark.slow),
)
def test_resumed_run_equals_the_undisturbed_one(tmp_path: Path, whole: Path, event: int) -> None:
    out = interrupted(tmp_path / "run", event, **KEYS)
    train(out, **KEYS, resume=out)
    assert model_bytes(out) == model_bytes(whole)
    for key in ("test_accuracy", "val_accuracy", "stages", "missing_rows"):
        assert result_of(out)[key] == result_of(whole)[key]
    rounds = [(e["stage"], e["round"]) for e in events_of(out) if e["event"] == "round"]
    assert rounds == [(stage, number) for stage in range(3) for number in range(1, 9)]


def test_resume_counts_repeated_bytes_for_its_own_attempt(tmp_path: Path, whole: Path) -> None:
    out = interrupted(tmp_path / "run", 16, **KEYS)  # in stage 1
    train(out, **KEYS, resume=out)
    ledger, undisturbed = ledger_of(out), ledger_of(whole)
    boundary = [ledger.sum(kind="boundary", attempt=attempt).raw for attempt in (1, 2)]
    once = [undisturbed.sum(kind="boundary", layer=layer).raw for layer in range(3)]
    assert boundary == [once[0] + once[1], sum(once)]
    assert result_of(out)["attempts"] == 2
    updates = ledger.sum(kind="updates_up")
    assert updates.raw == undisturbed.sum(kind="updates_up").raw


def test_resume_with_patience_stops_like_the_undisturbed_run(tmp_path: Path) -> None:
    keys = {**KEYS, "rounds": 60, "patience": 3, "layers": 2, "learning_rate": 0.05}
    run = train(tmp_path / "whole", **keys)
    stages = result_of(run)["stages"]
    assert all(stage["rounds"] < 60 for stage in stages)
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    for stage in stages:
        # w(r) is judged in round r + 1, so the stage ends with three vain candidates, and w(R),
        # which is not judged.
        judged = [e for e in rounds if e["stage"] == stage["layer"]][-1]
        assert judged["round"] == stage["rounds"] - 1
        assert judged["round"] - judged["best_round"] == 3
    ends = [event for event in events_of(run) if event["event"] == "stage_end"]
    assert [end["rounds"] for end in ends] == [stage["rounds"] for stage in stages]
    report = write_report(run).read_text()
    assert all(f"{stage['rounds']} rounds, best in round" in report for stage in stages)
    out = interrupted(tmp_path / "broken", 7, **keys)
    train(out, **keys, resume=out)
    assert result_of(out)["stages"] == stages
    assert model_bytes(out) == model_bytes(run)


def test_checkpoints_may_be_rarer(tmp_path: Path, whole: Path) -> None:
    keys = {**KEYS, "checkpoint_every": 5}
    out = interrupted(tmp_path / "run", 10, **keys)
    train(out, **keys, resume=out)
    assert model_bytes(out) == model_bytes(whole)


def test_resume_refuses_another_configuration(tmp_path: Path) -> None:
    out = interrupted(tmp_path / "run", 6, **KEYS)
    with pytest.raises(ConfigurationError, match="hidden: 32, but the run in .* has 16"):
        train(out, **{**KEYS, "hidden": 32}, resume=out)


def changed(line: str) -> str:
    """Change one character of a line of TOML, so that its value is another one of its type."""
    key, _, value = line.partition(" = ")
    if value in {"true", "false"}:
        return f"{key} = {'true' if value == 'false' else 'false'}"
    if value == '""':
        return f'{key} = "7"'
    place = len(value) - 1 - value.endswith('"')
    return f"{key} = {value[:place]}{'8' if value[place] == '7' else '7'}{value[place + 1 :]}"


def test_resume_refuses_a_changed_character(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = interrupted(tmp_path / "run", 6, **KEYS)
    text = (out / "config.toml").read_text()
    fixed = [line for line in text.splitlines() if line.partition(" = ")[0] not in free_keys()]
    assert len(fixed) > 30
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for line in fixed:
        (out / "config.toml").write_text(text.replace(f"{line}\n", f"{changed(line)}\n"))
        assert run_command(["run", "--resume", str(out), "--quiet"]) == 2, line
        refusal = capsys.readouterr().err
        assert line.partition(" = ")[0] in refusal
        assert refusal.count("\n") == 1
    (out / "config.toml").write_text(text)
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_resume_refuses_a_change_in_any_engine(tmp_path: Path) -> None:
    out = interrupted(tmp_path / "run", 6, **KEYS)
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace("hidden = 16", "hidden = 17"))
    told = r"^hidden: got 17 .*config\.toml; expected 16"
    with pytest.raises(ConfigurationError, match=told):
        train(out, **{**KEYS, "hidden": 17}, resume=out)


def test_resume_takes_other_values_of_keys_that_may_change(tmp_path: Path, whole: Path) -> None:
    out = interrupted(tmp_path / "run", 12, **KEYS)
    text = (out / "config.toml").read_text()
    (out / "config.toml").write_text(text.replace('balance = "dynamic"', 'balance = "static"'))
    assert run_command(["run", "--resume", str(out), "--quiet"]) == 0
    assert model_bytes(out) == model_bytes(whole)


@pytest.mark.parametrize("kept", [0.0, 0.4])
def test_resume_notices_a_history_that_lost_its_end(
    tmp_path: Path, whole: Path, kept: float
) -> None:
    out = interrupted(tmp_path / "run", 17, **KEYS)  # stage 1, with round 5 behind it
    metrics = out / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[: int(kept * metrics.stat().st_size)])
    there = [json.loads(line) for line in metrics.read_bytes().split(b"\n")[:-1]]
    first = 1 + sum(event["event"] == "round" for event in there)
    assert kept == 0 or 2 < first < 9
    # Cut off again before anything new is safe: what was lost is told of by each attempt.
    with pytest.raises(KeyboardInterrupt):
        train(out, Interrupter(3), **KEYS, resume=out)
    train(out, **KEYS, resume=out)
    assert model_bytes(out) == model_bytes(whole)
    kept_rounds = [
        (event["stage"], event["round"]) for event in events_of(out) if event["event"] == "round"
    ]
    assert len(set(kept_rounds)) == len(kept_rounds)
    lost = [event["rounds"] for event in events_of(out) if event["event"] == "history_lost"]
    assert lost
    assert all(spans[0] == [0, first, 8] for spans in lost)
    page = page_of(out)
    assert f"stage 0, rounds {first} to 8" in page
    assert "crash" not in page_of(whole)


def test_state_of_a_finished_run_is_corrected(tmp_path: Path, whole: Path) -> None:
    def state_after(look: Callable[[Path], object], state: str) -> str:
        out = tmp_path / "copy"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(whole, out)
        write_status(out, state)
        look(out)
        return str(json.loads((out / "status.json").read_text())["state"])

    def resume(out: Path) -> None:
        assert run_command(["run", "--resume", str(out)]) == 2

    for look in (resume, write_report):
        assert state_after(look, "running") == "finished"
        assert state_after(look, "interrupted") == "finished"
        assert state_after(look, "failed") == "failed"
    unfinished = interrupted(tmp_path / "run", 6, **KEYS)
    write_report(unfinished)
    assert json.loads((unfinished / "status.json").read_text())["state"] == "interrupted"


def test_resume_refuses_layers_of_another_training(tmp_path: Path, whole: Path) -> None:
    out = interrupted(tmp_path / "run", 16, **KEYS)
    other = train(tmp_path / "other", **{**KEYS, "seed": 5})
    layer = "model/layer-0.safetensors"
    (out / layer).write_bytes((other / layer).read_bytes())
    with pytest.raises(CheckpointError, match="not those of the checkpoint"):
        train(out, **KEYS, resume=out)


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("job", None),  # absent
        ("attempt", "two"),
        ("ledger", {"number": 1, "bytes": "some", "crc32": "0"}),
        ("missing", [1]),
        ("absences", {"one": 1}),
        ("train_s", None),
        ("outcomes", [{"stage": 0}]),
        ("best_score", {"count": 1}),
        ("absent", 3),
        ("seconds", "long"),
        ("metrics_bytes", []),
    ],
)
def test_resume_names_a_checkpoint_that_no_run_wrote(
    tmp_path: Path, half: Path, fact: str, value: object
) -> None:
    out = shutil.copytree(half, tmp_path / "run")
    path = out / "checkpoint.safetensors"
    read = read_checkpoint(path)
    facts = {**read.facts, fact: value}
    if value is None:
        del facts[fact]
    write_checkpoint(path, Checkpoint(facts=facts, tensors=read.tensors))
    with pytest.raises(CheckpointError, match="checkpoint.*: damaged"):
        train(out, **KEYS, resume=out)


def test_resume_names_a_history_that_cannot_be_cut(tmp_path: Path, half: Path) -> None:
    out = shutil.copytree(half, tmp_path / "run")
    (out / "metrics.jsonl").unlink()
    (out / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: could not be cut"):
        train(out, **KEYS, resume=out)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b",1,", b",2,", 1)), "damaged"),
    ],
    ids=["absent", "cut", "changed"],
)
def test_resume_names_an_account_that_is_not_the_checkpoints(
    tmp_path: Path, half: Path, damage: Callable[[Path], None], problem: str
) -> None:
    out = shutil.copytree(half, tmp_path / "run")
    damage(out / "checkpoint-ledger-1.csv")
    with pytest.raises(CheckpointError, match=rf"checkpoint-ledger-1\.csv: {problem}"):
        train(out, **KEYS, resume=out)
    assert not (out / "result.json").exists()


def test_account_survives_its_files(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "LEAST_BYTES", 0)
    monkeypatch.setattr(checkpoints, "MOST_TIMES", 2)
    out = interrupted(tmp_path / "run", 12, **KEYS)
    (account,) = out.glob("checkpoint-ledger-*.csv")
    assert account.name != "checkpoint-ledger-1.csv"
    # What a crash leaves: lines that no checkpoint names, and a file that none came to name.
    with account.open("a") as file:
        file.write("9,control,0,tr")
    (out / "checkpoint-ledger-99.csv").write_text("attempt\n")
    train(out, **KEYS, resume=out)
    assert len([*out.glob("checkpoint-ledger-*.csv")]) == 1
    first, both = ledger_of(whole), ledger_of(out)
    for layer in range(3):
        trained = both.sum(kind="updates_up", layer=layer)
        assert trained == first.sum(kind="updates_up", layer=layer)


def test_run_without_a_finished_round_cannot_be_resumed(tmp_path: Path) -> None:
    out = interrupted(tmp_path / "run", 2, **KEYS)
    with pytest.raises(RunDirectoryError, match="has no checkpoint yet"):
        check_resumable(out)


def test_finished_run_cannot_be_resumed(whole: Path) -> None:
    with pytest.raises(RunDirectoryError, match="has finished"):
        check_resumable(whole)


def test_resume_on_another_partitioning_is_refused(tmp_path: Path) -> None:
    parts, others = tmp_path / "parts", tmp_path / "others"
    for seed, folder in enumerate((parts, others)):
        write_partitions(make_parts(configured(tmp_path / "x", clients=3, seed=seed)), folder)
    out = tmp_path / "run"
    config = configured(out, **KEYS, partitions=parts)
    with pytest.raises(KeyboardInterrupt):
        run_inline(config, load_parts(config), [Interrupter(6)])
    moved = configured(out, **KEYS, partitions=others, resume=out)
    with pytest.raises(PartitionError, match="are of partitioning .*; expected [0-9a-f]{64}"):
        run_inline(moved, load_parts(moved))


def test_run_is_resumed_by_one_process_at_a_time(tmp_path: Path, whole: Path) -> None:
    out = interrupted(tmp_path / "run", 12, **KEYS)

    def resume_too(event: Event) -> None:
        if isinstance(event, Started):
            with pytest.raises(RunDirectoryError, match="another process is using the run"):
                train(out, **KEYS, resume=out)

    config = configured(out, **KEYS, resume=out)
    run_inline(config, make_parts(config), [resume_too])
    assert model_bytes(out) == model_bytes(whole)


def test_resume_clears_what_a_killed_process_left(tmp_path: Path) -> None:
    out = interrupted(tmp_path / "run", 12, **KEYS)
    left = out / "model" / "layer-1.safetensors.4711.part"
    left.write_bytes(b"half")
    train(out, **KEYS, resume=out)
    assert not left.exists()
