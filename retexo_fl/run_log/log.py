"""``metrics.jsonl``: one line for each event of a run, in order, over all its attempts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from retexo_fl.errors import CheckpointError
from retexo_fl.files import force
from retexo_fl.run_log.events import Event, event_values
from retexo_fl.units import spans

#: Rounds of one stage: stage, first and last round.
RoundSpan = tuple[int, int, int]


class EventLog:
    """The file ``metrics.jsonl`` of a run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def size_bytes(self) -> int:
        """Present length of the file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, event: Event) -> None:
        """Write one line.

        Raises:
            CheckpointError: The file cannot be written.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event_values(event)) + "\n")
        except OSError as error:
            raise self._failed("written", error) from error

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
