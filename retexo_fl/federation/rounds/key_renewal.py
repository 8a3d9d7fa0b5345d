"""How cohorts get keys, and new ones where a member began anew: its old ones are gone.

The keys of a cohort are settled when each member believes the same ones. Until then it is asked for
no sum, since masks would not cancel. The first sum is what its members' parts count: the others are
compared with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import (
    CountsRequest,
    HelloAnswer,
    HelloRequest,
    Request,
    Ticket,
    question_of,
)
from retexo_fl.client.masked_answers import MOST_COUNT
from retexo_fl.errors import ConfigurationError, RemoteProtocolError
from retexo_fl.federation.asking import Ask, Round, named
from retexo_fl.federation.rounds.checked_answers import check_mask_key
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.masking.agreement import USES
from retexo_fl.masking.keys import KEY_BYTES, SIGNED_BYTES, PublicKeys
from retexo_fl.units import clients_named

logger = logging.getLogger(__name__)


def renew_keys(masking: MaskedSums, ticket: Ticket, counted: frozenset[int] | None) -> Round[None]:
    """Ask the clients that lack keys for their new ones, and send these to their cohorts.

    Raises:
        RemoteProtocolError: What a client sends is no key, or it believes other keys.
    """
    hello = HelloRequest(ticket=Ticket(job=ticket.job, attempt=ticket.attempt))
    answers = yield Ask.of(
        sorted(masking.lacking), hello, stage=-1, purpose="keys", counted=counted
    )
    came: set[int] = set()
    for client, answer in answers:
        with named(client):
            _enter_key(masking, client, answer)
        came.add(client)
    without = {cohort: masking.lacking.intersection(cohort) for cohort in masking.keys}
    ready = [cohort for cohort, clients in without.items() if clients and clients <= came]
    yield from tell_keys(masking, ready, counted=counted)


def tell_keys(
    masking: MaskedSums,
    cohorts: Iterable[tuple[int, ...]],
    *,
    counted: frozenset[int] | None = None,
) -> Round[None]:
    """Send cohorts the keys of their members; who believes them, has keys.

    Raises:
        RemoteProtocolError: A client believes other keys.
    """
    requests = {client: masking.keys[cohort] for cohort in cohorts for client in cohort}
    masking.lacking.update(requests)
    answers = yield Ask(
        requests=dict(sorted(requests.items())), stage=-1, purpose="keys", counted=counted
    )
    for client, answer in answers:
        request = requests[client]
        with named(client):
            if answer.lacks_keys:
                continue
            if answer.digest != PublicKeys.of(request.cohort, request.keys.tobytes()).digest:
                raise RemoteProtocolError("it believes other masking keys than were sent")
        masking.lacking.remove(client)


def count_cohorts(
    masking: MaskedSums,
    ticket: Ticket,
    *,
    sizes: bool = False,
    counted: frozenset[int] | None = None,
) -> Round[None]:
    """Ask cohorts that have keys for their counts, where these are missing.

    A cohort that does not answer whole is asked again before its next sum.

    Raises:
        ConfigurationError: There are more nodes, or pairs, than sums of counts go to.
        RemoteProtocolError: An answer is none.
    """
    ready = [c for c in masking.unsettled() if not masking.lacking.intersection(c)]
    if not ready:
        return
    place = Ticket(job=ticket.job, attempt=ticket.attempt)
    request = CountsRequest(ticket=place, sizes=sizes or None, later=masking.later or None)
    ask = Ask.of(sorted(chain(*ready)), request, stage=-1, purpose="counts", counted=counted)
    answers = dict((yield replace(ask, cohorts=tuple(ready))))
    anew = {client for client, answer in answers.items() if answer.lacks_keys}
    masking.lacking.update(anew)
    note_anew(request, anew, ready, goes_on=True)
    for cohort in ready:
        told = {client: answers[client] for client in cohort if client in answers}
        if len(told) == len(cohort) and not anew.intersection(cohort):
            _, masking.counts[cohort] = masking.summed(request, told, SumFacts())
    _check_total(masking)


def note_anew(
    request: Request[Any], anew: set[int], cohorts: Iterable[tuple[int, ...]], *, goes_on: bool
) -> None:
    """Say who began anew, and what becomes of its cohort."""
    for cohort in cohorts:
        if anew.intersection(cohort):
            logger.warning(
                "%s, stage %d, round %d: %s began anew and has no masking keys; its cohort (%s) %s",
                question_of(request).message_type,
                request.ticket.stage,
                request.ticket.round,
                clients_named(tuple(sorted(anew.intersection(cohort)))),
                clients_named(cohort),
                "is asked again under new keys" if goes_on else "is missing in this sum",
            )


def _check_total(masking: MaskedSums) -> None:
    for use in USES:
        total = sum(getattr(counts, use) for counts in masking.counts.values())
        if total > MOST_COUNT:
            raise ConfigurationError(
                f"secure-aggregation: masked, but {use} of all clients are {total}; expected "
                f"{MOST_COUNT} at most, or none"
            )


def _enter_key(masking: MaskedSums, client: int, hello: HelloAnswer) -> None:
    """Put a client's new key in the place of its old one."""
    check_mask_key(hello)
    cohort = next(cohort for cohort in masking.keys if client in cohort)
    before, at = masking.keys[cohort], cohort.index(client)
    keys, signatures = before.keys.reshape(-1, KEY_BYTES).copy(), before.signatures
    keys[at] = np.frombuffer(hello.mask_key or b"", np.uint8)
    if signatures is not None:
        if hello.mask_signature is None:
            raise RemoteProtocolError("its masking key is not signed; expected that, as before")
        end = (at + 1) * SIGNED_BYTES
        signatures = signatures[: end - SIGNED_BYTES] + hello.mask_signature + signatures[end:]
    masking.keys[cohort] = replace(before, keys=keys.ravel(), signatures=signatures)
