"""The rounds that make columns of the edges before a training, where nodes have no features.

    structure     how many neighbours nodes have in the mean: sums of degrees
    for each step but the first, of labels for each:
        publish, collect   the columns of boundary nodes, as the step before made them
    structure     products of the columns with each other, summed over all nodes; not of labels
    whiten        what makes features of degrees and columns

Peers see columns of boundary nodes, which follow from the edges, or from train labels along them;
the server sees the sums.
Under masks these are of whole cohorts. A resumed attempt, or a prediction, makes the same columns
again with the map that is known; where clients have kept them, nothing is sent again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import (
    PublishRequest,
    StructureRequest,
    Ticket,
    WhitenRequest,
    chain_digest,
)
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.federation.asking import Ask, Round, named
from retexo_fl.federation.rounds.checked_answers import check_array
from retexo_fl.federation.rounds.clients import Clients, MaskedClients
from retexo_fl.federation.training import Training
from retexo_fl.masking.step import SharedStep
from retexo_fl.training.columns import (
    MASKED_BITS,
    NUM_BOUNDS,
    ColumnMap,
    Interval,
    degree_values,
    product_values,
)
from retexo_fl.training.ridge import MOST_SQUARE


def make_columns(training: Training) -> None:
    """Have clients make features of their edges, where nodes have none and that is wanted."""
    joined = training.joined
    job, shape, exchanges = joined.job, joined.schedule.shape, joined.exchanges
    if not shape.made_columns:
        return
    dtype, stages = training.config.dtype, shape.column_stages
    unnamed = chain_digest(job.rows, None)
    ticket = Ticket(job=job.job, attempt=job.attempt, stage=stages[0], weights_digest=unnamed)
    known: ColumnMap | None = None
    if job.columns is None:
        size = degree_values(shape.made_degrees)
        asking = _sums(joined.clients, StructureRequest(ticket=ticket), size)
        known = ColumnMap.of_degrees(*joined.rounds.carry_out(asking))
        interval = known.interval
    else:
        interval = Interval.read(job.columns[:NUM_BOUNDS].astype(np.float64))
    told = interval.told(dtype)
    requests, before = {}, unnamed
    for step, stage in enumerate(stages, start=1):
        ticket = replace(ticket, stage=stage, round=step, weights_digest=chain_digest(before, told))
        requests[stage] = PublishRequest(ticket=ticket, previous_digest=before, weights=told)
        before = ticket.weights_digest
    exchanges.ahead = requests
    for stage in stages[:-1]:
        if exchanges.go_along:
            # The next vectors follow from those that the same message waits for.
            exchanges.run_with(stage, joined.rounds.wrapped(exchanges.publishing(stage + 1)))
        else:
            exchanges.run(stage)
    ticket = replace(ticket, round=shape.column_steps)
    if known is not None and shape.mixed_columns:
        request = StructureRequest(ticket=ticket, weights=told)
        asking = _sums(joined.clients, request, product_values(shape.mixed_columns))
        _, sums = exchanges.run_with(stages[-1], joined.rounds.wrapped(asking))
        mixing = known.mixed(*sums, columns=shape.mixed_columns)
        job.columns = replace(known, mixing=mixing).encode(dtype)
        training.follower.columns_made(job.columns)
    elif known is not None:
        job.columns = replace(known, mixing=np.empty((0, 0))).encode(dtype)
    assert job.columns is not None
    whiten = WhitenRequest(ticket=replace(ticket, round=ticket.round + 1), weights=job.columns)
    making = _whitened(joined.clients, whiten, shape.features)
    if known is not None and shape.mixed_columns:
        joined.rounds.carry_out(making)
        return
    exchanges.run_with(stages[-1], joined.rounds.wrapped(making))
    if known is not None:
        training.follower.columns_made(job.columns)


def _sums(clients: Clients, request: StructureRequest, size: int) -> Round[tuple[np.ndarray, int]]:
    """Ask for sums over all nodes; return them, (size,) float64, and how many nodes these are.

    Raises:
        RemoteProtocolError: An answer has another length or count than the client's hello promised.
        TrainingDiverged: A sum is not finite.
    """
    among = list(clients.hellos)
    if isinstance(clients, MaskedClients):
        among = list(clients.masking.clients("nodes"))
        most = MOST_SQUARE * max(hello.nodes for hello in clients.counted.values())
        terms = len(among)
        step = SharedStep.of_sum(most * terms, terms=terms, bits=MASKED_BITS)
        request = replace(request, steps=step.told)
    answers = yield Ask(
        requests=dict.fromkeys(among, request),
        stage=request.ticket.stage,
        purpose="structure",
        sums=SumFacts(update=size),
    )
    nodes, total = 0, np.zeros(size)
    for who, answer in answers:
        check_array(who, answer.sums, size)
        nodes += answer.nodes
        total += answer.sums
    return total, nodes


def _whitened(clients: Clients, request: WhitenRequest, features: int) -> Round[None]:
    """Have all clients make features."""
    answers = yield Ask.of(clients.hellos, request, stage=request.ticket.stage, purpose="structure")
    for client, answer in answers:
        with named(client):
            if answer.features != features:
                raise RemoteProtocolError(f"made {answer.features} features; expected {features}")
