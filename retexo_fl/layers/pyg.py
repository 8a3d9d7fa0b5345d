"""PyTorch Geometric's convolutions as layers: ``pyg:GATv2Conv``.

A convolution is run over the edges into a batch's targets, with the rows that these need; what it
makes of the other rows is left out. So it computes what it computes on the whole graph if one layer
reads no more than a node's own row, its neighbours' rows and the edges between them. Only those of
which that is known are taken. PyG is imported when a layer is first asked for.

Dropout acts on the input rows, keyed by node; a convolution's own (of attention) is off, since it
would depend on who computes. On directed edges messages come along them, as in PyG.
Over types of nodes and edges there is a convolution for each relation, and what they make is added,
as PyG's ``to_hetero`` does; only of those that read rows of two types.

Shapes: x (S, D) rows of a batch's targets, then of their neighbours, result (R, H).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, TypeAlias

import numpy as np
import torch

from retexo_fl.errors import PluginError
from retexo_fl.layers.aggregate import scaled_edges
from retexo_fl.layers.base import (
    IN,
    Directions,
    GraphLayer,
    LayerShape,
    Rows,
    StageInput,
    dense_rows,
    edge_numbers,
    one_direction,
    places_on,
    stacked_rows,
)
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.gcn import GcnLayer
from retexo_fl.layers.rel_gat import LayerOfRelation, PerRelationLayer
from retexo_fl.layers.sparse import SparseRows
from retexo_fl.plugins import PYG


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How a convolution is made, and what it reads of edges.

    Attributes:
        make: From its class, the sizes, and the width of the rows that it reads, or those of
            sources and targets.
        weights: How it takes weights of edges.
        attributes: How it takes attributes of edges.
        uses_heads: Whether it has ``heads``, whose outputs are averaged.
        joins_types: Whether it reads rows of two types, of other widths.
        attends_itself: Whether it has an edge from each node to itself by default.
        is_normalised: Edges get the weights of :class:`GcnLayer`, with degrees of the whole graph
            and edges from nodes to themselves.
    """

    make: Callable[..., torch.nn.Module]
    weights: Literal["none", "positive", "any"] = "none"
    attributes: Literal["none", "read", "needed"] = "none"
    uses_heads: bool = False
    joins_types: bool = False
    attends_itself: bool = False
    is_normalised: bool = False


#: Of the rows that a convolution reads, or of its sources' and its targets'.
_Widths: TypeAlias = int | tuple[int, int]


def _plain(conv: Any, shape: LayerShape, widths: _Widths, **keys: Any) -> torch.nn.Module:
    made: torch.nn.Module = conv(widths, shape.outputs, **keys)
    return made


def _attention(conv: Any, shape: LayerShape, widths: _Widths, **keys: Any) -> torch.nn.Module:
    edge_dim = shape.edge_features or None
    return _plain(conv, shape, widths, heads=shape.heads, concat=False, edge_dim=edge_dim, **keys)


def _gcn(conv: Any, shape: LayerShape, widths: _Widths) -> torch.nn.Module:
    return _plain(conv, shape, widths, normalize=False, add_self_loops=False)


def _perceptron(shape: LayerShape) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(shape.inputs, shape.hidden),
        torch.nn.LayerNorm(shape.hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(shape.hidden, shape.outputs),
    )


def _gin(conv: Any, shape: LayerShape, widths: _Widths) -> torch.nn.Module:
    del widths
    made: torch.nn.Module = conv(_perceptron(shape), train_eps=True)
    return made


def _gine(conv: Any, shape: LayerShape, widths: _Widths) -> torch.nn.Module:
    del widths
    made: torch.nn.Module = conv(_perceptron(shape), train_eps=True, edge_dim=shape.edge_features)
    return made


_ATTENTION: Final[Mapping[str, Any]] = MappingProxyType(
    {"make": _attention, "attributes": "read", "uses_heads": True, "joins_types": True}
)
_KINDS: Final[Mapping[str, _Kind]] = MappingProxyType(
    {
        "GCNConv": _Kind(make=_gcn, weights="positive", is_normalised=True),
        "SAGEConv": _Kind(make=_plain, joins_types=True),
        "GraphConv": _Kind(make=_plain, weights="any", joins_types=True),
        "GATConv": _Kind(**_ATTENTION, attends_itself=True),
        "GATv2Conv": _Kind(**_ATTENTION, attends_itself=True),
        "TransformerConv": _Kind(**_ATTENTION),
        "GINConv": _Kind(make=_gin),
        "GINEConv": _Kind(make=_gine, attributes="needed"),
    }
)
#: Convolutions whose one layer reads beyond a node's neighbours.
_FAR: Final = frozenset(
    {
        *("APPNP", "ARMAConv", "ChebConv", "DNAConv", "LGConv", "MixHopConv", "SGConv", "SSGConv"),
        *("TAGConv", "ClusterGCNConv"),
    }
)


def is_pyg(name: str) -> bool:
    """Return whether a model's name is that of a convolution of PyG."""
    return name.startswith(PYG)


@cache
def pyg_layer(name: str) -> type[GraphLayer]:
    """Return the layer of a name such as ``pyg:GATv2Conv``.

    Raises:
        PluginError: It is no convolution that can be trained layer by layer.
    """
    conv = name.removeprefix(PYG)
    if conv not in _KINDS:
        why = (
            "reads beyond a node's neighbours in one layer, which peers do not send"
            if conv in _FAR
            else "is not known to read a node's neighbours alone"
        )
        raise PluginError(f"model {name!r}: {why}; expected one of {', '.join(_KINDS)}")
    kind = _KINDS[conv]
    traits = {
        "conv_name": conv,
        "uses_heads": kind.uses_heads,
        "takes_weights": kind.weights,
        "attributes": kind.attributes,
        "scales_edges": kind.weights != "none",
        "directions": "any" if kind.joins_types else "either",
        "__doc__": f"PyG's ``{conv}``.",
    }
    if kind.is_normalised:
        traits["message_scale"] = staticmethod(_gcn_scale)
    return type(conv, (PygLayer,), traits)


def _gcn_scale(degrees: np.ndarray) -> np.ndarray:
    """Return the factors of :class:`GcnLayer`, of directed edges by what comes in."""
    return GcnLayer.message_scale(degrees if degrees.ndim == 1 else degrees[:, IN])


@dataclass(frozen=True, slots=True, kw_only=True)
class PygInput:
    """The stage's (N + B, D) rows, and its edges with what the convolution gets of them."""

    rows: torch.Tensor
    hashes: np.ndarray
    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None
    attributes: np.ndarray | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PygBatch:
    """R targets' rows, then those of their neighbours, and the edges into the targets.

    Attributes:
        rows: (S, D).
        hashes: (S,) uint64.
        edges: (2, E) int64: sources, then targets.
        targets: (R, 0) int64; only its length says something.
        weights: (E,), or None.
        attributes: (E, A), or None.
    """

    rows: torch.Tensor
    hashes: np.ndarray
    edges: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor | None
    attributes: torch.Tensor | None


class PygLayer(GraphLayer):
    """A convolution of PyG; see :func:`pyg_layer`."""

    conv_name: ClassVar[str]
    directions: ClassVar[Directions] = "either"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.relations = None if shape.typed is None else _of_relations(self.conv_name)(shape)
        if self.relations is None:
            kind = _KINDS[self.conv_name]
            self.conv = kind.make(_conv_class(self.conv_name), shape, shape.inputs)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw parameters as PyG does, from a seed of the generator."""
        if self.relations is not None:
            self.relations.reset_parameters(generator)
            return
        seed = int(torch.randint(2**62, (1,), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv.reset_parameters()  # type: ignore[operator]

    def prepare(self, inputs: StageInput) -> object:
        """Stack the rows, dense."""
        if self.relations is not None:
            return self.relations.prepare(inputs)
        if inputs.edge_weights is not None and inputs.edge_weights.ndim > 1:
            inputs = one_direction(inputs, IN)
        return self.edges_of(inputs, stacked_rows(inputs))

    def edges_of(self, inputs: StageInput, rows: Rows) -> PygInput:
        """Join the edges of one direction to (N + B, D) rows."""
        indptr, indices, weights = inputs.indptr, inputs.indices, None
        if _KINDS[self.conv_name].is_normalised:
            sums = GcnLayer.operator(inputs)
            indptr, indices, weights = sums.indptr, sums.indices, sums.data
        elif self.takes_weights != "none":
            weights = scaled_edges(np.ones(len(indices)), inputs)
        return PygInput(
            rows=dense_rows(rows, inputs.dtype),
            hashes=np.concatenate([inputs.own_hashes, inputs.slot_hashes]),
            indptr=np.asarray(indptr, np.int64),
            indices=np.asarray(indices, np.int64),
            weights=weights,
            attributes=inputs.edge_attributes if self.shape.edge_features else None,
        )

    def batch(self, prepared: object, rows: np.ndarray) -> object:
        """Select the edges into ``rows``; these come first among the rows that are read."""
        if self.relations is not None:
            return self.relations.batch(prepared, rows)
        assert isinstance(prepared, PygInput)
        bounds, edges = edge_numbers(rows, prepared.indptr)
        sources = prepared.indices[edges]
        used = np.concatenate((rows, np.setdiff1d(sources, rows)))
        place = np.empty(len(prepared.hashes), np.int64)
        place[used] = np.arange(len(used))
        targets = np.repeat(np.arange(len(rows)), np.diff(bounds))
        dtype = prepared.rows.dtype

        def of_edges(values: np.ndarray | None) -> torch.Tensor | None:
            return None if values is None else torch.from_numpy(values[edges]).to(dtype)

        return PygBatch(
            rows=prepared.rows.index_select(0, places_on(used, prepared.rows.device)),
            hashes=prepared.hashes[used],
            edges=torch.from_numpy(np.stack((place[sources], targets))),
            targets=torch.empty((len(rows), 0), dtype=torch.int64),
            weights=of_edges(prepared.weights),
            attributes=of_edges(prepared.attributes),
        )

    def trained_batches(
        self, inputs: StageInput, rows: np.ndarray
    ) -> Callable[[torch.Tensor], object]:
        """Prepare the edges in every round, but of relations."""
        if self.relations is not None:
            return self.relations.trained_batches(inputs, rows)
        return super().trained_batches(inputs, rows)

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's targets."""
        if self.relations is not None:
            made: torch.Tensor = self.relations(batch, dropout)
            return made
        assert isinstance(batch, PygBatch)
        return self._convolved(batch, None, dropout)

    def _convolved(
        self, batch: PygBatch, own: torch.Tensor | None, dropout: KeyedDropout | None
    ) -> torch.Tensor:
        """Apply the convolution to rows of sources, and to those of targets where they differ."""
        rows = batch.rows if dropout is None else dropout.dense(batch.rows, batch.hashes)
        given = {"edge_weight": batch.weights, "edge_attr": batch.attributes}
        carried = {name: values for name, values in given.items() if values is not None}
        read = rows if own is None else (rows, own)
        result: torch.Tensor = self.conv(read, batch.edges, **carried)
        return result[: len(batch.targets)]


class _ConvOfRelation(PygLayer, LayerOfRelation):
    """A convolution from rows of one type to nodes of another."""

    def __init__(self, shape: LayerShape, targets: int) -> None:
        GraphLayer.__init__(self, shape)
        self.relations = None
        kind = _KINDS[self.conv_name]
        keys = {"add_self_loops": False} if kind.attends_itself else {}
        widths = shape.inputs, targets
        self.conv = kind.make(_conv_class(self.conv_name), shape, widths, **keys)

    def passed(
        self, batch: object, own: torch.Tensor | SparseRows, dropout: KeyedDropout | None
    ) -> torch.Tensor:
        """See :class:`.LayerOfRelation`."""
        assert isinstance(batch, PygBatch)
        return self._convolved(batch, own.dense() if isinstance(own, SparseRows) else own, dropout)


class _OfRelations(PerRelationLayer):
    """A convolution for each relation."""

    conv_name: ClassVar[str]

    def _layer_of(self, shape: LayerShape, targets: int) -> LayerOfRelation:
        """See :class:`.PerRelationLayer`."""
        found = type(self.conv_name, (_ConvOfRelation,), {"conv_name": self.conv_name})
        made: LayerOfRelation = found(replace(shape, typed=None), targets)
        return made

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw the parameters of each convolution."""
        for one in self.channels.values():
            assert isinstance(one, PygLayer)
            one.reset_parameters(generator)


@cache
def _of_relations(conv_name: str) -> type[PerRelationLayer]:
    return type(conv_name, (_OfRelations,), {"conv_name": conv_name})


def _conv_class(name: str) -> Any:
    with warnings.catch_warnings():
        # It compiles parts of itself by a function that torch calls outdated.
        warnings.simplefilter("ignore")
        try:
            from torch_geometric import nn
        except ImportError as error:
            raise PluginError(
                f"model '{PYG}{name}': needs PyTorch Geometric, which is not installed; "
                "pip install torch_geometric"
            ) from error
    return getattr(nn, name)
