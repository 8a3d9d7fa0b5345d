"""The last layer without training: by ridge regression, from sums.

    columns    as in lazy training
    basis      as in lazy training
    for each stage m:
        publish, collect
    gram       sums of products over the train nodes, from which the last layer follows
    evaluate   it on the validation nodes, then on the test nodes

A stage's vectors follow from those of the one before, so clients send them in the messages that end
the exchange before it, and the sums in those that end the last one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import GramRequest, Ticket
from retexo_fl.client.noise import releases_of
from retexo_fl.federation.asking import Ask, Round
from retexo_fl.federation.rounds.checked_answers import check_array
from retexo_fl.federation.rounds.clients import Clients, MaskedClients
from retexo_fl.federation.rounds.stage_state import StageOutcome, StageState
from retexo_fl.federation.training import Script, Training
from retexo_fl.gaussian_privacy import NoisedReleases
from retexo_fl.masking.step import SharedStep
from retexo_fl.methods.pieces.basis.script import find_basis
from retexo_fl.methods.pieces.columns.script import make_columns
from retexo_fl.training.clipped_products import clipped_values, noised_step
from retexo_fl.training.floor import read_columns
from retexo_fl.training.ridge import (
    MASKED_GRAM_BITS,
    MOST_SQUARE,
    fit,
    gram_values,
    noised_fit,
    validated_fit,
)
from retexo_fl.training.stage_model import ModelShape, flat_weights
from retexo_fl.training.volume import solved_values


def ridge(training: Training) -> Script:
    """Have the rows of all stages cross, then solve for the last layer; no stage has rounds."""
    make_columns(training)
    find_basis(training)
    *before, last = training.stages
    for stage in before:
        outcome = StageOutcome.untrained(stage, training.initial(stage))
        training.joined.job.outcomes[stage:] = [outcome]
        training.carry_out(training.joined.exchanges.publishing(stage + 1), after=stage)
        training.keep(outcome)
        yield
    joined = training.joined
    solving = solve_last(
        joined.clients,
        joined.job.ticket(last),
        joined.schedule.shape,
        noise=releases_of(training.config),
    )
    weights = training.carry_out(solving, after=last)
    training.select(training.open(last, replace(StageState.first(weights), round=1)))
    yield
    training.finish()


def solve_last(
    clients: Clients, ticket: Ticket, shape: ModelShape, *, noise: NoisedReleases | None = None
) -> Round[np.ndarray]:
    """Ask for the sums of the last stage's products; return the (P,) weights that they give.

    Clients without train nodes are asked, too, and answer zeros: so the question can go in the
    messages of the exchange before it.

    Args:
        clients: All of them.
        ticket: Of the last stage.
        shape: Of the model.
        noise: That clients add to the sums; None for none.

    Raises:
        RemoteProtocolError: An answer has another length or count than the client's hello promised.
        TrainingDiverged: A sum is not finite.
    """
    columns, classes = read_columns(shape), shape.classes
    width = len(columns)
    training = frozenset(client for client, hello in clients.hellos.items() if hello.has("train"))
    total = np.zeros(solved_values(shape))
    request = GramRequest(ticket=ticket)
    cohorts = 1
    if noise is not None:
        step = noised_step(noise.clip, clipped_values(width, classes))
        request = GramRequest(ticket=ticket, steps=step.told)
        assert isinstance(clients, MaskedClients), "keys of a run leave no others"
        cohorts = len(clients.masking.cohorts)
    elif isinstance(clients, MaskedClients):
        most = clients.most_judged if shape.validates_penalty else clients.most_train
        terms = len(clients.hellos)
        step = SharedStep.of_sum(MOST_SQUARE * terms * most, terms=terms, bits=MASKED_GRAM_BITS)
        request = GramRequest(ticket=ticket, steps=step.told)
    answers = yield Ask(
        requests=dict.fromkeys(clients.hellos, request),
        sums=SumFacts(update=len(total)),
        stage=ticket.stage,
        purpose="gram",
        counted=training,
    )
    for who, answer in answers:
        check_array(who, answer.sums, len(total))
        total += answer.sums
    found = None
    if noise is not None:
        # Each cohort has all of it.
        deviation = noise.sigma * noise.clip * math.sqrt(cohorts)
        found = noised_fit(total, width=width, classes=classes, deviation=deviation)
    elif shape.validates_penalty:
        found, _ = validated_fit(total, width=width, classes=classes)
    if found is None:
        found = fit(total[: gram_values(width, classes)], width=width, classes=classes)
    weight = np.zeros((shape.read_width, classes))
    weight[columns] = found.weight
    tensors = {"layer.weight": weight, "layer.bias": found.bias}
    return flat_weights(shape, shape.layers - 1, tensors).astype(shape.dtype)
