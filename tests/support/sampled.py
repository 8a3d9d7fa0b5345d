"""A small graph as the sampled and the full-batch trainers of one client read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.client.part import node_sets
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.stage_rows import stage_input
from retexo_fl.config import make_config
from retexo_fl.graph import BoundaryPlan
from retexo_fl.layers.base import StageInput
from retexo_fl.training.layer_trainer import NodeSets
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape

GRAPH = "synthetic:nodes=60,edges=240,classes=3,features=5"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallClient:
    """One client without peers.

    Attributes:
        shape: Of its model.
        plan: Nothing to exchange.
        inputs: What its first layer reads.
        nodes: By use.
        adjacency: Its edges, as samplers read them.
    """

    shape: ModelShape
    plan: BoundaryPlan
    inputs: StageInput
    nodes: NodeSets
    adjacency: Adjacency

    @property
    def rows(self) -> np.ndarray:
        """Its features."""
        assert isinstance(self.inputs.own, torch.Tensor)
        return self.inputs.own.numpy()

    def weights(self) -> np.ndarray:
        """Return initial weights whose zeros are drawn as well."""
        drawn = Schedule(shape=self.shape).initial(0, seed=0)
        noise = np.random.default_rng(1).normal(scale=0.1, size=drawn.shape).astype(drawn.dtype)
        return np.where(drawn == 0, noise, drawn)


def small_client(
    model: str,
    *,
    layers: int = 3,
    dtype: str = "float64",
    graph: str = GRAPH,
    heads_between: bool = False,
) -> SmallClient:
    """Return the client of a central training, or with heads between layers of a lazy one."""
    config = make_config(
        {
            **{"dataset": graph, "clients": 1, "model": model},
            "algorithm": "lazy" if heads_between else "central",
            **{"layers": layers, "hidden": 6, "heads": 2, "dtype": dtype},
            **{"split": "random:0.5/0.2/0.3"},
        }
    )
    (part,) = make_parts(config)
    plan = BoundaryPlan.from_partition(part)
    rows = np.asarray(part.features).astype(dtype)
    received = np.zeros((0, rows.shape[1]), dtype)
    inputs = stage_input(part, plan, rows, received, ())
    targets = np.repeat(np.arange(part.num_inner), np.diff(inputs.indptr))
    return SmallClient(
        shape=ModelShape.of(config, inputs=part.num_features, classes=part.num_classes),
        plan=plan,
        inputs=inputs,
        nodes=node_sets(part),
        adjacency=Adjacency.from_edges(inputs.indices, targets, num_nodes=part.num_inner),
    )
