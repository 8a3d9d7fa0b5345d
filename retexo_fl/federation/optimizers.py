"""What the server does with an aggregated update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np

from retexo_fl.config import RunConfig
from retexo_fl.federation.lbfgs import LimitedMemory
from retexo_fl.training.flat_optimizers import FlatAdam, FlatSgd

#: Of the optimizer ``momentum``.
_MOMENTUM: Final = 0.9


class ServerOptimizer(Protocol):
    """Holds the weights of a stage and moves them once a round."""

    @property
    def weights(self) -> np.ndarray:
        """The (P,) weights; a view that the next step changes."""
        ...

    def step(self, update: np.ndarray, loss: float, at: np.ndarray) -> None:
        """Move the weights by a (P,) aggregated update.

        Args:
            update: The update.
            loss: The mean loss where it was computed.
            at: (P,) weights at which it was computed: these weights, as clients got them.
        """
        ...

    def state(self) -> Mapping[str, np.ndarray]:
        """Return what :meth:`load_state` needs, beside the weights."""
        ...

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from :meth:`state` of another instance that held the same weights."""
        ...


class WeightAverage:
    """Adds the mean of the clients' weight changes: federated averaging.

    Source: McMahan et al., AISTATS 2017, algorithm 1.
    """

    def __init__(self, weights: np.ndarray) -> None:
        self._weights = weights.copy()

    @property
    def weights(self) -> np.ndarray:
        """See :class:`ServerOptimizer`."""
        return self._weights

    def step(self, update: np.ndarray, loss: float, at: np.ndarray) -> None:
        """See :class:`ServerOptimizer`."""
        del loss, at
        self._weights += update

    def state(self) -> Mapping[str, np.ndarray]:
        """See :class:`ServerOptimizer`; there is none."""
        return {}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """See :class:`ServerOptimizer`."""
        assert not state


def make_optimizer(config: RunConfig, weights: np.ndarray) -> ServerOptimizer:
    """Return the configured optimizer of gradients, or averaging after several local steps."""
    if config.local_steps > 1:
        return WeightAverage(weights)
    rates = {"learning_rate": config.learning_rate, "weight_decay": config.weight_decay}
    match config.optimizer:
        case "lbfgs":
            return LimitedMemory(weights, **rates)
        case "sgd":
            return FlatSgd(weights, **rates)
        case "momentum":
            return FlatSgd(weights, momentum=_MOMENTUM, **rates)
    return FlatAdam(weights, **rates)
