"""A client's part in making columns of the edges: a step along its edges, and sums over its nodes.

What crosses before step k + 1 is y_k of boundary nodes, as rows do before a stage; y_0 follows from
the hashes of nodes, so that nothing crosses for the first step. Symbols as in :mod:`.columns`.
"""

from __future__ import annotations

from typing import Any, Final

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
    bits_of_step,
    degree_sums,
    degree_values,
    logarithms,
    map_values,
    product_sums,
    product_values,
    signs,
    with_structure,
)
from retexo_fl.training.stage_model import ModelShape

#: In the client's store: what makes features, then the features.
_NOTE: Final = "columns"


class ColumnSteps:
    """Implements :class:`.Ahead` for one client.

    Args:
        crossing: What carries its rows; its part and its plan are those that layers read.
        config: Of the run.
        shape: Of its model.
        store: Keeps y of the last two steps, and the features.
    """

    def __init__(
        self, crossing: Crossing, config: RunConfig, shape: ModelShape, store: ClientStore
    ) -> None:
        self._crossing = crossing
        self._config, self._shape, self._store = config, shape, store
        self._walk: Walk | None = None
        #: z, by the digest that names y of the step before the last.
        self._last: tuple[bytes, np.ndarray] = (b"", np.zeros((0, 0)))
        self._made: tuple[np.ndarray, np.ndarray] | None = None

    def rows(self, request: PublishRequest) -> np.ndarray:
        """See :class:`.Ahead`: make y of the next step, and keep it with the one before."""
        ticket = request.ticket
        interval = self._interval(request.weights)
        if ticket.stage == self._shape.column_stages[0]:
            last = self._signs(self._crossing.part.node_hashes)
            found = self._first(interval, last)
        else:
            last, before, inputs = self._crossed(ticket.stage - 1, request.previous_digest)
            found = interval.next(self._step(inputs), last, before)
        self._store.put_rows(ticket.stage, ticket.weights_digest, found)
        self._store.put_weights(ticket.stage, ticket.weights_digest, last.ravel())
        return found

    def filtered(self, ticket: Ticket, interval: Interval) -> np.ndarray:
        """Return the (N, d) z of the last step.

        Raises:
            ExchangeIncomplete: The exchange before it is not closed.
        """
        digest, found = self._last
        if digest != ticket.weights_digest:
            last, before, inputs = self._crossed(ticket.stage, ticket.weights_digest)
            found = interval.scaled(
                interval.next(self._step(inputs), last, before), self._shape.column_steps
            )
            self._last = ticket.weights_digest, found
        return found

    def make(self, told: np.ndarray, ticket: Ticket) -> int:
        """Make features by a map as it travels, and keep both; return how many each node has.

        Raises:
            RemoteProtocolError: It is no map.
        """
        degrees, columns = (
            (self._shape.features - self._shape.made_columns),
            self._shape.made_columns,
        )
        by = ColumnMap.decode(told, degrees=degrees, columns=columns)
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
            size = map_values(
                (self._shape.features - self._shape.made_columns), self._shape.made_columns
            )
            self._made = values[:size], values[size:].reshape(-1, self._shape.features)
        return self._made

    def _signs(self, hashes: np.ndarray) -> np.ndarray:
        config = self._config
        return signs(
            np.asarray(hashes), self._shape.made_columns, seed=config.seed, dtype=config.dtype
        )

    def _first(self, interval: Interval, own: np.ndarray) -> np.ndarray:
        """Return y_1: each client knows the signs of its boundary nodes."""
        part = self._crossing.part
        walk = _walk_of_part(part)
        return interval.next(walk.step(own, self._signs(part.boundary_hashes)), own, None)

    def _interval(self, told: np.ndarray | None) -> Interval:
        if told is None:
            raise LocalProtocolError("asked for a step along edges without an interval")
        return Interval.read(told)

    def _crossed(self, stage: int, digest: bytes) -> tuple[np.ndarray, np.ndarray, StageInput]:
        inputs = self._crossing.crossed(stage, digest)
        before = self._store.weights(stage, digest)
        assert isinstance(inputs.own, torch.Tensor)
        if before is None:
            raise ExchangeIncomplete(
                f"client {self._crossing.part.client}: a step along edges was lost"
            )
        own = inputs.own.numpy()
        return own, before.reshape(own.shape), inputs

    def _step(self, inputs: StageInput) -> np.ndarray:
        if self._walk is None:
            self._walk = Walk.of(
                indptr=inputs.indptr,
                indices=inputs.indices,
                weights=inputs.edge_weights,
                totals=inputs.neighbours,
                neighbours=np.diff(self._crossing.part.indptr),
                slots=len(inputs.slot_hashes),
            )
        received = inputs.received
        dense = received.numpy() if isinstance(received, torch.Tensor) else received.toarray()
        assert isinstance(inputs.own, torch.Tensor)
        return self._walk.step(inputs.own.numpy(), dense)


def features_of_whole(
    part: GraphPartition, config: RunConfig, shape: ModelShape, told: np.ndarray
) -> np.ndarray:
    """Return the (N, F) features of a whole graph as one part, by a map as it travels.

    Raises:
        RemoteProtocolError: It is no map.
    """
    by = ColumnMap.decode(
        told, degrees=(shape.features - shape.made_columns), columns=shape.made_columns
    )
    walk, none = _walk_of_part(part), np.zeros((0, shape.made_columns), config.dtype)
    before, last = (
        None,
        signs(
            np.asarray(part.node_hashes), shape.made_columns, seed=config.seed, dtype=config.dtype
        ),
    )
    for _ in range(shape.column_steps):
        before, last = last, by.interval.next(walk.step(last, none), last, before)
    return by.features(logarithms(part.degrees), by.interval.scaled(last, shape.column_steps))


def _walk_of_part(part: GraphPartition) -> Walk:
    """Return P along a part's own edges, of which each leads to a node."""
    return Walk.of(
        indptr=np.asarray(part.indptr),
        indices=np.asarray(part.indices),
        weights=part.edge_values.weights,
        totals=np.asarray(part.degrees),
        neighbours=np.diff(part.indptr),
        slots=part.num_boundary,
    )


class ColumnClient(GraphClient):
    """A client that makes columns of the edges with its peers, where nodes have no features."""

    def __init__(self, partition: GraphPartition, config: RunConfig, **kept: Any) -> None:
        super().__init__(with_structure(partition, config), config, **kept)
        self._steps: ColumnSteps | None = None
        if not self.shape.made_columns:
            return
        crossing = self.crossing
        by_step = {
            stage: bits_of_step(step, steps=self.shape.column_steps, bits=config.structure_bits)
            for step, stage in enumerate(self.shape.column_stages, start=1)
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
            size = degree_values(self.shape.features - self.shape.made_columns)
        else:
            size = product_values(self.shape.made_columns)
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
