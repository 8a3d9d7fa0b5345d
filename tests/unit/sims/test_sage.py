from __future__ import annotations

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.sampling import FullSampler
from sims.sage import Sage, loss_of
from tests.support.mini_batches import CLASSES, WIDTH, small_graph

pytestmark = pytest.mark.slow

GRAPH = small_graph()
FEATURES = torch.from_numpy(GRAPH.features)


def dense_mean() -> torch.Tensor:
    """Return (N, N) whose product is the mean over neighbours."""
    adjacency = GRAPH.adjacency
    found = torch.zeros(GRAPH.num_nodes, GRAPH.num_nodes)
    rows = np.repeat(np.arange(GRAPH.num_nodes), adjacency.degrees)
    found[rows, torch.from_numpy(adjacency.indices).long()] = 1
    return found / found.sum(dim=1, keepdim=True).clamp(min=1)


def reference(model: Sage) -> torch.Tensor:
    mean, rows = dense_mean(), FEATURES
    for layer, bias in enumerate(model.biases):
        rows = rows @ model.own[layer] + mean @ rows @ model.neighbours[layer] + bias
        rows = rows if layer == len(model.biases) - 1 else rows.relu()
    return rows


def test_full_sample_has_logits_and_gradients_of_dense_products() -> None:
    model = Sage((WIDTH, 6, 5, CLASSES), dropout=0.0, seed=0)
    sample = FullSampler(GRAPH.adjacency, 3).sample(GRAPH.train, epoch=0, batch=0)
    logits = model(FEATURES[torch.from_numpy(sample.nodes)], sample)
    expected = reference(model)[torch.from_numpy(GRAPH.train)]
    torch.testing.assert_close(logits, expected)
    weights = list(model.parameters())
    labels = GRAPH.labels[GRAPH.train]
    torch.testing.assert_close(
        torch.autograd.grad(loss_of(logits, labels), weights),
        torch.autograd.grad(loss_of(expected, labels), weights),
    )


def test_logits_of_all_nodes_are_those_of_dense_products() -> None:
    model = Sage((WIDTH, 6, CLASSES), dropout=0.5, seed=0)
    torch.testing.assert_close(model.on_graph(FEATURES, GRAPH.adjacency), reference(model).detach())


def test_same_seed_gives_the_same_weights_and_dropout() -> None:
    sample = FullSampler(GRAPH.adjacency, 2).sample(GRAPH.train, epoch=0, batch=0)
    rows = FEATURES[torch.from_numpy(sample.nodes)]
    models = [Sage((WIDTH, 6, CLASSES), dropout=0.5, seed=seed) for seed in (0, 0, 1)]
    one, same, other = (model(rows, sample) for model in models)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    # Drawn anew at each step.
    assert not torch.equal(models[0](rows, sample), one)
