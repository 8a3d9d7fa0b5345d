"""What a device does in experiments on the unified protocol, slowed on purpose."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from multiprocessing import current_process
from typing import Final

import numpy as np
import torch

from retexo_fl.additions.devices.sampling.feature_cache import (
    CachePolicy,
    FeatureCache,
    FixedOrder,
    by_degree,
)
from retexo_fl.additions.devices.sampling.features import FeatureStore, ReusedBuffer
from retexo_fl.additions.devices.sampling.lru import LruOrder
from retexo_fl.additions.devices.training.sampled import SampledBatch, SampledModel
from retexo_fl.additions.devices.training.sampled_task import ClientGraph
from retexo_fl.additions.devices.training.sampler_choice import SamplerChoice
from retexo_fl.additions.devices.workers.task import Share, ShareSums
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.stage_model import ModelShape

#: Results that are alive at once: one that is computed, one that is prepared meanwhile.
BUFFERS: Final = 2
_NO_DROPOUT: Final = KeyedDropout(rate=0.0, seed=0, stage=0, round=1, step=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """How a worker plays a slower device than it is.

    Attributes:
        factor: It takes so many times as long: each of its threads sleeps until the time that has
            passed is this many times the CPU time that it spent. So a device is as fast when
            others use the cores as when none does, up to this factor. On a GPU only computing is
            slowed, and the time that it took counts, not CPU time.
        link_bytes_per_s: Feature rows that are not in its cache come so fast: it sleeps for as long
            as they would take. None reads them where they are.
    """

    factor: float = 1.0
    link_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChoice:
    """Feature rows that a device keeps.

    Attributes:
        policy: ``lru`` or ``degree``.
        rows: How many; 0 keeps none.
        devices: Names of those that keep any.
    """

    policy: str = "lru"
    rows: int = 0
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnifiedSettings:
    """What a worker must know beside the graph.

    Attributes:
        shape: Of the model.
        choice: The sampler.
        cache: Of feature rows.
        slowness: By name of the device; those not named are not slowed.
    """

    shape: ModelShape
    choice: SamplerChoice
    cache: CacheChoice = field(default_factory=CacheChoice)
    slowness: Mapping[str, Slowness] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    batch: SampledBatch
    numbers: dict[str, float]


class UnifiedTask:
    """Implements :class:`.Task`; counts what it samples and copies."""

    def __init__(self, device: torch.device, graph: ClientGraph, settings: UnifiedSettings) -> None:
        self.name = device_name(device)
        self._device = device
        self._slowness = settings.slowness.get(self.name, Slowness())
        self._sampler = settings.choice.make(graph.adjacency, graph.train)
        self._model = SampledModel(
            settings.shape, hashes=graph.hashes, labels=graph.labels, device=device
        )
        store = FeatureStore(graph.rows)
        rows = settings.cache.rows if self.name in settings.cache.devices else 0
        degrees = graph.adjacency.degrees
        self._cache = _cache(store, device, settings.cache.policy, rows, degrees)
        buffers = [ReusedBuffer(store.width, store.dtype, device=device) for _ in range(BUFFERS)]
        self._buffers = cycle(buffers)

    def prepare(self, share: Share) -> object:
        """Sample, gather, and arrange what a pass needs."""
        counts = self._cache.counts
        hits, copied = counts.hits, counts.bytes_copied
        with self._slowed_preparing():
            sample = self._sampler.sample(share.items, epoch=share.epoch, batch=share.batch)
        with self._slowed_preparing():
            rows = self._cache.rows(sample.nodes, next(self._buffers).view(len(sample.nodes)))
            self._wait_for_link(counts.bytes_copied - copied)
        with self._slowed_preparing():
            batch = self._model.prepare(sample, rows)
        numbers: dict[str, float] = {
            "aggregations": sample.num_aggregations,
            "rows": len(sample.nodes),
            "hits": counts.hits - hits,
            "copied bytes": counts.bytes_copied - copied,
        }
        return _Prepared(batch=batch, numbers=numbers)

    def sums(self, weights: torch.Tensor, prepared: object) -> ShareSums:
        """Differentiate; the numbers are named ``DEVICE: NAME``."""
        assert isinstance(prepared, _Prepared)
        with self._slowed_computing():
            found = self._model.sums(weights, prepared.batch, _NO_DROPOUT)
        numbers = {f"{self.name}: {name}": value for name, value in prepared.numbers.items()}
        return ShareSums(
            gradient_sum=found.gradient_sum,
            numbers={"loss_sum": found.loss_sum, "count": found.count, **numbers},
        )

    def _slowed_preparing(self) -> AbstractContextManager[None]:
        return slowed(self._slowness.factor if self._device.type == "cpu" else 1.0)

    @contextmanager
    def _slowed_computing(self) -> Iterator[None]:
        if self._device.type == "cpu":
            with slowed(self._slowness.factor):
                yield
            return
        begun = time.perf_counter()
        yield
        if self._slowness.factor > 1:
            torch.cuda.current_stream(self._device).synchronize()
            time.sleep((self._slowness.factor - 1) * (time.perf_counter() - begun))

    def _wait_for_link(self, copied_bytes: int) -> None:
        if self._slowness.link_bytes_per_s is not None:
            time.sleep(copied_bytes / self._slowness.link_bytes_per_s)


def make_unified_task(
    device: torch.device, arrays: Mapping[str, np.ndarray], settings: UnifiedSettings
) -> UnifiedTask:
    """Make the task of a device; a :data:`.TaskFactory`."""
    return UnifiedTask(device, ClientGraph.of(arrays), settings)


@contextmanager
def slowed(factor: float) -> Iterator[None]:
    """Let a block take ``factor`` times the CPU time that this thread spends in it, or longer."""
    begun, spent = time.perf_counter(), time.thread_time()
    yield
    until = begun + factor * (time.thread_time() - spent)
    time.sleep(max(0.0, until - time.perf_counter()))


def device_name(device: torch.device) -> str:
    """Return the name of this worker's device; CPU workers differ in their processes' names."""
    if device.type != "cpu":
        return str(device)
    process = current_process().name
    return process.removeprefix("retexo ") if process.startswith("retexo ") else "cpu:0"


def _cache(
    store: FeatureStore, device: torch.device, policy: str, rows: int, degrees: np.ndarray
) -> FeatureCache:
    if policy == "degree":
        cache = FeatureCache(store, device, FixedOrder(store.num_rows, rows))
        cache.fill(by_degree(degrees, rows))
        return cache
    order: CachePolicy = LruOrder(store.num_rows, rows)
    return FeatureCache(store, device, order)
