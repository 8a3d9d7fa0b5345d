"""``retexo fleet up`` and ``down``: what they refuse, and that nothing else is ended."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from retexo_fl.errors import ConfigurationError
from retexo_fl.fleet.local import take_down
from retexo_fl.simulation.flower_processes import process_table
from tests.support.cli import CommandLine
from tests.unit.fleet.test_new import write


def write_down(folder: Path, process: subprocess.Popen[bytes], started: str) -> None:
    (folder / "local").mkdir(exist_ok=True)
    told = [{"name": "superlink", "pid": process.pid, "started": started}]
    (folder / "local/processes.json").write_text(json.dumps(told))


def test_only_what_was_started_is_ended(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            # Another process has the number of one that ended.
            write_down(tmp_path, process, "1")
            assert take_down(tmp_path) == []
            assert process.poll() is None
            write_down(tmp_path, process, process_table()[process.pid].started)
            assert take_down(tmp_path) == ["superlink"]
            assert process.wait(10) == -15
        finally:
            process.kill()
    assert take_down(tmp_path) == []
    (tmp_path / "local/processes.json").write_text("[{}]")
    with pytest.raises(ConfigurationError, match="is damaged; expected what retexo fleet up wrote"):
        take_down(tmp_path)


def test_what_cannot_come_up_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    retexo = CommandLine(capsys)
    path = write(tmp_path / "FLEET.toml")
    said = retexo.refused("fleet", "up", path, "--local")
    assert "clinics: no fleet; expected what retexo fleet new made" in said
    retexo.done("fleet", "new", path)
    assert "up: missing --local; expected it" in retexo.refused("fleet", "up", path)
    said = retexo.refused("fleet", "up", tmp_path / "clinics", "--local")
    assert "is a folder; expected the fleet's file" in said
    said = retexo.refused("fleet", "up", path, "--local")
    assert "client 0: part-here: missing; expected the folder of its part" in said
    assert not (tmp_path / "clinics" / "local").exists()
    assert retexo.done("fleet", "down", path) == "nothing runs\n"
