"""The processes that come from this one: list them, start them, end every one of them.

And the variables that Flower's processes get.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: Variables of every process of Flower that is started here.
FLOWER_SETTINGS: Final = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
    # Logs are files that are followed, and read when a process dies: no line waits in a buffer.
    "PYTHONUNBUFFERED": "1",
}
_ON_LINUX: Final = sys.platform == "linux"
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_BETWEEN_KILLS_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One row of the process table.

    Attributes:
        parent: Id of the parent.
        started: Time of the start, in the system's own words: with the id it names a process.
        dead: It has ended and waits to be reaped.
        wait_status: How it ended, as ``waitpid`` returns it; 0 where that is not known.
    """

    parent: int
    started: str
    dead: bool
    wait_status: int = 0


def process_table() -> dict[int, Process]:
    """Return all processes by id."""
    if not _ON_LINUX:
        return _process_table_of_ps()
    table = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a thousand names, every second
        if not name.isdigit():
            continue
        try:
            text = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        fields = text[text.rindex(")") + 2 :].split()
        table[int(name)] = Process(
            parent=int(fields[1]),
            started=fields[19],
            dead=fields[0] in "ZX",
            wait_status=int(fields[49]),
        )
    return table


def _process_table_of_ps() -> dict[int, Process]:
    listing = subprocess.run(
        ["/bin/ps", "-A", "-o", "pid=,ppid=,stat=,lstart="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = (line.split(None, 3) for line in listing.splitlines())
    return {
        int(pid): Process(parent=int(parent), started=started, dead="Z" in state)
        for pid, parent, state, started in rows
    }


def children_of(table: dict[int, Process], parents: set[int]) -> set[int]:
    """Return the ids of the processes whose parent is one of ``parents``."""
    return {pid for pid, process in table.items() if process.parent in parents}


def descendants_of(table: dict[int, Process], root: int) -> set[int]:
    """Return the ids of all processes under ``root``, without it."""
    found: set[int] = set()
    newest = {root}
    while newest := children_of(table, newest) - found:
        found |= newest
    return found


def how(exit_code: int) -> str:
    """Say in words how a process ended."""
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (Linux)."""
    if _ON_LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass(slots=True, kw_only=True)
class Household:
    """Every process that came from this one.

    Attributes:
        seen: When each descendant started, by id, as of the last look.
        ended: Exit code of each child that was reaped; negative for a signal.
    """

    seen: dict[int, str] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    _kept: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def spawn(self, command: list[str], log: Path) -> int:
        """Start a child that writes to ``log``, and return its id."""
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - Flower's own programs, and no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # This process has one thread, so the hook is safe.
                preexec_fn=_die_with_parent if _ON_LINUX else None,  # noqa: PLW1509
            )
        self._kept.append(process)
        return process.pid

    def reap(self) -> bool:
        """Collect the children that ended; return whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.ended[pid] = os.waitstatus_to_exitcode(status)

    def look(self) -> dict[int, Process]:
        """Return the process table and remember all descendants in it."""
        table = process_table()
        for pid in descendants_of(table, os.getpid()):
            self.seen[pid] = table[pid].started
        return table

    def end_all(self, within_s: float) -> list[int]:
        """Kill all descendants; return the ids of those that did not go."""
        deadline = time.monotonic() + within_s
        while True:
            children_left = self.reap()
            left = _still_there(self.look(), self.seen)
            if not left and not children_left:
                return []
            _kill(left)
            if time.monotonic() > deadline:
                return left
            time.sleep(_BETWEEN_KILLS_S)

    def write(self, record: Path) -> None:
        """Write down what was seen, for a process that outlives this one."""
        partial = record.with_suffix(".partial")
        partial.write_text(json.dumps(self.seen), encoding="utf-8")
        partial.replace(record)


def end_recorded(record: Path, within_s: float) -> list[int]:
    """Kill the processes of a written record and their descendants.

    For the case that the process which wrote it was killed and could not do it.

    Args:
        record: File of :meth:`Household.write`; may be absent, then there is nothing to end.
        within_s: Bound on the time this takes.

    Returns:
        The ids of the processes that did not go.
    """
    if not record.exists():
        return []
    seen = {int(pid): at for pid, at in json.loads(record.read_text(encoding="utf-8")).items()}
    deadline = time.monotonic() + within_s
    while True:
        table = process_table()
        for pid in _still_there(table, seen):
            seen |= {child: table[child].started for child in descendants_of(table, pid)}
        left = [pid for pid in _still_there(table, seen) if not table[pid].dead]
        if not left or time.monotonic() > deadline:
            return left
        _kill(left)
        time.sleep(_BETWEEN_KILLS_S)


def _still_there(table: dict[int, Process], seen: dict[int, str]) -> list[int]:
    return [pid for pid, at in seen.items() if pid in table and table[pid].started == at]


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
