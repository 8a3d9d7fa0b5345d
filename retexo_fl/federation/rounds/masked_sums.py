"""Answers that the server can only read as sums over cohorts: who is asked, and what is added up.

All of a cohort are asked the same. Where one of them is missing masks do not cancel, so that the
whole cohort is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import (
    CountsAnswer,
    HelloAnswer,
    KeysRequest,
    MaskedAnswer,
    Request,
    Ticket,
    question_of,
)
from retexo_fl.client.masked_answers import answer_of_sum, form_of
from retexo_fl.client.moved import KEYS_BYTES, Moved, moved_length
from retexo_fl.errors import RemoteProtocolError, RoundIncomplete
from retexo_fl.federation.asking import Who, named
from retexo_fl.masking.agreement import Cohort
from retexo_fl.masking.ring import Ring
from retexo_fl.masking.streams import WIDE, Form, Sums

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ToldExchange:
    """What clients reported of an exchange.

    Attributes:
        ticket: Names it.
        told: By client that lacks no vectors, its report; None where it had no keys.
        vectors: Sent by the cohorts of which all members reported under the same keys.
    """

    ticket: Ticket
    told: dict[int, bytes | None] = field(default_factory=dict)
    vectors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSums:
    """How an attempt's sums are masked.

    Attributes:
        cohorts: Those of whom nobody is missing in the attempt, in order of the agreement.
        keys: By the members of a cohort, what they get: their keys, which change when one of them
            begins anew.
        lacking: Clients that do not have them.
        counts: By the members of a cohort, what they have together, once all have answered.
        later: How many numbers ``vectors_later`` of their counts has.
        rows: What the names of rows begin with (:func:`.rows_of`).
        exchanged: By stage, what was reported of its exchange so far.
    """

    cohorts: tuple[Cohort, ...]
    keys: dict[tuple[int, ...], KeysRequest] = field(default_factory=dict)
    lacking: set[int] = field(default_factory=set)
    counts: dict[tuple[int, ...], CountsAnswer] = field(default_factory=dict)
    later: int = 0
    rows: bytes = b""
    exchanged: dict[int, ToldExchange] = field(default_factory=dict)

    def clients(self, *uses: str, without: Collection[int] = ()) -> tuple[int, ...]:
        """Return the clients of whole cohorts, ascending.

        Args:
            uses: Of cohorts that have one of these; of all if none is given.
            without: Clients that cannot answer, and so take their cohorts with them.
        """
        able = (
            cohort.members
            for cohort in self.cohorts
            if not {*without}.intersection(cohort.members)
            and (not uses or cohort.uses.intersection(uses))
        )
        return tuple(sorted(chain.from_iterable(able)))

    def unsettled(self) -> list[tuple[int, ...]]:
        """Return the cohorts, by their members, that are asked for no sums.

        Somebody lacks keys, or their counts, with which sums are compared, have not come.
        """
        cohorts = (cohort.members for cohort in self.cohorts)
        return [c for c in cohorts if c not in self.counts or self.lacking.intersection(c)]

    def settled(self, asked: Mapping[int, T]) -> dict[int, T]:
        """Return what is of clients of other cohorts than the :meth:`unsettled`."""
        out = {*chain(*self.unsettled())}
        return {client: item for client, item in asked.items() if client not in out}

    def added(self, hello: HelloAnswer) -> HelloAnswer:
        """Return a hello with the uses that its client's cohort adds up, and no others."""
        uses = {use for c in self.cohorts if hello.client in c.members for use in c.uses}
        return replace(hello, brings=" ".join(sorted(uses.intersection(hello.brings.split()))))

    def exchange(self, ticket: Ticket) -> ToldExchange:
        """Return what was reported of an exchange; a basis changes its name, not what crosses."""
        known = self.exchanged.setdefault(ticket.stage, ToldExchange(ticket=ticket))
        known.ticket = ticket
        return known

    def moved(
        self, kind: type[Request[Any]], told: Mapping[int, bytes | None], *, of: int | None = None
    ) -> Iterator[tuple[tuple[int, ...], Moved]]:
        """Yield whole cohorts, and what each has moved for a question.

        Args:
            kind: Of the question.
            told: By client, its report; None from one that sent none.
            of: Only the cohort of this client.

        Raises:
            RemoteProtocolError: An answer has another length, or sums are none.
        """
        form = Form(ring=Ring(2), narrow=0, wide=moved_length(kind))
        for cohort in self.cohorts:
            if of is not None and of not in cohort.members:
                continue
            contents = [told.get(client) or b"" for client in cohort.members]
            # One that began anew has reported under other keys, or not at all.
            if len({content[:KEYS_BYTES] for content in contents}) > 1 or not contents[0]:
                continue
            total = form.zeros()
            for client, content in zip(cohort.members, contents, strict=True):
                with named(client):
                    wide = WIDE.unpack(content[KEYS_BYTES:], form.wide)
                total.add(replace(form.zeros(), wide=wide))
            with named(cohort.members):
                yield cohort.members, Moved.of(kind, total.signed()[1])

    def summed(
        self, request: Request[Any], answers: Mapping[int, MaskedAnswer], facts: SumFacts
    ) -> tuple[Who, Any]:
        """Return the sum over all cohorts that answered whole, and whose it is.

        Args:
            request: What all were asked.
            answers: By client.
            facts: Of the run's sums.

        Raises:
            RemoteProtocolError: An answer has another length.
            RoundIncomplete: Of each cohort a client is missing.
        """
        form = form_of(request, facts)
        whole = [cohort for cohort in self.cohorts if answers.keys() >= {*cohort.members}]
        if not whole:
            raise RoundIncomplete(
                f"{question_of(request).message_type}: of each cohort a client did not answer; "
                "expected all clients of one at least"
            )
        total = form.zeros()
        for cohort in whole:
            for client in cohort.members:
                with named(client):
                    total.add(numbers_in(answers[client], form))
        clients = sorted(chain.from_iterable(cohort.members for cohort in whole))
        return tuple(clients), answer_of_sum(request, total, facts)


def numbers_in(answer: MaskedAnswer, form: Form) -> Sums:
    """Return the numbers of an answer, with all masks on.

    Raises:
        RemoteProtocolError: They are of another form.
    """
    if answer.numbers.dtype != "uint8":
        raise RemoteProtocolError("masked numbers are no bytes")
    begin = form.counter.size(form.counts)
    return Sums(
        form=form,
        narrow=form.ring.unpack(answer.numbers, form.narrow),
        wide=WIDE.unpack(answer.beside[begin:], form.wide),
        counts=form.counter.unpack(answer.beside[:begin], form.counts),
    )
