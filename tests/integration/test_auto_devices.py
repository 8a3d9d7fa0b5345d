"""``devices = auto`` trains what ``cpu`` does, to the bit, whether or not workers come to help."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.additions.devices.training import auto_stage, trial
from retexo_fl.additions.devices.training.auto_stage import AutoStage, SpareDevices
from retexo_fl.additions.devices.training.trial import Trial
from retexo_fl.client import trainers
from tests.support.agents import assert_same_training
from tests.support.commands import environment
from tests.support.runs import train

pytestmark = [pytest.mark.system, pytest.mark.devices]

#: A batch of train nodes and one of validation nodes; two batches of both.
GAT = {"dataset": "synthetic:nodes=900,edges=3600,classes=3,features=8", "clients": 2}
SUMS = {"dataset": "synthetic:nodes=20000,edges=40000,classes=3,features=8", "clients": 1}


@pytest.mark.parametrize(
    "keys",
    [
        {**GAT, "model": "gat", "heads": 2},
        {**SUMS, "model": "sage", "split": "random-unstratified:0.5/0.1/0.4"},
    ],
)
def test_workers_that_come_in_the_midst_of_a_stage_change_no_bit(
    keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "cpu", **keys, hidden=8, rounds=20, devices="cpu")
    monkeypatch.setattr(trainers, "_LEAST_READ", 0)
    for name in ("_LEAST_LEFT_S", "_LEAST_LEFT_ROUNDS", "_LEAST_GAIN"):
        monkeypatch.setattr(trial, name, 0)
    # Rounds of milliseconds are no faster on workers, and over before these are there.
    monkeypatch.setattr(Trial, "shared_round", lambda self, seconds: False)
    monkeypatch.setattr(SpareDevices, "are_idle", lambda self: True)
    monkeypatch.setattr(auto_stage, "_main_can_be_imported", lambda: True)
    monkeypatch.setattr(AutoStage, "_open", _open_and_wait(AutoStage._open))
    train(tmp_path / "auto", **keys, hidden=8, rounds=20, devices="auto")
    lines = (tmp_path / "auto" / "devices.log").read_text().splitlines()
    assert all("tries=cpu:0,cpu:1" in line for line in lines if "tries" in line)
    # Shares that change on a busy machine are told beside that.
    stages = {line.split(" round=")[0].split(" ", 1)[1] for line in lines if " tries=" in line}
    assert stages == {
        f"devices client={client} stage={stage}"
        for client in range(keys["clients"])
        for stage in (0, 1)
    }
    assert_same_training(tmp_path / "auto", tmp_path / "cpu")


def _open_and_wait(open_devices: Callable[[AutoStage, int], None]) -> Callable[..., None]:
    def opened(stage: AutoStage, number: int) -> None:
        open_devices(stage, number)
        if stage._opening is not None:
            stage._opening.join()

    return opened


def test_a_short_training_by_default_does_not_load_the_room(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from retexo_fl.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print([name for name in sys.modules if 'additions.devices' in name])\n"
    )
    keys = ("--model", "gat", "--clients", "2", "--rounds", "2", "--hidden", "8", "--quiet")
    done = subprocess.run(
        [sys.executable, "-c", script, "run", *keys, "--out", str(tmp_path / "run")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert 'devices = "auto"' in (tmp_path / "run" / "config.toml").read_text()
    assert not (tmp_path / "run" / "devices.log").exists()
