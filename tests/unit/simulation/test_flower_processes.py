"""The household finds and ends every process that came from it, also the detached ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retexo_fl.simulation.flower_processes import (
    Process,
    _process_table_of_ps,
    children_of,
    descendants_of,
    end_recorded,
    how,
    process_table,
)

ROOT = Path(__file__).resolve().parents[3]

# A child, a grandchild in a session of its own, and one whose parents have both ended.
HOUSEHOLD = """
import os, sys, time
from pathlib import Path
from retexo_fl.simulation.flower_processes import Household, adopt_orphans, descendants_of
adopt_orphans()
home = Household()
log = Path(sys.argv[1])
home.spawn(["sh", "-c", "setsid sleep 300 & setsid sh -c 'sleep 301 & exit' ; sleep 302"], log)
failing = home.spawn(["sh", "-c", "echo told; exit 3"], log)
deadline = time.monotonic() + 20
while failing not in home.ended and time.monotonic() < deadline:
    home.reap()
    time.sleep(0.05)
while len(home.seen) < 4 and time.monotonic() < deadline:
    home.look()
    time.sleep(0.05)
table = home.look()
alive = [pid for pid in descendants_of(table, os.getpid()) if not table[pid].dead]
print(home.ended[failing], *sorted(alive))
print(home.end_all(10.0))
"""


def _row(parent: int) -> Process:
    return Process(parent=parent, started="1", dead=False)


def test_descendants_of_walks_all_generations() -> None:
    table = {1: _row(0), 2: _row(1), 3: _row(2), 4: _row(3), 5: _row(1), 6: _row(5)}
    assert children_of(table, {2, 5}) == {3, 6}
    assert descendants_of(table, 2) == {3, 4}
    assert descendants_of(table, 1) == {2, 3, 4, 5, 6}
    assert descendants_of(table, 4) == set()


def test_process_table_knows_this_process_and_a_dead_child() -> None:
    child = subprocess.Popen(["sh", "-c", "exit 3"])
    deadline = time.monotonic() + 20
    while not (row := process_table()[child.pid]).dead and time.monotonic() < deadline:
        time.sleep(0.02)
    child.wait()
    assert row.parent == os.getpid()
    assert row.dead
    assert not process_table()[os.getpid()].dead
    if sys.platform == "linux":
        assert os.waitstatus_to_exitcode(row.wait_status) == 3


@pytest.mark.skipif(not Path("/bin/ps").exists(), reason="/bin/ps is not installed")
def test_process_table_of_ps_agrees_on_parents() -> None:
    row = _process_table_of_ps()[os.getpid()]
    assert row.parent == os.getppid()
    assert not row.dead
    assert row.started


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux only")
def test_household_ends_detached_and_orphaned_processes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    answer = subprocess.run(
        [sys.executable, "-c", HOUSEHOLD, str(log)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    ).stdout.splitlines()
    code, *pids = map(int, answer[0].split())
    assert code == 3
    # A shell that outlives its child by a moment adds "Killed".
    assert log.read_text(encoding="utf-8").splitlines()[0] == "told"
    assert len(pids) == 4  # sh, and three times sleep
    assert answer[1] == "[]"
    assert not set(pids) & process_table().keys()


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux ends by itself")
def test_end_recorded_ends_what_a_killed_household_left(tmp_path: Path) -> None:
    record = tmp_path / "processes.json"
    code = HOUSEHOLD[: HOUSEHOLD.index("table =")] + (
        "from signal import SIGKILL\nhome.write(Path(sys.argv[2]))\nos.kill(os.getpid(), SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "log"), str(record)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=500,
        check=False,
    )
    assert killed.returncode == -9
    seen = {int(pid): at for pid, at in json.loads(record.read_text(encoding="utf-8")).items()}
    table = process_table()
    left = [pid for pid, at in seen.items() if pid in table and table[pid].started == at]
    assert len(left) >= 2  # the detached ones: the others die with their parent
    assert end_recorded(record, 10.0) == []
    table = process_table()
    assert all(table[pid].dead for pid in left if pid in table)


def test_end_recorded_without_a_record_ends_nothing(tmp_path: Path) -> None:
    assert end_recorded(tmp_path / "absent.json", 1.0) == []


def test_how_names_signals_and_exit_codes() -> None:
    assert how(-9) == "signal 9"
    assert how(2) == "exit code 2"
