"""``retexo run --engine flower``: what happens in Flower's processes reaches the user by name.

One run of the engine shows it whole; what a process of its own shows as well needs no engine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.simulation import flower_engine
from tests.support.cli import PROGRAM, TINY, CommandLine, environment
from tests.support.edge_lists import ADVICE, make_parts_with, without_first
from tests.support.flower_stand_in import run_apps
from tests.support.runs import model_bytes

pytestmark = pytest.mark.system

KEYS = ("--hidden", "8", "--clients", "2", "--layers", "1", "--rounds", "40", "--quiet")
FOUR_ROUNDS = (*KEYS[:-3], "--rounds", "4")

#: An aggregator that ends a run in its third round.
PLUGIN = """
from retexo_fl.errors import TrainingDiverged
from retexo_fl.federation.aggregators import WeightedMean

class Diverging(WeightedMean):
    rounds = 0

    def finish(self):
        Diverging.rounds += 1
        if Diverging.rounds == 3:
            raise TrainingDiverged("round 3: the sum of all gradients is not finite")
        return super().finish()
"""


def status_of(path: Path) -> dict[str, str | None]:
    status: dict[str, str | None] = json.loads((path / "status.json").read_text())
    return status


@pytest.fixture
def retexo(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


@pytest.fixture
def apps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no process of Flower started, but one for both of a run's apps."""
    monkeypatch.setattr(flower_engine, "run_flower_simulation", run_apps)


def test_interrupted_run_can_be_resumed_in_either_engine(
    tmp_path: Path, retexo: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"

    def run_until_it_may_be_resumed(*config: Any, tick: Callable[[], None], **more: Any) -> None:
        def interrupt() -> None:
            tick()
            if (path / "checkpoint.safetensors").exists():
                raise KeyboardInterrupt

        run_apps(*config, tick=interrupt, **more)

    monkeypatch.setattr(flower_engine, "run_flower_simulation", run_until_it_may_be_resumed)
    # So many that it cannot have ended by itself.
    keys = (*KEYS, "--rounds", "300")
    ended = retexo("run", *keys, "--engine", "flower", "--out", path)
    assert ended.code == 130
    assert ended.out == ""
    assert ended.err == f"retexo: interrupted; go on with: retexo run --resume {path}\n"
    assert status_of(path) == {"state": "interrupted", "error": None}
    retexo.done("run", "--resume", path, "--engine", "inline", "--quiet")
    retexo.done("run", *keys, "--out", tmp_path / "whole")
    assert model_bytes(path) == model_bytes(tmp_path / "whole")
    configurations = [(folder / "config.toml").read_text() for folder in (path, tmp_path / "whole")]
    assert configurations[0].replace('engine = "flower"', 'engine = "inline"') == configurations[1]


@pytest.mark.usefixtures("apps_alone")
def test_a_refused_run_leaves_the_one_that_it_was_to_replace(
    tmp_path: Path, retexo: CommandLine
) -> None:
    """Which clients list other edges is found by the run's own processes, before it begins."""
    retexo.done("run", *FOUR_ROUNDS, "--quiet", "--out", tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.*")}
    parts = ("--partitions", str(make_parts_with(tmp_path, without_first)))
    words = ("run", "--engine", "flower", *parts, *TINY, "--out", tmp_path / "run", "--overwrite")
    told = retexo.refused(*words)
    assert re.fullmatch(rf"client 0 .*2 edges .*client 1.* 1; {re.escape(ADVICE)}", told), told
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.*")} == before
    assert not [*tmp_path.glob(".run*")]


@pytest.mark.parametrize("engine", ["inline", pytest.param("flower", marks=pytest.mark.slow)])
def test_a_failure_is_told_by_name_of_a_run_that_has_replaced_another(
    tmp_path: Path, retexo: CommandLine, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """And goes on in this process, whichever it was trained in, once its plug-in is mended."""
    (tmp_path / "ending.py").write_text(PLUGIN)
    retexo.done("run", *KEYS, "--out", tmp_path / "run")
    failing = ("--aggregator", "ending:Diverging", "--engine", engine, "--overwrite")
    told = subprocess.run(
        [*PROGRAM, "run", *FOUR_ROUNDS, *failing, "--out", "run"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert told.returncode == 1
    # All of the new run's rounds are shown, and none of the old one's.
    assert re.findall(r"stage 0: round (\d+)/(\d+)", told.stderr) == [("1", "4")]
    last = told.stderr.splitlines()[-1]
    assert re.match("retexo: error: round 3: .*gradients.*not finite; ", last)
    assert last.endswith(f": retexo run --resume {tmp_path / 'run'} --allow-plugins")
    assert "Traceback" not in told.stderr
    status = status_of(tmp_path / "run")
    assert status["state"] == "failed"
    assert re.match("TrainingDiverged: round 3: .*gradients.*not finite$", status["error"] or "")
    assert not [*tmp_path.glob(".run*")]
    mended = "from retexo_fl.federation.aggregators import WeightedMean as Diverging\n"
    (tmp_path / "ending.py").write_text(mended)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ending", raising=False)
    more = ("--allow-plugins", "--engine", "inline", "--quiet")
    retexo.done("run", "--resume", tmp_path / "run", *more)
    retexo.done("run", *FOUR_ROUNDS, "--quiet", "--out", tmp_path / "whole")
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")
