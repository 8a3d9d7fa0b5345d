"""Mini-batch training of one model by one method, and what it copies to the device meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
import torch

from retexo_fl.additions.devices.sampling.feature_cache import FixedOrder
from retexo_fl.additions.devices.sampling.features import ReusedBuffer
from retexo_fl.additions.devices.sampling.lru import LruOrder
from retexo_fl.additions.devices.sampling.sample import Sample
from sims.feeds import Feed
from sims.mini_batch_graphs import MiniBatchGraph
from sims.sage import Sage, loss_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Settings of a training.

    Attributes:
        epochs: At least so many.
        most_epochs: At most so many, where the accuracy wanted is not reached before.
        hidden: Width of the hidden layers.
        layers: Of the model.
        dropout: Rate.
        learning_rate: Of Adam.
        seed: Of weights and dropout.
    """

    epochs: int
    most_epochs: int
    hidden: int
    layers: int
    dropout: float
    learning_rate: float
    seed: int


class Point(NamedTuple):
    """After an epoch.

    Attributes:
        seconds: CPU seconds of sampling, gathering and computing until then; no evaluation.
        copied_bytes: Feature bytes copied to the device until then.
        validation: Accuracy on the validation nodes, with all neighbours.
        test: Accuracy on the test nodes.
        would_copy: Bytes that an observer's cache would have let through until then, by its name.
    """

    seconds: float
    copied_bytes: int
    validation: float
    test: float
    would_copy: dict[str, int]


@dataclass(slots=True, kw_only=True)
class Observer:
    """A cache that sees the ids of a trace, and no rows.

    Attributes:
        order: Its policy.
        misses: Rows that it would have let through, with those that filled it.
    """

    order: LruOrder | FixedOrder
    misses: int = 0

    def see(self, ids: np.ndarray) -> None:
        """Ask for the rows of a mini-batch."""
        self.misses += len(ids) - self.order.ask(ids).hits()


NO_OBSERVERS: Final[Mapping[str, Observer]] = MappingProxyType({})


@dataclass(slots=True, kw_only=True)
class Trace:
    """A finished training.

    Attributes:
        points: After each epoch.
        most_rows: Most feature rows on the device at once: those of a mini-batch, and the cache.
    """

    points: list[Point] = field(default_factory=list)
    most_rows: int = 0

    @property
    def best(self) -> float:
        """The highest validation accuracy."""
        return max(point.validation for point in self.points)

    def reached(self, accuracy: float) -> int | None:
        """Return the number of epochs after which validation is first so accurate, or None."""
        found = (n for n, point in enumerate(self.points, 1) if point.validation >= accuracy)
        return next(found, None)


def train(
    graph: MiniBatchGraph,
    feed: Feed,
    training: Training,
    *,
    observers: Mapping[str, Observer] = NO_OBSERVERS,
    wanted: float = 0.0,
) -> Trace:
    """Train a model from its first weights on.

    Args:
        graph: The graph.
        feed: The method.
        training: Settings.
        observers: Caches that are shown the ids that the method asks for.
        wanted: Validation accuracy; after ``training.epochs`` a training that has not reached it
            goes on.
    """
    widths = (graph.features.shape[1], *[training.hidden] * (training.layers - 1))
    model = Sage((*widths, graph.num_classes), dropout=training.dropout, seed=training.seed)
    trainer = _Trainer(graph, feed, model, training.learning_rate)
    samples, trace = feed.samples(), Trace()
    while len(trace.points) < training.most_epochs:
        if len(trace.points) >= training.epochs and trace.reached(wanted) is not None:
            break
        trainer.run(samples, feed.order.batches, list(observers.values()))
        validation, test = _accuracies(graph, model)
        row_bytes = feed.cache.counts.row_bytes
        trace.points.append(
            Point(
                seconds=trainer.seconds,
                copied_bytes=feed.cache.counts.bytes_copied,
                validation=validation,
                test=test,
                would_copy={name: o.misses * row_bytes for name, o in observers.items()},
            )
        )
    trace.most_rows = trainer.most_rows
    return trace


class _Trainer:
    def __init__(
        self, graph: MiniBatchGraph, feed: Feed, model: Sage, learning_rate: float
    ) -> None:
        self.seconds = 0.0
        self.most_rows = 0
        self._graph = graph
        self._feed = feed
        self._model = model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
        self._buffer = ReusedBuffer(graph.features.shape[1], torch.float32)

    def run(self, samples: Iterator[Sample], batches: int, observers: Sequence[Observer]) -> None:
        """Train on the next mini-batches."""
        before = time.process_time()
        for sample in islice(samples, batches):
            self._step(sample)
            seen = time.process_time()
            for observer in observers:
                observer.see(sample.nodes)
            before += time.process_time() - seen
        self.seconds += time.process_time() - before

    def _step(self, sample: Sample) -> None:
        cache = self._feed.cache
        rows = cache.rows(sample.nodes, self._buffer.view(len(sample.nodes)))
        self.most_rows = max(self.most_rows, cache.rows_kept + len(sample.nodes))
        logits = self._model(rows, sample)
        self._optimizer.zero_grad()
        loss_of(logits, self._graph.labels[sample.roots]).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _accuracies(graph: MiniBatchGraph, model: Sage) -> tuple[float, float]:
    logits = model.on_graph(torch.from_numpy(graph.features), graph.adjacency)
    right = logits.argmax(dim=1).numpy() == graph.labels
    return float(right[graph.validation].mean()), float(right[graph.test].mean())
