"""Which cohorts a client was added up in: a file that only grows, which no later roster forgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from retexo_fl.agent.line_log import LineLog
from retexo_fl.channels.owner_words import past_in, past_told
from retexo_fl.errors import AgreementError, CheckpointError
from retexo_fl.masking.past_cohorts import PastCohort

_NAME: Final = "cohorts.jsonl"


class CohortLog:
    """One line of JSON for each version of the client's cohort.

    Args:
        state: The agent's folder.
    """

    def __init__(self, state: Path) -> None:
        self._log = LineLog(state / _NAME)

    def read(self) -> tuple[PastCohort, ...]:
        """Return all versions, the first one first.

        Raises:
            CheckpointError: The file cannot be read, or is damaged.
        """
        return tuple(map(self._version, self._log.read()))

    def add(self, version: PastCohort) -> None:
        """Add a version, on the disk when this returns.

        Raises:
            CheckpointError: It could not be written.
        """
        self._log.add(past_told(version))

    def _version(self, line: Any) -> PastCohort:
        try:
            return past_in(line)
        except AgreementError as error:
            raise CheckpointError(
                f"{self._log.path}: is damaged; expected the cohorts that this client was added up "
                "in"
            ) from error
