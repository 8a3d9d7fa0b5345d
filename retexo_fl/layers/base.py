"""What a GNN layer is: fixed inputs of a stage in, rows out.

Symbols used by all layers: N inner nodes of the client, B slots (boundary nodes), E edges into
inner nodes, D width of the layer's input, H width of its output, R rows of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from scipy.sparse import csr_array, vstack

from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.segment_max import Segments
from retexo_fl.layers.sparse import SparsePattern, SparseRows
from retexo_fl.relations import TypedStage
from retexo_fl.transfers import onto

Batch = TypeVar("Batch")

#: Places of the two directions of an edge's values: from the neighbour, and to it.
IN: Final = 0
OUT: Final = 1

#: Rows of nodes: a dense (rows, width) tensor, or a SciPy CSR matrix of that shape.
Rows: TypeAlias = torch.Tensor | csr_array
Directions: TypeAlias = Literal["undirected", "directed", "either", "typed", "any"]

#: A sparse input denser than this is stored dense. Measured on Cora-like inputs: the sparse kernels
#: cost about four times a dense multiply per entry.
_DENSE_ABOVE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Sizes of one layer.

    Attributes:
        inputs: D, width of the rows it reads.
        outputs: H, width of the rows it makes.
        hidden: P, width of rows inside the layer; layers without such rows ignore it.
        heads: Attention heads; layers without attention ignore it.
        edge_features: A, attributes of each edge; layers that read none ignore it.
        typed: Of a graph with types of nodes; None of others.
    """

    inputs: int
    outputs: int
    hidden: int
    heads: int = 1
    edge_features: int = 0
    typed: TypedStage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput:
    """Everything a layer reads, fixed for the whole stage.

    Attributes:
        own: (N, D) rows of the inner nodes, not scaled.
        received: (B, D) vectors of the slots, as scaled by their senders; zero where missing.
        indptr: (N + 1,) int64: edges ``indptr[u]:indptr[u + 1]`` enter inner node u.
        indices: (E,) source of each edge: u < N an inner node, N + s slot s. Edges to slots whose
            vectors are missing have been left out. A slot of a partial sum has one edge.
        neighbours: (N,) denominator of a mean over neighbours, for each inner node: its number of
            edges, or the sum of their weights. An edge to a partial sum counts all neighbours in
            it, sampled edges count those that were not drawn as well. (N, 2) of directed edges.
        degrees: (N,) degrees in the whole graph, or what all edges of a node weigh together,
            missing slots included. (N, 2) of directed edges.
        own_hashes: (N,) uint64, keyed randomness of the inner nodes.
        slot_hashes: (B,) uint64, the same of the slots' nodes; 0 for a partial sum.
        edge_scales: (E,) by what each edge's message is multiplied in a sum over neighbours, so
            that sampled edges represent all; None for 1.
        edge_weights: (E,) what each edge weighs; None for 1. A partial sum has the weights of its
            neighbours in it. (E, 2) of directed edges, side by side: what weighs the edge that
            comes in from the neighbour (:data:`IN`), and that which goes out to it (:data:`OUT`); 0
            for none. (E, C) of the channels of a typed graph (:mod:`retexo_fl.relations`), as are
            ``neighbours`` and ``degrees``; the directions are the channels of one relation.
        edge_attributes: (E, A) attributes of each edge; (E, 2, A) of directed ones; None for none.
        slot_factors: (B, F) what :meth:`GraphLayer.message_factors` says of the slots' nodes; zero
            where missing. None of layers without any.
        centre: (D,) that is subtracted from what a layer of :meth:`GraphLayer.fixed_width`
            aggregates, and from own rows beside it; None for nothing.
        own_kinds: (N,) types of the inner nodes; None where they have none.
        slot_kinds: (B,) types of the slots' nodes; None where they have none.
        read: What the layer itself reads of all nodes, as it crossed; None where that does not
            cross before it is trained.
    """

    own: Rows
    received: Rows
    indptr: np.ndarray
    indices: np.ndarray
    neighbours: np.ndarray
    degrees: np.ndarray
    own_hashes: np.ndarray
    slot_hashes: np.ndarray
    edge_scales: np.ndarray | None = None
    edge_weights: np.ndarray | None = None
    edge_attributes: np.ndarray | None = None
    slot_factors: np.ndarray | None = None
    centre: np.ndarray | None = None
    own_kinds: np.ndarray | None = None
    slot_kinds: np.ndarray | None = None
    read: StageInput | None = None

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    def into(self, nodes: np.ndarray) -> StageInput:
        """Return the same without edges that enter others than some of the N inner nodes."""
        counts = np.diff(self.indptr)
        is_wanted = np.zeros(len(counts), bool)
        is_wanted[nodes] = True
        kept = np.repeat(is_wanted, counts)

        def of_kept(values: np.ndarray | None) -> np.ndarray | None:
            return None if values is None else values[kept]

        return replace(
            self,
            indptr=np.append(0, np.cumsum(counts * is_wanted)),
            indices=self.indices[kept],
            edge_scales=of_kept(self.edge_scales),
            edge_weights=of_kept(self.edge_weights),
            edge_attributes=of_kept(self.edge_attributes),
        )

    @property
    def kinds(self) -> np.ndarray | None:
        """(N + B,) types of the inner nodes and the slots' nodes; None where they have none."""
        if self.own_kinds is None or self.slot_kinds is None:
            return None
        return np.concatenate((self.own_kinds, self.slot_kinds))

    @property
    def dtype(self) -> torch.dtype:
        """The arithmetic of the training."""
        if isinstance(self.own, torch.Tensor):
            return self.own.dtype
        return torch.float64 if self.own.dtype == np.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        """Where the rows are; sparse ones are on the CPU."""
        return device_of(self.own)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBatch:
    """Fixed input rows of some inner nodes, for layers that aggregate once per stage.

    Attributes:
        rows: (R, D') dense, or sparse.
        hashes: (R,) uint64.
    """

    rows: torch.Tensor | SparseRows
    hashes: np.ndarray


class GraphLayer(torch.nn.Module, ABC):
    """One GNN layer, trained by itself.

    A stage calls :meth:`prepare` once, :meth:`batch` once for each set of target nodes, and
    :meth:`forward` in every round. A layer whose aggregation holds no trained parameters does its
    message passing in ``prepare``; training is then dense over rows.
    """

    #: Whether the layer's attention has ``heads``, each ``hidden / heads`` wide.
    uses_heads: ClassVar[bool] = False

    #: Whether the layer reads nothing of its neighbours' rows but their sum, so that a peer may
    #: send sums (``boundary-plan = cover``). A slot is then a sum of several neighbours, without a
    #: hash, and ``StageInput.neighbours`` says how many rows each sum is over.
    sums_messages: ClassVar[bool] = False

    #: Whether the layer reads ``StageInput.edge_scales``, so that it may be trained on sampled
    #: neighbours. What :meth:`trained_batches` returns then serves all layers of a model that have
    #: the same edges: it depends on no weights, and of the shape on the heads alone.
    scales_edges: ClassVar[bool] = False

    #: How the layer takes ``StageInput.edge_weights``: not at all, those from 0 on (``positive``),
    #: or any.
    takes_weights: ClassVar[Literal["none", "positive", "any"]] = "none"

    #: Whether the layer reads edges without a direction, with one (``StageInput`` then has both
    #: directions side by side), or either; or those of the relations of a typed graph; or any.
    directions: ClassVar[Directions] = "undirected"

    #: What the layer does with ``StageInput.edge_attributes``: nothing, read them, or need them.
    attributes: ClassVar[Literal["none", "read", "needed"]] = "none"

    #: Columns of :meth:`message_factors`.
    num_factors: ClassVar[int] = 0

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.shape = shape

    @staticmethod
    def message_scale(degrees: np.ndarray) -> np.ndarray | None:
        """Return the (N,) float64 factors by which a sender multiplies its rows, or None.

        The receiver cannot know a boundary node's degree in the whole graph; its owner does.
        """
        del degrees
        return None

    @staticmethod
    def message_factors(degrees: np.ndarray) -> np.ndarray | None:
        """Return (N, F) float64 numbers that cross beside each row, in columns of their own.

        For a layer that multiplies one row by several of them, which :meth:`message_scale` cannot.
        """
        del degrees
        return None

    @classmethod
    def fixed_width(cls, inputs: int) -> int | None:
        """Return how wide the rows are that the layer's trained part reads, for D ``inputs``.

        Only for layers whose :meth:`prepare` returns such rows: their last D values are of a sum
        over neighbours, and the values before them are own rows. Peers may then be sent these rows
        instead of what the layer makes of them, and a basis may be of the sums.

        Returns:
            D or 2 D; None where there are no such rows.
        """
        del inputs
        return None

    @classmethod
    def crossing_width(cls, shape: LayerShape) -> int | None:
        """Return how wide the rows are that cross where peers need what a layer of a shape reads.

        None where there are no such rows.
        """
        return cls.fixed_width(shape.inputs)

    @abstractmethod
    def prepare(self, inputs: StageInput) -> object:
        """Do the part of the layer that is the same in every round."""

    @abstractmethod
    def batch(self, prepared: object, rows: np.ndarray) -> object:
        """Select inner nodes ``rows`` ((R,) int64) of what :meth:`prepare` returned."""

    def examples(self, prepared: object, rows: np.ndarray) -> tuple[object, np.ndarray]:
        """Return the batch that inner nodes ``rows`` are trained by, and of which each row is.

        Returns:
            A batch of M >= R rows, and (M,) int64 places among ``rows``: first each by itself.
        """
        return self.batch(prepared, rows), np.arange(len(rows))

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Return what makes the batch of ``rows`` from input rows that are trained themselves.

        End to end, what a layer reads changes in every round; where edges lead does not. Layers
        that prepare the edges once override this; the result is the same.

        Args:
            inputs: Edges, degrees and hashes of the layer; its rows are not read.
            rows: (R,) int64 inner nodes.

        Returns:
            A function of the (N + B, D) own rows above received ones; gradients flow to them.
        """
        nodes = inputs.num_nodes

        def batch(stacked: torch.Tensor) -> object:
            moved = replace(inputs, own=stacked[:nodes], received=stacked[nodes:])
            return self.batch(self.prepare(moved), rows)

        return batch

    @abstractmethod
    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's nodes; ``dropout`` is None in evaluation."""

    @abstractmethod
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw initial parameters."""

    def own_weights(self) -> Iterator[tuple[torch.Tensor, float]]:
        """Yield by which weights a node's own row counts apart from its neighbours'.

        They are views of parameters, each with the value at which the own row does not count.
        Nothing of a layer that cannot leave it out.
        """
        yield from ()

    def weights_beyond(self, first: int) -> Iterator[torch.Tensor]:
        """Yield views of the weights that read columns from ``first`` on of the D of a row.

        Nothing of a layer whose columns have no weights of their own.
        """
        del first
        yield from ()

    def start_as(self, weight: torch.Tensor, bias: torch.Tensor) -> bool:
        """Set the parameters so that the layer applies a linear head to its aggregated rows.

        Args:
            weight: (D, H) of the head.
            bias: (H,) of the head.

        Returns:
            False, with nothing changed, where the layer has no such parameters.
        """
        del weight, bias
        return False


def one_direction(inputs: StageInput, side: int) -> StageInput:
    """Return the input with the edges of one direction alone: :data:`IN` or :data:`OUT`."""
    assert inputs.edge_weights is not None
    kept = inputs.edge_weights[:, side] != 0
    attributes, scales = inputs.edge_attributes, inputs.edge_scales
    return replace(
        inputs,
        indptr=np.concatenate(([0], np.cumsum(kept)))[inputs.indptr],
        indices=inputs.indices[kept],
        neighbours=inputs.neighbours[:, side],
        degrees=inputs.degrees[:, side],
        edge_weights=inputs.edge_weights[kept, side],
        edge_attributes=None if attributes is None else attributes[kept, side],
        edge_scales=None if scales is None else scales[kept],
    )


def without_edges(inputs: StageInput) -> StageInput:
    """Return all N + B nodes as inner ones, none of which has an edge."""
    nodes = inputs.num_nodes + len(inputs.slot_hashes)
    none, sides = np.zeros(0, np.int64), inputs.neighbours.shape[1:]
    weights, attributes = inputs.edge_weights, inputs.edge_attributes
    return replace(
        inputs,
        own=stacked_rows(inputs),
        received=inputs.received[:0],
        indptr=np.zeros(nodes + 1, np.int64),
        indices=none,
        neighbours=np.zeros((nodes, *sides)),
        degrees=np.zeros((nodes, *sides)),
        own_hashes=np.concatenate([inputs.own_hashes, inputs.slot_hashes]),
        slot_hashes=inputs.slot_hashes[:0],
        edge_scales=None,
        edge_weights=None if weights is None else weights[:0],
        edge_attributes=None if attributes is None else attributes[:0],
        own_kinds=inputs.kinds,
        slot_kinds=None if inputs.slot_kinds is None else inputs.slot_kinds[:0],
    )


def glorot(parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Fill a (fan in, fan out) parameter (Glorot and Bengio, AISTATS 2010, equation 16)."""
    torch.nn.init.xavier_uniform_(parameter, generator=generator)


def edges_into(
    rows: np.ndarray, indptr: np.ndarray, sources: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Select the edges into some inner nodes and number their sources from zero.

    Args:
        rows: (R,) int64 inner nodes.
        indptr: (N + 1,): edges ``indptr[u]:indptr[u + 1]`` enter inner node u.
        sources: (E,) what names each edge's source.

    Returns:
        (R + 1,) int64 bounds of the edges into each of ``rows``, (S,) the sources that they need in
        ascending order, and for each edge its source's place among them.
    """
    bounds, edges = edge_numbers(rows, indptr)
    used, places = np.unique(sources[edges], return_inverse=True)
    return bounds, used, places


def edge_numbers(rows: np.ndarray, indptr: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the (R + 1,) int64 bounds of the edges into (R,) ``rows``, and those edges."""
    counts = np.diff(indptr)[rows]
    bounds = np.concatenate(([0], np.cumsum(counts)))
    starts = np.repeat(indptr[:-1][rows] - bounds[:-1], counts)
    return bounds, starts + np.arange(bounds[-1])


def moved(batch: Batch, device: torch.device) -> Batch:
    """Return a layer's batch with its tensors on a device.

    Hashes stay where they are.

    Args:
        batch: What :meth:`GraphLayer.batch` returned: a tensor, or a frozen dataclass of them.
        device: Where to.
    """
    found: Any = batch
    if isinstance(batch, torch.Tensor):
        found = onto(batch, device) if batch.layout == torch.strided else batch
    elif isinstance(batch, Segments):
        found = batch.on(device)
    elif isinstance(batch, SparsePattern):
        found = batch.to(device)
    elif isinstance(batch, tuple):
        found = tuple(moved(part, device) for part in batch)
    elif is_dataclass(batch) and not isinstance(batch, type):
        parts = {item.name: moved(getattr(batch, item.name), device) for item in fields(batch)}
        found = replace(batch, **parts)
    return found  # type: ignore[no-any-return]


def stacked_rows(inputs: StageInput) -> Rows:
    """Return own rows above received ones: (N + B, D), sparse when both are."""
    own, received = inputs.own, inputs.received
    if isinstance(own, torch.Tensor) or isinstance(received, torch.Tensor):
        return torch.cat([dense_rows(own, inputs.dtype), dense_rows(received, inputs.dtype)])
    return csr_array(vstack([own, received], format="csr"))


def dense_rows(rows: Rows, dtype: torch.dtype) -> torch.Tensor:
    """Return ``rows`` as a dense tensor."""
    if isinstance(rows, torch.Tensor):
        return rows.to(dtype)
    return torch.from_numpy(rows.toarray()).to(dtype)


def compact_rows(rows: Rows, dtype: torch.dtype) -> Rows:
    """Keep a sparse matrix sparse only where that pays."""
    if isinstance(rows, torch.Tensor):
        return rows
    cells = max(1, rows.shape[0] * rows.shape[1])
    return dense_rows(rows, dtype) if rows.nnz > _DENSE_ABOVE * cells else rows


def select_rows(rows: Rows, wanted: np.ndarray, dtype: torch.dtype) -> torch.Tensor | SparseRows:
    """Return rows ``wanted`` ready for products with trained weights."""
    if isinstance(rows, torch.Tensor):
        return rows.index_select(0, places_on(wanted, rows.device))
    return SparseRows.from_scipy(csr_array(rows[wanted]), dtype)


def device_of(rows: Rows) -> torch.device:
    """Return where rows are; sparse ones are on the CPU."""
    return rows.device if isinstance(rows, torch.Tensor) else torch.device("cpu")


def places_on(places: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return (R,) places as int64 on a device."""
    return onto(torch.from_numpy(np.ascontiguousarray(places, np.int64)), device)
