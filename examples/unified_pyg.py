"""Train layers of PyTorch Geometric on all devices of a machine together.

``python examples/unified_pyg.py --devices auto``. The samplers are ours, so neither pyg-lib nor
torch-sparse is needed: a block is an ``edge_index`` between two sets of rows, as PyG's bipartite
layers take it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from retexo_fl.additions.devices.sampling import (
    Adjacency,
    NeighbourSampler,
    Sample,
    Sampler,
    root_workloads,
)
from retexo_fl.additions.devices.workers.unified import Unified

try:
    from torch_geometric.data import Data
    from torch_geometric.nn import SAGEConv
    from torch_geometric.utils import stochastic_blockmodel_graph
except ImportError:
    raise SystemExit("PyTorch Geometric is not installed: pip install torch_geometric") from None

FANOUTS = (10, 10)
CLASSES = 4
#: Edges between nodes of one class, and of two, for each node.
DEGREES = (6.0, 4.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """What the loss of some roots is computed from."""

    x: torch.Tensor
    edge_indices: tuple[torch.Tensor, ...]
    sizes: tuple[int, ...]
    y: torch.Tensor


class Sage(nn.Module):
    """Two layers of PyG's ``SAGEConv``."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SAGEConv(inputs, hidden), SAGEConv(hidden, classes)])

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return logits of the roots."""
        x = batch.x
        for number, layer in enumerate(self.layers):
            # The targets of a block are the first of its sources.
            x = layer((x, x[: batch.sizes[number]]), batch.edge_indices[number])
            if number < len(self.layers) - 1:
                x = x.relu()
        return x


class SampledData:
    """Where batches come from; sent to every worker process once."""

    def __init__(self, data: Data, sampler: Sampler) -> None:
        self._x, self._y = data.x, data.y
        self._sampler = sampler

    def prepare(self, items: np.ndarray, *, epoch: int, batch: int, device: torch.device) -> Batch:
        """Sample, gather and move; runs beside the computing of the batch before."""
        sample = self._sampler.sample(items, epoch=epoch, batch=batch)
        return Batch(
            x=self._x[torch.from_numpy(sample.nodes)].to(device),
            edge_indices=tuple(index.to(device) for index in edge_indices(sample)),
            sizes=tuple(block.num_targets for block in sample.blocks),
            y=self._y[torch.from_numpy(sample.roots)].to(device),
        )


def edge_indices(sample: Sample) -> list[torch.Tensor]:
    """Return each block as PyG writes edges: (2, E), from places of sources to those of targets."""
    return [
        torch.from_numpy(
            np.stack(
                (block.columns, np.repeat(np.arange(block.num_targets), np.diff(block.indptr)))
            )
        )
        for block in sample.blocks
    ]


def summed_loss(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the loss *summed* over the roots, and how many were classified rightly."""
    logits = model(batch)
    correct = float((logits.argmax(dim=1) == batch.y).sum())
    return F.cross_entropy(logits, batch.y, reduction="sum"), {"correct": correct}


def make_data(nodes: int) -> Data:
    """Return a graph of a few classes, with features that say little without neighbours."""
    torch.manual_seed(0)
    within, between = (degree / nodes for degree in DEGREES)
    chances = torch.full((CLASSES, CLASSES), between / (CLASSES - 1) * CLASSES)
    chances.fill_diagonal_(within * CLASSES)
    y = torch.arange(CLASSES).repeat_interleave(nodes // CLASSES)
    sizes = torch.full((CLASSES,), nodes // CLASSES)
    x = F.one_hot(y, CLASSES) + 2 * torch.randn(len(y), CLASSES)
    return Data(x=x, y=y, edge_index=stochastic_blockmodel_graph(sizes, chances))


def main() -> None:
    """Train."""
    asked = arguments()
    data = make_data(asked.nodes)
    sources, targets = data.edge_index.numpy()
    adjacency = Adjacency.from_edges(sources, targets, num_nodes=data.num_nodes)
    sampler = NeighbourSampler(adjacency, FANOUTS, seed=0)
    train = np.arange(data.num_nodes)[::2]

    model = Sage(CLASSES, 32, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with Unified(
        model,
        SampledData(data, sampler),
        summed_loss,
        items=train,
        workloads=root_workloads(sampler, train, cache=None),
        devices=asked.devices,
        batch_size=asked.batch_size,
        tell=print,
    ) as unified:
        for epoch in range(asked.epochs):
            loss = correct = 0.0
            for step in unified.epoch(epoch):
                optimizer.step()
                loss += step.loss * step.count
                correct += step.numbers["correct"]
            print(f"epoch {epoch}: loss {loss / len(train):.4f}, train {correct / len(train):.3f}")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="layers of PyG on all devices together")
    parser.add_argument("--devices", default="auto", help="auto, cpu:2, cuda:0,cpu, ...")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    return parser.parse_args()


if __name__ == "__main__":
    main()
