"""Small graphs laid out as others publish theirs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

#: A ring of so many nodes, with a class for even and one for odd ones.
NODES = 30
ENDS = np.stack((np.arange(NODES), (np.arange(NODES) + 1) % NODES))
LABELS = np.arange(NODES) % 2
FEATURES = np.random.default_rng(3).normal(size=(NODES, 4)).astype(np.float32).round(4)
#: As it is listed: some edges the other way round, too, and a self loop.
LISTED = np.concatenate((ENDS, ENDS[::-1, :3], [[4], [4]]), axis=1)


def uses(seed: int = 0) -> np.ndarray:
    """Return [N] 0, 1 and 2: which nodes train, validate and test."""
    return np.random.default_rng(seed).permutation(NODES) % 3


def write_rows(path: Path, rows: Any) -> None:
    """Write a table of numbers without a header, compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(map(str, np.atleast_1d(row).tolist())) for row in np.asarray(rows)]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def write_ogb(folder: Path, splits: tuple[str, ...] = ("time",)) -> Path:
    """Write the graph as ``ogb`` unpacks one."""
    raw = folder / "raw"
    write_rows(raw / "edge.csv.gz", LISTED.T)
    write_rows(raw / "num-node-list.csv.gz", [NODES])
    write_rows(raw / "num-edge-list.csv.gz", [LISTED.shape[1]])
    write_rows(raw / "node-feat.csv.gz", FEATURES)
    write_rows(raw / "node-label.csv.gz", LABELS)
    write_rows(raw / "node_year.csv.gz", 2010 + np.arange(NODES) % 3)
    for seed, split in enumerate(splits):
        for use, name in enumerate(("train", "valid", "test")):
            rows = np.flatnonzero(uses(seed) == use)
            write_rows(folder / "split" / split / f"{name}.csv.gz", rows)
    return folder


def write_musae(folder: Path) -> Path:
    """Write the graph as MUSAE's authors do; node n has the columns n % 5 and 6."""
    folder.mkdir(parents=True, exist_ok=True)
    edges = [f"{one},{other}\n" for one, other in LISTED.T.tolist()]
    (folder / "musae_ring_edges.csv").write_text("id_1,id_2\n" + "".join(edges))
    rows = [f"{node},n{node},{('web', 'ml')[node % 2]}\n" for node in range(NODES)]
    (folder / "musae_ring_target.csv").write_text("id,name,ml_target\n" + "".join(rows))
    columns = {str(node): [6, node % 5] for node in range(NODES)}
    (folder / "musae_ring_features.json").write_text(json.dumps(columns))
    return folder


def write_heterophilous(path: Path, splits: int = 3) -> Path:
    """Write the graph as heterophilous-graphs has its files."""
    named = np.stack([uses(seed) for seed in range(splits)])
    masks = {f"{use}_masks": named == n for n, use in enumerate(("train", "val", "test"))}
    arrays: dict[str, Any] = {
        "node_features": FEATURES,
        "node_labels": LABELS,
        "edges": LISTED.T,
        **masks,
    }
    np.savez(path, **arrays)
    return path


def write_gnn_benchmark(path: Path, *, dense: bool = False) -> Path:
    """Write the graph as gnn-benchmark has its files, with names that need pickle."""
    order = np.lexsort((LISTED[1], LISTED[0]))
    counts = np.bincount(LISTED[0], minlength=NODES)
    arrays: dict[str, Any] = {
        "adj_data": np.ones(len(order), dtype=np.float32),
        "adj_indices": LISTED[1][order].astype(np.int32),
        "adj_indptr": np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        "adj_shape": np.array([NODES, NODES]),
        "labels": LABELS,
        "idx_to_attr": np.array({0: "word"}, dtype=object),
    }
    if dense:
        arrays["attr_matrix"] = FEATURES
    else:
        arrays |= {
            "attr_data": FEATURES.ravel(),
            "attr_indices": np.tile(np.arange(4, dtype=np.int32), NODES),
            "attr_indptr": np.arange(NODES + 1, dtype=np.int32) * 4,
            "attr_shape": np.array([NODES, 4]),
        }
    np.savez(path, **arrays)
    return path
