"""Real graphs as mini-batch training reads them: dense features of bounded width, a split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.graph.features import Features
from retexo_fl.graph.seeding import seeded_generator
from retexo_fl.graph.sources.npz_graph import read_npz_graph

#: Wider features are projected to this many columns, so that all graphs move rows of a like size.
WIDTH: Final = 128
#: Shares of the labelled nodes that train and validate; the rest tests.
TRAIN_SHARE: Final = 0.2
VALIDATION_SHARE: Final = 0.2
_PROJECTION_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MiniBatchGraph:
    """A graph with what training needs.

    Attributes:
        name: Of the data set.
        adjacency: N nodes.
        features: (N, D) float32.
        labels: (N,) int64, -1 for unlabelled.
        num_classes: C.
        train: Ids of train nodes, int64.
        validation: Ids of validation nodes.
        test: Ids of test nodes.
    """

    name: str
    adjacency: Adjacency
    features: np.ndarray
    labels: np.ndarray
    num_classes: int
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.adjacency.num_nodes


def read_graph(folder: Path, name: str, *, seed: int) -> MiniBatchGraph:
    """Read a graph and split its labelled nodes.

    Args:
        folder: With ``NAME.npz``.
        name: Of the graph.
        seed: Of the split.
    """
    graph = read_npz_graph(folder / f"{name}.npz")
    labelled = np.flatnonzero(graph.labels >= 0)
    order = seeded_generator(seed, "mini-batch split").permutation(labelled)
    ends = (len(order) * np.cumsum([TRAIN_SHARE, VALIDATION_SHARE])).astype(int)
    train, validation, test = np.split(order, ends)
    return MiniBatchGraph(
        name=name,
        adjacency=Adjacency(indptr=graph.indptr, indices=graph.indices.astype(np.int32)),
        features=narrow_rows(graph.features),
        labels=graph.labels,
        num_classes=graph.num_classes,
        train=train,
        validation=validation,
        test=test,
    )


def narrow_rows(features: Features) -> np.ndarray:
    """Return (N, D) float32 with D at most :data:`WIDTH`, columns of mean 0 and deviation 1.

    Wider features are multiplied by a fixed Gaussian matrix, which keeps distances on average
    (Johnson and Lindenstrauss, 1984).
    """
    width = features.shape[1]
    rows = features
    if width > WIDTH:
        generator = seeded_generator(_PROJECTION_SEED, "feature projection")
        rows = features @ generator.normal(size=(width, WIDTH)).astype(np.float32)
    dense = rows.toarray() if isinstance(rows, csr_array) else np.asarray(rows)
    centred = dense - dense.mean(axis=0)
    deviations = np.maximum(centred.std(axis=0), np.float32(1e-6))
    return np.ascontiguousarray(centred / deviations, dtype=np.float32)
