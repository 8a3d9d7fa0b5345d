"""The trained parameters of any module as one flat vector, and their gradients as another."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from retexo_fl.errors import ConfigurationError


class FlatModule:
    """A module seen as (P,) weights: all parameters with ``requires_grad``, in its own order."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Look at a module.

        Raises:
            ConfigurationError: It has no parameter to train, these are of several dtypes, or it
                normalises by batches.
        """
        demand_no_batch_norm(model)
        self._parameters = [one for one in model.parameters() if one.requires_grad]
        dtypes = {one.dtype for one in self._parameters}
        if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
            found = ", ".join(sorted(map(str, dtypes))) or "none"
            raise ConfigurationError(
                f"model: its trained parameters are {found}; expected all float32 or all float64"
            )
        (self.dtype,) = dtypes
        self._sizes = [one.numel() for one in self._parameters]

    @property
    def size(self) -> int:
        """P."""
        return sum(self._sizes)

    @torch.no_grad()
    def weights(self) -> np.ndarray:
        """Return (P,) what the parameters are now."""
        flat: np.ndarray = torch.cat([one.reshape(-1).cpu() for one in self._parameters]).numpy()
        return flat

    @torch.no_grad()
    def load(self, flat: torch.Tensor) -> None:
        """Set the parameters to (P,) ``flat``."""
        for one, part in zip(self._parameters, torch.split(flat, self._sizes), strict=True):
            one.copy_(part.view_as(one))

    def clear_gradients(self) -> None:
        """Forget gradients of before."""
        for one in self._parameters:
            one.grad = None

    @torch.no_grad()
    def gradients(self) -> torch.Tensor:
        """Return (P,) gradients; zeros for parameters that took no part."""
        return torch.cat([_gradient(one).reshape(-1) for one in self._parameters])

    def set_gradients(self, flat: np.ndarray) -> None:
        """Make (P,) ``flat`` what an optimiser reads; it is not copied."""
        parts = torch.split(torch.from_numpy(flat), self._sizes)
        for one, part in zip(self._parameters, parts, strict=True):
            one.grad = part.view_as(one).to(one.device)


def demand_no_batch_norm(model: torch.nn.Module) -> None:
    """Refuse layers that compute over a batch.

    Raises:
        ConfigurationError: There is one; the message names it.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ConfigurationError(
                f"model: {name or 'it'} is {type(module).__name__}, whose result depends on which "
                "items a device computes together; expected LayerNorm, GroupNorm or none"
            )


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
