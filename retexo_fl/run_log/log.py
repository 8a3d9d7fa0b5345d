"""``metrics.jsonl``: one line for each event of a run, in order, over all its attempts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from retexo_fl.errors import CheckpointError
from retexo_fl.files import force
from retexo_fl.plugins import mark_outside
from retexo_fl.run_log.events import Event
from retexo_fl.run_log.json_form import to_json
from retexo_fl.units import spans

#: Rounds of one stage: stage, first and last round.
RoundSpan = tuple[int, int, int]


def line_of(event: Event) -> str:
    """Return an event as a line of JSON."""
    return json.dumps({"event": event.name, **to_json(event)}) + "\n"


class EventLog:
    """The file ``metrics.jsonl`` of a run directory, and who is handed its events.

    Attributes:
        path: Where it is now: a run that replaces another moves.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun_s = time.monotonic()
        self._listeners: list[Callable[[Event], None]] = []

    @property
    def size_bytes(self) -> int:
        """Present length of the file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Have ``listener`` called with every event from now on."""
        self._listeners.append(listener)

    def record(self, event: Event) -> None:
        """Write one line, with the time since this attempt began, and call the listeners.

        Raises:
            CheckpointError: The file cannot be written.
        """
        event = replace(event, time_s=round(time.monotonic() - self._begun_s, 4))
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line_of(event))
        except OSError as error:
            raise self._failed("written", error) from error
        try:
            for listener in self._listeners:
                listener(event)
        except Exception as error:
            mark_outside(error)
            raise

    def force(self) -> None:
        """Wait until every line so far is on the disk.

        A checkpoint names the length of this file, so the lines must not be lost where the
        checkpoint is not.

        Raises:
            CheckpointError: The disk is full, or failed.
        """
        try:
            force(self.path)
        except OSError as error:
            raise self._failed("written", error) from error

    def cut_back(self, size_bytes: int) -> int:
        """Cut the file to whole lines within its first ``size_bytes``; return what is left.

        Raises:
            CheckpointError: The file cannot be written.
        """
        try:
            with self.path.open("a+b") as file:
                file.seek(0)
                kept = file.read(size_bytes).rpartition(b"\n")
                left_bytes = len(kept[0]) + len(kept[1])
                file.truncate(left_bytes)
        except OSError as error:
            raise self._failed("cut", error) from error
        return left_bytes

    def lacking(self, rounds: Mapping[int, int]) -> list[RoundSpan]:
        """Return which rounds have no line.

        Args:
            rounds: By stage, the number of rounds that should have one each, from 1.
        """
        found = {stage: set[int]() for stage in rounds}
        with suppress(OSError), self.path.open("rb") as file:
            for line in file:
                with suppress(ValueError, LookupError, TypeError):
                    event = json.loads(line)
                    if event["event"] == "round":
                        found[event["stage"]].add(event["round"])
        return [
            (stage, first, last)
            for stage, count in sorted(rounds.items())
            for first, last in spans(sorted({*range(1, count + 1)} - found[stage]))
        ]

    def _failed(self, what: str, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.path}: could not be {what} ({error.strerror})")
