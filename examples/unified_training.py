"""Train a plain PyTorch module on all devices of a machine together, on sampled neighbours.

``python examples/unified_training.py --devices auto``. Every worker process imports this file: what
they use stands at module level, what only the host does under ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from retexo_fl.additions.devices.sampling import (
    Adjacency,
    Block,
    NeighbourSampler,
    Sampler,
    root_workloads,
)
from retexo_fl.additions.devices.workers.unified import Step, Unified
from retexo_fl.graph import load_dataset, make_split

#: Neighbours that each layer draws, the roots' first.
FANOUTS = (15, 10)
#: Validation draws as if in an epoch that is never trained.
VALIDATION_EPOCH = 2**31


@dataclass(frozen=True, slots=True)
class Edges:
    """A block of the sampler as tensors.

    Attributes:
        sources: (E,) rows that messages come from.
        targets: (E,) rows that they reach.
        weights: (E,) that make a target's sum the mean over all of its neighbours.
        num_targets: R.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor
    num_targets: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What the loss of some roots is computed from."""

    rows: torch.Tensor
    edges: tuple[Edges, ...]
    labels: torch.Tensor


class MeanSage(nn.Module):
    """GraphSAGE with the mean of neighbours; knows nothing of samplers or devices."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(widths))
        self.own = nn.ModuleList([nn.Linear(*pair) for pair in pairs])
        self.neighbours = nn.ModuleList([nn.Linear(*pair, bias=False) for pair in pairs])

    def forward(self, rows: torch.Tensor, blocks: Sequence[Edges]) -> torch.Tensor:
        """Return logits of the roots from the input rows."""
        for layer, edges in enumerate(blocks):
            messages = rows[edges.sources] * edges.weights[:, None]
            means = rows.new_zeros(edges.num_targets, rows.shape[1])
            means = means.index_add(0, edges.targets, messages)
            rows = self.own[layer](rows[: edges.num_targets]) + self.neighbours[layer](means)
            if layer < len(blocks) - 1:
                rows = rows.relu()
        return rows


class SampledGraph:
    """Where batches come from: sent to every worker once, the large arrays in shared memory."""

    def __init__(self, sampler: Sampler, features: np.ndarray, labels: np.ndarray) -> None:
        self._sampler = sampler
        self._features = torch.from_numpy(features)
        self._labels = torch.from_numpy(labels)

    def prepare(self, items: np.ndarray, *, epoch: int, batch: int, device: torch.device) -> Batch:
        """Sample, gather and move; runs beside the computing of the batch before."""
        sample = self._sampler.sample(items, epoch=epoch, batch=batch)
        rows = self._features[torch.from_numpy(sample.nodes)]
        return Batch(
            rows=rows.to(device),
            edges=tuple(edges_of(block, device) for block in sample.blocks),
            labels=self._labels[torch.from_numpy(sample.roots)].to(device),
        )


def edges_of(block: Block, device: torch.device) -> Edges:
    """Return a block's edges, weighted so that sums are means over all neighbours."""
    picked = np.diff(block.indptr)
    scales = np.ones(block.num_edges, np.float32) if block.scales is None else block.scales
    weights = scales / np.repeat(block.degrees, picked).astype(np.float32)
    targets = np.repeat(np.arange(block.num_targets), picked)
    return Edges(
        sources=torch.from_numpy(block.columns).to(device),
        targets=torch.from_numpy(targets).to(device),
        weights=torch.from_numpy(weights).to(device),
        num_targets=block.num_targets,
    )


def summed_loss(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the loss *summed* over the roots; the mean is taken over all devices together."""
    logits = model(batch.rows, batch.edges)
    correct = float((logits.argmax(dim=1) == batch.labels).sum())
    return F.cross_entropy(logits, batch.labels, reduction="sum"), {"correct": correct}


def accuracy(model: nn.Module, source: SampledGraph, nodes: np.ndarray) -> float:
    """Return the share of nodes that are classified rightly."""
    batch = source.prepare(nodes, epoch=VALIDATION_EPOCH, batch=0, device=torch.device("cpu"))
    with torch.no_grad():
        _, numbers = summed_loss(model, batch)
    return numbers["correct"] / len(nodes)


def main() -> None:
    """Train."""
    asked = arguments()
    graph = load_dataset(asked.dataset, data_dir=asked.data_dir)
    split = make_split(graph, np.zeros(graph.num_nodes), split="random:0.5/0.2/0.3", seed=0)
    features = (
        graph.features if isinstance(graph.features, np.ndarray) else graph.features.toarray()
    )
    adjacency = Adjacency(indptr=graph.indptr, indices=graph.indices)
    sampler = NeighbourSampler(adjacency, FANOUTS, seed=0)
    source = SampledGraph(sampler, features, graph.labels)
    # Neighbours beside each other, so that they go to the same device and are drawn once.
    train = adjacency.near_together(np.flatnonzero(split.train))
    validation = np.flatnonzero(split.val)

    torch.manual_seed(0)
    model = MeanSage((features.shape[1], 64, graph.num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with Unified(
        model,
        source,
        summed_loss,
        items=train,
        workloads=root_workloads(sampler, train, cache=None),
        devices=asked.devices,
        batch_size=asked.batch_size,
        tell=print,
    ) as unified:
        for epoch in range(asked.epochs):
            steps: list[Step] = []
            for step in unified.epoch(epoch):
                optimizer.step()
                steps.append(step)
            loss = sum(step.loss * step.count for step in steps) / len(train)
            shares = "/".join(f"{ratio:.2f}" for ratio in unified.decisions[-1].ratios)
            print(
                f"epoch {epoch}: loss {loss:.4f}, "
                f"validation {accuracy(model, source, validation):.3f}, "
                f"{unified.timings[-1].steps_s:.2f} s, next shares {shares}"
            )


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="GraphSAGE on all devices together")
    parser.add_argument("--devices", default="auto", help="auto, cpu:2, cuda:0,cpu, ...")
    parser.add_argument("--dataset", default="synthetic:nodes=20000,edges=200000,classes=8")
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with NAME.npz")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=1024)
    return parser.parse_args()


if __name__ == "__main__":
    main()
