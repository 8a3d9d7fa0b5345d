"""The round of an exchange: have clients publish, then ask until nothing is missing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from retexo_fl.client.api import (
    CollectAnswer,
    CollectRequest,
    PublishAnswer,
    PublishRequest,
    Ticket,
)
from retexo_fl.config import RunConfig
from retexo_fl.errors import ExchangeIncomplete
from retexo_fl.federation.asking import UNWATCHED, Ask, OpenExchange, Pauses, Round, Wait, Watch
from retexo_fl.federation.rounds.checked_answers import check_collected, check_published
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.federation.rounds.relay import Relay
from retexo_fl.units import lacks_named

logger = logging.getLogger(__name__)

#: Pause after the first look at an exchange.
_FIRST_PAUSE_S: Final = 0.2
#: An exchange that stays open is reported at least so often.
_LONGEST_REPORT_GAP_S: Final = 3600.0
#: Longest pause between two rounds of questions to clients of this process, or of a simulation. No
#: client is asked to wait: fewer may run than exist.
_LONGEST_PAUSE_S: Final = 0.2
#: The same where the server carries the vectors: they wait for it, and after 30 s without it agents
#: give the relay to another run.
_LONGEST_RELAY_PAUSE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """How an exchange ended.

    Attributes:
        vectors: Vectors that clients sent; None where that is not known.
        missing: Vectors that it was closed without.
        closed: Clients that have closed it, so that they can continue.
        error_bound: Under the codec ``fixed``, how far any of its values may be from what it was
            before it was rounded; else None.
    """

    vectors: int | None
    missing: int
    closed: frozenset[int]
    error_bound: float | None = None


def exchange_rows(
    clients: Clients,
    request: PublishRequest,
    *,
    config: RunConfig,
    name: np.ndarray | None = None,
    among: Sequence[int] | None = None,
    watch: Watch = UNWATCHED,
) -> Round[Exchanged]:
    """Have clients send their vectors of a stage, and see that they arrive.

    In a deployment it stays open until its deadline, even if clients do not answer meanwhile.

    Args:
        clients: All clients.
        request: Has clients send their vectors of the stage.
        name: As for :func:`publish`.
        config: ``missing-peers`` and ``exchange-deadline-s`` decide what happens to late vectors.
        among: Who takes part, ascending; all clients if None.
        watch: Its clock, and what is called with the clients that it waits for.

    Raises:
        ExchangeIncomplete: Vectors were missing at the deadline and ``missing-peers`` is ``wait``.
        RoundIncomplete: A client did not answer when it had to: at the beginning, or when the
            deadline was over.
    """
    everyone = list(clients.hellos) if among is None else among
    published = yield from publish(clients, request, everyone, name=name)
    collecting = _Collecting(clients=clients, ticket=request.ticket, among=everyone)
    all_there = len(published) == config.clients
    missing = yield from _collect_all(collecting, config, watch, all_there=all_there)
    return Exchanged(
        vectors=clients.vectors(request.ticket, published.values()),
        missing=missing,
        closed=frozenset(collecting.closed),
        error_bound=max((b for a in published.values() for b in a.error_bound), default=None),
    )


def collect_all(
    clients: Clients,
    ticket: Ticket,
    among: Sequence[int],
    *,
    config: RunConfig,
    watch: Watch = UNWATCHED,
) -> Round[int]:
    """See that the vectors of some clients arrive; return how many it ended without.

    Raises:
        ExchangeIncomplete: As :func:`exchange_rows`; likewise ``RoundIncomplete``.
    """
    collecting = _Collecting(clients=clients, ticket=ticket, among=among)
    return (yield from _collect_all(collecting, config, watch, all_there=True))


def publish(
    clients: Clients,
    request: PublishRequest,
    among: Sequence[int],
    *,
    name: np.ndarray | None = None,
    counted: frozenset[int] | None = None,
) -> Round[dict[int, PublishAnswer]]:
    """Have clients send their vectors; return the answers so far.

    Args:
        clients: All clients.
        request: Has them do so.
        among: Who is asked.
        name: What clients are sent instead of the weights, if they may hold them; those that do not
            are sent them then.
        counted: Where rounds may be closed early, enough of these have to answer; all if None.
    """
    ticket = request.ticket
    if name is None:
        answers = yield _asked(among, request, counted)
    else:
        answers = yield _asked(among, replace(request, weights=name), counted)
        found = dict(answers)
        lacking = [client for client, answer in found.items() if answer.lacks_weights]
        if lacking:
            still = None if counted is None else counted & {*lacking}
            answers = yield _asked(lacking, request, still)
            found = {c: answer for c, answer in found.items() if c not in lacking} | dict(answers)
        answers = sorted(found.items())
    published: dict[int, PublishAnswer] = {}
    for client, answer in answers:
        note_published(clients, ticket, client, answer)
        published[client] = answer
    return published


def note_published(clients: Clients, ticket: Ticket, client: int, answer: PublishAnswer) -> None:
    """Check an answer, and enter what the client sent.

    Raises:
        RemoteProtocolError: It sent another number of vectors than it has to.
    """
    check_published(clients.hellos[client], answer, stage=ticket.stage)
    clients.count_published(ticket, client, answer)


def note_collected(
    clients: Clients, ticket: Ticket, client: int, answer: CollectAnswer
) -> int | None:
    """Check an answer, and enter what has arrived.

    Returns:
        None if all has; else how many vectors have not, 0 where that is not known.

    Raises:
        RemoteProtocolError: It lacks more vectors than it gets.
    """
    check_collected(clients.hellos[client], answer)
    clients.count_collected(ticket, client, answer)
    return None if answer.complete else answer.missing


def _asked(among: Sequence[int], request: PublishRequest, counted: frozenset[int] | None) -> Ask:
    stage = request.ticket.stage
    return Ask.of(among, request, stage=stage, purpose="publish", counted=counted)


def collect(
    clients: Clients,
    request: CollectRequest,
    among: Sequence[int],
    *,
    within_s: float | None = None,
) -> Round[dict[int, int | None]]:
    """Return, by client that has answered, what it lacks (:func:`note_collected`).

    Where rounds may be closed early, no answer is required. In a deployment, none is required
    ``within_s`` either, unless that is None.
    """
    ticket = request.ticket
    answers = yield Ask.of(
        among,
        request,
        stage=ticket.stage,
        purpose="collect",
        counted=frozenset(),
        within_s=within_s,
    )
    return {client: note_collected(clients, ticket, client, told) for client, told in answers}


@dataclass(slots=True, kw_only=True)
class _Collecting:
    """Asks clients what they lack, and remembers who has closed the exchange.

    Attributes:
        among: Who takes part, ascending.
        lacks: By client that has not closed it, how many vectors it lacks, 0 where it does not
            tell; None: unknown yet.
    """

    clients: Clients
    ticket: Ticket
    among: Sequence[int]
    closed: set[int] = field(default_factory=set)
    lacks: dict[int, int | None] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with every count unknown."""
        self.lacks = dict.fromkeys(self.among)

    def look(self, among: Iterable[int], *, within_s: float | None = None) -> Round[None]:
        """Ask clients what they lack.

        A client that does not answer ``within_s`` is asked the next time; where rounds may be
        closed early, it is not waited for any more.
        """
        told = yield from self._ask(sorted(among), close=False, within_s=within_s)
        if self.clients.policy.may_close_early:
            self.lacks = {}
        for client, count in told.items():
            self.lacks.pop(client, None)
            if count is not None:
                self.lacks[client] = count
        self.lacks = dict(sorted(self.lacks.items()))

    def close(self) -> Round[int]:
        """Have clients train on what is there; return how many vectors are not."""
        missing = yield from self._ask(list(self.lacks), close=True)
        return sum(count or 0 for count in missing.values())

    def _ask(
        self, among: Sequence[int], *, close: bool, within_s: float | None = None
    ) -> Round[dict[int, int | None]]:
        request = CollectRequest(ticket=self.ticket, wait_s=0.0, close=close)
        missing = yield from collect(self.clients, request, among, within_s=within_s)
        self.closed |= missing.keys() if close else {c for c in missing if missing[c] is None}
        return missing


def _collect_all(
    collecting: _Collecting, config: RunConfig, watch: Watch, *, all_there: bool
) -> Round[int]:
    """Ask until all vectors are there; return how many the exchange was closed without."""
    ticket, everyone = collecting.ticket, collecting.among
    within_s = config.exchange_deadline_s
    if not all_there and config.missing_peers == "drop":
        # A client that missed its round is not waited for here either.
        within_s = min(within_s, config.round_deadline_s or within_s)
    yield from _look_until_complete(collecting, config, watch, within_s=within_s)
    if collecting.lacks:
        # All once more: vectors may never come because their client does not list the edge; that
        # client notices this by a block that may have come after it was asked.
        yield from collecting.look(everyone)
    if not collecting.lacks:
        return 0
    owed = lacks_named(collecting.lacks)
    if config.missing_peers == "wait":
        raise ExchangeIncomplete(
            f"stage {ticket.stage}: vectors are missing after {config.exchange_deadline_s:g} s "
            f"(exchange-deadline-s): {owed}; resume when the peers are connected, or "
            "with missing-peers drop"
        )
    logger.warning("stage %d continues without vectors: %s", ticket.stage, owed)
    return (yield from collecting.close())


def _look_until_complete(
    collecting: _Collecting, config: RunConfig, watch: Watch, *, within_s: float
) -> Round[None]:
    """Look at an exchange from time to time, until nothing is missing or its time is over."""
    clients = collecting.clients
    longest_s = config.exchange_poll_s if clients.policy.clients_return else _LONGEST_PAUSE_S
    if config.relay:
        longest_s = min(longest_s, _LONGEST_RELAY_PAUSE_S)
    wait = Wait(
        watch.clock,
        timeout_s=within_s,
        # Its end is noticed late by a quarter of the time that it has taken at most.
        pauses=Pauses(first_s=_FIRST_PAUSE_S, share=0.25, longest_s=longest_s),
        longest_report_gap_s=_LONGEST_REPORT_GAP_S,
    )
    relay = Relay(clients, collecting.ticket) if config.relay else None
    yield from collecting.look(collecting.among, within_s=wait.left_s)
    while collecting.lacks and wait.left_s > 0:
        if wait.is_report_due():
            watch.on_wait(
                OpenExchange(
                    stage=collecting.ticket.stage,
                    open_s=wait.elapsed_s,
                    lacks=dict(collecting.lacks),
                )
            )
        carried = relay is not None and (
            yield from relay.run(collecting.among, left_s=lambda: wait.left_s)
        )
        if not carried:
            wait.pause()
        yield from collecting.look(collecting.lacks, within_s=wait.left_s)
