"""``retexo run --engine flower``: what happens in Flower's processes reaches the user by name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.cli import PROGRAM, TINY, CommandLine, Ended, environment, sentence
from tests.support.edge_lists import ADVICE, make_parts_with, without_first
from tests.support.runs import model_bytes

pytestmark = pytest.mark.system

KEYS = ("--hidden", "8", "--clients", "2", "--layers", "1", "--rounds", "40", "--quiet")

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


def started(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    (cwd / "ending.py").write_text(PLUGIN)
    places = (str(cwd), os.environ.get("PYTHONPATH", ""))
    return subprocess.Popen(
        [*PROGRAM, "run", *arguments],
        cwd=cwd,
        env=environment() | {"PYTHONPATH": os.pathsep.join(filter(None, places))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(cwd: Path, *arguments: str) -> Ended:
    with started(cwd, *arguments) as process:
        out, err = process.communicate(timeout=500)
    return Ended(code=process.returncode, out=out, err=err)


def status_of(path: Path) -> dict[str, str | None]:
    status: dict[str, str | None] = json.loads((path / "status.json").read_text())
    return status


@pytest.fixture
def retexo(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """What needs no process of its own."""
    return CommandLine(capfd)


def test_interrupted_run_can_be_resumed_in_either_engine(
    tmp_path: Path, retexo: CommandLine
) -> None:
    path = tmp_path / "run"
    with started(tmp_path, *KEYS, "--engine", "flower", "--out", "run") as process:
        deadline = time.monotonic() + 120
        while not (path / "checkpoint.safetensors").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=500)
    assert process.returncode == 130
    assert out == ""
    assert err == f"retexo: interrupted; go on with: retexo run --resume {path}\n"
    assert status_of(path) == {"state": "interrupted", "error": None}
    retexo.done("run", "--resume", path, "--engine", "inline", "--quiet")
    retexo.done("run", *KEYS, "--out", tmp_path / "whole")
    assert model_bytes(path) == model_bytes(tmp_path / "whole")
    configurations = [(folder / "config.toml").read_text() for folder in (path, tmp_path / "whole")]
    assert configurations[0].replace('engine = "flower"', 'engine = "inline"') == configurations[1]


def test_a_refused_run_leaves_the_one_that_it_was_to_replace(
    tmp_path: Path, retexo: CommandLine
) -> None:
    """Which clients list other edges is found by Flower's processes, before the run begins."""
    retexo.done("run", *KEYS, "--out", tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.*")}
    parts = ("--partitions", str(make_parts_with(tmp_path, without_first)))
    ended = run(tmp_path, "--engine", "flower", *parts, *TINY, "--out", "run", "--overwrite")
    told = sentence(ended, code=2)
    assert re.fullmatch(rf"client 0 .*2 edges .*client 1.* 1; {re.escape(ADVICE)}", told), told
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.*")} == before
    assert not [*tmp_path.glob(".run*")]


@pytest.mark.parametrize("engine", ["inline", "flower"])
def test_a_failure_is_told_by_name_of_a_run_that_has_replaced_another(
    tmp_path: Path, retexo: CommandLine, engine: str
) -> None:
    retexo.done("run", *KEYS, "--out", tmp_path / "run")
    failing = ("--aggregator", "ending:Diverging", "--engine", engine, "--overwrite")
    told = run(tmp_path, *KEYS[:-3], "--rounds", "4", *failing, "--out", "run")
    assert told.code == 1
    # All of the new run's rounds are shown, and none of the old one's.
    assert re.findall(r"stage 0: round (\d+)/(\d+)", told.err) == [("1", "4")]
    last = told.err.splitlines()[-1]
    assert re.match("retexo: error: round 3: .*gradients.*not finite; ", last)
    assert last.endswith(f": retexo run --resume {tmp_path / 'run'} --allow-plugins")
    assert "Traceback" not in told.err
    status = status_of(tmp_path / "run")
    assert status["state"] == "failed"
    assert re.match("TrainingDiverged: round 3: .*gradients.*not finite$", status["error"] or "")
    assert not [*tmp_path.glob(".run*")]
