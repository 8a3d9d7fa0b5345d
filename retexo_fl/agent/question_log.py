"""Which questions about a part were answered, over all jobs and starts; how many there may be."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retexo_fl.client.api import asks_sums
from retexo_fl.errors import CheckpointError, LocalProtocolError
from retexo_fl.line_log import LineLog, of_line
from retexo_fl.units import counted

if TYPE_CHECKING:
    from retexo_fl.agent import wire

_NAME: Final = "questions.jsonl"
_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One question that was answered.

    Attributes:
        at: Unix time.
        part: 16 hex digits that name the part.
        job: Of the question, likewise ``attempt``, ``stage`` and ``round``.
        question: Its name.
        nodes: Of an evaluation, ``validation`` or ``test``; else empty.
        masked: Whether only a sum over clients can be read.
        identity: 16 hex digits, of the whole question with its weights.
    """

    at: float
    part: str
    job: str
    attempt: int
    stage: int
    round: int
    question: str
    nodes: str
    masked: bool
    identity: str


class QuestionLog:
    """The questions that were answered about one part, among all of the agent's.

    Those count whose answers are sums over its nodes; all others have sizes and bytes, or go to
    peers. The same question counts once: a repeated one has the same answer.

    Args:
        state: The agent's folder.
        part: Digest of the part.
        most: How many questions it answers.
    """

    def __init__(self, state: Path, part: bytes, most: int) -> None:
        self.most = most
        self.part = part.hex()[:_DIGITS]
        self._log = LineLog(state / _NAME)
        self._known = {found.identity for found in self.read() if found.part == self.part}

    @property
    def count(self) -> int:
        """How many were answered about the part."""
        return len(self._known)

    def read(self) -> list[Answered]:
        """Return all that were answered, about whatever part, the first one first.

        Raises:
            CheckpointError: The log cannot be read, or is damaged.
        """
        try:
            return [of_line(Answered, line) for line in self._log.read()]
        except ValueError as error:
            raise CheckpointError(
                f"{self._log.path}: is damaged; expected the questions that this agent answered"
            ) from error

    def check(self, request: wire.Request, *, client: int) -> None:
        """Refuse a question that is one too many.

        Raises:
            LocalProtocolError: It is.
        """
        if not asks_sums(request.asked) or _identity(request) in self._known:
            return
        if self.count >= self.most:
            raise LocalProtocolError(
                f"client {client}: its part has answered {counted(self.count, 'question')} of all "
                f"jobs; expected at most {self.most} (most-questions in its agent.toml)"
            )

    def enter(self, request: wire.Request, *, client: int, masked: bool) -> None:
        """Add a question, on the disk when this returns: its answer may go now.

        Args:
            request: That was answered.
            client: By which client.
            masked: Whether only a sum over clients can be read.

        Raises:
            LocalProtocolError: As :meth:`check`.
            CheckpointError: It could not be written.
        """
        identity = _identity(request)
        if not asks_sums(request.asked) or identity in self._known:
            return
        self.check(request, client=client)
        ticket = request.ticket
        found = Answered(
            at=time.time(),
            part=self.part,
            job=ticket.job,
            attempt=ticket.attempt,
            stage=ticket.stage,
            round=ticket.round,
            question=request.message,
            nodes=getattr(request.asked, "nodes", ""),
            masked=masked,
            identity=identity,
        )
        self._log.add(asdict(found))
        self._known.add(identity)


def questions_in(state: Path) -> int:
    """Return how many questions an agent has answered, about whatever part.

    Raises:
        CheckpointError: The log cannot be read, or is damaged.
    """
    return len(LineLog(state / _NAME).read())


def _identity(request: wire.Request) -> str:
    return request.identity.hex()[:_DIGITS]
