"""What a client has answered, and so what it may still be asked: that is ruled here.

A server that asks a round again, with other weights, learns as much as from another round. So of a
question places only go forward, at each place a client computes with one content, and where its
owner limits how often a question is answered, all attempts count together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from retexo_fl.errors import CheckpointError, LocalProtocolError, RetexoError, StaleAttempt
from retexo_fl.files import FileStamp, file_stamp
from retexo_fl.line_log import LineLog

#: Attempt, from 1; stage; round, 0 outside rounds; and 1 where a round begins anew, since clients
#: lacked weights. Later ones are larger.
Place: TypeAlias = tuple[int, int, int, int]
#: Added to the trial of what follows at a place.
_SECOND: Final = 2
#: In place of a question: any message of an attempt.
_ATTEMPT: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many different answers all questions of a name may have, over all attempts.

    Attributes:
        most: So many.
        refusal: What is said of one more.
        stages: So many of each of these; 0 if all stages count together.
        nodes: Those that may be asked about; empty if that is no part of the question.
    """

    most: int
    refusal: str
    stages: int = 0
    nodes: tuple[str, ...] = ()


class _Entry(NamedTuple):
    """A line of the book; ``content`` and ``form`` are digests in hex."""

    question: str
    attempt: int
    stage: int
    round: int
    trial: int
    content: str
    form: str


class AnswerBook:
    """The questions that one client of one job has computed answers to.

    Args:
        log: Where they are noted, so that other processes know them; None to keep them in memory.
        most_missed: Attempts that the client may have been away for; any number if None.

    Attributes:
        attempt: The highest that was seen, 0 at first; to be looked at from any thread.
    """

    def __init__(self, log: LineLog | None = None, *, most_missed: int | None = None) -> None:
        self._log = log
        self._most_missed = most_missed
        self._stamp: FileStamp | None = None
        self._limits: Mapping[str, Limit] = {}
        #: By question.
        self._last: dict[str, _Entry] = {}
        self.attempt = 0
        #: By name of a question, and stage: what differs between those with different answers.
        self._different: dict[tuple[str, int], set[tuple[object, ...]]] = {}

    def read(self) -> None:
        """Take note of what other processes have added.

        Raises:
            CheckpointError: The log cannot be read, or is damaged.
        """
        if self._log is None or (stamp := file_stamp(self._log.path)) == self._stamp:
            return
        kinds = [str, int, int, int, int, str, str]
        for line in self._log.read():
            if not isinstance(line, list) or [type(value) for value in line] != kinds:
                raise CheckpointError(
                    f"{self._log.path}: is damaged; expected the questions that were answered"
                )
            self._note(_Entry(*line))
        self._stamp = stamp

    def limit(self, limits: Mapping[str, Limit]) -> None:
        """Refuse what a client's owner does not allow, by names of questions.

        Raises:
            CheckpointError: As :meth:`read`.
        """
        self._limits = limits
        # What was noted before counts, too.
        self._stamp = None
        self.read()

    def check_attempt(self, job: str, attempt: int, *, client: int) -> None:
        """Compare a message's attempt with the highest that was seen; from any thread.

        Raises:
            StaleAttempt: It is a lower one.
            LocalProtocolError: It is so much higher that it would keep the server's own attempts,
                which follow each other, from coming after it.
        """
        seen = self.attempt
        if attempt < seen:
            raise StaleAttempt(
                f"client {client}: attempt {attempt} was superseded by attempt {seen}"
            )
        missed = self._most_missed
        if missed is not None and attempt > seen + missed:
            raise LocalProtocolError(
                f"client {client}: attempt {attempt} of job {job}; expected at most "
                f"{seen + missed}, {missed} after the last that was seen"
            )

    def begin(self, job: str, attempt: int, *, client: int) -> None:
        """Note a message's attempt.

        Raises:
            StaleAttempt: As :meth:`check_attempt`, likewise ``LocalProtocolError``.
            CheckpointError: The log cannot be used.
        """
        self.read()
        self.check_attempt(job, attempt, client=client)
        if attempt > self.attempt:
            self._add(_Entry(_ATTEMPT, attempt, 0, 0, 0, "", ""))

    def check(self, question: str, stage: int, *, client: int) -> None:
        """Refuse what may not be asked at all, whatever it is computed with.

        Args:
            question: Its name; of an evaluation with the nodes that are judged after a space.
            stage: Of the question.
            client: Its index.

        Raises:
            LocalProtocolError: It is of a stage that is none, of nodes that are not judged, or of
                a name that this job has no answers to.
        """
        name, _, nodes = question.partition(" ")
        limit = self._limits.get(name)
        if limit is None:
            return
        where = f"client {client}: stage {stage}"
        if limit.stages and not 0 <= stage < limit.stages:
            raise LocalProtocolError(f"{where}: expected 0 to {limit.stages - 1}")
        if limit.nodes and nodes not in limit.nodes:
            raise LocalProtocolError(
                f"{where}: nodes: got {nodes[:40]!r}; expected {' or '.join(limit.nodes)}"
            )
        if not limit.most:
            raise LocalProtocolError(f"client {client}: {limit.refusal}")

    def enter(
        self,
        question: str,
        place: Place,
        content: bytes,
        form: bytes = b"",
        *,
        client: int,
        twice: bool = False,
        error: type[RetexoError] = LocalProtocolError,
    ) -> None:
        """Note a question before its answer is computed; the same one again changes nothing.

        Args:
            question: As for :meth:`check`.
            place: Of the question.
            content: Digest of what its answer is computed with, decoded.
            form: How its numbers are coded.
            client: Its index.
            twice: After one content another may follow at the same place.
            error: Of the refusal of something else than was entered.

        Raises:
            LocalProtocolError: As :meth:`check`; or the owner allows no more.
            RetexoError: Of the class ``error``: something else was asked at this or a later place.
            CheckpointError: The log cannot be used; nothing may be answered.
        """
        self.read()
        coded, last = hashlib.sha256(form).hexdigest() if form else "", self._last.get(question)
        entry = _Entry(question, *place, content.hex(), coded)
        if twice and last is not None and last[1:4] == place[:3]:
            is_second = last.trial >= _SECOND or last.content != entry.content
            entry = entry._replace(trial=entry.trial + _SECOND * is_second)
        if self._limits:
            self._check_count(entry, client)
        if entry == last:
            return
        if last is not None and entry[1:5] <= last[1:5]:
            raise error(
                f"{question} {entry.attempt}/{entry.stage}/{entry.round}: this or a later sum was "
                "answered for other weights, clients or numbers; a second answer would tell the "
                "server more than a sum"
            )
        self._add(entry)

    def _check_count(self, entry: _Entry, client: int) -> None:
        self.check(entry.question, entry.stage, client=client)
        if (found := self._counted(entry)) is None:
            return
        limit, different = found
        if _identity(entry) not in different and len(different) >= limit.most:
            where = f"stage {entry.stage}: " if limit.stages else ""
            raise LocalProtocolError(f"client {client}: {where}{limit.refusal}")

    def _counted(self, entry: _Entry) -> tuple[Limit, set[tuple[object, ...]]] | None:
        """Return what limits an entry, and the identities that count for that."""
        name = entry.question.partition(" ")[0]
        if (limit := self._limits.get(name)) is None:
            return None
        return limit, self._different.setdefault((name, entry.stage * bool(limit.stages)), set())

    def _add(self, entry: _Entry) -> None:
        if self._log is not None:
            try:
                self._log.add(entry)
            finally:
                # What is in the file, but perhaps not on the disk, is added again.
                self._stamp = file_stamp(self._log.path)
        self._note(entry)

    def _note(self, entry: _Entry) -> None:
        last = self._last.get(entry.question)
        if last is None or entry[1:5] > last[1:5]:
            self._last[entry.question] = entry
            if entry.question == _ATTEMPT:
                self.attempt = entry.attempt
        if self._limits and (found := self._counted(entry)) is not None:
            found[1].add(_identity(entry))


def _identity(entry: _Entry) -> tuple[object, ...]:
    """Return what is the same of all that have one answer, in whatever attempt."""
    return entry.question, entry.stage, entry.round, entry.trial, entry.content
