"""Supervisor of Flower's processes: starts them, watches them, and leaves none of them behind.

It runs as a program of its own, on the standard library alone: the engine makes it the parent of
all of Flower. It adopts every process that Flower detaches (on Linux as their subreaper), and ends
them and removes their directory also when the process that asked for the run was killed: then its
standard input, the lifeline, closes.

Argument: an :class:`Assignment` as JSON. Standard output: an :class:`Outcome` as JSON. Standard
input: the lifeline.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from retexo_fl.errors import EngineFailed, Interrupted
from retexo_fl.simulation.flower_processes import (
    Household,
    Process,
    adopt_orphans,
    children_of,
    how,
)

CONNECTION: Final = "retexo"
RECORD: Final = "processes.json"
POLL_S: Final = 0.2
TABLE_EVERY_S: Final = 1.0
#: From the end of the simulation's process to the end of its log stream.
RESULT_GRACE_S: Final = 5.0
STATUS_TIMEOUT_S: Final = 60.0
KILL_TIMEOUT_S: Final = 10.0
START_ATTEMPTS: Final = 3
LOG_LINES: Final = 40
LOG_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What to run, as the engine wrote it."""

    directory: str
    superlink: str
    flwr: str
    bundle: str
    federation_config: str
    start_timeout_s: float

    def to_json(self) -> str:
        """Return the argument that the supervisor is started with."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the run ended: ``failure`` is empty when it completed.

    Attributes:
        failure: What happened, in one line or in Flower's words.
        log: The last lines of the logs.
        left: Ids of processes that could not be ended.
    """

    failure: str
    log: str
    left: list[int]


class Run:
    """One run in Flower's simulation, from the SuperLink's start to the run's end."""

    def __init__(self, assignment: Assignment, household: Household) -> None:
        self.assignment = assignment
        self.household = household
        self.directory = Path(assignment.directory)
        self.superlink_log = self.directory / "superlink.log"
        self.run_log = self.directory / "run.log"
        self.deadline = time.monotonic() + assignment.start_timeout_s
        self.superlink = 0
        self.superexecs: set[int] = set()
        self.simulations: set[int] = set()
        self._parent = os.getppid()
        self._next_look = 0.0
        self._table: dict[int, Process] = {}
        self._unwanted = False
        signal.signal(signal.SIGTERM, self._note_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _note_signal(self, _number: int, _frame: object) -> None:
        self._unwanted = True

    def execute(self) -> None:
        """Run to the end; anything but a completed run raises."""
        self._start_superlink()
        stream = self.household.spawn(
            [
                *(self.assignment.flwr, "run", self.assignment.bundle, CONNECTION, "--stream"),
                *("--federation-config", self.assignment.federation_config),
            ],
            self.run_log,
        )
        self._wait_for_simulation(stream)
        self._wait_for_end(stream)

    def _pause(self) -> None:
        readable, _, _ = select.select([0], [], [], POLL_S)
        if readable or self._unwanted or os.getppid() != self._parent:
            raise Interrupted
        self.household.reap()
        if time.monotonic() >= self._next_look:
            before, self._table = self._table, self.household.look()
            if before.keys() != self._table.keys():
                self.household.write(self.directory / RECORD)
            self._next_look = time.monotonic() + TABLE_EVERY_S
            self._recognise(before)

    def _recognise(self, before: dict[int, Process]) -> None:
        # Flower's chain: flower-superlink > flower-superexec > flwr-simulation > Ray. A process
        # that is there at two looks is one of them, not a helper of a moment.
        lasting = {pid for pid, process in self._table.items() if before.get(pid) == process}
        self.superexecs |= children_of(self._table, {self.superlink}) & lasting
        self.simulations |= children_of(self._table, self.superexecs) & lasting

    def _alive(self, pids: set[int]) -> bool:
        return any(pid in self._table and not self._table[pid].dead for pid in pids)

    def _require_daemon(self) -> None:
        if self.superlink in self.household.ended:
            raise EngineFailed(
                f"flower-superlink ended ({how(self.household.ended[self.superlink])})"
            )
        if self.superexecs and not self._alive(self.superexecs):
            raise EngineFailed("flower-superexec ended")

    def _require_time(self, missing: str) -> None:
        if time.monotonic() > self.deadline:
            raise EngineFailed(f"{missing} within {self.assignment.start_timeout_s:g} s")

    def _start_superlink(self) -> None:
        for attempt in range(1, START_ATTEMPTS + 1):
            port = free_port()
            self._write_connection(port)
            self.superlink = self.household.spawn(
                [
                    *(self.assignment.superlink, "--insecure", "--simulation"),
                    *("--host", "127.0.0.1", "--port", str(port)),
                ],
                self.superlink_log,
            )
            while self.superlink not in self.household.ended:
                if answers(port):
                    return
                self._require_time("flower-superlink did not answer")
                self._pause()
            # Another process may have taken the port since it was found free.
            if attempt == START_ATTEMPTS or "in use" not in tail(self.superlink_log, 20).lower():
                self._require_daemon()

    def _write_connection(self, port: int) -> None:
        home = Path(os.environ["FLWR_HOME"])
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n',
            encoding="utf-8",
        )

    def _wait_for_simulation(self, stream: int) -> None:
        while not self.simulations and self.household.ended.get(stream) != 0:
            # `flwr run` ends because the SuperLink does: that is reported first.
            self._require_daemon()
            if code := self.household.ended.get(stream):
                raise EngineFailed(f"flwr run ended ({how(code)}) before the run started")
            self._require_time("Flower's simulation did not start")
            self._pause()

    def _wait_for_end(self, stream: int) -> None:
        gone_at = float("inf")
        next_query = 0.0
        while True:
            self._pause()
            self._require_daemon()
            now = time.monotonic()
            gone_at = float("inf") if self._alive(self.simulations) else min(gone_at, now)
            silent = now > gone_at + RESULT_GRACE_S
            if (stream in self.household.ended or silent) and now > next_query:
                status, details = self._query_status()
                if status == "finished:completed":
                    return
                if status.startswith("finished"):
                    raise EngineFailed(f"the run {status.removeprefix('finished:')}: {details}")
                if silent:
                    raise EngineFailed(f"flwr-simulation ended without a result{self._cause()}")
                next_query = time.monotonic() + RESULT_GRACE_S

    def _cause(self) -> str:
        statuses = [self._table[pid].wait_status for pid in self.simulations & self._table.keys()]
        codes = [os.waitstatus_to_exitcode(status) for status in statuses]
        return f" ({how(codes[0])})" if codes else ""

    def last_words(self) -> str:
        """Return the end of the more useful log: the run's, if the SuperLink lived."""
        words = tail(self.run_log, LOG_LINES)
        if not words or self.superlink in self.household.ended:
            words = "\n".join(filter(None, (words, tail(self.superlink_log, LOG_LINES))))
        return words

    def _query_status(self) -> tuple[str, str]:
        """Return the run's status and its details, from ``flwr list``."""
        answer = self.directory / "status.json"
        answer.unlink(missing_ok=True)
        query = self.household.spawn(
            [self.assignment.flwr, "list", CONNECTION, "--format", "json"], answer
        )
        deadline = time.monotonic() + STATUS_TIMEOUT_S
        while query not in self.household.ended and time.monotonic() < deadline:
            self._pause()
        text = answer.read_text(encoding="utf-8", errors="replace")
        try:
            run = json.loads(text)["runs"][0]
            return str(run["status"]), str(run["status-details"])
        except (ValueError, LookupError, TypeError):
            return "unknown", text


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Return whether a SuperLink answers on the port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def tail(log: Path, lines: int) -> str:
    """Return the last lines of a log that hold text, without colours."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        text = re.sub(r"\x1b\[[0-9;]*m", "", file.read().decode(errors="replace"))
    told = [line.rstrip() for line in text.splitlines() if line.strip(" ~^")]
    return "\n".join(told[-lines:])


def main() -> None:
    """Do one run, end everything, report."""
    adopt_orphans()
    household = Household()
    run = Run(Assignment(**json.loads(sys.argv[1])), household)
    failure = ""
    try:
        run.execute()
    except EngineFailed as error:
        failure = str(error)
    except Interrupted:
        failure = "the run was stopped"
    finally:
        left = household.end_all(KILL_TIMEOUT_S)
        log = run.last_words()
        shutil.rmtree(run.directory, ignore_errors=True)
    sys.stdout.write(json.dumps(asdict(Outcome(failure=failure, log=log, left=left))))


if __name__ == "__main__":
    main()
