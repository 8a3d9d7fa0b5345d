"""PyTorch Geometric's convolutions as layers: ``pyg:GATv2Conv``.

A convolution is run over the edges into a batch's targets, with the rows that these need; what it
makes of the other rows is left out. So it computes what it computes on the whole graph if one layer
reads no more than a node's own row, its neighbours' rows and the edges between them. Only those of
which that is known are taken. PyG is imported when a layer is first asked for.

Dropout acts on the input rows, keyed by node; a convolution's own (of attention) is off, since it
would depend on who computes. On directed edges messages come along them, as in PyG.

Shapes: x (S, D) rows of a batch's targets, then of their neighbours, result (R, H).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

import numpy as np
import torch

from retexo_fl.errors import PluginError
from retexo_fl.layers.aggregate import scaled_edges
from retexo_fl.layers.base import (
    IN,
    GraphLayer,
    LayerShape,
    StageInput,
    dense_rows,
    edge_numbers,
    one_direction,
    places_on,
    stacked_rows,
)
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.gcn import GcnLayer
from retexo_fl.plugins import PYG


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """How a convolution is made, and what it reads of edges.

    Attributes:
        make: From its class and the sizes.
        weights: How it takes weights of edges.
        attributes: How it takes attributes of edges.
        uses_heads: Whether it has ``heads``, whose outputs are averaged.
        is_normalised: Edges get the weights of :class:`GcnLayer`, with degrees of the whole graph
            and edges from nodes to themselves.
    """

    make: Callable[[Any, LayerShape], torch.nn.Module]
    weights: Literal["none", "positive", "any"] = "none"
    attributes: Literal["none", "read", "needed"] = "none"
    uses_heads: bool = False
    is_normalised: bool = False


def _plain(conv: Any, shape: LayerShape) -> torch.nn.Module:
    made: torch.nn.Module = conv(shape.inputs, shape.outputs)
    return made


def _attention(conv: Any, shape: LayerShape) -> torch.nn.Module:
    edge_dim = shape.edge_features or None
    made: torch.nn.Module = conv(
        shape.inputs, shape.outputs, heads=shape.heads, concat=False, edge_dim=edge_dim
    )
    return made


def _gcn(conv: Any, shape: LayerShape) -> torch.nn.Module:
    made: torch.nn.Module = conv(shape.inputs, shape.outputs, normalize=False, add_self_loops=False)
    return made


def _perceptron(shape: LayerShape) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(shape.inputs, shape.hidden),
        torch.nn.LayerNorm(shape.hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(shape.hidden, shape.outputs),
    )


def _gin(conv: Any, shape: LayerShape) -> torch.nn.Module:
    made: torch.nn.Module = conv(_perceptron(shape), train_eps=True)
    return made


def _gine(conv: Any, shape: LayerShape) -> torch.nn.Module:
    made: torch.nn.Module = conv(_perceptron(shape), train_eps=True, edge_dim=shape.edge_features)
    return made


_KINDS: Final[Mapping[str, _Kind]] = MappingProxyType(
    {
        "GCNConv": _Kind(make=_gcn, weights="positive", is_normalised=True),
        "SAGEConv": _Kind(make=_plain),
        "GraphConv": _Kind(make=_plain, weights="any"),
        "GATConv": _Kind(make=_attention, attributes="read", uses_heads=True),
        "GATv2Conv": _Kind(make=_attention, attributes="read", uses_heads=True),
        "TransformerConv": _Kind(make=_attention, attributes="read", uses_heads=True),
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
    directions: ClassVar[Literal["either"]] = "either"

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape)
        self.conv = _KINDS[self.conv_name].make(_conv_class(self.conv_name), shape)

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw parameters as PyG does, from a seed of the generator."""
        seed = int(torch.randint(2**62, (1,), generator=generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv.reset_parameters()  # type: ignore[operator]

    def prepare(self, inputs: StageInput) -> PygInput:
        """Stack the rows, dense."""
        rows = dense_rows(stacked_rows(inputs), inputs.dtype)
        if inputs.edge_weights is not None and inputs.edge_weights.ndim > 1:
            inputs = one_direction(inputs, IN)
        indptr, indices, weights = inputs.indptr, inputs.indices, None
        if _KINDS[self.conv_name].is_normalised:
            sums = GcnLayer.operator(inputs)
            indptr, indices, weights = sums.indptr, sums.indices, sums.data
        elif self.takes_weights != "none":
            weights = scaled_edges(np.ones(len(indices)), inputs)
        return PygInput(
            rows=rows,
            hashes=np.concatenate([inputs.own_hashes, inputs.slot_hashes]),
            indptr=np.asarray(indptr, np.int64),
            indices=np.asarray(indices, np.int64),
            weights=weights,
            attributes=inputs.edge_attributes if self.shape.edge_features else None,
        )

    def batch(self, prepared: object, rows: np.ndarray) -> PygBatch:
        """Select the edges into ``rows``; these come first among the rows that are read."""
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

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return the (R, H) rows of the batch's targets."""
        assert isinstance(batch, PygBatch)
        rows = batch.rows if dropout is None else dropout.dense(batch.rows, batch.hashes)
        given = {"edge_weight": batch.weights, "edge_attr": batch.attributes}
        carried = {name: values for name, values in given.items() if values is not None}
        result: torch.Tensor = self.conv(rows, batch.edges, **carried)
        return result[: len(batch.targets)]


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
