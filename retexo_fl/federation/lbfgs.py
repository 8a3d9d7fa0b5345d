"""L-BFGS by the server, which sees one point, gradient and loss a round."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Final

import numpy as np

#: Pairs of steps and changes of the gradient that are kept.
_PAIRS: Final = 12
#: A point is taken back where its loss is above this share of the accepted one's, and a little.
_WORSE: Final = 1.02
_WORSE_BY: Final = 1e-4
#: Where to go then, as a share of the step; and how often in a row.
_RETREAT: Final = 0.3
_MOST_RETREATS: Final = 3
#: Longest step, in first steps.
_LONGEST: Final = 5.0
#: Smallest cosine between a step and the change of the gradient over it.
_LEAST_COSINE: Final = 1e-6


class LimitedMemory:
    """Minimises the mean loss with coupled L2 by limited-memory BFGS, without a line search.

    A line search would ask clients for losses several times a step. Instead, a step after which the
    loss is higher is shortened, and one that is too long is cut: the first has the norm
    ``learning_rate * sqrt(P)``, none is longer than five times that.

    Gradients should be of one function: with dropout, or with mini-batches, they are not.

    Source: Nocedal and Wright, Numerical Optimization, algorithms 7.4 and 7.5.

    Attributes:
        weights: (P,) the point that the next gradient is of.
    """

    def __init__(self, weights: np.ndarray, *, learning_rate: float, weight_decay: float) -> None:
        self.weights = weights.copy()
        self._first_norm = learning_rate * math.sqrt(len(weights))
        self._weight_decay = weight_decay
        self._steps: deque[np.ndarray] = deque(maxlen=_PAIRS)
        self._changes: deque[np.ndarray] = deque(maxlen=_PAIRS)
        #: The same in float64, and their products.
        self._pairs: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=_PAIRS)
        #: Point, gradient and loss of the last step that was not taken back.
        self._accepted: tuple[np.ndarray, np.ndarray, float] | None = None
        self._retreats = 0

    def step(self, update: np.ndarray, loss: float, at: np.ndarray) -> None:
        """Take one step from where a (P,) gradient of the mean loss and that loss were computed."""
        point = at.copy()
        gradient = update + self._weight_decay * point
        value = loss + 0.5 * self._weight_decay * _dot(point, point)
        if self._accepted is not None:
            back, gradient_before, value_before = self._accepted
            is_worse = value > _WORSE * value_before + _WORSE_BY
            if is_worse and self._retreats < _MOST_RETREATS:
                self._retreats += 1
                self.weights = back + point.dtype.type(_RETREAT) * (point - back)
                return
            self._remember(point - back, gradient - gradient_before)
        self._retreats = 0
        self._accepted = (point, gradient, value)
        direction = self._direction(gradient)
        norm, longest = math.sqrt(_dot(direction, direction)), _LONGEST * self._first_norm
        if norm > longest:
            direction *= longest / norm
        self.weights = point - direction.astype(point.dtype)

    def state(self) -> dict[str, np.ndarray]:
        """Return what :meth:`load_state` needs, beside the weights."""
        if self._accepted is None:
            return {}
        point, gradient, value = self._accepted
        pairs = {
            f"lbfgs.{name}.{number}": item
            for name, items in (("step", self._steps), ("change", self._changes))
            for number, item in enumerate(items)
        }
        return {
            "lbfgs.point": point,
            "lbfgs.gradient": gradient,
            "lbfgs.loss": np.array([value]),
            "lbfgs.retreats": np.array([self._retreats]),
            **pairs,
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from :meth:`state` of another instance that held the same weights."""
        if not state:
            return
        point, gradient = state["lbfgs.point"].copy(), state["lbfgs.gradient"].copy()
        self._accepted = (point, gradient, float(state["lbfgs.loss"].item()))
        self._retreats = int(state["lbfgs.retreats"].item())
        for number in range(_PAIRS):
            if f"lbfgs.step.{number}" in state:
                self._remember(
                    state[f"lbfgs.step.{number}"].copy(), state[f"lbfgs.change.{number}"].copy()
                )

    def _remember(self, step: np.ndarray, change: np.ndarray) -> None:
        """Keep a step and the change of the gradient, where the curvature along it is positive."""
        wide_step, wide_change = (one.astype(np.float64, copy=False) for one in (step, change))
        norms = math.sqrt(_dot(step, step)) * math.sqrt(_dot(change, change))
        product = _dot(wide_step, wide_change)
        if product > _LEAST_COSINE * norms:
            self._steps.append(step)
            self._changes.append(change)
            self._pairs.append((wide_step, wide_change, product))

    def _direction(self, gradient: np.ndarray) -> np.ndarray:
        """Multiply a gradient by the approximate inverse Hessian, in float64."""
        found = gradient.astype(np.float64)
        if not self._pairs:
            # Of the Hessian nothing is known: the first step has a norm of its own.
            norm = math.sqrt(_dot(gradient, gradient))
            found *= self._first_norm / norm if norm else 0.0
            return found
        shares = []
        for step, change, product in reversed(self._pairs):
            shares.append(_dot(step, found) / product)
            found -= shares[-1] * change
        _, last_change, product = self._pairs[-1]
        found *= product / _dot(last_change, last_change)
        for (step, change, product), share in zip(self._pairs, reversed(shares), strict=True):
            found += (share - _dot(change, found) / product) * step
        return found


def _dot(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.dot(one.astype(np.float64, copy=False), other.astype(np.float64, copy=False)))
