"""What one device does in mini-batch training: samples, gathers rows, and differentiates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Final, Protocol, TypeVar

import numpy as np
import torch

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.base import Sampler
from retexo_fl.additions.devices.sampling.features import FeatureStore
from retexo_fl.additions.devices.sampling.gns import GnsSampler
from retexo_fl.additions.devices.training.cache_counts import counts_as_numbers
from retexo_fl.additions.devices.training.device_rows import CacheChoice, DeviceRows, ReadRows
from retexo_fl.additions.devices.training.sampled import SampledBatch, SampledEdges, SampledModel
from retexo_fl.additions.devices.training.sampler_choice import SamplerChoice
from retexo_fl.additions.devices.workers.task import Share, ShareSums
from retexo_fl.errors import DeviceFailed
from retexo_fl.graph.neighbours import PLAIN, EdgeValues
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.recipe import Objective
from retexo_fl.training.stage_model import ModelShape

Found = TypeVar("Found")

#: Names of a share's numbers, which key dropout.
ROUND: Final = "round"
STEP: Final = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSettings:
    """What a device needs beside the arrays.

    Attributes:
        shape: Of the model.
        choice: The sampler.
        objective: Has the loss.
        label_facts: What the loss knows of all clients' labels; may be empty.
        dropout: Rate.
        seed: Of the training.
        buffers: Mini-batches that are in memory at once.
        cache: What of its rows a GPU keeps.
    """

    shape: ModelShape
    choice: SamplerChoice
    objective: Objective
    label_facts: tuple[float, ...] = ()
    dropout: float
    seed: int
    buffers: int
    cache: CacheChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGraph:
    """What a client's devices read of its part.

    Attributes:
        adjacency: Edges between its N nodes.
        rows: (N, D) features.
        hashes: (N,) uint64.
        labels: Of all N, as stored.
        train: (T,) int64 train nodes.
        edge_values: Of the edges.
    """

    adjacency: Adjacency
    rows: np.ndarray
    hashes: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    edge_values: EdgeValues = PLAIN

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything by name, for memory that processes share."""
        return {
            **self.edge_values.named(),
            "indptr": self.adjacency.indptr,
            "indices": self.adjacency.indices,
            "rows": self.rows,
            "hashes": self.hashes,
            "labels": self.labels,
            "train": self.train,
        }

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> ClientGraph:
        """Take over what :meth:`arrays` returned."""
        return cls(
            adjacency=Adjacency(indptr=arrays["indptr"], indices=arrays["indices"]),
            rows=arrays["rows"],
            hashes=arrays["hashes"],
            labels=arrays["labels"],
            train=arrays["train"],
            edge_values=EdgeValues(
                weights=arrays.get("edge_weights"), attributes=arrays.get("edge_attributes")
            ),
        )


class Rows(Protocol):
    """Brings input rows to where the model is."""

    def of(self, nodes: np.ndarray, epoch: int) -> ReadRows:
        """Return the rows of (n,) nodes."""
        ...

    def retreat(self) -> bool:
        """Free memory for a mini-batch; return whether any could be freed."""
        ...

    def notes(self) -> tuple[str, ...]:
        """Return notes for the user that were not reported yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    batch: SampledBatch
    dropout: KeyedDropout
    counts: Mapping[str, float]


class SampledTask:
    """Implements :class:`.Task`; items are roots."""

    def __init__(
        self, sampler: Sampler, model: SampledModel, rows: Rows, settings: SampledSettings
    ) -> None:
        self._sampler, self._model, self._rows = sampler, model, rows
        self._settings = settings

    def prepare(self, share: Share) -> object:
        """Sample, and bring the rows to the device."""
        return self._in_memory(lambda: self._prepared(share))

    def sums(self, weights: torch.Tensor, prepared: object) -> ShareSums:
        """Differentiate the roots' losses."""
        assert isinstance(prepared, _Prepared)
        found = self._in_memory(lambda: self._model.sums(weights, prepared.batch, prepared.dropout))
        sums = {"loss_sum": found.loss_sum, "count": found.count, "correct": found.correct}
        numbers = {**sums, **prepared.counts}
        return ShareSums(gradient_sum=found.gradient_sum, numbers=numbers, notes=self._rows.notes())

    def _in_memory(self, compute: Callable[[], Found]) -> Found:
        """Compute; where memory is short, keep fewer rows and try again: the result is the same.

        Raises:
            DeviceFailed: It is short without any row kept.
        """
        while True:
            try:
                return compute()
            except torch.OutOfMemoryError as error:
                said = " ".join(str(error).split())
            # Not within the handler, which holds on to what was computed until the error.
            if not self._rows.retreat():
                raise DeviceFailed(
                    "out of memory for a mini-batch, with an empty feature cache; expected "
                    f"smaller batch-nodes, fanouts or hidden ({said})"
                )

    def _prepared(self, share: Share) -> _Prepared:
        sample = self._sampler.sample(share.items, epoch=share.epoch, batch=share.batch)
        read = self._rows.of(sample.nodes, share.epoch)
        settings = self._settings
        dropout = KeyedDropout(
            rate=settings.dropout,
            seed=settings.seed,
            stage=0,
            round=share.numbers[ROUND],
            step=share.numbers[STEP],
        )
        return _Prepared(
            batch=self._model.prepare(sample, read.rows),
            dropout=dropout,
            counts=counts_as_numbers(read),
        )


def make_sampled_task(
    device: torch.device, arrays: Mapping[str, np.ndarray], settings: SampledSettings
) -> SampledTask:
    """Make the task of a device; a :data:`.TaskFactory`."""
    graph = ClientGraph.of(arrays)
    sampler = settings.choice.make(graph.adjacency, graph.train)
    model = SampledModel(
        settings.shape,
        hashes=graph.hashes,
        labels=graph.labels,
        loss=settings.objective.loss(settings.label_facts),
        device=device,
        edges=SampledEdges.of(graph.adjacency, graph.edge_values),
    )
    store = FeatureStore(graph.rows)
    if device.type == "cpu":
        return SampledTask(sampler, model, _HostRows(store, sampler, settings.buffers), settings)
    return SampledTask(sampler, model, DeviceRows(store, device, sampler, settings.cache), settings)


class _HostRows:
    """Rows in the host's memory, in buffers that are used in turn; for one thread."""

    def __init__(self, store: FeatureStore, sampler: Sampler, buffers: int) -> None:
        self._store = store
        self._buffers = cycle([store.buffer() for _ in range(buffers)])
        self._gns = sampler if isinstance(sampler, GnsSampler) else None
        self._cached = np.empty(0, np.int64)
        self._is_cached = np.zeros(store.num_rows, bool)

    def of(self, nodes: np.ndarray, epoch: int) -> ReadRows:
        """Gather; of the cache of ``gns``, which saves nothing here, hits are counted."""
        rows = self._store.gather(nodes, next(self._buffers).view(len(nodes)))
        if self._gns is None:
            return ReadRows(rows=rows)
        cached = self._gns.cached_nodes(epoch)
        if cached is not self._cached:
            self._is_cached[self._cached] = False
            self._is_cached[cached] = True
            self._cached = cached
        return ReadRows(
            rows=rows,
            hits=int(np.count_nonzero(self._is_cached[nodes])),
            copied_bytes=len(nodes) * self._store.row_bytes,
        )

    def retreat(self) -> bool:
        """Keep nothing, as before."""
        return False

    def notes(self) -> tuple[str, ...]:
        """Say nothing."""
        return ()
