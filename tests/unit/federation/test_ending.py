"""What a ServerApp notes before Flower ends it: here a handler stands for Flower's."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
from flwr.supercore.exit.exit_handler import trigger_exit_handlers

from retexo_fl.federation import ending
from retexo_fl.federation.ending import noted_ending

#: A ServerApp's process: notes, and ends as Flower does five seconds after its handler was called.
_APP = """
import os, signal, sys, time
from pathlib import Path
from retexo_fl.federation.ending import noted_ending

def handler(number, frame):
    os._exit(7)

handler.__module__ = sys.argv[2]
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, handler)
with noted_ending(Path(sys.argv[1]).write_text):
    print("trains", flush=True)
    time.sleep(60)
"""


def begun(note: Path, module: str = "flwr.supercore.exit") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _APP, str(note), module], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "trains\n"
    return process


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGINT, "`flwr stop`"), (signal.SIGTERM, "SIGTERM")]
)
def test_reason_is_noted_before_flower_ends_its_app(
    tmp_path: Path, number: signal.Signals, reason: str
) -> None:
    with begun(tmp_path / "note") as process:
        process.send_signal(number)
        assert process.wait(20) == 7
    assert reason in (tmp_path / "note").read_text()


def test_handlers_of_others_are_left_alone(tmp_path: Path) -> None:
    with begun(tmp_path / "note", "another.program") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 7
    assert not (tmp_path / "note").exists()


def test_what_started_a_process_of_others_is_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert threading.current_thread() is threading.main_thread()
    looked_at: list[int] = []
    monkeypatch.setattr(ending, "_superlink_above", looked_at.append)
    with noted_ending(list[str]().append):
        pass
    assert looked_at == []


@pytest.mark.parametrize("between", [False, True], ids=["SuperExec", "SuperLink above it"])
def test_an_app_whose_superlink_is_gone_says_so_without_a_signal(
    tmp_path: Path, between: bool
) -> None:
    note = tmp_path / "note"
    command = [sys.executable, "-c", _APP, str(note), "flwr.supercore.exit"]
    for _ in range(1 + between):
        parent = f"import subprocess; subprocess.Popen({command!r}).wait()"
        command = [sys.executable, "-c", parent, "flower-superlink"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trains\n"
        process.kill()
    deadline = time.monotonic() + 30
    while not note.exists() or not note.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert note.read_text().startswith("the SuperLink is gone")


def test_a_simulation_that_is_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, trains, ends = list[str](), threading.Event(), threading.Event()

    def app() -> None:
        with noted_ending(notes.append) as noted:
            trains.set()
            assert ends.wait(20)
        assert noted.reason == (notes[0] if notes else None)

    def simulated() -> None:
        trains.clear()
        ends.clear()
        thread = threading.Thread(target=app)
        thread.start()
        assert trains.wait(20)
        trigger_exit_handlers(run_before_force_exit=True)
        ends.set()
        thread.join()

    simulated()
    assert notes == []  # it is no program of Flower's
    monkeypatch.setitem(sys.modules, "flwr.simulation.app", ModuleType("app"))
    simulated()
    assert ["`flwr stop`" in note for note in notes] == [True]


def test_a_simulation_that_ended_by_itself_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setitem(sys.modules, "flwr.simulation.app", ModuleType("app"))

    def app() -> None:
        with noted_ending(notes.append):
            pass

    thread = threading.Thread(target=app)
    thread.start()
    thread.join()
    trigger_exit_handlers(run_before_force_exit=True)
    assert notes == []
