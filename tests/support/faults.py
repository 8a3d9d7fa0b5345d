"""What goes wrong with machines, at a chosen moment: processes killed, links cut, disks full."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retexo_fl.agent.remote import ask_agent
from retexo_fl.errors import RetexoError
from tests.support.deployment import Deployment
from tests.support.part import Part
from tests.support.runs import events_of

_LOOK_S = 0.02
_STATUS_S = 10.0
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallDisk:
    """A disk of a few megabytes; see :func:`small_disk`."""

    path: Path

    def fill(self, *, left_bytes: int) -> None:
        """Leave so much room and no more."""
        while (surplus := self._free_bytes() - left_bytes) > _PAGE_BYTES:
            with self._filler.open("ab") as file:
                file.write(bytes(surplus))

    def make_room(self) -> None:
        """Remove what :meth:`fill` wrote."""
        self._filler.unlink()

    @property
    def _filler(self) -> Path:
        return self.path / "filler"

    def _free_bytes(self) -> int:
        free = os.statvfs(self.path)
        return free.f_bavail * free.f_frsize


@contextmanager
def small_disk(path: Path, *, megabytes: int) -> Generator[SmallDisk]:
    """Mount a disk of its own at ``path``; programs that start meanwhile see it, too."""
    path.mkdir()
    options = ("-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "tmpfs", str(path))
    subprocess.run(["mount", *options], check=True, timeout=20)
    try:
        yield SmallDisk(path=path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """The agents of a federation, looked at often, and killed at a moment."""

    federation: Deployment

    def status(self, client: int) -> Mapping[str, Any]:
        """Return an agent's status, without the start of a program; empty while it is away."""
        socket = self.federation.client_folder(client) / "agent.sock"
        try:
            return ask_agent(socket, "status", timeout_s=_STATUS_S)
        except RetexoError:
            return {}

    def job(self, client: int) -> Mapping[str, Any]:
        """Return what an agent says of its training; empty while it has none."""
        jobs = self.status(client).get("jobs", [])
        return jobs[0] if jobs else {}

    def frames(self, client: int) -> dict[str, int]:
        """Return the frames' bytes that an agent has ``sent`` and ``received`` since it started."""
        channels = [
            channel
            for peer in self.status(client).get("peers", [])
            for channel in peer.get("channels", {}).values()
        ]
        return {
            way: sum(channel[f"frame_bytes_{way}"] for channel in channels)
            for way in ("sent", "received")
        }

    def kept_bytes(self, client: int) -> int:
        """Return how much of its peers' blocks a client has on its disk."""
        inbox = self.federation.client_folder(client) / "state" / "depot" / "inbox"
        return sum(path.stat().st_size for path in inbox.glob("*/*/*.frames"))

    def kill_in_round(self, client: int, stage: int, *, within_s: float) -> str:
        """Kill an agent while it computes a round of a stage; return what its log calls the round.

        It is held first, and let go again if the round had been answered meanwhile.
        """
        part = self.federation[f"agent-{client}"]
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            job = self.job(client)
            computes = job.get("state") == "computing" and job["message"] == "train_layer"
            if computes and job["stage"] == stage:
                # An attempt before may have had the same round.
                words = f"attempt={job['attempt']} stage={stage} round={job['round']}"
                os.kill(part.pid, signal.SIGSTOP)
                if not answered(part, words):
                    part.kill()
                    return words
                os.kill(part.pid, signal.SIGCONT)
            time.sleep(_LOOK_S)
        raise AssertionError(f"agent {client} was not seen in a round of stage {stage}")


def answered(agent: Part, words: str) -> int:
    """Return how often an agent has answered a round, as its log says and calls it."""
    return agent.said().count(f" {words} message=train_layer ")


def rounds_of(run: Path) -> list[tuple[int, int]]:
    """Return stage and round of all rounds that a run has completed."""
    if not (run / "metrics.jsonl").exists():
        return []
    return [(item["stage"], item["round"]) for item in events_of(run) if item["event"] == "round"]


def wait_for(
    condition: Callable[[], bool], what: str, *, command: Part, within_s: float = 300.0
) -> None:
    """Look many times a second, as long as the command runs that is to bring it about."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert command.process is not None
        assert command.process.poll() is None, f"{what}: the run ended\n{command.said()[-3000:]}"
        assert time.monotonic() < deadline, f"{what}: not in {within_s:g} s\n{command.said()}"
        time.sleep(_LOOK_S)


def end_of_command(command: Part, *, within_s: float) -> tuple[int, list[str]]:
    """Wait until a command has ended; return its exit code and the lines it printed."""
    assert command.process is not None
    code = command.process.wait(timeout=within_s)
    return code, command.said_now().splitlines()


def kill_alone(part: Part) -> None:
    """Kill a process and leave what it started to itself (SIGKILL)."""
    assert part.process is not None
    os.kill(part.pid, signal.SIGKILL)
    part.process.wait(timeout=20)
