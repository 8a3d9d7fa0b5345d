"""A client's part in making columns of the edges: a step along its edges, and sums over its nodes.

What crosses before a step is what the one before made of boundary nodes, as rows do before a
stage. Symbols as in :mod:`.columns`, where y_0 follows from the hashes of nodes, so that nothing
crosses for the first step, and in :mod:`.label_sums`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np
import torch

from retexo_fl.client.api import (
    PublishRequest,
    StructureAnswer,
    StructureRequest,
    Ticket,
    WhitenAnswer,
    WhitenRequest,
)
from retexo_fl.client.client import GraphClient
from retexo_fl.client.crossing import Crossing
from retexo_fl.client.mailbox import Mailbox
from retexo_fl.client.store import ClientStore
from retexo_fl.config import RunConfig
from retexo_fl.errors import ExchangeIncomplete, LocalProtocolError
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.base import StageInput
from retexo_fl.training.columns import (
    ColumnMap,
    Interval,
    Walk,
    degree_sums,
    degree_values,
    logarithms,
    map_values,
    product_sums,
    product_values,
    signs,
    with_structure,
)
from retexo_fl.training.label_sums import (
    Turns,
    label_columns,
    next_sums,
    sums_along,
    train_labels,
)
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import column_bits

#: In the client's store: what makes features, then the features.
_NOTE: Final = "columns"


class ColumnSteps:
    """Implements :class:`.Ahead` for one client.

    Args:
        crossing: What carries its rows; its part and its plan are those that layers read.
        config: Of the run.
        shape: Of its model.
        store: Keeps what the steps before made, and the features.
    """

    def __init__(
        self, crossing: Crossing, config: RunConfig, shape: ModelShape, store: ClientStore
    ) -> None:
        self._crossing = crossing
        self._config, self._shape, self._store = config, shape, store
        #: z, by the digest that names y of the step before the last.
        self._last: tuple[bytes, np.ndarray] = (b"", np.zeros((0, 0)))
        self._made: tuple[np.ndarray, np.ndarray] | None = None
        self._series: Series | None = None

    def rows(self, request: PublishRequest) -> np.ndarray:
        """See :class:`.Ahead`: make what crosses next, and keep it with what was before."""
        ticket = request.ticket
        if request.weights is None:
            raise LocalProtocolError("asked for a step along edges without an interval")
        interval = Interval.read(request.weights)
        if ticket.stage == self._shape.column_stages[0]:
            found, kept = self._steps().begin(interval)
        else:
            inputs, before = self._crossed(ticket.stage - 1, request.previous_digest)
            found, kept = self._steps().next(interval, inputs, before)
        self._store.put_rows(ticket.stage, ticket.weights_digest, found)
        self._store.put_weights(ticket.stage, ticket.weights_digest, kept.ravel())
        return found

    def filtered(self, ticket: Ticket, interval: Interval) -> np.ndarray:
        """Return the (N, d) z of the last step.

        Raises:
            ExchangeIncomplete: The exchange before it is not closed.
        """
        digest, found = self._last
        if digest != ticket.weights_digest:
            inputs, before = self._crossed(ticket.stage, ticket.weights_digest)
            found = self._steps().end(interval, inputs, before)
            self._last = ticket.weights_digest, found
        return found

    def make(self, told: np.ndarray, ticket: Ticket) -> int:
        """Make features by a map as it travels, and keep both; return how many each node has.

        Raises:
            RemoteProtocolError: It is no map.
        """
        by = _map_of(self._shape, told)
        features = by.features(self.logarithms(), self.filtered(ticket, by.interval))
        self._made = told, features
        self._store.put_note(_NOTE, told.tobytes() + features.tobytes())
        self._last = (b"", np.zeros((0, 0)))
        return int(features.shape[1])

    def logarithms(self) -> np.ndarray:
        """Return the (N, g) logarithms of degrees."""
        return logarithms(self._crossing.part.degrees)

    def features(self) -> np.ndarray:
        """See :class:`.Ahead`.

        Raises:
            ExchangeIncomplete: They are not made yet.
        """
        found = self._found()
        if found is None:
            raise ExchangeIncomplete(
                f"client {self._crossing.part.client}: columns of the edges are not made yet"
            )
        return found[1]

    @property
    def made_by(self) -> np.ndarray | None:
        """See :class:`.Ahead`."""
        found = self._found()
        return None if found is None else found[0]

    def _found(self) -> tuple[np.ndarray, np.ndarray] | None:
        if self._made is None and (content := self._store.note(_NOTE)) is not None:
            values = np.frombuffer(content, self._config.dtype)
            size = map_values(self._shape.made_degrees, self._shape.mixed_columns)
            self._made = values[:size], values[size:].reshape(-1, self._shape.features)
        return self._made

    def _steps(self) -> Series:
        if self._series is None:
            self._series = _series_of(self._crossing.part, self._config, self._shape)
        return self._series

    def _crossed(self, stage: int, digest: bytes) -> tuple[Crossed, np.ndarray]:
        """Return what crossed before a stage, and what was kept beside it: (N, any) values."""
        inputs = self._crossing.crossed(stage, digest)
        before = self._store.weights(stage, digest)
        assert isinstance(inputs.own, torch.Tensor)
        if before is None:
            raise ExchangeIncomplete(
                f"client {self._crossing.part.client}: a step along edges was lost"
            )
        nodes = len(inputs.own)
        kept = before.reshape(nodes, -1) if before.size else np.zeros((nodes, 0), before.dtype)
        return Crossed.of(inputs), kept


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crossed:
    """What a step reads: the rows of own nodes, (N, w), and of slots, (B, w), and the edges."""

    own: np.ndarray
    received: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None
    totals: np.ndarray

    @classmethod
    def of(cls, inputs: StageInput) -> Self:
        """Take what crossed before a stage."""
        received, own = inputs.received, inputs.own
        assert isinstance(own, torch.Tensor)
        return cls(
            own=own.numpy(),
            received=received.numpy() if isinstance(received, torch.Tensor) else received.toarray(),
            indptr=inputs.indptr,
            indices=inputs.indices,
            weights=inputs.edge_weights,
            totals=inputs.neighbours,
        )

    @classmethod
    def within(cls, part: GraphPartition, own: np.ndarray, received: np.ndarray) -> Self:
        """Take a part's own edges."""
        return cls(
            own=own,
            received=received,
            indptr=np.asarray(part.indptr),
            indices=np.asarray(part.indices),
            weights=part.edge_values.weights,
            totals=np.asarray(part.degrees),
        )


class Series(Protocol):
    """Steps along edges, each of what the one before made of own and received rows.

    Each returns what crosses before the next step, (N, w), and what is kept beside it, (N, any).
    """

    def begin(self, interval: Interval) -> tuple[np.ndarray, np.ndarray]:
        """Return what crosses first."""

    def next(
        self, interval: Interval, crossed: Crossed, kept: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Take a step."""

    def end(self, interval: Interval, crossed: Crossed, kept: np.ndarray) -> np.ndarray:
        """Take the last step; return the (N, d) columns."""


def _series_of(part: GraphPartition, config: RunConfig, shape: ModelShape) -> Series:
    return (_LabelSeries if shape.sums_labels else _SignSeries)(part, config, shape)


class _SignSeries:
    """Random signs through a filter (:mod:`~retexo_fl.training.columns`).

    Peers know the signs of each other's nodes, so that the first step needs none of theirs.
    """

    def __init__(self, part: GraphPartition, config: RunConfig, shape: ModelShape) -> None:
        self._part, self._config, self._shape = part, config, shape
        self._walk: Walk | None = None

    def begin(self, interval: Interval) -> tuple[np.ndarray, np.ndarray]:
        own, received = map(self._signs, (self._part.node_hashes, self._part.boundary_hashes))
        crossed = Crossed.within(self._part, own, received)
        walk = _walk_of(crossed, self._part)
        return interval.next(walk.step(own, received), own, None), own

    def next(
        self, interval: Interval, crossed: Crossed, kept: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if self._walk is None:
            self._walk = _walk_of(crossed, self._part)
        product = self._walk.step(crossed.own, crossed.received)
        return interval.next(product, crossed.own, kept), crossed.own

    def end(self, interval: Interval, crossed: Crossed, kept: np.ndarray) -> np.ndarray:
        found, _ = self.next(interval, crossed, kept)
        return interval.scaled(found, self._shape.column_steps)

    def _signs(self, hashes: np.ndarray) -> np.ndarray:
        config = self._config
        return signs(
            np.asarray(hashes), self._shape.made_columns, seed=config.seed, dtype=config.dtype
        )


def _walk_of(crossed: Crossed, part: GraphPartition) -> Walk:
    return Walk.of(
        indptr=crossed.indptr,
        indices=crossed.indices,
        weights=crossed.weights,
        totals=crossed.totals,
        neighbours=np.diff(part.indptr),
        slots=len(crossed.received),
    )


class _LabelSeries:
    """Train labels along edges (:mod:`~retexo_fl.training.label_sums`); all sums are kept."""

    def __init__(self, part: GraphPartition, config: RunConfig, shape: ModelShape) -> None:
        self._part, self._classes, self._dtype = part, shape.classes, config.dtype
        self._turns = Turns.of(np.asarray(part.indptr), part.edge_values.weights)

    def begin(self, interval: Interval) -> tuple[np.ndarray, np.ndarray]:
        del interval
        found = train_labels(self._part.labels, self._part.train_mask, self._classes)
        return found.astype(self._dtype), np.zeros((len(found), 0), self._dtype)

    def next(
        self, interval: Interval, crossed: Crossed, kept: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        del interval
        product = sums_along(
            *(crossed.indptr, crossed.indices, crossed.weights, crossed.own, crossed.received)
        )
        found = next_sums(product, self._apart(kept), self._turns)
        return found.astype(self._dtype), np.hstack([kept, crossed.own])

    def end(self, interval: Interval, crossed: Crossed, kept: np.ndarray) -> np.ndarray:
        found, before = self.next(interval, crossed, kept)
        _, *sums = self._apart(before)
        return label_columns([*sums, found]).astype(self._dtype)

    def _apart(self, kept: np.ndarray) -> list[np.ndarray]:
        return np.split(kept, kept.shape[1] // self._classes, axis=1) if kept.shape[1] else []


def _map_of(shape: ModelShape, told: np.ndarray) -> ColumnMap:
    return ColumnMap.decode(told, degrees=shape.made_degrees, columns=shape.mixed_columns)


def features_of_whole(
    part: GraphPartition, config: RunConfig, shape: ModelShape, told: np.ndarray
) -> np.ndarray:
    """Return the (N, F) features of a whole graph as one part, by a map as it travels.

    Raises:
        RemoteProtocolError: It is no map.
    """
    by, series = _map_of(shape, told), _series_of(part, config, shape)
    rows, kept = series.begin(by.interval)
    for _ in shape.column_stages[:-1]:
        rows, kept = series.next(by.interval, _alone(part, rows), kept)
    found = series.end(by.interval, _alone(part, rows), kept)
    return by.features(logarithms(part.degrees), found)


def _alone(part: GraphPartition, rows: np.ndarray) -> Crossed:
    return Crossed.within(part, rows, rows[:0])


class ColumnClient(GraphClient):
    """A client that makes columns of the edges with its peers, where nodes have no features."""

    def __init__(self, partition: GraphPartition, config: RunConfig, **kept: Any) -> None:
        super().__init__(with_structure(partition, config), config, **kept)
        self._steps: ColumnSteps | None = None
        if not self.shape.made_columns:
            return
        crossing = self.crossing
        by_step = {
            stage: column_bits(config, self.shape, stage) for stage in self.shape.column_stages
        }
        made = {
            bits: Mailbox(
                self.part.graph.client,
                self._job,
                crossing.plan,
                self._channel,
                codec="lossless" if bits == 32 else f"levels{bits}",
            )
            for bits in {*by_step.values()}
        }
        crossing.columns = {stage: made[bits] for stage, bits in by_step.items()}
        self._steps = ColumnSteps(crossing, config, self.shape, self._store)
        crossing.ahead = self._steps

    def structure(self, request: StructureRequest) -> StructureAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        ticket, weights = request.ticket, request.weights
        self._admit_to_sum(ticket)
        steps = self._column_steps()
        nodes = self.part.graph.num_inner
        adds = "nodes" in self.part.uses
        if weights is None:
            size = degree_values(self.shape.made_degrees)
        elif not self.shape.mixed_columns:
            raise LocalProtocolError(
                "asked for products of label columns; expected none, since nothing mixes them"
            )
        else:
            size = product_values(self.shape.mixed_columns)
            interval = Interval.read(weights)
            # Before it is computed with: whether its exchange is closed is no fact of data.
            self.crossing.check_closed(ticket)
        self._enter(request, weights)

        def add_up() -> StructureAnswer:
            if weights is None:
                neighbours = np.diff(self.part.graph.indptr)
                sums = degree_sums(neighbours, steps.logarithms())
            else:
                sums = product_sums(steps.filtered(ticket, interval))
            sums = (sums * adds).astype(self._config.dtype)
            return StructureAnswer(sums=sums, nodes=nodes if adds else 0)

        answer = self._sealing.computed(add_up)
        return self._sealing.answered(request, answer, weights, size)

    def whiten(self, request: WhitenRequest) -> WhitenAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        self._admit(request.ticket)
        steps = self._column_steps()
        self.crossing.check_closed(request.ticket)
        self._enter(request, request.weights)
        self._drop_trainers()
        return WhitenAnswer(features=steps.make(request.weights, request.ticket))

    def _column_steps(self) -> ColumnSteps:
        if self._steps is None:
            raise LocalProtocolError(
                "asked for columns of the edges; expected nodes without features, and structure "
                "columns"
            )
        return self._steps
