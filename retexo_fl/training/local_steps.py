"""The steps that a client takes in a round: one gradient, or several steps of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from retexo_fl.errors import TrainingDiverged
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.recipe import LocalSteps
from retexo_fl.training.rounds import Steps
from retexo_fl.training.tally import PassSums

#: Returns the sums at some weights; ``step`` of the place distinguishes the steps of a round.
SumsAt = Callable[[np.ndarray, KeyedDropout], Steps[PassSums]]


def take_steps(
    local: LocalSteps,
    weights: np.ndarray,
    first: PassSums,
    place: KeyedDropout,
    *,
    nodes: int,
    sums_at: SumsAt,
    correction: np.ndarray | None = None,
) -> Steps[np.ndarray]:
    """Return the (P,) update of a round.

    Args:
        local: How many steps, and by which optimizer.
        weights: (P,) that came in.
        first: The sums at these.
        place: Stage and round.
        nodes: Train nodes of the client.
        sums_at: Asked from the second step on.
        correction: (P,) what is added to the mean gradient of each of several steps.

    Returns:
        With one step the gradient sum, which may come from peers' nodes alone; with several the
        change of the weights times ``nodes``, zeros without any.

    Raises:
        TrainingDiverged: A loss or a gradient is not finite.
    """
    if local.count == 1:
        return finite_gradient(local, weights, first, place)
    if not nodes:
        return np.zeros_like(weights)
    optimizer, sums = local.begin(weights), first
    for step in range(local.count):
        keyed = replace(place, step=step)
        if step:
            sums = yield from sums_at(optimizer.weights, keyed)
        gradient = finite_gradient(local, weights, sums, keyed) / sums.train.count
        if local.proximal_mu:
            gradient += local.proximal_mu * (optimizer.weights - weights)
        if correction is not None:
            gradient += correction
        optimizer.step(gradient)
    change: np.ndarray = (optimizer.weights - weights) * nodes
    return change


def finite_gradient(
    local: LocalSteps, weights: np.ndarray, sums: PassSums, place: KeyedDropout
) -> np.ndarray:
    """Return the (P,) gradient sum of a pass, zeros where no node gave one: a round of one step.

    Raises:
        TrainingDiverged: The loss or the gradient is not finite.
    """
    if sums.gradient_sum is None:
        return np.zeros_like(weights)
    if sums.is_finite and np.isfinite(sums.train.loss_sum):
        return sums.gradient_sum
    where = f"stage {place.stage}, round {place.round}"
    key = "learning-rate"
    if local.count > 1:
        where, key = f"{where}, local step {place.step + 1}", "local-learning-rate"
    raise TrainingDiverged(
        f"{where}: the training loss is {sums.train.loss_sum} and its gradient is not finite; "
        f"lower {key} or check the features"
    )
