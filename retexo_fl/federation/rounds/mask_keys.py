"""The rounds that begin masked sums: keys for each cohort, then what hello leaves out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np

from retexo_fl.client.answers import sum_facts
from retexo_fl.client.api import ColumnsAnswer, HelloAnswer, KeysRequest, LabelsRequest, Ticket
from retexo_fl.config import RunConfig, config_digest
from retexo_fl.errors import (
    AgreementError,
    ConfigurationError,
    RemoteProtocolError,
    RoundIncomplete,
)
from retexo_fl.federation.asking import Ask, Round, named
from retexo_fl.federation.label_facts import LabelTotals
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.federation.rounds.key_renewal import count_cohorts, tell_keys
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.masking.agreement import LEAST, Agreement
from retexo_fl.masking.keys import rows_of
from retexo_fl.training.cohorts import simulated_agreement
from retexo_fl.units import clients_named, counted

#: Of a digest, where two differ.
_SHOWN_BYTES: Final = 8
#: A client's first answer.
Keyed: TypeAlias = HelloAnswer | ColumnsAnswer


def begin_sums(
    ticket: Ticket,
    hellos: Mapping[int, HelloAnswer],
    config: RunConfig,
    *,
    sizes: bool = False,
    later: int = 0,
) -> Round[MaskedSums]:
    """Find who is added up with whom; send every client its cohort's keys, and count the cohorts.

    Of vectors ``later`` numbers are sent beside those of the first exchange.

    Owners have agreed on that; in a simulation it is drawn. How rows are named is not known before
    all keys of the run are settled (:func:`name_rows`).

    Raises:
        AgreementError: There are too few clients.
        RetexoError: As :func:`hand_out_keys` and :func:`.count_cohorts`.
    """
    masking = yield from hand_out_keys(ticket, hellos, _agreement(hellos, config))
    masking = replace(masking, later=later)
    yield from count_cohorts(masking, ticket, sizes=sizes)
    return masking


def name_rows(
    masking: MaskedSums, hellos: Mapping[int, HelloAnswer], config: RunConfig
) -> MaskedSums:
    """Return masked sums whose rows are named by the run's configuration and the agreement."""
    signed = any(hello.agreement is not None for hello in hellos.values())
    agreed = _agreement(hellos, config).digest if signed else b""
    return replace(masking, rows=rows_of(config_digest(config), agreed))


def clients_of_whole_cohorts(hellos: Mapping[int, HelloAnswer], *, config: RunConfig) -> int:
    """Return how many clients of whole cohorts have said hello.

    Raises:
        RetexoError: As :func:`agreed_by`.
    """
    cohorts = (cohort.members for cohort in _agreement(hellos, config).cohorts)
    return sum(len(members) for members in cohorts if hellos.keys() >= {*members})


def _agreement(hellos: Mapping[int, HelloAnswer], config: RunConfig) -> Agreement:
    if any(hello.agreement is not None for hello in hellos.values()):
        return agreed_by(hellos)
    brings = {client: dict.fromkeys(hello.brings.split(), 1) for client, hello in hellos.items()}
    return simulated_agreement(config, brings)


def agreed_by(keyed: Mapping[int, Keyed]) -> Agreement:
    """Return what the owners of all clients agreed on.

    Args:
        keyed: By client, ascending.

    Raises:
        RemoteProtocolError: A client sent none, or something else.
        AgreementError: Owners have different files, or theirs does not have a client.
    """
    told: dict[bytes, list[int]] = {}
    for client, hello in keyed.items():
        if hello.agreement is None:
            raise RemoteProtocolError(
                f"client {client}: told no agreement of its owners; expected one, as of others"
            )
        told.setdefault(hello.agreement, []).append(client)
    known: dict[bytes, Agreement] = {}
    for content, clients in told.items():
        with named(clients[0]):
            try:
                known[content] = Agreement.parse(content)
            except AgreementError as error:
                raise RemoteProtocolError(str(error)) from error
    if len(told) > 1:
        files = "; ".join(
            f"{clients_named(clients)} {known[content].digest[:_SHOWN_BYTES].hex(' ', 2)}"
            for content, clients in told.items()
        )
        raise AgreementError(
            f"roster files differ in what owners agreed on: {files}; expected the same at all "
            "clients (retexo keys show)"
        )
    (agreement,) = known.values()
    for client in keyed:
        agreement.cohort_of(client)
    return agreement


def hand_out_keys(
    ticket: Ticket, keyed: Mapping[int, Keyed], agreement: Agreement
) -> Round[MaskedSums]:
    """Send every client the keys of its cohort; return how sums are masked from then on.

    Of a cohort that lacks a client nobody is asked for sums in this attempt.

    Args:
        ticket: Names job and attempt.
        keyed: By client, ascending.
        agreement: Of the owners.

    Raises:
        RemoteProtocolError: A client believes other keys.
        RoundIncomplete: Of each cohort a client is missing.
    """
    publics: dict[int, bytes] = {}
    are_signed = any(hello.mask_signature is not None for hello in keyed.values())
    for client, hello in keyed.items():
        if hello.mask_key is None:
            raise RemoteProtocolError(
                f"client {client}: sent no masking key; expected one under secure-aggregation "
                "masked"
            )
        if are_signed and hello.mask_signature is None:
            raise RemoteProtocolError(
                f"client {client}: its masking key is not signed; expected a signature, as of "
                "other clients"
            )
        publics[client] = hello.mask_key
    cohorts = tuple(c for c in agreement.cohorts if publics.keys() >= {*c.members})
    if not cohorts:
        raise RoundIncomplete("of each cohort a client is missing; expected all of one at least")
    masking = MaskedSums(cohorts=cohorts)
    for cohort in cohorts:
        keys = b"".join(publics[client] for client in cohort.members)
        signatures = b"".join(keyed[client].mask_signature or b"" for client in cohort.members)
        masking.keys[cohort.members] = KeysRequest(
            ticket=ticket,
            agreement=agreement.digest,
            cohort=cohort.members,
            uses=" ".join(sorted(cohort.uses)),
            keys=np.frombuffer(keys, np.uint8),
            signatures=signatures or None,
        )
    yield from tell_keys(masking, masking.keys)
    return masking


def check_sums_train(masking: MaskedSums, hellos: Collection[HelloAnswer]) -> None:
    """Check that there is a sum of updates.

    Raises:
        ConfigurationError: In no cohort enough clients have train nodes.
    """
    if not masking.clients("train"):
        training = sum(hello.has("train") for hello in hellos)
        raise ConfigurationError(
            f"secure-aggregation: masked, but {counted(training, 'client')} of "
            f"{len(hellos)} have train nodes; expected {LEAST} at least in a cohort, or none"
        )


def add_up_labels(clients: Clients, ticket: Ticket, config: RunConfig) -> Round[LabelTotals]:
    """Ask all clients how many nodes of each class they have, as one masked sum."""
    one = next(iter(clients.hellos.values()))
    answers = yield Ask(
        requests=dict.fromkeys(clients.hellos, LabelsRequest(ticket=ticket)),
        sums=sum_facts(config, one.classes),
        stage=-1,
        purpose="labels",
    )
    (who, answer), *_ = answers
    with named(who):
        return LabelTotals.of_counts(answer, config, clients.hello(who))
