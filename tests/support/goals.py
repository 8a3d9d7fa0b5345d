"""A small graph with labels of every task, some of them unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NODES = 60
#: Keys of a training on what :func:`write_goals` wrote, but for ``data_dir`` and ``task``.
GOALS: dict[str, Any] = {
    "hidden": 8,
    "heads": 2,
    "rounds": 4,
    "layers": 2,
    "dtype": "float64",
    "split": "random:0.4/0.3/0.3",
}


def write_goals(folder: Path) -> Path:
    """Write ``multi-label.npz`` and ``regression.npz``; return their folder."""
    features, edges, numbers, labels = goal_arrays()
    for name, y in (("regression", numbers), ("multi-label", labels)):
        np.savez(folder / f"{name}.npz", edge_index=edges, y=y, x=features)
    return folder


def goal_arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return [N, 5] features, [2, E] edges, [N] numbers and [N, 3] labels.

    The numbers are years; every tenth node has none. Every eleventh label is unknown.
    """
    rng = np.random.default_rng(5)
    upper = np.triu(rng.random((NODES, NODES)) < 0.08, k=1)
    features = rng.normal(size=(NODES, 5)).astype(np.float32)
    near = (
        features + (upper | upper.T) @ features / np.maximum((upper | upper.T).sum(1), 1)[:, None]
    )
    numbers = 2005 + 4 * near[:, 0] + rng.normal(size=NODES)
    numbers[::10] = np.nan
    labels = (near[:, :3] + 0.3 * rng.normal(size=(NODES, 3)) > [0, 0.5, 1]).astype(np.int8)
    labels.reshape(-1)[::11] = -1
    labels[7] = -1
    return features, np.array(np.nonzero(upper), np.int32), numbers, labels
