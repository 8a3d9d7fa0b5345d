"""The trained layers of a run as one PyTorch module that reads a whole graph.

Clients compute the same layer by layer, each its own nodes, and exchange in between. Symbols: N
nodes, F features, C classes, D width of an embedding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.api.predicted_graph import predicted_graph
from retexo_fl.client.edge_fit import as_read, check_edges
from retexo_fl.client.preparation import whole_part
from retexo_fl.client.stage_input import stage_input
from retexo_fl.client.stage_rows import read_rows, with_coordinates
from retexo_fl.exchange import Vectors
from retexo_fl.graph import BoundaryPlan, GraphPartition, normalise_features
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.named import layer_class
from retexo_fl.training.basis import Basis, BasisForm
from retexo_fl.training.stage_model import StageModel
from retexo_fl.training.stage_pass import chunks

if TYPE_CHECKING:
    from retexo_fl.federation.trained_model import TrainedModel


class GraphModel(torch.nn.Module):
    """All trained layers of a run, for inference on the CPU.

    Called with a graph it returns (N, C) logits in the order of the graph's nodes: of classes or
    labels; of a regression (N, 1) numbers in the labels' own units; of links (N, D) embeddings, two
    of which :meth:`score` compares. The dtype is that of the training. Rows that cross between
    clients in few bits (``row_bits``) are rounded there and not here.

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
            basis = form.decode(trained.basis)
            self.register_buffer("basis_mean", torch.from_numpy(basis.mean))
            self.register_buffer("basis_directions", torch.from_numpy(basis.directions))
        self.requires_grad_(False)
        self.eval()

    @torch.no_grad()
    def forward(self, graph: Any) -> torch.Tensor:
        """Return what the last layer says of all nodes.

        Args:
            graph: What :func:`retexo_fl.run` takes as ``graph``, with the features (N, F) of the
                training and, where the layers read them, weights and attributes of edges. Its
                labels are not read, and it may have no edges, which are read as in the training.

        Raises:
            DatasetError: It is no graph that can be read.
            PartitionError: It has other features than the model was trained with, or edges that the
                layers do not take.
        """
        whole = predicted_graph(graph, self._trained, labels=False)
        part = whole_part(whole)
        found = self._outputs(part)
        order = torch.from_numpy(np.argsort(np.argsort(whole.node_keys, kind="stable")))
        found = found[order]
        if self._trained.label_facts:
            mean, scale = self._trained.label_facts
            found = mean + scale * found.double()
        return found

    def score(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return (n,) logits of links between nodes of (n, D) embeddings, for task ``links``."""
        last = self.stages[-1]
        assert isinstance(last, StageModel)
        return last.score(first, second)

    def _outputs(self, part: GraphPartition) -> torch.Tensor:
        """Return (N, C) outputs in the order of the part."""
        trained, model = self._trained, self._trained.config.model
        trained.check_fits(
            recipe=part.recipe_digest,
            features=part.num_features,
            classes=part.num_classes,
            edge_features=part.edge_values.num_attributes,
            source="graph",
        )
        check_edges(model, part)
        part = as_read(model, part)
        plan = BoundaryPlan.from_partition(part, "rows")
        inputs = self._first_input(part, plan)
        *before, last = [stage for stage in self.stages if isinstance(stage, StageModel)]
        for layer, stage in enumerate(before):
            if stage.passes_sums:
                rows = read_rows(trained.shape, layer, inputs)
            else:
                rows = _all_rows(stage, inputs, stage.embed).numpy()
            inputs = _input(part, plan, rows, model)
        return _all_rows(last, inputs, lambda batch: last.classify(batch, None))

    def _first_input(self, part: GraphPartition, plan: BoundaryPlan) -> StageInput:
        config, shape = self._trained.config, self._trained.shape
        features = normalise_features(part.features, config.feature_normalisation)
        rows: Vectors = features.astype(config.dtype)
        if not shape.has_basis:
            return _input(part, plan, rows, config.model)
        mean, directions = self.get_buffer("basis_mean"), self.get_buffer("basis_directions")
        basis = Basis(mean=mean.numpy(), directions=directions.numpy())
        if not shape.basis_of_sums:
            return _input(part, plan, basis.coordinates(rows), config.model)
        return with_coordinates(basis, _input(part, plan, rows, config.model))


def _stage(trained: TrainedModel, layer: int) -> StageModel:
    """Return a layer with its trained weights."""
    stage = StageModel(trained.shape, layer)
    weights = torch.from_numpy(trained.weights[layer + trained.shape.lag].copy())
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
