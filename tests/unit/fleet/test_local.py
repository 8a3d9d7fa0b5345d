"""``retexo fleet up`` and ``down``: what they refuse, and that nothing else is ended."""

from __future__ import annotations

import errno
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.errors import ConfigurationError
from retexo_fl.file_lock import locked_folder
from retexo_fl.fleet.description import Fleet, read_fleet
from retexo_fl.fleet.local import _local, bring_up, take_down
from retexo_fl.fleet.making import make_fleet
from retexo_fl.simulation.flower_processes import process_table
from tests.support.cli import CommandLine
from tests.support.short_paths import tmp_path
from tests.unit.fleet.test_new import write

__all__ = ["tmp_path"]


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


@pytest.fixture
def fleet(tmp_path: Path) -> tuple[Fleet, Path]:
    (tmp_path / "part").mkdir()
    tables = [
        {"count": 3, "host": "clinic-{client}", "part-here": "part", "agent": {"most-rounds": 9}}
    ]
    path = write(tmp_path / "FLEET.toml", client=tables, agent={"metrics": "127.0.0.1:9300"})
    folder = tmp_path / "clinics"
    make_fleet(read_fleet(path), folder)
    return read_fleet(path), folder


@pytest.mark.parametrize("reason", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_program_that_cannot_be_written_down_never_runs(
    fleet: tuple[Fleet, Path], monkeypatch: pytest.MonkeyPatch, reason: BaseException
) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(command: list[str], **others: Any) -> subprocess.Popen[bytes]:
        process = popen(command, **others)
        # Of what makes certificates and keys nothing is left.
        begun.extend([process] if others.get("start_new_session") else [])
        return process

    def fail(*_others: object, **_more: object) -> int:
        raise reason

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr("retexo_fl.fleet.local.write_whole", fail)
    with pytest.raises(type(reason)):
        bring_up(*fleet)
    (process,) = begun
    assert process.wait(20) != 0
    assert (fleet[1] / "local/logs/superlink.log").read_bytes() == b""


def test_only_one_process_starts_a_fleet(fleet: tuple[Fleet, Path]) -> None:
    with (
        locked_folder(fleet[1]),
        pytest.raises(ConfigurationError, match="another process is starting the fleet of .*clin"),
    ):
        bring_up(*fleet)
    assert not (fleet[1] / "local").exists()


def test_a_rehearsal_on_one_machine_serves_no_figures(fleet: tuple[Fleet, Path]) -> None:
    local = _local(fleet[0], fleet[1] / "local")
    assert [one.settings.metrics for one in local.clients] == [""] * 3
    assert [one.agent.get("metrics") for one in local.clients] == [None] * 3
    assert [one.settings.most_rounds for one in local.clients] == [9] * 3
    with pytest.raises(ConfigurationError, match="client 0: socket: .* expected at most 107"):
        _local(fleet[0], fleet[1] / ("l" * 80))


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
