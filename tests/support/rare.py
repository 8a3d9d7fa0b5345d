"""A graph in which one node of twelve is of class 1, and hard to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

#: Keys of a training on what :func:`write_rare` wrote, but for ``data_dir``.
RARE: dict[str, Any] = {
    "dataset": "rare",
    "hidden": 8,
    "rounds": 8,
    "layers": 2,
    "dtype": "float64",
    "split": "random:0.4/0.3/0.3",
}
NODES = 120


def write_rare(folder: Path) -> Path:
    """Write ``rare.npz``; return its folder."""
    rng = np.random.default_rng(4)
    labels = (np.arange(NODES) % 12 == 0).astype(np.int64)
    ends = rng.integers(0, NODES, (2, 2 * NODES))
    kept = (labels[ends[0]] == labels[ends[1]]) | (rng.random(ends.shape[1]) < 0.3)
    edges = np.unique(np.sort(ends[:, kept & (ends[0] != ends[1])], axis=0), axis=1)
    features = rng.normal(size=(NODES, 4)) + 0.5 * labels[:, None]
    np.savez(folder / "rare.npz", edge_index=edges, y=labels, x=features.astype(np.float32))
    return folder
