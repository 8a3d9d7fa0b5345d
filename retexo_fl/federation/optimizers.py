"""The server's optimizer step on flat weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch


class ServerAdam:
    """PyTorch's Adam with coupled L2 on one flat vector, its state readable for checkpoints.

    With averaged gradients of one local step this is RETEXO's training: every worker there takes
    the same Adam step, here the server takes it once.

    Source: Kingma and Ba, ICLR 2015, algorithm 1.
    """

    def __init__(self, weights: np.ndarray, *, learning_rate: float, weight_decay: float) -> None:
        self._weights = torch.nn.Parameter(torch.from_numpy(weights.copy()))
        # One tensor: the multi-tensor paths have nothing to gain and may order sums otherwise.
        self._adam = torch.optim.Adam(
            [self._weights], lr=learning_rate, weight_decay=weight_decay, foreach=False
        )

    @property
    def weights(self) -> np.ndarray:
        """The (P,) weights; a view that the next step changes."""
        return self._weights.detach().numpy()

    def step(self, gradient: np.ndarray) -> None:
        """Take one step along a (P,) gradient of the mean loss."""
        self._weights.grad = torch.from_numpy(gradient)
        self._adam.step()

    def state(self) -> dict[str, np.ndarray]:
        """Return what :meth:`load_state` needs; empty before the first step."""
        state = self._adam.state.get(self._weights, {})
        return {f"adam.{name}": item.numpy() for name, item in state.items()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from :meth:`state` of another instance that held the same weights."""
        named = {
            name.removeprefix("adam."): torch.from_numpy(item.copy())
            for name, item in state.items()
            if name.startswith("adam.")
        }
        if named:
            self._adam.state[self._weights] = named
