"""The rounds that begin masked sums: keys for all, then what hello leaves out of labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import numpy as np

from retexo_fl.client.api import HelloAnswer, KeysRequest, LabelsRequest, Ticket, bits_of
from retexo_fl.client.masked_answers import sum_lengths
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError, RemoteProtocolError
from retexo_fl.federation.asking import Ask, Round, named
from retexo_fl.federation.label_facts import LabelTotals
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.masking.holder import LEAST_CLIENTS
from retexo_fl.masking.keys import PublicKeys
from retexo_fl.masking.label import least_openers
from retexo_fl.units import counted


class Keyed(Protocol):
    """A client's first answer."""

    @property
    def mask_key(self) -> bytes | None:
        """See :class:`.HelloAnswer`."""
        ...

    @property
    def mask_signature(self) -> bytes | None:
        """See :class:`.HelloAnswer`."""
        ...


def check_sums_hide(hellos: Mapping[int, HelloAnswer], config: RunConfig) -> None:
    """Check that sums of a training hide each client, and that as few as may answer can open one.

    Raises:
        ConfigurationError: Too few clients train, or too few of them need answer.
    """
    training = sum(hello.train > 0 for hello in hellos.values())
    if training < LEAST_CLIENTS:
        raise ConfigurationError(
            f"secure-aggregation: masked, but {counted(training, 'client')} of "
            f"{len(hellos)} have train nodes; expected {LEAST_CLIENTS} at least, or none"
        )
    openers = least_openers(training)
    if 0 < config.min_clients < openers:
        raise ConfigurationError(
            f"min-clients: got {config.min_clients}, where {counted(training, 'client')} have "
            f"train nodes; expected {openers} at least, since so many have to tell shares before "
            "a masked sum without some clients can be read"
        )


def hand_out_keys(
    ticket: Ticket, hellos: Mapping[int, Keyed], *, opens: bool, most: int
) -> Round[MaskedSums]:
    """Tell every client the keys of all; return how sums are masked from then on.

    Args:
        ticket: Names job and attempt.
        hellos: By client, ascending.
        opens: Rounds may be closed without some clients.
        most: What no count adds up to more than (:func:`most_count`).

    Raises:
        RemoteProtocolError: A client believes other keys.
    """
    publics: dict[int, bytes] = {}
    for client, hello in hellos.items():
        if hello.mask_key is None:
            raise RemoteProtocolError(
                f"client {client}: sent no masking key; expected one under secure-aggregation "
                "masked"
            )
        publics[client] = hello.mask_key
    signatures = {client: hello.mask_signature for client, hello in hellos.items()}
    told = b"".join(signature for signature in signatures.values() if signature is not None)
    unsigned = [client for client, signature in signatures.items() if signature is None]
    if told and unsigned:
        raise RemoteProtocolError(
            f"client {unsigned[0]}: its masking key is not signed; expected a signature, as of "
            "other clients"
        )
    request = KeysRequest(
        ticket=ticket,
        clients=bits_of(hellos),
        keys=np.frombuffer(b"".join(publics.values()), np.uint8),
        most_count=most,
        signatures=told or None,
    )
    digest = PublicKeys(by_client=publics).digest
    answers = yield Ask.of(hellos, request, stage=-1, purpose="keys")
    for client, answer in answers:
        with named(client):
            if answer.digest != digest:
                raise RemoteProtocolError("it believes other masking keys than were sent")
    return MaskedSums(job=ticket.job, keys=digest, opens=opens, most_count=most)


def most_count(hellos: Iterable[HelloAnswer]) -> int:
    """Return what no count adds up to more than, over clients: their nodes, or pairs of a use."""
    counts = ([hello.nodes, hello.train, hello.validation, hello.test] for hello in hellos)
    return max(map(sum, zip(*counts, strict=True)))


def add_up_labels(clients: Clients, ticket: Ticket, config: RunConfig) -> Round[LabelTotals]:
    """Ask all clients how many nodes of each class they have, as one masked sum."""
    one = next(iter(clients.hellos.values()))
    answers = yield from clients.sums(
        dict.fromkeys(clients.hellos, LabelsRequest(ticket=ticket)),
        lengths=sum_lengths(config, one.classes),
        stage=-1,
        purpose="labels",
    )
    (who, answer), *_ = answers
    with named(who):
        return LabelTotals.of_counts(answer, config, clients.hello(who))
