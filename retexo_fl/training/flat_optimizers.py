"""Optimizer steps on flat weights: the server's, and those of a client's local steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch.optim.adam import adam


class FlatSgd:
    """Gradient descent with coupled L2 on one flat vector, maybe with heavy-ball momentum.

    Source: Sutskever et al., ICML 2013, in PyTorch's form: ``v = momentum v + g; w -= rate v``.
    """

    def __init__(
        self,
        weights: np.ndarray,
        *,
        learning_rate: float,
        weight_decay: float,
        momentum: float = 0.0,
    ) -> None:
        self._weights = weights.copy()
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay
        self._momentum = momentum
        self._velocity = np.zeros_like(weights) if momentum else None

    @property
    def weights(self) -> np.ndarray:
        """The (P,) weights; a view that the next step changes."""
        return self._weights

    def step(self, gradient: np.ndarray, *_where: object) -> None:
        """Take one step along a (P,) gradient of the mean loss, wherever it was computed."""
        change = gradient + self._weight_decay * self._weights
        if self._velocity is not None:
            self._velocity *= self._momentum
            self._velocity += change
            change = self._velocity
        self._weights -= self._learning_rate * change

    def state(self) -> dict[str, np.ndarray]:
        """Return what :meth:`load_state` needs, beside the weights."""
        return {} if self._velocity is None else {"momentum.velocity": self._velocity}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from :meth:`state` of another instance that held the same weights."""
        if self._velocity is not None and state:
            self._velocity = state["momentum.velocity"].copy()


class FlatAdam:
    """PyTorch's Adam with coupled L2 on one flat vector, its state readable for checkpoints.

    On the server, with averaged gradients of one local step, this is RETEXO's training: every
    worker there takes the same Adam step, here the server takes it once. The functional form is
    used: the class would import PyTorch's compiler at its first step, a second and 100 MB for
    nothing.

    Source: Kingma and Ba, ICLR 2015, algorithm 1, with their beta and epsilon.
    """

    def __init__(self, weights: np.ndarray, *, learning_rate: float, weight_decay: float) -> None:
        self._weights = torch.from_numpy(weights.copy())
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay
        self._first = torch.zeros_like(self._weights)
        self._second = torch.zeros_like(self._weights)
        self._step = torch.tensor(0.0)

    @property
    def weights(self) -> np.ndarray:
        """The (P,) weights; a view that the next step changes."""
        return self._weights.numpy()

    def step(self, gradient: np.ndarray, *_where: object) -> None:
        """Take one step along a (P,) gradient of the mean loss, wherever it was computed."""
        adam(
            [self._weights],
            [torch.from_numpy(gradient)],
            [self._first],
            [self._second],
            [],
            [self._step],
            # One tensor: the multi-tensor path has nothing to gain and may order sums otherwise.
            foreach=False,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._learning_rate,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def state(self) -> dict[str, np.ndarray]:
        """Return what :meth:`load_state` needs: views of both moments and the step count."""
        return {
            "adam.exp_avg": self._first.numpy(),
            "adam.exp_avg_sq": self._second.numpy(),
            "adam.step": self._step.numpy(),
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from :meth:`state` of another instance that held the same weights."""
        if state:
            self._first.copy_(torch.from_numpy(state["adam.exp_avg"].copy()))
            self._second.copy_(torch.from_numpy(state["adam.exp_avg_sq"].copy()))
            # A file may keep a number as an array of one.
            self._step.fill_(float(state["adam.step"].item()))
