"""Small graphs whose edges weigh something, carry something or have a direction, as ``.npz``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

#: Keys of a training on what :func:`write_valued` wrote, but for ``data_dir``.
VALUED: Final[dict[str, Any]] = {"dataset": "valued", "split": "random:0.4/0.3/0.3"}


def write_valued(
    folder: Path,
    *,
    nodes: int = 48,
    weighted: bool = True,
    carrying: int = 0,
    directed: bool = False,
) -> Path:
    """Write ``valued.npz`` with isolated and unlabelled nodes.

    Args:
        folder: Gets the file.
        nodes: N.
        weighted: Whether edges weigh something, some of them nothing.
        carrying: Attributes of each edge.
        directed: Some edges lead one way, some both; else each stands in the file once.
    """
    rng = np.random.default_rng(5)
    there = rng.random((nodes, nodes)) < 4 / nodes
    there = np.triu(there, k=1) if not directed else there & ~np.eye(nodes, dtype=bool)
    there[:2] = there[:, :2] = False
    edges = np.array(np.nonzero(there), dtype=np.int32)
    count = edges.shape[1]
    arrays: dict[str, np.ndarray] = {
        "edge_index": edges,
        "x": rng.normal(size=(nodes, 6)).astype(np.float32),
        "y": np.where(np.arange(nodes) == 5, -1, rng.integers(0, 3, nodes)).astype(np.int16),
    }
    if weighted:
        weights = rng.uniform(0.1, 3, size=(count,))
        weights[rng.random(count) < 0.1] = 0
        arrays["edge_weight"] = weights.astype(np.float32)
    if carrying:
        arrays["edge_attr"] = rng.normal(size=(count, carrying)).astype(np.float32)
    np.savez(folder / "valued.npz", **arrays)  # type: ignore[arg-type]
    return folder
