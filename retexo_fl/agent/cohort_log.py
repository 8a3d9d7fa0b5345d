"""Which cohorts a client was added up in: a file that only grows, which no later roster forgets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from retexo_fl.channels.owner_words import past_in, past_told
from retexo_fl.errors import AgreementError, CheckpointError
from retexo_fl.masking.past_cohorts import PastCohort

_NAME: Final = "cohorts.jsonl"


class CohortLog:
    """One line of JSON for each version of the client's cohort (mode 0600).

    Args:
        state: The agent's folder.
    """

    def __init__(self, state: Path) -> None:
        self._path = state / _NAME

    def read(self) -> tuple[PastCohort, ...]:
        """Return all versions, the first one first.

        Raises:
            CheckpointError: The file cannot be read, or is damaged.
        """
        return tuple(map(self._version, self._content().splitlines()))

    def add(self, version: PastCohort) -> None:
        """Add a version, on the disk when this returns.

        Raises:
            CheckpointError: It could not be written.
        """
        content = self._content()
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                # What a power cut left of a line was not answered under.
                file.truncate(len(content))
                file.seek(len(content))
                file.write(json.dumps(past_told(version)).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise CheckpointError(
                f"{self._path}: could not be written ({error.strerror})"
            ) from error

    def _content(self) -> bytes:
        """Return the whole lines."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise CheckpointError(f"{self._path}: cannot be read ({error.strerror})") from error
        return content[: content.rfind(b"\n") + 1]

    def _version(self, line: bytes) -> PastCohort:
        try:
            known: Any = json.loads(line)
            return past_in(known)
        except (ValueError, AgreementError) as error:
            raise CheckpointError(
                f"{self._path}: is damaged; expected the cohorts that this client was added up in"
            ) from error
