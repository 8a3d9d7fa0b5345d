from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from matplotlib.axes import Axes

from sims.__main__ import main
from sims.catalogue import RECIPES, Setting, load_recipe
from sims.outcome import Check, Outcome, Row
from sims.results_files import markdown, write_results
from tests.support.data import data_dir

REPOSITORY = Path(__file__).resolve().parents[2]


class Ended(NamedTuple):
    """What a command left."""

    stdout: str
    stderr: str


@pytest.fixture
def sims(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    def run(*arguments: str | Path, code: int = 0) -> Ended:
        capsys.readouterr()
        ended_with = main([str(argument) for argument in arguments])
        ended = Ended(*capsys.readouterr())
        assert ended_with == code, ended.stderr
        return ended

    return run


def bars(axes: Axes) -> None:
    axes.bar([0, 1], [0.5, 0.75])


OUTCOME = Outcome(
    title="Two trainings",
    setting={"rounds": 3, "published": "word " * 9},
    rows=[
        Row.of("accuracy", [0.5, 0.75], unit="share", reference=0.7),
        Row(metric="bytes", unit="B", ours=12.0),
    ],
    checks=(Check(line="more than nothing", holds=True), Check(line="all", holds=False)),
    pictures=(bars, bars),
)


def test_sims_without_a_name_lists_all(sims: Callable[..., Ended]) -> None:
    lines = sims().stdout.splitlines()
    assert [line.split()[0] for line in lines] == sorted(RECIPES)
    assert [line.split(maxsplit=1)[1] for line in lines] == [
        load_recipe(name).PURPOSE for name in RECIPES
    ]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.real_graphs
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_writes_its_three_files(
    sims: Callable[..., Ended], name: str, tmp_path: Path
) -> None:
    folder = data_dir()
    done = sims(name, "--quick", "--data-dir", folder, "--out", tmp_path)
    files = [tmp_path / f"{name}.{suffix}" for suffix in ("json", "md", "png")]
    told = done.stdout.splitlines()
    assert told[:3] == [str(path) for path in files]
    text = files[0].read_text(encoding="utf-8")
    assert str(folder) not in text
    facts: dict[str, Any] = json.loads(text)
    assert facts["name"] == name
    assert facts["command"] == f"python -m sims {name} --quick --data-dir DIR"
    assert facts["hardware"]["cpu"]
    assert facts["versions"]["torch"]
    assert facts["rows"]
    assert {"metric", "unit", "reference", "ours", "spread"} == set(facts["rows"][0])
    assert all(np.isfinite(row["ours"]) for row in facts["rows"])
    assert files[1].read_text(encoding="utf-8") == markdown(facts)
    assert facts["checks"]
    assert told[3:] == [f"holds: {check['line']}" for check in facts["checks"]]


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_has_a_line_in_the_readme(name: str) -> None:
    assert f"| `{name}` |" in (REPOSITORY / "sims" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_whole_result_whose_lines_hold(name: str) -> None:
    results = REPOSITORY / "sims" / "results"
    facts = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
    assert facts["command"] == f"python -m sims {name} --data-dir DIR"
    assert (results / f"{name}.md").read_text(encoding="utf-8") == markdown(facts)
    assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert facts["checks"]
    lines = [check for check in facts["checks"] if not check.get("is_target")]
    assert [check["line"] for check in lines if not check["holds"]] == []


@dataclass
class Made:
    """A recipe that trains nothing."""

    outcome: Outcome
    PURPOSE: str = "nothing"

    def run(self, setting: Setting) -> Outcome:
        return self.outcome


@pytest.mark.parametrize("quick", [True, False])
def test_a_line_that_fails_is_printed_and_ends_with_1(
    sims: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: bool
) -> None:
    monkeypatch.setattr("sims.__main__.load_recipe", lambda name: Made(OUTCOME))
    done = sims("fig3", *["--quick"] * quick, "--out", tmp_path, code=1)
    assert done.stdout.splitlines()[3:] == ["holds: more than nothing", "FAILS: all"]
    assert done.stderr == "sims: fig3: 1 of 2 lines fail\n"
    assert (tmp_path / "fig3.json").is_file()
    held = replace(OUTCOME, checks=OUTCOME.checks[:1])
    monkeypatch.setattr("sims.__main__.load_recipe", lambda name: Made(held))
    sims("fig3", *["--quick"] * quick, "--out", tmp_path)


def test_small_sizes_do_not_take_the_place_of_whole_results(
    sims: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sims.__main__.load_recipe", lambda name: Made(OUTCOME))
    sims("fig3", "--quick", code=1)
    assert not (tmp_path / "sims").exists()
    assert (tmp_path / "build" / "sims-quick" / "fig3.json").is_file()
    sims("fig3", code=1)
    assert (tmp_path / "sims" / "results" / "fig3.json").is_file()


def test_a_written_result_is_checked_anew_without_training(
    sims: Callable[..., Ended], tmp_path: Path
) -> None:
    results = REPOSITORY / "sims" / "results"
    facts = json.loads((results / "table3.json").read_text(encoding="utf-8"))
    for row in facts["rows"]:
        if "gat, bns 0.01, scaled" in row["metric"]:
            row["ours"] = 1.0
    stale = {**facts, "checks": [], "published": []}
    (tmp_path / "table3.json").write_text(json.dumps(stale), encoding="utf-8")
    done = sims("table3", "--restate", "--out", tmp_path, code=1)
    assert "FAILS: amazon_computers: scaling costs GAT" in done.stdout
    made = json.loads((tmp_path / "table3.json").read_text(encoding="utf-8"))
    assert made["rows"] == facts["rows"]
    assert len(made["published"]) == len(facts["published"]) > 0
    assert (tmp_path / "table3.md").read_text(encoding="utf-8") == markdown(made)
    assert (tmp_path / "table3.png").read_bytes().startswith(b"\x89PNG")
    missing = sims("table3", "--restate", "--out", tmp_path / "none", code=2)
    assert missing.stderr.startswith("sims: error: --restate: ")
    assert missing.stderr.count("\n") == 1


def test_seeds_are_added_only_where_the_recipe_can_and_there_is_a_result(
    sims: Callable[..., Ended], tmp_path: Path
) -> None:
    done = sims("table3", "--extend", "--out", tmp_path, code=2)
    assert done.stderr.startswith("sims: error: --extend: table3 cannot add seeds; expected")
    done = sims("rivals", "--extend", "--out", tmp_path, code=2)
    assert done.stderr.startswith(f"sims: error: --extend: {tmp_path}/rivals.json is not a")


def test_results_hold_rows_checks_and_their_origin(tmp_path: Path) -> None:
    setting = Setting(quick=True, data_dir=tmp_path)
    paths, checks = write_results(tmp_path, "two", setting, Made(OUTCOME))
    assert [check.holds for check in checks] == [True, False]
    assert [path.name for path in paths] == ["two.json", "two.md", "two.png"]
    facts = json.loads(paths[0].read_text(encoding="utf-8"))
    spread = {"low": 0.5, "high": 0.75, "median": 0.625, "sd": pytest.approx(0.1768, abs=1e-4)}
    assert facts["rows"][0] == {
        "metric": "accuracy",
        "unit": "share",
        "reference": 0.7,
        "ours": 0.625,
        "spread": {**spread, "values": [0.5, 0.75]},
    }
    assert facts["command"] == "python -m sims two --quick --data-dir DIR"
    text = paths[1].read_text(encoding="utf-8")
    assert "| accuracy | share | 0.7000 | 0.6250 | 0.6250 | 0.5000 to 0.7500 |" in text
    assert "| bytes | B |  | 12.0000 |  |  |" in text
    assert "- setting: rounds 3\n- published: " + "word " * 9 in text
    assert "- holds: more than nothing\n- FAILS: all\n" in text
    assert paths[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("folder", ["nowhere", None])
def test_recipe_without_its_graph_is_refused_in_one_line(
    sims: Callable[..., Ended], tmp_path: Path, folder: str | None
) -> None:
    given: list[str | Path] = [] if folder is None else ["--data-dir", tmp_path / folder]
    done = sims("poisoned_client", *given, "--out", tmp_path / "new", code=2)
    place = None if folder is None else tmp_path / folder
    assert done.stderr == (
        f"sims: error: --data-dir: got {place}; expected a folder with cora.npz\n"
    )
    assert done.stdout == ""


def test_unwritable_results_are_refused_before_the_training(
    sims: Callable[..., Ended], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = sims("poisoned_client", "--out", tmp_path / "file" / "below", code=2)
    assert done.stderr.startswith(f"sims: error: --out: {tmp_path}/file/below cannot be made (")
