"""The task of :mod:`.unified`: any module, source and loss on one device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch

from retexo_fl.additions.devices.workers.flat_module import FlatModule
from retexo_fl.additions.devices.workers.task import Share, ShareSums
from retexo_fl.errors import ConfigurationError

#: Names of the sums that every share has.
LOSS_SUM: Final = "loss_sum"
COUNT: Final = "count"
OWN_NUMBERS: Final = frozenset({LOSS_SUM, COUNT})
#: ``loss(model, batch)``: the loss *summed* over the items of the batch; with it, if wanted,
#: further sums by name.
Loss = Callable[[torch.nn.Module, Any], torch.Tensor | tuple[torch.Tensor, Mapping[str, float]]]


class Source(Protocol):
    """Where batches come from; sent to every worker process once."""

    def prepare(self, items: np.ndarray, *, epoch: int, batch: int, device: torch.device) -> Any:
        """Return what the loss is computed on: sampled, gathered, and moved to ``device``.

        Called in a thread beside the computing, or in several (``preparers``). What one item yields
        must not depend on which others are prepared with it, or on where: key randomness by (epoch,
        batch, item).

        Args:
            items: (n,) int64, at least one.
            epoch: Number of the epoch.
            batch: Number of the mini-batch within it.
            device: Where the loss will be computed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSettings:
    """What a worker computes.

    Attributes:
        model: Its weights are set before each share.
        source: Of batches.
        loss: Summed over a batch.
        seed: Of the training.
    """

    model: torch.nn.Module
    source: Source
    loss: Loss
    seed: int


class ModuleTask:
    """Forward and backward of a module over the items of a share."""

    def __init__(self, device: torch.device, settings: ModuleSettings) -> None:
        self._device = device
        self._settings = settings
        # In the client's own process the module is the user's, whose gradients are not ours.
        self._model = copy.deepcopy(settings.model).to(device).train()
        self._flat = FlatModule(self._model)

    def prepare(self, share: Share) -> object:
        """Ask the source."""
        batch = self._settings.source.prepare(
            share.items, epoch=share.epoch, batch=share.batch, device=self._device
        )
        return share, batch

    def sums(self, weights: torch.Tensor, prepared: object) -> ShareSums:
        """Compute loss and gradient."""
        assert isinstance(prepared, tuple)
        share, batch = prepared
        self._flat.load(weights)
        self._flat.clear_gradients()
        before = self._versions()
        with torch.random.fork_rng(devices=self._gpus(), enabled=True):
            torch.manual_seed(_key(self._settings.seed, share))
            loss, numbers = _loss_and_numbers(self._settings.loss(self._model, batch))
            loss.backward()  # type: ignore[no-untyped-call]
        self._demand_constant_buffers(before)
        return ShareSums(
            gradient_sum=self._flat.gradients(),
            numbers={LOSS_SUM: loss.item(), COUNT: len(share.items), **numbers},
        )

    def _gpus(self) -> list[torch.device]:
        return [self._device] if self._device.type == "cuda" else []

    def _versions(self) -> dict[str, tuple[int, int]]:
        return {name: (id(one), one._version) for name, one in self._model.named_buffers()}

    def _demand_constant_buffers(self, before: Mapping[str, tuple[int, int]]) -> None:
        for name, version in self._versions().items():
            if before.get(name) != version:
                raise ConfigurationError(
                    f"model: its buffer {name} changes during training, differently on each "
                    "device; expected state in parameters only"
                )


def make_module_task(
    device: torch.device, arrays: Mapping[str, np.ndarray], settings: ModuleSettings
) -> ModuleTask:
    """Make the task; it has no arrays of its own."""
    del arrays
    return ModuleTask(device, settings)


def _loss_and_numbers(
    found: torch.Tensor | tuple[torch.Tensor, Mapping[str, float]],
) -> tuple[torch.Tensor, Mapping[str, float]]:
    if isinstance(found, torch.Tensor):
        return found, {}
    loss, numbers = found
    if taken := sorted(OWN_NUMBERS & numbers.keys()):
        raise ConfigurationError(
            f"loss: it returns a number named {taken[0]}; expected another name"
        )
    return loss, numbers


def _key(seed: int, share: Share) -> int:
    """Return the seed of what the module itself draws, such as PyTorch's own dropout."""
    drawn = np.random.SeedSequence([seed, share.epoch, share.batch, int(share.items[0])])
    return int(drawn.generate_state(1, np.uint64)[0] >> 1)
