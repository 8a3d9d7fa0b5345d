"""What the server does with an aggregated update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np

from retexo_fl.config import RunConfig
from retexo_fl.federation.lbfgs import LimitedMemory
from retexo_fl.training.flat_optimizers import FlatAdam, FlatSgd

#: Of the optimizer ``momentum``.
_MOMENTUM: Final = 0.9
#: Of the adaptive optimizers; the least that a step is divided by.
_SECOND_DECAY: Final = 0.99
_ADAPTIVITY: Final = 1e-3


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


#: The next second moment of one, and of a squared gradient, by optimizer.
_SECOND_MOMENTS: Final[Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = (
    MappingProxyType(
        {
            "adagrad": lambda second, square: second + square,
            "adam": lambda second, square: second + (1 - _SECOND_DECAY) * (square - second),
            "yogi": lambda second, square: (
                second - (1 - _SECOND_DECAY) * square * np.sign(second - square)
            ),
        }
    )
)


class Adaptive:
    """Steps that are shorter where gradients were large: FedAdagrad, FedAdam and FedYogi.

    As written there: without a correction of the moments' bias, the second moment begins with the
    square of the adaptivity, 0.001, and FedAdagrad has no momentum. With one local step gradients
    take the place of changes with the other sign.

    Source: Reddi et al., ICLR 2021, algorithm 2; decays of the moments 0.9 and 0.99, section 5.
    """

    def __init__(
        self, weights: np.ndarray, *, name: str, learning_rate: float, weight_decay: float
    ) -> None:
        self._weights = weights.copy()
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay
        self._momentum = 0.0 if name == "adagrad" else _MOMENTUM
        self._next_second = _SECOND_MOMENTS[name]
        self._first = np.zeros_like(weights)
        self._second = np.full_like(weights, _ADAPTIVITY**2)

    @property
    def weights(self) -> np.ndarray:
        """See :class:`ServerOptimizer`."""
        return self._weights

    def step(self, update: np.ndarray, *_where: object) -> None:
        """See :class:`ServerOptimizer`; the update is a gradient."""
        gradient = update + self._weight_decay * self._weights
        self._first = self._momentum * self._first + (1 - self._momentum) * gradient
        self._second = self._next_second(self._second, np.square(gradient))
        step = self._first / (np.sqrt(self._second) + _ADAPTIVITY)
        self._weights -= self._learning_rate * step

    def state(self) -> dict[str, np.ndarray]:
        """See :class:`ServerOptimizer`."""
        return {"adaptive.first": self._first, "adaptive.second": self._second}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """See :class:`ServerOptimizer`."""
        if state:
            self._first = state["adaptive.first"].copy()
            self._second = state["adaptive.second"].copy()


class OfChanges:
    """Has an optimizer take mean changes of weights for gradients, with the other sign.

    Source: Reddi et al., ICLR 2021, algorithm 1 (FedOpt).
    """

    def __init__(self, inner: ServerOptimizer) -> None:
        self._inner = inner

    @property
    def weights(self) -> np.ndarray:
        """See :class:`ServerOptimizer`."""
        return self._inner.weights

    def step(self, update: np.ndarray, loss: float, at: np.ndarray) -> None:
        """See :class:`ServerOptimizer`."""
        self._inner.step(-update, loss, at)

    def state(self) -> Mapping[str, np.ndarray]:
        """See :class:`ServerOptimizer`."""
        return self._inner.state()

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """See :class:`ServerOptimizer`."""
        self._inner.load_state(state)


class Partial:
    """Moves some of the weights by another optimizer, which knows no others.

    Args:
        weights: (P,) all of them.
        moved: (P,) bool, which are moved.
        make: Makes the optimizer of the (M,) that are moved.
    """

    def __init__(
        self,
        weights: np.ndarray,
        moved: np.ndarray,
        make: Callable[[np.ndarray], ServerOptimizer],
    ) -> None:
        self._weights = weights.copy()
        self._moved = moved
        self._inner = make(weights[moved])

    @property
    def weights(self) -> np.ndarray:
        """See :class:`ServerOptimizer`."""
        return self._weights

    def step(self, update: np.ndarray, loss: float, at: np.ndarray) -> None:
        """See :class:`ServerOptimizer`."""
        np.copyto(self._inner.weights, self._weights[self._moved])
        self._inner.step(update[self._moved], loss, at[self._moved])
        self._weights[self._moved] = self._inner.weights

    def state(self) -> Mapping[str, np.ndarray]:
        """See :class:`ServerOptimizer`."""
        return self._inner.state()

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """See :class:`ServerOptimizer`."""
        self._inner.load_state(state)


def make_optimizer(config: RunConfig, weights: np.ndarray) -> ServerOptimizer:
    """Return the configured optimizer: of gradients, or of changes after several local steps."""
    rate = config.learning_rate
    if config.local_steps == 1:
        if config.optimizer == "adam":
            return FlatAdam(weights, learning_rate=rate, weight_decay=config.weight_decay)
        return _descent(config.optimizer, weights, rate, config.weight_decay)
    if config.server_optimizer == "mean":
        return WeightAverage(weights)
    # Clients have added weight decay to each of their steps.
    return OfChanges(_descent(config.server_optimizer, weights, rate, 0.0))


def _descent(
    name: str, weights: np.ndarray, learning_rate: float, weight_decay: float
) -> ServerOptimizer:
    rates = {"learning_rate": learning_rate, "weight_decay": weight_decay}
    match name:
        case "lbfgs":
            return LimitedMemory(weights, **rates)
        case "sgd":
            return FlatSgd(weights, **rates)
        case "momentum":
            return FlatSgd(weights, momentum=_MOMENTUM, **rates)
    return Adaptive(weights, name=name, **rates)
