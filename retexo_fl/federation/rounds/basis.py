"""The rounds that find a supervised subspace of the features, before anything is exchanged."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from retexo_fl.client.api import BasisAnswer, BasisRequest, HelloAnswer, Ticket
from retexo_fl.config import RunConfig
from retexo_fl.errors import RemoteProtocolError, TrainingDiverged
from retexo_fl.federation.asking import Ask, Round, named
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.training.basis import Basis, BasisBuilder, basis_width


def find_basis(clients: Clients, ticket: Ticket, config: RunConfig) -> Round[Basis]:
    """Ask for the features' sums, then for one block after the other.

    Raises:
        RemoteProtocolError: An answer has another length or count than the client's hello promised.
        TrainingDiverged: A sum is not finite.
    """
    hellos = clients.hellos
    one = next(iter(hellos.values()))
    width = basis_width(blocks=config.basis_blocks, classes=one.classes, features=one.features)
    nodes, sums = yield from _ask(clients, BasisRequest(ticket=ticket), hellos, one.features)
    builder = BasisBuilder(sums / nodes, width=width, dtype=config.dtype)
    training = [client for client, hello in hellos.items() if hello.train]
    number = 0
    while not builder.is_complete:
        number += 1
        block = builder.last
        columns = block.directions.shape[1] or one.classes
        request = BasisRequest(ticket=replace(ticket, round=number), weights=block.flat)
        examples, sums = yield from _ask(clients, request, training, one.features * columns)
        builder.add(sums.reshape(one.features, columns))
    return builder.basis(examples)


def _ask(
    clients: Clients, request: BasisRequest, among: Iterable[int], size: int
) -> Round[tuple[int, np.ndarray]]:
    """Return how many nodes there are and their (size,) sums, added in client order."""
    answers = yield Ask.of(sorted(among), request, stage=0, purpose="basis")
    examples, total = 0, np.zeros(size)
    for client, answer in answers:
        with named(client):
            _check(clients.hellos[client], request, answer, size)
        examples += answer.examples
        total += answer.sums
    return examples, total


def _check(hello: HelloAnswer, request: BasisRequest, answer: BasisAnswer, size: int) -> None:
    expected = hello.nodes if request.weights is None else hello.train
    if answer.examples != expected:
        raise RemoteProtocolError(
            f"num-examples is {answer.examples}; expected {expected}, as its hello says"
        )
    if answer.sums.shape != (size,) or answer.sums.dtype.kind != "f":
        raise RemoteProtocolError(
            f"sums are {answer.sums.dtype} of shape {answer.sums.shape}; expected floats of shape "
            f"({size},)"
        )
    if not math.isfinite(float(answer.sums.sum(dtype=np.float64))):
        raise TrainingDiverged(
            f"client {hello.client}: sums of features are not finite; expected finite features"
        )
