"""Attention over each relation apart, and what any layer for each relation has in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch

from retexo_fl.layers.base import (
    GraphLayer,
    LayerShape,
    Rows,
    StageInput,
    compact_rows,
    glorot,
    one_direction,
    places_on,
    select_rows,
    stacked_rows,
)
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.gat import GatAttention, GatBatch
from retexo_fl.layers.relational import (
    BatchOfType,
    RelationalBatch,
    RelationalLayer,
    columns_of,
    kinds_of,
    places_by_type,
)
from retexo_fl.layers.sparse import SparseRows, sparse_product


@dataclass(frozen=True, slots=True, kw_only=True)
class PerRelationInput:
    """What each type that is trained reads, and the rows of each that is not.

    Attributes:
        own: By trained type, the (N, D_t) own rows of all nodes in its columns.
        edges: By channel into these types, what its layer prepared.
        drawn: By other type, the (n, D_t) rows of its nodes, ascending.
        kinds: (N,) type of each node.
        places: (N,) int64, where each node is among those of its type.
        hashes: (N,) uint64.
    """

    own: Mapping[int, Rows]
    edges: Mapping[int, object]
    drawn: Mapping[int, Rows]
    kinds: np.ndarray
    places: np.ndarray
    hashes: np.ndarray
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class AttendingBatch(BatchOfType):
    """(n, D_t) own rows of one type, and a batch of each channel into it."""

    edges: tuple[object, ...]

    @classmethod
    def of(cls, part: BatchOfType, edges: tuple[object, ...]) -> Self:
        """Join own rows and batches."""
        return cls(
            kind=part.kind, places=part.places, rows=part.rows, hashes=part.hashes, edges=edges
        )


class LayerOfRelation(GraphLayer):
    """A layer along one channel, from rows of its source type to nodes of its target type."""

    @abstractmethod
    def edges_of(self, inputs: StageInput, rows: Rows) -> object:
        """Join the channel's edges to the (N + B, D_s) rows of sources."""

    @abstractmethod
    def passed(
        self, batch: object, own: torch.Tensor | SparseRows, dropout: KeyedDropout | None
    ) -> torch.Tensor:
        """Return the (n, H) results for (n, D_t) own rows, on which dropout has acted already."""


class PerRelationLayer(RelationalLayer):
    """``h_u = own(x_u) + sum over the relations into u's type of what its layer makes``.

    Shapes: x (N + B, D), result (R, H).
    """

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.channels = torch.nn.ModuleDict()
        for kind in self._trained:
            for column, some in self.slices(kind)[1:]:
                sizes = replace(shape, inputs=some.stop - some.start)
                self.channels[str(column)] = self._layer_of(sizes, self._own_width(kind))

    @abstractmethod
    def _layer_of(self, shape: LayerShape, targets: int) -> LayerOfRelation:
        """Return a channel's layer.

        Args:
            shape: ``inputs`` is D_s.
            targets: D_t.
        """

    def _own(self, kind: int, rows: torch.Tensor | SparseRows) -> torch.Tensor | None:
        """Return what a node's own row counts apart from all relations, (n, H); None: nothing."""
        del kind, rows
        return None

    def prepare(self, inputs: StageInput) -> PerRelationInput:
        """Part the edges by relation, and pass the messages of types that are not trained."""
        own: dict[int, Rows] = {}
        edges: dict[int, object] = {}
        sources: dict[tuple[int, int], Rows] = {}
        for kind in self._trained:
            (_, some), *channels = self.slices(kind)
            own[kind] = compact_rows(inputs.own[:, some], inputs.dtype)
            for column, some in channels:
                bounds = some.start, some.stop
                if bounds not in sources:
                    stacked = stacked_rows(columns_of(inputs, some))
                    sources[bounds] = compact_rows(stacked, inputs.dtype)
                along = one_direction(inputs, column)
                edges[column] = self._at(column).edges_of(along, sources[bounds])
        kinds = kinds_of(inputs)
        return PerRelationInput(
            own=own,
            edges=edges,
            drawn=self.prepared_rows(inputs, self._kinds[len(self._trained) :]),
            kinds=kinds,
            places=places_by_type(kinds, self._kinds),
            hashes=inputs.own_hashes,
            dtype=inputs.dtype,
        )

    def batch(self, prepared: object, rows: np.ndarray) -> RelationalBatch:
        """Select inner nodes, by type."""
        assert isinstance(prepared, PerRelationInput)
        kinds, parts = prepared.kinds[rows], list[BatchOfType]()
        for kind in self._kinds:
            at = np.flatnonzero(kinds == kind)
            there = rows[at]
            if not len(at) and kind != self._with_loss[0]:
                continue
            is_trained = kind in self._trained
            of_kind = prepared.own[kind] if is_trained else prepared.drawn[kind]
            places = there if is_trained else prepared.places[there]
            part = BatchOfType(
                kind=kind,
                places=torch.from_numpy(at),
                rows=select_rows(of_kind, places, prepared.dtype),
                hashes=np.asarray(prepared.hashes[there]),
            )
            if is_trained:
                edges = tuple(
                    self._at(column).batch(prepared.edges[column], there)
                    for column, _ in self.slices(kind)[1:]
                )
                part = AttendingBatch.of(part, edges)
            parts.append(part)
        return RelationalBatch(count=len(rows), parts=tuple(parts))

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the edges once."""
        kinds = kinds_of(inputs)[rows]
        prepared = []
        for kind in self._trained:
            at = np.flatnonzero(kinds == kind)
            there = rows[at]
            makers = [
                self._at(column).trained_batches(one_direction(inputs, column), there)
                for column, _ in self.slices(kind)[1:]
            ]
            places = places_on(at, inputs.device), places_on(there, inputs.device)
            prepared.append((kind, places, np.asarray(inputs.own_hashes[there]), makers))

        def batch(stacked: torch.Tensor) -> RelationalBatch:
            parts = tuple(
                AttendingBatch(
                    kind=kind,
                    places=at,
                    rows=stacked.index_select(0, there),
                    hashes=hashes,
                    edges=tuple(maker(stacked) for maker in makers),
                )
                for kind, (at, there), hashes, makers in prepared
            )
            return RelationalBatch(count=len(rows), parts=parts)

        return batch

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's nodes; zero of types that nobody reads."""
        assert isinstance(batch, RelationalBatch)
        made = [
            self._attended(part, dropout)
            if isinstance(part, AttendingBatch)
            else self.drawn_rows(part)
            for part in batch.parts
        ]
        if len(made) == 1 and len(made[0]) == batch.count:
            return made[0]
        result = made[0].new_zeros(batch.count, self.shape.outputs)
        for part, rows in zip(batch.parts, made, strict=True):
            result = result.index_copy(0, part.places, rows)
        return result

    def _attended(self, part: AttendingBatch, dropout: KeyedDropout | None) -> torch.Tensor:
        own = _dropped(part, dropout)
        made = [
            self._at(column).passed(edges, own, dropout)
            for edges, (column, _) in zip(part.edges, self.slices(part.kind)[1:], strict=True)
        ]
        beside = self._own(part.kind, own)
        if beside is None and not made:
            return part.values.new_zeros(len(part.places), self.shape.outputs)
        first, *others = made if beside is None else [beside, *made]
        for rows in others:
            first = first + rows
        return first

    def _at(self, column: int) -> LayerOfRelation:
        found = self.channels[str(column)]
        assert isinstance(found, LayerOfRelation)
        return found

    def _own_width(self, kind: int) -> int:
        some = self.slices(kind)[0][1]
        width: int = some.stop - some.start
        return width


def _dropped(part: BatchOfType, dropout: KeyedDropout | None) -> torch.Tensor | SparseRows:
    rows = part.rows
    if dropout is None:
        return rows
    if isinstance(rows, SparseRows):
        return replace(rows, values=dropout.sparse(rows, part.hashes))
    return dropout.dense(rows, part.hashes)


def _product(rows: torch.Tensor | SparseRows, weight: torch.Tensor) -> torch.Tensor:
    if isinstance(rows, SparseRows):
        return sparse_product(rows.pattern, rows.values, weight)
    return rows @ weight


class AttentionOfRelation(GatAttention, LayerOfRelation):
    """:class:`GatAttention` to nodes of another type than the one that attends.

    ``a_uv = softmax_v leaky_relu(x_v W_k s_k + x_u q_k)``: PyG's ``GATConv`` of two widths, whose
    product of two parameters is q.
    """

    attends_itself: ClassVar[bool] = False

    def __init__(self, shape: LayerShape, targets: int) -> None:
        super().__init__(replace(shape, edge_features=0))
        self.target_attention = torch.nn.Parameter(torch.empty(targets, shape.heads))

    def passed(
        self, batch: object, own: torch.Tensor | SparseRows, dropout: KeyedDropout | None
    ) -> torch.Tensor:
        """See :class:`LayerOfRelation`."""
        assert isinstance(batch, GatBatch)
        values = self.values_of(batch, dropout)
        heads, width = self.shape.heads, self.shape.outputs
        weights = self.block_of_heads(self.source_attention)
        ends = values.reshape(-1, heads * width) @ weights, _product(own, self.target_attention)
        return self.summed(batch, values, ends, dropout)


class RelGatLayer(PerRelationLayer):
    """``h_u = b_t + x_u W_t + sum over relations r into t of r's attention``, u of type t.

    Each is that of :class:`~retexo_fl.layers.gat.GatLayer` with parameters of its own, without a
    node's edge to itself; zero where there is no edge: PyG's ``HeteroConv`` of ``GATConv``, with
    the sum over relations and one ``residual``.

    Shapes: x (N + B, D), W_t (D_t, H), b_t (H,), result (R, H). In a relation from type s, W
    (D_s, K H), s (K, H), q (D_t, K).

    Source: Velickovic et al., ICLR 2018, equations 3 and 6.
    """

    uses_heads: ClassVar[bool] = True
    weight: torch.nn.Parameter

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        for kind in self._trained:
            sizes = {"weight": (self._own_width(kind), shape.outputs), "bias": (shape.outputs,)}
            for name, size in sizes.items():
                parameter = torch.nn.Parameter(torch.empty(size))
                self.register_parameter(self.named(name, kind), parameter)

    def _layer_of(self, shape: LayerShape, targets: int) -> AttentionOfRelation:
        """See :class:`PerRelationLayer`."""
        return AttentionOfRelation(shape, targets)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw all but each b by Glorot's rule; these are zero."""
        for item in self.parameters():
            if item.ndim > 1:
                glorot(item, generator)
            else:
                torch.nn.init.zeros_(item)

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield each W of a type with a loss."""
        for kind in self._with_loss:
            yield getattr(self, self.named("weight", kind)), 0.0

    def _own(self, kind: int, rows: torch.Tensor | SparseRows) -> torch.Tensor:
        weight, bias = (getattr(self, self.named(name, kind)) for name in ("weight", "bias"))
        made: torch.Tensor = _product(rows, weight) + bias
        return made
