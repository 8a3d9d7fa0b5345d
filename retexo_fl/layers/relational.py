"""Layers over several types of nodes and edges: each relation is aggregated apart.

A node's row is joined with one aggregate for each relation into its type; weights are the type's
own, or shared by types and relations. Trained layer by layer, only types with a loss
(:attr:`.TypedStage.with_loss`) have a gradient: that with labels, or both ends of a relation whose
edges are learned. Weights of other types are drawn once and for all then, from the type's name, and
nobody sends them; or they are taught (:meth:`RelSageLayer.examples`).

Source: Schlichtkrull et al. (R-GCN), ESWC 2018, equation 2, with means over each relation; a node's
own row, and weights by type, as in PyG's ``HeteroConv`` of ``SAGEConv`` with their sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final, Literal

import numpy as np
import torch
from scipy.sparse import csr_array, hstack, vstack

from retexo_fl.errors import PluginError
from retexo_fl.layers.aggregate import (
    AggregatedInput,
    AggregatedLayer,
    CrossedRows,
    aggregate,
    channel_means,
    channel_operator,
    linear,
)
from retexo_fl.layers.base import (
    Directions,
    GraphLayer,
    LayerShape,
    RowBatch,
    Rows,
    StageInput,
    compact_rows,
    glorot,
    places_on,
    select_rows,
)
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.sparse import SparseRows, sparse_product
from retexo_fl.relations import Relations

#: Weights that are drawn once and for all, which clients of a process share.
_MOST_DRAWN: Final = 64
#: Makes hashes of nodes differ by type: odd, the bits of the golden ratio.
_OF_TYPE: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationalInput(AggregatedInput):
    """The (N, D') rows of types with a loss, zero elsewhere, and the rows of each type by itself.

    Rows of a type that is narrower than another with a loss end in zeros.

    Attributes:
        parts: By type, the (n, D_t) rows of its nodes, ascending.
        kinds: (N,) type of each node.
        places: (N,) int64, where each node is among those of its type.
    """

    parts: Mapping[int, Rows]
    kinds: np.ndarray
    places: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOfType:
    """(n, D_t) rows of one type, with their places in the batch."""

    kind: int
    places: torch.Tensor
    rows: torch.Tensor | SparseRows
    hashes: np.ndarray

    @property
    def values(self) -> torch.Tensor:
        """All numbers of the rows."""
        return self.rows.values if isinstance(self.rows, SparseRows) else self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationalBatch:
    """(n, D_t) rows of some nodes by type, of R nodes; those of no type here make no rows.

    Attributes:
        count: R.
        parts: By type.
    """

    count: int
    parts: tuple[BatchOfType, ...]


class RelationalLayer(GraphLayer):
    """What layers over several types have in common: what a type reads, and which ones are trained.

    Types that nothing trains are ``h_u = [x_u | mean over each relation into t] W_t`` in each of
    these layers, with W_t as it was drawn.
    """

    takes_weights: ClassVar[Literal["none", "positive", "any"]] = "positive"
    directions: ClassVar[Directions] = "typed"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        if shape.typed is None:
            raise PluginError("model rel-*: the graph has no types; expected another model")
        self._stage = shape.typed
        self._relations: Relations = shape.typed.relations
        self._with_loss, self._kinds = shape.typed.with_loss, shape.typed.kinds
        self._taught = shape.typed.taught
        self._trained = self._kinds if shape.typed.trains_all else (*self._with_loss, *self._taught)

    def prepared_rows(self, inputs: StageInput, kinds: Iterable[int]) -> dict[int, Rows]:
        """Return, of some types, the (n, D_t) own rows of their nodes beside the means."""
        of_nodes = kinds_of(inputs)
        found = {}
        for kind in kinds:
            places = np.flatnonzero(of_nodes == kind)
            blocks = [
                self._block(inputs, column, some, places) for column, some in self.slices(kind)
            ]
            found[kind] = compact_rows(_side_by_side(blocks), inputs.dtype)
        return found

    def drawn_rows(self, part: BatchOfType) -> torch.Tensor:
        """Return the (n, H) rows of a type that nothing trains."""
        return linear(part.rows, part.hashes, self.drawn(part.kind, like=part.values), None)

    def drawn(self, kind: int, *, like: torch.Tensor) -> torch.Tensor:
        """Return W of a type that nothing trains."""
        name = self._relations.types[kind]
        weight = drawn_weights(name, self.width(kind), self.shape.outputs, like.dtype)
        return weight.to(like.device)

    def slices(self, kind: int) -> list[tuple[int, slice]]:
        """Return, of a node's own row (-1) and of each channel into its type, the columns read."""
        return _slices(self.shape, kind)

    def width(self, kind: int) -> int:
        """Return D_t."""
        return _width(self.shape, kind)

    def named(self, name: str, kind: int) -> str:
        """Return what a type's parameters are called: the bare name of the first with a loss."""
        return name if kind == self._with_loss[0] else f"{name}_{kind}"

    def _block(self, inputs: StageInput, column: int, some: slice, places: np.ndarray) -> Rows:
        """Return the (n, D) own rows of some nodes, or the means over one channel."""
        if column < 0:
            own = inputs.own[:, some]
            if isinstance(own, torch.Tensor):
                return own.index_select(0, places_on(places, own.device))
            return csr_array(own[places])
        narrow = columns_of(inputs, some)
        return aggregate(csr_array(_means(inputs, column)[places]), narrow)


class RelSageLayer(RelationalLayer, AggregatedLayer):
    r"""``h_u = b_t + [x_u | mean over relation r_1 | mean over r_2 | ...] W_t``, u of type t.

    The relations are those into t; a mean over no edge is zero. Weighted edges make weighted means.
    Of features each block has the columns of the type that it is of.

    Shapes: x (N + B, D), W_t (D_t, H), b_t (H,), result (R, H). D_t is the width of the type's own
    features and of those of each relation's sources; behind the first layer (1 + relations) D.
    """

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        for kind in self._trained:
            self._add_weights(kind)

    def _add_weights(self, kind: int) -> None:
        self._add(self.named("weight", kind), self.width(kind), self.shape.outputs)
        self._add(self.named("bias", kind), self.shape.outputs)

    def _add(self, name: str, *sizes: int) -> None:
        self.register_parameter(name, torch.nn.Parameter(torch.empty(*sizes)))

    @classmethod
    def crossing_width(cls, shape: LayerShape) -> int | None:
        """Return the width of the widest type; of no graph yet that of one row."""
        if shape.typed is None:
            return shape.inputs
        return max(_width(shape, kind) for kind in shape.typed.kinds)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw each W by Glorot's rule; each b is zero."""
        for kind in self._trained:
            weight, bias = self.weights_of(kind)
            glorot(weight, generator)
            torch.nn.init.zeros_(bias)

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield the upper part of each W of a type with a loss."""
        for kind in self._with_loss:
            own = self.slices(kind)[0][1]
            yield getattr(self, self.named("weight", kind))[: own.stop - own.start], 0.0

    def taught_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield of the first W what reads rows of types that were taught, but as drawn."""
        first = 0
        for _, some in self.slices(self._with_loss[0]):
            if some.stop > self._own_width:
                yield self.weight[first : first + self._own_width], 0.0
            first += some.stop - some.start

    @property
    def _own_width(self) -> int:
        """How wide rows are that come in, of types that were not taught."""
        own = self.slices(self._with_loss[0])[0][1]
        width: int = own.stop - own.start
        return width

    def start_as(self, weight: torch.Tensor, bias: torch.Tensor) -> bool:
        """Apply the head to the mean of a node's own row and its aggregates; not as drawn."""
        if self._stage.reads_features:
            return False
        with torch.no_grad():
            for kind in self._with_loss:
                of_kind, beside = self.weights_of(kind)
                of_kind.copy_(self._as_blocks(kind, weight))
                beside.copy_(bias)
        return True

    def _as_blocks(self, kind: int, weight: torch.Tensor) -> torch.Tensor:
        """Return the (D_t, H) weights of the mean of all blocks; rows as drawn count nothing."""
        blocks = []
        for _, some in self.slices(kind):
            beyond = weight.new_zeros(some.stop - len(weight), weight.shape[1])
            blocks.append(torch.cat([weight, beyond]))
        return torch.cat(blocks) / len(blocks)

    def weights_beyond(self, first: int) -> Iterator[torch.Tensor]:
        """Yield what is below each block's first rows, where all blocks are D wide."""
        if self._stage.reads_features:
            return
        width = self.shape.inputs
        for kind in self._with_loss:
            weight = getattr(self, self.named("weight", kind), self.weight[:0])
            for start in range(0, len(weight), width):
                yield weight[start + first : start + width]

    def aggregated(self, inputs: StageInput) -> Rows:
        """Return the (N, D') rows of types with a loss; zero of other nodes."""
        return self.prepare(inputs).rows

    def crossing_rows(self, inputs: StageInput) -> Rows:
        """Return the (N, D') rows of all types that are read; those of narrower ones end in zeros.

        D' is that of the widest (:meth:`crossing_width`).
        """
        return _joined(self.prepare(inputs).parts, self._kinds, kinds_of(inputs))

    def crossed_batch(self, crossed: CrossedRows, wanted: np.ndarray) -> RelationalBatch:
        """Return the batch of some of the nodes whose rows crossed, (R,) int64."""
        assert crossed.kinds is not None
        kinds, parts = crossed.kinds[wanted], []
        for kind in self._kinds:
            at = np.flatnonzero(kinds == kind)
            parts.append(
                BatchOfType(
                    kind=kind,
                    places=torch.from_numpy(at),
                    rows=_selected(
                        crossed.rows, wanted[at], slice(0, self.width(kind)), crossed.dtype
                    ),
                    hashes=crossed.hashes[wanted[at]],
                )
            )
        return RelationalBatch(count=len(wanted), parts=tuple(parts))

    def prepare(self, inputs: StageInput) -> RelationalInput:
        """Pass the messages of this stage."""
        kinds = kinds_of(inputs)
        parts = self.prepared_rows(inputs, self._kinds)
        rows: Mapping[int, Rows] = parts
        if self._taught and inputs.read is not None:
            (labelled,) = self._with_loss
            places = np.flatnonzero(kinds == labelled)
            sums = [self._sums_of_read(inputs.read, kind, places) for kind in self._taught]
            rows = {labelled: _side_by_side([parts[labelled], *sums])}
        return RelationalInput(
            rows=_joined(rows, self._with_loss, kinds),
            hashes=inputs.own_hashes,
            dtype=inputs.dtype,
            parts=parts,
            kinds=kinds,
            places=places_by_type(kinds, self._kinds),
        )

    def batch(  # type: ignore[override]
        self, prepared: object, rows: np.ndarray
    ) -> RelationalBatch | RowBatch:
        """Select inner nodes; of one type with a loss alone, a batch as of other layers."""
        assert isinstance(prepared, AggregatedInput)
        # A worker has rows of labelled nodes alone.
        if isinstance(prepared, RelationalInput):
            kinds = prepared.kinds[rows]
            if len(self._with_loss) > 1 or (kinds != self._with_loss[0]).any():
                return self._of_types(prepared, rows, kinds)
        if not self._taught:
            return super().batch(prepared, rows)
        own = slice(0, self.width(self._with_loss[0]))
        return RowBatch(
            rows=_selected(prepared.rows, rows, own, prepared.dtype),
            hashes=np.asarray(prepared.hashes[rows]),
        )

    def _of_types(
        self, prepared: RelationalInput, rows: np.ndarray, kinds: np.ndarray
    ) -> RelationalBatch:
        parts = []
        for kind, of_kind in prepared.parts.items():
            at = np.flatnonzero(kinds == kind)
            parts.append(
                BatchOfType(
                    kind=kind,
                    places=torch.from_numpy(at),
                    rows=select_rows(of_kind, prepared.places[rows[at]], prepared.dtype),
                    hashes=np.asarray(prepared.hashes[rows[at]]),
                )
            )
        return RelationalBatch(count=len(rows), parts=tuple(parts))

    def examples(self, prepared: object, rows: np.ndarray) -> tuple[object, np.ndarray]:
        """Teach types without labels: to each labelled node add the mean of what they read.

        Of a type t whose rows go to labelled nodes, W_t acts on the mean over a node's neighbours
        of what these read, as if before them, and the label is that of the node: a mean and a
        matrix product may change places, LayerNorm and ReLU are taken to. Nodes without such a
        neighbour teach nothing of t. Rows and labels stay where they are.
        """
        batch = self.batch(prepared, rows)
        everyone = np.arange(len(rows))
        if not self._taught:
            return batch, everyone
        assert isinstance(prepared, AggregatedInput)
        assert isinstance(batch, RowBatch)
        (labelled,) = self._with_loss
        hashes, start = np.asarray(prepared.hashes[rows]), self.width(labelled)
        parts = [
            BatchOfType(
                kind=labelled,
                places=torch.from_numpy(everyone),
                rows=batch.rows,
                hashes=hashes,
            )
        ]
        of, count = [everyone], len(rows)
        for kind in self._taught:
            some = slice(start, start + self.width(kind))
            start = some.stop
            at = _not_zero(prepared.rows, rows, some)
            parts.append(
                BatchOfType(
                    kind=kind,
                    places=torch.arange(count, count + len(at)),
                    rows=_selected(prepared.rows, rows[at], some, prepared.dtype),
                    # Dropout of its own.
                    hashes=hashes[at] ^ np.uint64(_OF_TYPE * (kind + 1) % 2**64),
                )
            )
            of.append(at)
            count += len(at)
        if start != prepared.rows.shape[1]:
            raise PluginError(
                f"model rel-*: rows have {prepared.rows.shape[1]} columns; expected {start}, with "
                "what types without labels read"
            )
        return RelationalBatch(count=count, parts=tuple(parts)), np.concatenate(of)

    def rows_as_drawn(self, batch: object) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield (n,) places in a batch and the (n, H) rows of a type that is taught, as drawn."""
        for part in batch.parts if isinstance(batch, RelationalBatch) else ():
            if part.kind in self._taught:
                yield part.places, self.drawn_rows(part)

    def _sums_of_read(self, read: StageInput, kind: int, places: np.ndarray) -> Rows:
        """Return, of some labelled nodes, the (n, D_t) mean of what neighbours of a type read.

        Of several relations from that type it is the mean over those that a node has edges of.
        """
        (labelled,) = self._with_loss
        total, times = None, np.zeros(len(places))
        for channel in self._relations.into(labelled):
            if channel.source == kind:
                operator = csr_array(_means(read, channel.column)[places])
                times += np.diff(operator.indptr) > 0
                total = operator if total is None else csr_array(total + operator)
        assert total is not None
        shares = np.repeat(1.0 / np.maximum(times, 1.0), np.diff(total.indptr))
        mean = csr_array((total.data * shares, total.indices, total.indptr), shape=total.shape)
        some = slice(0, self.width(kind))
        return compact_rows(aggregate(mean, columns_of(read, some)), read.dtype)

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the means' weights once."""
        kinds = kinds_of(inputs)[rows]
        prepared = []
        for kind in self._kinds:
            at = np.flatnonzero(kinds == kind)
            targets = rows[at]
            (_, of_own), *channels = self.slices(kind)
            sums = [
                (
                    SparseRows.from_scipy(
                        csr_array(_means(inputs, column)[targets]), inputs.dtype
                    ).to(inputs.device),
                    some,
                )
                for column, some in channels
            ]
            places = places_on(at, inputs.device), places_on(targets, inputs.device)
            prepared.append((kind, places, np.asarray(inputs.own_hashes[targets]), of_own, sums))

        def batch(stacked: torch.Tensor) -> RelationalBatch:
            parts = []
            for kind, (at, targets), hashes, of_own, sums in prepared:
                own = stacked.index_select(0, targets)[:, of_own]
                means = [
                    sparse_product(one.pattern, one.values, stacked[:, some].contiguous())
                    for one, some in sums
                ]
                parts.append(
                    BatchOfType(
                        kind=kind, places=at, rows=torch.cat([own, *means], dim=1), hashes=hashes
                    )
                )
            return RelationalBatch(count=len(rows), parts=tuple(parts))

        return batch

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's nodes; zero of types that nobody reads."""
        if isinstance(batch, RowBatch):
            return self._product(batch.rows, batch.hashes, self._with_loss[0], dropout)
        assert isinstance(batch, RelationalBatch)
        result = self.weight.new_zeros(batch.count, self.shape.outputs)
        for part in batch.parts:
            rows = self._product(part.rows, part.hashes, part.kind, dropout)
            result = result.index_copy(0, part.places, rows)
        return result

    def _product(
        self,
        rows: torch.Tensor | SparseRows,
        hashes: np.ndarray,
        kind: int,
        dropout: KeyedDropout | None,
    ) -> torch.Tensor:
        weight, bias = self.weights_of(kind)
        return linear(rows, hashes, weight, dropout) + bias

    def weights_of(self, kind: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return W and b of a type."""
        if kind in self._trained:
            weight, bias = (getattr(self, self.named(name, kind)) for name in ("weight", "bias"))
            return weight, bias
        return self.drawn(kind, like=self.weight), self.weight.new_zeros(self.shape.outputs)


class RelGcnLayer(RelSageLayer):
    r"""``h_u = b + x_u W_0 + sum over relations r into u's type of mean_r(u) W_r``.

    W_0 and b are of all types: what labels teach the labelled type, types without labels read their
    own rows by. With B bases ``W_r = sum_b c_rb V_b``: relations share them, too. What nothing
    trains of others, their W_r or c_r, is as it was drawn. This is PyG's ``RGCNConv``, over each
    way along a relation.

    Of features each type has columns of its own: W_0 has a block for each type then, and there are
    no bases.

    Shapes: x (N + B, D), W_0 and W_r (D, H), c (C', B), V (B, D, H), b (H,), result (R, H).

    Source: Schlichtkrull et al., ESWC 2018, equations 2 and 3.
    """

    bases: torch.nn.Parameter
    coefficients: torch.nn.Parameter

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        if self._bases:
            self._columns = [
                channel.column for kind in self._trained for channel in self._relations.into(kind)
            ]
            self._add("bases", self._bases, shape.inputs, shape.outputs)
            self._add("coefficients", len(self._columns), self._bases)

    @property
    def _shares(self) -> bool:
        return not self._stage.reads_features

    @property
    def _bases(self) -> int:
        return self._stage.num_bases if self._shares else 0

    def _add_weights(self, kind: int) -> None:
        """Of a further type nothing but what it does not share."""
        own = self._own_width if self._shares else 0
        if kind == self._with_loss[0]:
            self._add("weight", own if self._bases else self.width(kind), self.shape.outputs)
            self._add("bias", self.shape.outputs)
        elif not self._bases:
            name = self.named("weight", kind)
            self._add(name, self.width(kind) - own, self.shape.outputs)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw all but b by Glorot's rule; b is zero."""
        for name, item in self.named_parameters():
            if name == "bias":
                torch.nn.init.zeros_(item)
            else:
                for matrix in item if item.ndim > 2 else (item,):
                    glorot(matrix, generator)

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield W_0; of features, each type's part of it."""
        if self._shares:
            yield self.weight[: self._own_width], 0.0
        else:
            yield from super().own_weights()

    def start_as(self, weight: torch.Tensor, bias: torch.Tensor) -> bool:
        """Apply the head to the mean of a node's own row and its aggregates: by the first basis.

        An own row counts alike in all types, so that of other types than the first all aggregates
        together count as much as those of the first.
        """
        if not self._shares:
            return False
        first, *others = self._with_loss
        shares = 1 + len(self._relations.into(first))
        with torch.no_grad():
            self.bias.copy_(bias)
            if not self._bases:
                self.weight.copy_(self._as_blocks(first, weight))
                for kind in others:
                    of_kind = getattr(self, self.named("weight", kind))
                    count = len(self._relations.into(kind))
                    of_kind.copy_(weight.repeat(count, 1) * ((shares - 1) / max(count, 1) / shares))
                return True
            self.weight.copy_(weight / shares)
            self.bases[0].copy_(weight / shares)
            self.coefficients.zero_()
            self.coefficients[:, 0] = 1
            for kind in others:
                channels = self._relations.into(kind)
                places = [self._columns.index(channel.column) for channel in channels]
                self.coefficients[places, 0] = (shares - 1) / max(len(channels), 1)
        return True

    def weights_beyond(self, first: int) -> Iterator[torch.Tensor]:
        """Yield what is below the first rows of W_0 and of each W_r, or of the bases."""
        yield from super().weights_beyond(first)
        if self._bases:
            yield self.bases[:, first:]

    def weights_of(self, kind: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return W_0 above each W_r of a type, and b."""
        if self._bases:
            return torch.cat([self.weight, *self._combined(kind)]), self.bias
        if kind == self._with_loss[0]:
            return self.weight, self.bias
        if kind in self._trained:
            weight = getattr(self, self.named("weight", kind))
        else:
            weight = self.drawn(kind, like=self.weight)
            weight = weight[self._own_width :] if self._shares else weight
        if self._shares:
            weight = torch.cat([self.weight[: self._own_width], weight])
        return weight, self.bias

    def _combined(self, kind: int) -> torch.Tensor:
        """Return the (relations into the type, D, H) sums of bases."""
        channels = self._relations.into(kind)
        if kind in self._trained:
            places = [self._columns.index(channel.column) for channel in channels]
            coefficients = self.coefficients[places]
        else:
            name = self._relations.types[kind]
            drawn = drawn_weights(name, len(channels), self._bases, self.weight.dtype)
            coefficients = drawn.to(self.weight.device)
        return torch.einsum("rb,bij->rij", coefficients, self.bases)


def sums_of_labelled(inputs: StageInput, relations: Relations) -> Rows:
    """Return the (N, D) own rows of nodes with labels and all their means, added; else zero.

    Types have columns of their own, so that a row of one is never added to a row of another.
    """
    nodes = inputs.num_nodes
    total = csr_array((nodes, nodes + len(inputs.slot_hashes)))
    for kind in relations.with_labels:
        for channel in relations.into(kind):
            total = total + _means(inputs, channel.column)
    is_labelled = np.isin(kinds_of(inputs), relations.with_labels).astype(np.float64)
    own = csr_array((is_labelled, np.arange(nodes), np.arange(nodes + 1)), shape=total.shape)
    return aggregate(csr_array(total + own), inputs)


def sums_of_far(inputs: StageInput, relations: Relations, far: tuple[int, ...]) -> Rows:
    """Return, of types whose rows go to nodes with labels, the (N, F) means of far types, added.

    Args:
        inputs: Features.
        relations: Of the graph.
        far: What nodes with labels read two edges away of; zero of other types.
    """
    nodes = inputs.num_nodes
    total = csr_array((nodes, nodes + len(inputs.slot_hashes)))
    read = {one.source for kind in relations.with_labels for one in relations.into(kind)}
    for kind in sorted(read):
        for channel in relations.into(kind):
            if channel.source in far:
                total = total + _means(inputs, channel.column)
    return aggregate(csr_array(total), inputs)


def far_sums_of_labelled(sums: StageInput, relations: Relations) -> Rows:
    """Return the (N, F) means of what :func:`sums_of_far` made over labelled nodes' neighbours."""
    nodes = sums.num_nodes
    total = csr_array((nodes, nodes + len(sums.slot_hashes)))
    for kind in relations.with_labels:
        for channel in relations.into(kind):
            total = total + _means(sums, channel.column)
    return aggregate(csr_array(total), sums)


def times_added(relations: Relations, far: tuple[int, ...]) -> np.ndarray:
    """Return by type, (T,), how often its rows are in all the sums of a node with labels."""
    found = np.zeros(len(relations.types), np.int64)
    for kind in relations.with_labels:
        found[kind] += 1
        for channel in relations.into(kind):
            found[channel.source] += 1
            for beyond in relations.into(channel.source):
                found[beyond.source] += beyond.source in far
    return found


def places_by_type(kinds: np.ndarray, some: Iterable[int]) -> np.ndarray:
    """Return (N,) int64: where each node is among those of its type; 0 of other types."""
    found = np.zeros(len(kinds), dtype=np.int64)
    for kind in some:
        places = np.flatnonzero(kinds == kind)
        found[places] = np.arange(len(places))
    return found


def _slices(shape: LayerShape, kind: int) -> list[tuple[int, slice]]:
    """Return, of a node's own row (-1) and of each channel into its type, the columns read."""
    assert shape.typed is not None
    relations = shape.typed.relations
    blocks = [(-1, kind), *((one.column, one.source) for one in relations.into(kind))]
    if shape.typed.reads_features:
        return [(column, relations.columns(source)) for column, source in blocks]
    doubled = shape.typed.doubled
    single = slice(0, shape.inputs // 2 if doubled else shape.inputs)
    both = slice(0, shape.inputs)
    return [
        (column, both if column >= 0 and source in doubled else single) for column, source in blocks
    ]


def _width(shape: LayerShape, kind: int) -> int:
    """Return D_t."""
    return sum(some.stop - some.start for _, some in _slices(shape, kind))


def kinds_of(inputs: StageInput) -> np.ndarray:
    """Return the (N,) types of inner nodes."""
    assert inputs.own_kinds is not None
    return inputs.own_kinds


def _means(inputs: StageInput, channel: int) -> csr_array:
    return channel_operator(channel_means(inputs, channel), inputs)


def columns_of(inputs: StageInput, some: slice) -> StageInput:
    """Return the input with some columns of its rows."""
    return replace(inputs, own=inputs.own[:, some], received=inputs.received[:, some])


def _side_by_side(blocks: list[Rows]) -> Rows:
    dense = [block for block in blocks if isinstance(block, torch.Tensor)]
    if len(dense) == len(blocks):
        return torch.cat(dense, dim=1)
    return csr_array(hstack([_sparse(block) for block in blocks], format="csr"))


def _sparse(rows: Rows) -> csr_array:
    return csr_array(rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows)


def _not_zero(rows: Rows, wanted: np.ndarray, some: slice) -> np.ndarray:
    """Return the places among some rows of those with a value in some columns, (n,) int64."""
    if isinstance(rows, torch.Tensor):
        values = rows[:, some].index_select(0, places_on(wanted, rows.device))
        return np.flatnonzero((values != 0).any(dim=1).cpu().numpy())
    return np.flatnonzero(np.diff(csr_array(csr_array(rows[wanted])[:, some]).indptr))


def _joined(parts: Mapping[int, Rows], some: tuple[int, ...], kinds: np.ndarray) -> Rows:
    """Put the rows of some types at the places of their nodes among (N,) types, zero elsewhere.

    They are as wide as those of the widest of these types, and sparse unless all are dense.
    """
    width = max(parts[kind].shape[1] for kind in some)
    places = [np.flatnonzero(kinds == kind) for kind in some]
    if len(some) == 1 and len(places[0]) == len(kinds):
        return parts[some[0]]
    dense = [rows for kind in some if isinstance(rows := parts[kind], torch.Tensor)]
    if len(dense) == len(some):
        result = dense[0].new_zeros(len(kinds), width)
        for at, rows in zip(places, dense, strict=True):
            result[places_on(at, rows.device), : rows.shape[1]] = rows
        return result
    blocks = [_widened(parts[kind], width) for kind in some]
    found: np.ndarray = np.concatenate(places)
    others = np.setdiff1d(np.arange(len(kinds)), found)
    stacked = vstack([*blocks, csr_array((len(others), width), dtype=blocks[0].dtype)], "csr")
    return csr_array(stacked[np.argsort(np.concatenate((found, others)))])


def _widened(rows: Rows, width: int) -> csr_array:
    """Return (n, D_t) rows with zeros behind them, sparse."""
    sparse = _sparse(rows)
    return csr_array((sparse.data, sparse.indices, sparse.indptr), shape=(rows.shape[0], width))


def _selected(
    rows: Rows, wanted: np.ndarray, some: slice, dtype: torch.dtype
) -> torch.Tensor | SparseRows:
    """Return some columns of some rows."""
    if isinstance(rows, torch.Tensor):
        return rows[:, some].index_select(0, places_on(wanted, rows.device))
    return SparseRows.from_scipy(csr_array(csr_array(rows[wanted])[:, some]), dtype)


@lru_cache(maxsize=_MOST_DRAWN)
def drawn_weights(name: str, inputs: int, outputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the (inputs, outputs) weights of a type that nothing trains, by Glorot's rule."""
    digest = hashlib.blake2b(f"{name}/{inputs}/{outputs}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    weight = torch.empty(inputs, outputs)
    glorot(weight, generator)
    return weight.to(dtype)
