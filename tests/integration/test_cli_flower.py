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

from tests.support.cli import PROGRAM, Ended, environment, sentence
from tests.support.runs import model_bytes

pytestmark = pytest.mark.system

KEYS = ("--hidden", "8", "--clients", "2", "--layers", "1", "--rounds", "40", "--quiet")

#: Aggregators that end a run in its third round.
PLUGIN = """
import os, signal
from retexo_fl.errors import TrainingDiverged
from retexo_fl.federation.aggregators import WeightedMean

class Diverging(WeightedMean):
    rounds = 0

    def finish(self):
        Diverging.rounds += 1
        if Diverging.rounds == 3:
            self.end()
        return super().finish()

    def end(self):
        raise TrainingDiverged("round 3: the sum of all gradients is not finite")

class Early(WeightedMean):
    def finish(self):
        raise TrainingDiverged("round 1: not finite")

class Dying(Diverging):
    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)
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
        out, err = process.communicate(timeout=200)
    return Ended(code=process.returncode, out=out, err=err)


def status_of(path: Path) -> dict[str, str | None]:
    status: dict[str, str | None] = json.loads((path / "status.json").read_text())
    return status


def test_interrupted_run_can_be_resumed_in_either_engine(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with started(tmp_path, *KEYS, "--engine", "flower", "--out", "run") as process:
        deadline = time.monotonic() + 120
        while not (path / "checkpoint.safetensors").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err == f"retexo: interrupted; go on with: retexo run --resume {path}\n"
    assert status_of(path) == {"state": "interrupted", "error": None}
    resumed = run(tmp_path, "--resume", "run", "--engine", "inline", "--quiet")
    assert resumed.code == 0, resumed.err
    assert run(tmp_path, *KEYS, "--out", "whole").code == 0
    assert model_bytes(path) == model_bytes(tmp_path / "whole")
    configurations = [(folder / "config.toml").read_text() for folder in (path, tmp_path / "whole")]
    assert configurations[0].replace('engine = "flower"', 'engine = "inline"') == configurations[1]


def test_a_run_is_replaced_once_the_new_one_has_begun(tmp_path: Path) -> None:
    few = (*KEYS[:-3], "--rounds", "2", "--engine", "flower", "--out", "run", "--overwrite")
    assert run(tmp_path, *KEYS, "--engine", "inline", "--out", "run").code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.*")}
    told = run(tmp_path, *few, "--aggregator", "ending:Early")
    assert told.code == 1
    assert f"the run that was in {tmp_path / 'run'} before is there as it was" in told.err
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*.*")} == before
    shown = run(tmp_path, *few)
    assert shown.code == 0, shown.err
    # All of the new run's rounds are shown, and none of the old one's.
    assert re.findall(r"stage 0: round (\d+)/(\d+)", shown.err) == [("1", "2"), ("2", "2")]
    assert not [*tmp_path.glob(".run*")]


@pytest.mark.parametrize("engine", ["inline", "flower"])
def test_failure_of_the_training_is_told_by_name(tmp_path: Path, engine: str) -> None:
    failing = ("--aggregator", "ending:Diverging", "--engine", engine, "--out", "run")
    told = sentence(run(tmp_path, *KEYS, *failing), code=1)
    assert re.match("round 3: .*gradients.*not finite; ", told)
    assert told.endswith(f": retexo run --resume {tmp_path / 'run'} --allow-plugins")
    status = status_of(tmp_path / "run")
    assert status["state"] == "failed"
    assert re.match("TrainingDiverged: round 3: .*gradients.*not finite$", status["error"] or "")


def test_failure_of_flower_itself_points_to_its_log(tmp_path: Path) -> None:
    dying = ("--aggregator", "ending:Dying", "--engine", "flower", "--out", "run")
    path = tmp_path / "run"
    told = sentence(run(tmp_path, *KEYS, *dying), code=1)
    assert re.match(rf"flwr-simulation .*\(signal 9\).*log: {path / 'flower.log'}\)", told)
    assert told.endswith(f": retexo run --resume {path} --allow-plugins")
    assert (path / "flower.log").read_text().startswith("flwr-simulation ")
    status = status_of(path)
    assert status["state"] == "failed"
    assert re.match(r"EngineFailed: flwr-simulation .*\(signal 9\)$", status["error"] or "")
