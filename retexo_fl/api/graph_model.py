"""The trained layers of a run as one PyTorch module that reads a whole graph.

Clients compute the same layer by layer, each its own nodes, and exchange in between. Symbols: N
nodes, F features, C classes, D width of an embedding.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.api.predicted_graph import predicted_graph
from retexo_fl.api.traced_pass import (
    EdgeMasks,
    FirstCoordinates,
    FirstRows,
    normalised,
    traced_outputs,
)
from retexo_fl.client.part import as_read, check_edges
from retexo_fl.client.preparation import whole_part
from retexo_fl.client.stage_rows import read_rows, stage_input
from retexo_fl.errors import ConfigurationError
from retexo_fl.exchange import Vectors
from retexo_fl.graph.features import normalise_features
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.graph.sources.foreign import as_array, as_csr
from retexo_fl.graph.sources.from_arrays import ATTRIBUTES, EDGES, FEATURES, TRANSPOSED, WEIGHT
from retexo_fl.layers.base import StageInput, without_edges
from retexo_fl.layers.named import layer_class
from retexo_fl.methods.pieces.columns.answers import features_of_whole
from retexo_fl.training.basis import Basis, BasisForm
from retexo_fl.training.columns import with_structure
from retexo_fl.training.row_classes import parted_basis
from retexo_fl.training.stage_model import StageModel
from retexo_fl.training.stage_pass import chunks
from retexo_fl.units import counted

if TYPE_CHECKING:
    from retexo_fl.federation.trained_model import TrainedModel

#: Where it is loaded, its explainers may be, too; it takes seconds to load.
_PYG: Final = "torch_geometric"


class GraphModel(torch.nn.Module):
    """All trained layers of a run, for inference, and for explanations, on the CPU.

    Called with a graph it returns (N, C) logits in the order of the graph's nodes: of classes or
    labels; of a regression (N, 1) numbers in the labels' own units; of links (N, D) embeddings, two
    of which :meth:`score` compares; (N, 2 D) of models that attend to neighbours, of each node as
    it is joined with those, then by itself. The dtype is that of the training. Rows that cross
    between clients in few bits (``row_bits``) are rounded there and not here.

    Attributes:
        stages: One module for each layer, with every trained tensor.
    """

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self._trained = trained
        shape = trained.shape
        self.stages = torch.nn.ModuleList(_stage(trained, layer) for layer in range(shape.layers))
        if trained.basis is not None:
            form = BasisForm(
                features=shape.features, dtype=shape.dtype, bits=trained.config.basis_bits
            )
            basis = form.decode(parted_basis(trained.basis, shape)[1])
            self.register_buffer("basis_mean", torch.from_numpy(basis.mean.copy()))
            self.register_buffer("basis_directions", torch.from_numpy(basis.directions.copy()))
        self.requires_grad_(False)
        self.eval()
        if _PYG in sys.modules:
            self._take_masks()

    def forward(
        self, graph: Any, edge_index: Any = None, edge_weight: Any = None, edge_attr: Any = None
    ) -> torch.Tensor:
        """Return what the last layer says of all nodes.

        Gradients flow to the features of a PyG ``Data``, or ``x``, where these require them, to
        parameters that do (none at first), and to an edge mask that PyG's explainers set. Then all
        nodes are computed at once, with dense features.

        Args:
            graph: What :func:`retexo_fl.run` takes as ``graph``, with the features (N, F) of the
                training and, where the layers read them, weights and attributes of edges. Its
                labels are not read, and it may have no edges, which are read as in the training.
                With ``edge_index``: the features alone.
            edge_index: (2, E) integers, or a sparse matrix as PyG's ``adj_t``.
            edge_weight: (E,), of the edges; without gradients.
            edge_attr: (E, A), likewise.

        Raises:
            DatasetError: It is no graph that can be read.
            PartitionError: It has other features than the model was trained with, or edges that the
                layers do not take.
            ConfigurationError: An edge mask is set, and not of the edges of an ``edge_index``.
        """
        if edge_index is not None:
            edges = EDGES if as_csr(edge_index) is None else TRANSPOSED
            graph = {
                FEATURES: graph,
                edges: edge_index,
                WEIGHT: edge_weight,
                ATTRIBUTES: edge_attr,
            }
        whole = predicted_graph(graph, self._trained, labels=False)
        order = np.argsort(whole.node_keys, kind="stable")
        place = np.argsort(order)
        part = with_structure(whole_part(whole), self._trained.config)
        self._check(part)
        part = as_read(self._trained.config.model, part)
        if self._trained.columns is not None:
            made = features_of_whole(
                part, self._trained.config, self._trained.shape, self._trained.columns
            )
            part = replace(part, features=made)
        features, masks = _of(graph, FEATURES), self._masks(_of(graph, EDGES), place)
        wants = [one for one in (features, *self.parameters()) if _requires_grad(one)]
        if not (masks.change_rows or (wants and torch.is_grad_enabled())):
            found = self._outputs(part)
        else:
            rows = features if _requires_grad(features) else _dense(part)
            rows = rows[torch.from_numpy(order)] if rows is features else rows
            found = self._traced(part, rows, masks)
        found = found[torch.from_numpy(place)]
        if self._trained.label_facts:
            mean, scale = self._trained.label_facts
            found = mean + scale * found.double()
        return found

    def score(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return (n,) logits of links from nodes to others, for task ``links``.

        They are symmetric but of models that attend to neighbours, and of edges with directions.

        Args:
            first: (n, D) embeddings of nodes that rank others, as :func:`retexo_fl.predict` has
                them rank; or (n, 2 D).
            second: Likewise of these others.
        """
        last = self.stages[-1]
        assert isinstance(last, StageModel)
        if self._trained.shape.joins_one_end:
            first, second = first.chunk(2, dim=1)[0], second.chunk(2, dim=1)[1]
        return last.score(last.ends(first, begins=True), last.ends(second, begins=False))

    def _check(self, part: GraphPartition) -> None:
        """Refuse a graph that the layers do not take."""
        self._trained.check_fits(
            recipe=part.recipe_digest,
            features=part.num_features,
            classes=part.num_classes,
            edge_features=part.edge_values.num_attributes,
            is_structural=part.is_structural,
            relations=part.relations,
            source="graph",
        )
        self._trained.check_train_nodes(are_there=bool(part.train_mask.any()), source="graph")
        check_edges(self._trained.config.model, part)

    def _outputs(self, part: GraphPartition) -> torch.Tensor:
        """Return (N, C) outputs in the order of the part."""
        trained, model = self._trained, self._trained.config.model
        plan = BoundaryPlan.from_partition(part, "rows")
        inputs = self._first_input(part, plan)
        *before, last = [stage for stage in self.stages if isinstance(stage, StageModel)]
        for layer, stage in enumerate(before):
            if stage.passes_sums:
                rows = read_rows(trained.shape, layer, inputs)
            else:
                rows = _all_rows(stage, inputs, stage.embed).numpy()
            inputs = _input(part, plan, rows, model)
        alone = [without_edges(inputs)] if trained.shape.joins_one_end else []
        parts = [
            _all_rows(last, of, lambda batch: last.classify(batch, None)) for of in (inputs, *alone)
        ]
        return torch.cat(parts, dim=1)

    def _traced(self, part: GraphPartition, rows: torch.Tensor, masks: EdgeMasks) -> torch.Tensor:
        """Return what :meth:`_outputs` does, of features that may require gradients."""
        config, shape = self._trained.config, self._trained.shape
        nothing = np.zeros((part.num_inner, 0), config.dtype)
        plan = BoundaryPlan.from_partition(part, "rows")
        rows = rows.to(getattr(torch, config.dtype))
        return traced_outputs(
            [stage for stage in self.stages if isinstance(stage, StageModel)],
            shape,
            normalised(rows, config.feature_normalisation),
            _input(part, plan, nothing, config.model),
            first=self._first_rows(),
            masks=masks,
        )

    def _masks(self, edge_index: Any, place: np.ndarray) -> EdgeMasks:
        """Return the edge masks that an explainer of PyG has set; have places for them."""
        if _PYG in sys.modules and not hasattr(self, "messages"):
            self._take_masks()
        set_there = [getattr(module, "_edge_mask", None) for module in self._messages()]
        if all(mask is None for mask in set_there):
            nowhere = np.zeros((2, 0), np.int64)
            return EdgeMasks(ends=nowhere, of_layers=[None] * len(self.stages))
        ends = None if edge_index is None else as_array(edge_index)
        found: list[torch.Tensor | None] = []
        for module, mask in zip(self._messages(), set_there, strict=True):
            if mask is not None and (ends is None or ends.shape != (2, mask.numel())):
                raise ConfigurationError(
                    f"edge mask: has {counted(mask.numel(), 'value')}; expected one for each "
                    "column of edge_index"
                )
            flat = None if mask is None else mask.reshape(-1)
            found.append(flat.sigmoid() if flat is not None and module._apply_sigmoid else flat)
        assert ends is not None
        return EdgeMasks(ends=place[ends], of_layers=found)

    def _messages(self) -> list[Any]:
        return [*getattr(self, "messages", ())]

    def _take_masks(self) -> None:
        """Have a module for each layer that explainers take for one that passes messages."""
        from torch_geometric.nn import MessagePassing

        for module in self.modules():
            if isinstance(module, MessagePassing):
                # Its edges are in another order than those of the caller.
                module.explain = False
        # PyG writes into the class of what it makes, which is therefore one of ours.
        messages = type("Messages", (MessagePassing,), {})
        self.messages = torch.nn.ModuleList(messages() for _ in self.stages)

    def _first_rows(self) -> FirstRows:
        shape = self._trained.shape
        if not shape.has_basis:
            return FirstRows()
        mean, directions = self.get_buffer("basis_mean"), self.get_buffer("basis_directions")
        basis = Basis(mean=mean.numpy(), directions=directions.numpy())
        return FirstCoordinates(basis, of_sums=shape.basis_of_sums)

    def _first_input(self, part: GraphPartition, plan: BoundaryPlan) -> StageInput:
        config = self._trained.config
        features = normalise_features(part.features, config.feature_normalisation)
        rows: Vectors = features.astype(config.dtype)
        return self._first_rows().read(rows, lambda of: _input(part, plan, of, config.model))


def _of(graph: Any, name: str) -> Any:
    return graph.get(name) if isinstance(graph, Mapping) else getattr(graph, name, None)


def _requires_grad(values: object) -> bool:
    return isinstance(values, torch.Tensor) and values.requires_grad


def _dense(part: GraphPartition) -> torch.Tensor:
    features = part.features
    array = features.toarray() if isinstance(features, csr_array) else np.array(features)
    return torch.from_numpy(array)


def _stage(trained: TrainedModel, layer: int) -> StageModel:
    """Return a layer with its trained weights."""
    stage = StageModel(trained.shape, layer)
    weights = torch.from_numpy(trained.weights[trained.shape.stage_of(layer)].copy())
    torch.nn.utils.vector_to_parameters(weights, stage.parameters())
    return stage


def _input(part: GraphPartition, plan: BoundaryPlan, rows: Vectors, model: str) -> StageInput:
    """Return what a layer reads of all nodes, none of which is a peer's."""
    nothing = (0, rows.shape[1])
    received: Vectors = np.zeros(nothing, rows.dtype)
    if isinstance(rows, csr_array):
        received = csr_array(nothing, dtype=rows.dtype)
    inputs = stage_input(part, plan, rows, received, ())
    if not (factors := layer_class(model).num_factors):
        return inputs
    return replace(inputs, slot_factors=np.zeros((0, factors), rows.dtype))


def _all_rows(stage: StageModel, inputs: StageInput, compute: Any) -> torch.Tensor:
    prepared = stage.layer.prepare(inputs)
    parts = [
        compute(stage.layer.batch(prepared, rows)) for rows in chunks(np.arange(inputs.num_nodes))
    ]
    return torch.cat(parts)
