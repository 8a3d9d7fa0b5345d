"""A training whose numbers are no numbers any more is stopped by name."""

from __future__ import annotations

import numpy as np

from retexo_fl.errors import TrainingDiverged
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.linear_step import PassSums


def finite_gradient(sums: PassSums, place: KeyedDropout, *, local_steps: int) -> np.ndarray:
    """Return the (P,) gradient sum of a step.

    Args:
        sums: Of a client with train nodes, or with gradients from its peers.
        place: Stage, round and local step.
        local_steps: Steps of a round.

    Raises:
        TrainingDiverged: A loss or a gradient is not finite.
    """
    assert sums.gradient_sum is not None
    if sums.is_finite and np.isfinite(sums.train_loss):
        return sums.gradient_sum
    where = f"stage {place.stage}, round {place.round}"
    key = "learning-rate"
    if local_steps > 1:
        where, key = f"{where}, local step {place.step + 1}", "local-learning-rate"
    raise TrainingDiverged(
        f"{where}: the training loss is {sums.train_loss} and its gradient is not finite; "
        f"lower {key} or check the features"
    )
