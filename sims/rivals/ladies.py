"""LADIES: each layer draws some nodes for all its targets together, by how much they need them.

Source: Zou, Hu, Wang, Jiang, Sun and Gu, "Layer-Dependent Importance Sampling for Training Deep and
Large Graph Convolutional Networks" (NeurIPS 2019), algorithm 1.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.gns_cache import inclusion_chances
from retexo_fl.additions.devices.sampling.sample import Block, Sample

_PURPOSE: Final = tuple(b"ladies")


class LadiesSampler:
    """Draws blocks whose sources are the targets and nodes drawn for all targets together.

    A node's importance is the sum of its squared weights in the targets' rows of the row-normalised
    adjacency matrix. The targets of a block stay among its sources, as in the authors' code. Rows
    are normalised again, as the algorithm has it. Unlike our samplers, what a root gets depends on
    its batch.

    In its favour, draws are independent with probabilities in proportion to the importance, at most
    1: weights are divided by them, and a node that is there for certain weighs 1. The authors draw
    a fixed number without replacement and divide by the importance, which is biased where few nodes
    have most of it, and even if all nodes are drawn.

    Args:
        adjacency: The graph.
        layers: Number of blocks.
        nodes: Expected number drawn for each block, besides the targets.
        seed: Of the draws.
        normalised: False leaves rows without a bias, and of a larger variance.
    """

    def __init__(
        self,
        adjacency: Adjacency,
        layers: int,
        nodes: int,
        *,
        seed: int,
        normalised: bool = True,
    ) -> None:
        self._degrees = adjacency.degrees
        size = (adjacency.num_nodes, adjacency.num_nodes)
        weights = np.repeat(1 / np.maximum(self._degrees, 1), self._degrees)
        self._matrix = csr_array((weights, adjacency.indices, adjacency.indptr), shape=size)
        self._layers = layers
        self._nodes = nodes
        self._seed = seed
        self._normalised = normalised

    def sample(self, roots: np.ndarray, *, epoch: int, batch: int) -> Sample:
        """Draw for (B,) distinct roots."""
        generator = np.random.default_rng([self._seed, epoch, batch, *_PURPOSE])
        nodes, blocks, targets = roots, [], []
        for _ in range(self._layers):
            targets.append(nodes)
            block, nodes = self._block(nodes, generator)
            blocks.append(block)
        return Sample(
            roots=roots,
            nodes=nodes,
            input_degrees=self._degrees[nodes],
            blocks=tuple(reversed(blocks)),
            root_places=np.arange(len(roots), dtype=np.int64),
            layer_nodes=tuple(reversed(targets)),
        )

    def _block(
        self, targets: np.ndarray, generator: np.random.Generator
    ) -> tuple[Block, np.ndarray]:
        rows = self._matrix[targets]
        importance = np.bincount(rows.indices, rows.data**2, self._matrix.shape[0])
        importance[targets] = 0
        chances = inclusion_chances(importance, self._nodes)
        drawn = np.flatnonzero(generator.random(len(chances)) < chances)
        chances[targets] = 1
        sources = np.concatenate([targets, drawn])
        places = np.full(len(chances), -1, np.int32)
        places[sources] = np.arange(len(sources), dtype=np.int32)
        columns = places[rows.indices]
        there = columns >= 0
        owners = np.repeat(np.arange(len(targets)), np.diff(rows.indptr))[there]
        weights = (rows.data / chances[rows.indices].clip(min=1e-300))[there]
        counts = np.bincount(owners, minlength=len(targets))
        degrees = self._degrees[targets]
        if self._normalised:
            weights /= np.bincount(owners, weights, len(targets))[owners]
        block = Block(
            indptr=np.concatenate([[0], np.cumsum(counts)]),
            columns=columns[there],
            # Weights estimate a mean, scales a sum.
            scales=(weights * degrees[owners]).astype(np.float32),
            degrees=degrees,
            num_sources=len(sources),
        )
        return block, sources
