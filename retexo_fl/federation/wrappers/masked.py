"""Has clients mask what a round adds up, so that it gets the sum over whole cohorts alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from retexo_fl.client.api import CollectRequest, EndRequest, Ticket, question_of
from retexo_fl.errors import RoundIncomplete
from retexo_fl.federation.asking import Answers, Ask, Round, through
from retexo_fl.federation.asking.ask import T
from retexo_fl.federation.rounds.checked_answers import check_collected
from retexo_fl.federation.rounds.clients import Clients, MaskedClients
from retexo_fl.federation.rounds.key_renewal import count_cohorts, note_anew, renew_keys
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.units import clients_named

#: How long clients are waited for of whom no answer is needed.
_OPTIONAL_WITHIN_S: Final = 60.0
#: So often clients may begin anew in one round; then it ends.
_MOST_STARTS: Final = 10


def masked(asking: Round[T], clients: MaskedClients) -> Round[T]:
    """Return a round that gets one masked sum for each question whose sum is enough for it.

    A client whose process began anew has no keys. It gets new ones, with its cohort, before that
    is asked the next time; what they have reported of exchanges under earlier ones does not add up,
    and is asked for again. No client forgets the job with its last answer, which may have to be
    masked again: all are asked to forget it when the round is over.

    Args:
        asking: Asks whole cohorts, all of them the same.
        clients: Of the attempt.

    Raises:
        RoundIncomplete: Of each cohort a client is missing.
        RetexoError: As :func:`_ask_cohorts` and :meth:`.MaskedSums.summed`.
    """
    masking = clients.masking
    ended: list[Ticket] = []

    def handle(ask: Ask) -> Round[Answers]:
        if (facts := ask.sums) is None:
            return (yield ask)
        if not ask.requests:
            raise RoundIncomplete(
                f"{ask.purpose}: of each cohort a client is missing; expected all clients of one "
                "at least"
            )
        cohorts = tuple(c.members for c in masking.cohorts if c.members[0] in ask.requests)
        ask = replace(ask, cohorts=cohorts)
        request = next(iter(ask.requests.values()))
        if ask.ends:
            ended.append(replace(request.ticket, round=0))
        # The next round comes soon; what is only measured once has everybody.
        is_once = ask.purpose != "train"
        answers = dict(
            (yield from _ask_cohorts(masking, ask, clients.policy.quorum, again=is_once))
        )
        yield from _ask_untold(clients, answers)
        return [masking.summed(request, answers, facts)]

    result = yield from through(asking, handle)
    for ticket in ended:
        yield from _end(clients, ticket)
    return result


def _ask_cohorts(
    masking: MaskedSums, ask: Ask, quorum: int, *, again: bool
) -> Round[list[tuple[int, Any]]]:
    """Ask cohorts; return their answers, by client, of those whose keys are settled.

    Args:
        masking: Knows the cohorts.
        ask: Of whole cohorts.
        quorum: How many answers are enough; 0 for all.
        again: Ask the cohort of a client that began anew once more, as soon as it has new keys.
            Else it is missing, where the others are enough.

    Raises:
        RoundIncomplete: Clients began anew too often.
    """
    request = next(iter(ask.requests.values()))
    wanted = ask.requests.keys() if ask.counted is None else ask.requests.keys() & ask.counted
    least = min(quorum or len(wanted), len(wanted))
    found: dict[int, Any] = {}
    left = dict(ask.requests)

    def is_enough(more: Iterable[int] = ()) -> bool:
        return len(wanted & {*found, *more}) >= least

    for _ in range(_MOST_STARTS):
        ready = masking.settled(left)
        if len(ready) < len(left):
            yield from _settle(masking, request.ticket, all_must=not is_enough(ready))
            ready = masking.settled(left)
        needed = frozenset[int]() if is_enough() else frozenset(wanted & ready.keys())
        answers = dict((yield replace(ask.among(ready), counted=needed)))
        anew = {client for client, answer in answers.items() if answer.lacks_keys}
        masking.lacking.update(anew)
        found |= masking.settled(answers)
        left = {c: item for c, item in left.items() if c not in masking.settled(left)}
        goes_on = bool(left) and not (is_enough() and not (again and anew))
        if anew:
            note_anew(request, anew, ask.cohorts, goes_on=goes_on)
        if not goes_on:
            return sorted(found.items())
    raise RoundIncomplete(
        f"{question_of(request).message_type}: {clients_named(tuple(sorted(masking.lacking)))} "
        f"began anew {_MOST_STARTS} times"
    )


def _settle(masking: MaskedSums, ticket: Ticket, *, all_must: bool) -> Round[None]:
    """Give cohorts the keys that they lack, and ask for the counts that have not come.

    Args:
        masking: Knows who lacks them; whoever does not answer in time, lacks them still.
        ticket: Names job and attempt.
        all_must: Wait for all of them, not for the deadline of a round.

    Raises:
        RetexoError: As :func:`.renew_keys` and :func:`.count_cohorts`.
    """
    counted = None if all_must else frozenset[int]()
    if masking.lacking:
        yield from renew_keys(masking, ticket, counted)
    yield from count_cohorts(masking, ticket, counted=counted)


def _ask_untold(clients: MaskedClients, there: Collection[int]) -> Round[None]:
    """Ask cohorts that are there whole what they moved before, where that is not known."""
    for stage, exchange in clients.masking.exchanged.items():
        untold = clients.untold[exchange.ticket.attempt, stage].intersection(there)
        cohorts = [c.members for c in clients.masking.cohorts if untold.issuperset(c.members)]
        if not cohorts:
            continue
        answers = yield Ask.of(
            sorted(chain(*cohorts)),
            CollectRequest(ticket=exchange.ticket),
            stage=stage,
            purpose="collect",
            counted=frozenset(),
            within_s=_OPTIONAL_WITHIN_S,
        )
        for client, answer in answers:
            check_collected(clients.hellos[client], answer)
            clients.count_collected(exchange.ticket, client, answer)


def _end(clients: Clients, ticket: Ticket) -> Round[None]:
    """Have all clients forget the job; one that is away keeps it until it needs the room."""
    answers = yield Ask.of(
        clients.hellos,
        EndRequest(ticket=ticket),
        stage=ticket.stage,
        purpose="end",
        counted=frozenset(),
        within_s=_OPTIONAL_WITHIN_S,
    )
    deque(answers, maxlen=0)
