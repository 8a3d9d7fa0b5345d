"""Layers over several types of nodes and edges: each relation is aggregated apart.

A node's row is joined with one aggregate for each relation into its type; weights are the type's
own. Trained layer by layer, only the type with labels has a loss. Weights of other types are not
trained then: they are drawn once and for all, from the type's name, and nobody sends them.

Source: Schlichtkrull et al. (R-GCN), ESWC 2018, equation 2, with means over each relation; a node's
own row, and weights by type, as in PyG's ``HeteroConv`` of ``SAGEConv`` with their sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final, Literal

import numpy as np
import torch
from scipy.sparse import csr_array, hstack

from retexo_fl.errors import PluginError
from retexo_fl.layers.aggregate import (
    AggregatedInput,
    AggregatedLayer,
    aggregate,
    channel_means,
    channel_operator,
    linear,
)
from retexo_fl.layers.base import (
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationalInput(AggregatedInput):
    """The (N, D_t) rows of the labelled type, zero elsewhere, and the rows of each type by itself.

    Attributes:
        parts: By type, the (n, D_t) rows of its nodes, ascending.
        kinds: (N,) type of each node.
        places: (N,) int64, where each node stands among those of its type.
    """

    parts: Mapping[int, Rows]
    kinds: np.ndarray
    places: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchOfType:
    """(n, D_t) rows of one type, with their places in the batch."""

    kind: int
    places: torch.Tensor
    rows: torch.Tensor | SparseRows
    hashes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationalBatch:
    """(n, D_t) rows of some nodes by type, of R nodes; those of no type here make no rows.

    Attributes:
        count: R.
        parts: By type.
    """

    count: int
    parts: tuple[_BatchOfType, ...]


class RelSageLayer(AggregatedLayer):
    r"""``h_u = b_t + [x_u | mean over relation r_1 | mean over r_2 | ...] W_t``, u of type t.

    The relations are those into t; a mean over no edge is zero. Weighted edges make weighted means.
    Of features each block has the columns of the type that it is of.

    Shapes: x (N + B, D), W_t (D_t, H), b_t (H,), result (R, H). D_t is the width of the type's own
    features and of those of each relation's sources; behind the first layer (1 + relations) D.
    """

    takes_weights: ClassVar[Literal["positive"]] = "positive"
    directions: ClassVar[Literal["typed"]] = "typed"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        if shape.typed is None:
            raise PluginError("model rel-sage: the graph has no types; expected another model")
        self._stage = shape.typed
        self._relations: Relations = shape.typed.relations
        self._kinds = self._relations.within(shape.typed.hops)
        trained = self._kinds if shape.typed.trains_all else self._kinds[:1]
        for kind in trained:
            beyond = "" if kind == self._relations.labelled else f"_{kind}"
            width = self._width(kind)
            self.register_parameter(
                f"weight{beyond}", torch.nn.Parameter(torch.empty(width, shape.outputs))
            )
            self.register_parameter(f"bias{beyond}", torch.nn.Parameter(torch.empty(shape.outputs)))
        self._trained = trained

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw each W by Glorot's rule; each b is zero."""
        for kind in self._trained:
            weight, bias = self._of(kind)
            glorot(weight, generator)
            torch.nn.init.zeros_(bias)

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield the upper part of the labelled type's W."""
        own = self._slices(self._relations.labelled)[0][1]
        yield self.weight[: own.stop - own.start], 0.0

    def start_as(self, weight: torch.Tensor, bias: torch.Tensor) -> bool:
        """Apply the head to the mean of a node's own row and its aggregates."""
        if self._stage.reads_features:
            return False
        blocks = 1 + len(self._relations.into(self._relations.labelled))
        with torch.no_grad():
            self.weight.copy_(torch.cat([weight] * blocks) / blocks)
            self.bias.copy_(bias)
        return True

    def weights_beyond(self, first: int) -> Iterator[torch.Tensor]:
        """Yield what stands below each block's first rows, where all blocks are D wide."""
        if self._stage.reads_features:
            return
        width = self.shape.inputs
        for start in range(0, len(self.weight), width):
            yield self.weight[start + first : start + width]

    def feature_sums(self, inputs: StageInput) -> Rows:
        """Return the (N, D) own rows of the labelled type and all its means, added; else zero.

        Types have columns of their own, so that of two types nothing is added to another's.
        """
        nodes = inputs.num_nodes
        total = csr_array((nodes, nodes + len(inputs.slot_hashes)))
        for channel in self._relations.into(self._relations.labelled):
            total = total + _means(inputs, channel.column)
        is_labelled = (_kinds_of(inputs) == self._relations.labelled).astype(np.float64)
        own = csr_array((is_labelled, np.arange(nodes), np.arange(nodes + 1)), shape=total.shape)
        return aggregate(csr_array(total + own), inputs)

    def aggregated(self, inputs: StageInput) -> Rows:
        """Return the (N, D_t) rows of the labelled type; zero of other nodes."""
        return self.prepare(inputs).rows

    def prepare(self, inputs: StageInput) -> RelationalInput:
        """Pass the messages of this stage."""
        kinds, parts = _kinds_of(inputs), {}
        inner = np.zeros(len(kinds), dtype=np.int64)
        for kind in self._kinds:
            places = np.flatnonzero(kinds == kind)
            inner[places] = np.arange(len(places))
            blocks = [
                self._block(inputs, column, some, places) for column, some in self._slices(kind)
            ]
            parts[kind] = compact_rows(_side_by_side(blocks), inputs.dtype)
        labelled = self._relations.labelled
        return RelationalInput(
            rows=_spread(parts[labelled], np.flatnonzero(kinds == labelled), len(kinds)),
            hashes=inputs.own_hashes,
            dtype=inputs.dtype,
            parts=parts,
            kinds=kinds,
            places=inner,
        )

    def batch(  # type: ignore[override]
        self, prepared: object, rows: np.ndarray
    ) -> RelationalBatch | RowBatch:
        """Select inner nodes; of the labelled type alone, a batch as of other layers."""
        if not isinstance(prepared, RelationalInput):
            # A worker has rows of labelled nodes alone.
            return super().batch(prepared, rows)
        kinds = prepared.kinds[rows]
        if (kinds == self._relations.labelled).all():
            return super().batch(prepared, rows)
        parts = []
        for kind, of_kind in prepared.parts.items():
            at = np.flatnonzero(kinds == kind)
            parts.append(
                _BatchOfType(
                    kind=kind,
                    places=torch.from_numpy(at),
                    rows=select_rows(of_kind, prepared.places[rows[at]], prepared.dtype),
                    hashes=np.asarray(prepared.hashes[rows[at]]),
                )
            )
        return RelationalBatch(count=len(rows), parts=tuple(parts))

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the means' weights once."""
        kinds = _kinds_of(inputs)[rows]
        prepared = []
        for kind in self._kinds:
            at = np.flatnonzero(kinds == kind)
            targets = rows[at]
            sums = [
                SparseRows.from_scipy(csr_array(_means(inputs, column)[targets]), inputs.dtype).to(
                    inputs.device
                )
                for column, _ in self._slices(kind)[1:]
            ]
            places = places_on(at, inputs.device), places_on(targets, inputs.device)
            prepared.append((kind, places, np.asarray(inputs.own_hashes[targets]), sums))

        def batch(stacked: torch.Tensor) -> RelationalBatch:
            parts = []
            for kind, (at, targets), hashes, sums in prepared:
                own = stacked.index_select(0, targets)
                means = [sparse_product(one.pattern, one.values, stacked) for one in sums]
                parts.append(
                    _BatchOfType(
                        kind=kind, places=at, rows=torch.cat([own, *means], dim=1), hashes=hashes
                    )
                )
            return RelationalBatch(count=len(rows), parts=tuple(parts))

        return batch

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's nodes; zero of types that nobody reads."""
        if isinstance(batch, RowBatch):
            return super().forward(batch, dropout)
        assert isinstance(batch, RelationalBatch)
        result = self.weight.new_zeros(batch.count, self.shape.outputs)
        for part in batch.parts:
            weight, bias = self._of(part.kind)
            rows = linear(part.rows, part.hashes, weight, dropout) + bias
            result = result.index_copy(0, part.places, rows)
        return result

    def _of(self, kind: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return W and b of a type."""
        if kind in self._trained:
            beyond = "" if kind == self._relations.labelled else f"_{kind}"
            return getattr(self, f"weight{beyond}"), getattr(self, f"bias{beyond}")
        name = self._relations.types[kind]
        weight = _drawn(name, self._width(kind), self.shape.outputs, self.weight.dtype)
        return weight.to(self.weight.device), self.weight.new_zeros(self.shape.outputs)

    def _slices(self, kind: int) -> list[tuple[int, slice]]:
        """Return, of a node's own row (-1) and of each channel into its type, the columns read."""
        relations = self._relations
        blocks = [(-1, kind), *((one.column, one.source) for one in relations.into(kind))]
        if self._stage.reads_features:
            return [(column, relations.columns(source)) for column, source in blocks]
        return [(column, slice(0, self.shape.inputs)) for column, _ in blocks]

    def _width(self, kind: int) -> int:
        return sum(some.stop - some.start for _, some in self._slices(kind))

    def _block(self, inputs: StageInput, column: int, some: slice, places: np.ndarray) -> Rows:
        """Return the (n, D) own rows of some nodes, or the means over one channel."""
        if column < 0:
            own = inputs.own[:, some]
            if isinstance(own, torch.Tensor):
                return own.index_select(0, places_on(places, own.device))
            return csr_array(own[places])
        narrow = _columns_of(inputs, some)
        return aggregate(csr_array(_means(inputs, column)[places]), narrow)


def _kinds_of(inputs: StageInput) -> np.ndarray:
    assert inputs.own_kinds is not None
    return inputs.own_kinds


def _means(inputs: StageInput, channel: int) -> csr_array:
    return channel_operator(channel_means(inputs, channel), inputs)


def _columns_of(inputs: StageInput, some: slice) -> StageInput:
    return replace(inputs, own=inputs.own[:, some], received=inputs.received[:, some])


def _side_by_side(blocks: list[Rows]) -> Rows:
    dense = [block for block in blocks if isinstance(block, torch.Tensor)]
    if len(dense) == len(blocks):
        return torch.cat(dense, dim=1)
    return csr_array(hstack(blocks, format="csr"))


def _spread(rows: Rows, places: np.ndarray, count: int) -> Rows:
    """Return (count, D) rows that are zero but at the places of the given ones."""
    if len(places) == count:
        return rows
    if isinstance(rows, torch.Tensor):
        return rows.new_zeros(count, rows.shape[1]).index_copy(
            0, places_on(places, rows.device), rows
        )
    entries = np.zeros(count, dtype=np.int64)
    entries[places] = np.diff(rows.indptr)
    indptr = np.concatenate(([0], np.cumsum(entries)))
    return csr_array((rows.data, rows.indices, indptr), shape=(count, rows.shape[1]))


@lru_cache(maxsize=_MOST_DRAWN)
def _drawn(name: str, inputs: int, outputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the (inputs, outputs) weights of a type that nothing trains, by Glorot's rule."""
    digest = hashlib.blake2b(f"{name}/{inputs}/{outputs}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    weight = torch.empty(inputs, outputs)
    glorot(weight, generator)
    return weight.to(dtype)
