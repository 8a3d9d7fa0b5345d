"""A client's part as mini-batch training reads it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.additions.devices.training.device_rows import CacheChoice
from retexo_fl.additions.devices.training.sampled_task import ClientGraph, SampledSettings
from retexo_fl.additions.devices.training.sampled_trainer import MiniBatches, SampledTrainer
from retexo_fl.additions.devices.training.sampler_choice import SamplerChoice
from retexo_fl.config import RunConfig
from retexo_fl.errors import DatasetError
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.sources.named.obtain import cache_folder
from retexo_fl.layers.base import StageInput
from retexo_fl.training.end_to_end import EndToEndTrainer
from retexo_fl.training.layer_trainer import NodeSets
from retexo_fl.training.recipe import Recipe, objective_of


def make_sampled_trainer(
    config: RunConfig,
    graph: ClientGraph,
    whole: EndToEndTrainer,
    devices: ClientDevices,
    *,
    recipe: Recipe,
    client: int,
) -> SampledTrainer:
    """Return the trainer by mini-batches of a client without peers.

    Args:
        config: Of the run.
        graph: The client's.
        whole: Judges weights.
        devices: The client's.
        recipe: What is known of labels, and local steps.
        client: Index.

    Raises:
        ConfigurationError: Sampler, model and layers do not go together.
    """
    settings = SampledSettings(
        shape=whole.shape,
        choice=SamplerChoice.of(config, client=client),
        objective=objective_of(config),
        label_facts=recipe.label_facts,
        dropout=config.dropout,
        seed=config.seed,
        buffers=1 + devices.ahead,
        cache=CacheChoice(
            policy=config.gpu_cache,
            # Agents are a process each; other engines may have all clients in one.
            sharers=1 if config.engine == "deployment" else config.clients,
        ),
    )
    batches = MiniBatches(
        settings=settings,
        client=client,
        local=recipe.local,
        batch_nodes=config.batch_nodes,
        balance=config.balance,
        workloads=workloads_folder(),
    )
    return SampledTrainer(whole, graph, devices, batches=batches)


def client_graph(inputs: StageInput, nodes: NodeSets) -> ClientGraph:
    """Return what samplers and devices read: dense features, edges in ascending order.

    Args:
        inputs: Features, edges and degrees; no slots.
        nodes: Labelled nodes by use.
    """
    assert not len(inputs.slot_hashes), "samplers know no nodes of peers"
    own = inputs.own
    rows = own.numpy() if isinstance(own, torch.Tensor) else own.toarray()
    targets = np.repeat(np.arange(inputs.num_nodes), np.diff(inputs.indptr))
    adjacency = Adjacency.from_edges(inputs.indices, targets, num_nodes=inputs.num_nodes)
    return ClientGraph(
        adjacency=adjacency,
        rows=np.ascontiguousarray(rows),
        hashes=np.asarray(inputs.own_hashes),
        labels=np.asarray(nodes.labels),
        # Whatever the devices are: the order decides which nodes make a mini-batch.
        train=adjacency.near_together(nodes.train),
        # A part's edges are in ascending order, too.
        edge_values=EdgeValues(weights=inputs.edge_weights, attributes=inputs.edge_attributes),
    )


def workloads_folder() -> Path | None:
    """Return where measured workloads are kept; a user who may write nowhere measures anew."""
    try:
        folder = cache_folder() / "workloads"
        folder.mkdir(parents=True, exist_ok=True)
    except (DatasetError, OSError):
        return None
    return folder if os.access(folder, os.W_OK) else None
