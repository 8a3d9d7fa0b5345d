"""One program of a deployment: start it, kill it, ask how it is, read what it said."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from retexo_fl.simulation.flower_processes import descendants_of, process_table
from tests.support.host import Host

Command = list[str | Path]
_START_S = 300.0
_END_S = 60.0
_LOOK_S = 0.1


@dataclass(slots=True, kw_only=True)
class Part:
    """One program of the federation.

    Attributes:
        host: Where it runs.
        command: What is started.
        environment: With these variables.
        log: What it said, over all its lives.
        process: Its present life; None before the first.
    """

    host: Host
    command: Command
    environment: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    _born_at: int = 0

    def start(self) -> None:
        """Start it; it must not be running."""
        assert self.process is None or self.process.poll() is not None, "it runs already"
        self._born_at = len(self.said())
        self.process = self.host.popen(
            self.command, env=self.environment, cwd=self.log.parent, log=self.log
        )

    @property
    def pid(self) -> int:
        """Id of its process."""
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """Kill it with everything under it, as systemd ends what is left of a dead service."""
        assert self.process is not None
        family = {self.pid} | descendants_of(process_table(), self.pid)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=_END_S)

    def stop(self, within_s: float = _END_S) -> int:
        """Ask it to end, and return its exit code; fail the test if it stays."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=within_s)

    def said(self) -> str:
        """Return its log."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def said_now(self) -> str:
        """Return its log since its present start."""
        return self.said()[self._born_at :]

    def is_online(self) -> bool:
        """Say whether a node has been taken in by the SuperLink since its present start."""
        said = self.said_now()
        return "SuperNode ID: " in said or "superlink connected=" in said


def wait_until(
    condition: Callable[[], bool],
    failure: str,
    *,
    part: Part | None = None,
    within_s: float = _START_S,
) -> None:
    """Wait for a condition; fail the test when the time is over or the part has ended."""
    deadline = time.monotonic() + within_s
    while not condition():
        said = "" if part is None else part.said()[-3000:]
        ended = part is not None and part.process is not None and part.process.poll() is not None
        assert not ended, f"{failure}: it ended\n{said}"
        assert time.monotonic() < deadline, f"{failure} within {within_s:g} s\n{said}"
        time.sleep(_LOOK_S)


def connects(path: Path) -> bool:
    """Say whether somebody listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
