"""Has clients mask what a round adds up, so that it gets the sum over whole cohorts alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace
from itertools import chain
from typing import Any, Final

from retexo_fl.client.api import CollectRequest, EndRequest, EvaluateRequest, Request, Ticket
from retexo_fl.errors import RoundIncomplete
from retexo_fl.federation.asking import Answers, Ask, Round, through
from retexo_fl.federation.asking.ask import T
from retexo_fl.federation.rounds.checked_answers import check_collected
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.federation.rounds.key_renewal import ask_cohorts
from retexo_fl.federation.rounds.masked_sums import MaskedSums

#: How long clients are waited for of whom no answer is needed.
_OPTIONAL_WITHIN_S: Final = 60.0


def masked(asking: Round[T], clients: Clients, masking: MaskedSums) -> Round[T]:
    """Return a round that gets one masked sum for each question whose sum is enough for it.

    A client whose process began anew has no keys. It gets new ones, with its cohort, before that
    is asked the next time; what they have told of exchanges under earlier ones does not add up, and
    is asked for again. No client forgets the job with its last answer, which may have to be masked
    again: all are told to when the round is over.

    Args:
        asking: Asks whole cohorts, all of them the same.
        clients: Of the attempt.
        masking: How.

    Raises:
        RoundIncomplete: Of each cohort a client is missing.
        RetexoError: As :func:`.ask_cohorts` and :meth:`.MaskedSums.summed`.
    """
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
        ask = replace(ask.changed(_not_last), cohorts=cohorts)
        request = next(iter(ask.requests.values()))
        if ask.ends:
            ended.append(replace(request.ticket, round=0))
        # The next round comes soon; what is only measured once has everybody.
        is_once = ask.purpose != "train"
        answers = dict((yield from ask_cohorts(masking, ask, clients.policy.quorum, again=is_once)))
        yield from _ask_untold(clients, masking, answers)
        return [masking.summed(request, answers, facts)]

    result = yield from through(asking, handle)
    for ticket in ended:
        yield from _end(clients, ticket)
    return result


def _not_last(request: Request[Any]) -> Request[Any]:
    """Return a request after which its client does not forget the job."""
    return replace(request, last=False) if isinstance(request, EvaluateRequest) else request


def _ask_untold(clients: Clients, masking: MaskedSums, there: Collection[int]) -> Round[None]:
    """Ask cohorts that are there whole what they moved before, where that is not known."""
    for stage, exchange in masking.exchanged.items():
        untold = clients.untold[exchange.ticket.attempt, stage].intersection(there)
        cohorts = [c.members for c in masking.cohorts if untold.issuperset(c.members)]
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
            clients.count_cohort(exchange.ticket, client, answer)


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
