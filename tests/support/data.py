"""Where tests find the real graphs, and a graph of Cora's shape for all others."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.sources.synthetic import make_synthetic

_DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "data"
#: Cora's counts of nodes, edges, classes, features and of words a node; its homophily.
_SHAPE = (
    "synthetic:nodes=2708,edges=5278,classes=7,features=1433,homophily=0.81,words=18,signal=0.4"
)
#: Nodes of Cora's published split: 20 train nodes a class, then validation and test nodes.
_TRAIN_PER_CLASS, _VAL, _TEST = 20, 500, 1000


def real_graphs() -> Path | None:
    """Return the folder of real graphs, None where there is none.

    ``RETEXO_TEST_DATA`` overrides the place.
    """
    folder = Path(os.environ.get("RETEXO_TEST_DATA", _DEFAULT))
    return folder if (folder / "cora.npz").is_file() else None


def data_dir() -> Path:
    """Return the folder of real graphs, for tests with the mark ``real_graphs``."""
    folder = real_graphs()
    assert folder is not None, "there are no real graphs: mark the test real_graphs"
    return folder


@cache
def cora_dir(*, with_masks: bool = False) -> Path:
    """Return a folder whose ``cora.npz`` is a synthetic graph of Cora's shape.

    For tests of what holds on any such graph: they are the same on every machine.

    Args:
        with_masks: It brings a split of Cora's sizes; else each run draws one.
    """
    folder = Path(tempfile.mkdtemp(prefix="cora-shaped-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    graph = make_synthetic(_SHAPE)
    words = graph.features
    assert not isinstance(words, np.ndarray)
    order = np.random.default_rng(0).permutation(graph.num_nodes)
    train = np.concatenate(
        [order[graph.labels[order] == label][:_TRAIN_PER_CLASS] for label in range(7)]
    )
    edges = np.stack([np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr)), graph.indices])
    others = order[~np.isin(order, train)]
    masks = {
        "train_mask": train,
        "val_mask": others[:_VAL],
        "test_mask": others[_VAL : _VAL + _TEST],
    }
    nodes = np.arange(graph.num_nodes)
    arrays = {
        "edge_index": edges[:, edges[0] < edges[1]],
        "y": graph.labels,
        "x_indptr": words.indptr.astype(np.int32),
        "x_indices": words.indices.astype(np.int32),
        "x_data": words.data.astype(np.float32),
        "x_shape": np.array(words.shape, np.int64),
    }
    if with_masks:
        arrays |= {name: np.isin(nodes, chosen) for name, chosen in masks.items()}
    np.savez(folder / "cora.npz", **arrays)
    return folder


@cache
def planetoid_dir() -> Path:
    """Return a folder whose ``cora.npz`` is that graph with its nodes in Planetoid's order.

    Train nodes come first, then validation nodes, those of no use, and test nodes.
    """
    folder = Path(tempfile.mkdtemp(prefix="planetoid-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with np.load(cora_dir(with_masks=True) / "cora.npz") as stored:
        arrays = dict(stored)
    train, val, test = (arrays[f"{use}_mask"] for use in ("train", "val", "test"))
    uses = (train, val, ~(train | val | test), test)
    order = np.concatenate([np.flatnonzero(use) for use in uses])
    edges = np.sort(np.argsort(order)[arrays["edge_index"]], axis=0)
    words = csr_array(
        (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]), shape=arrays["x_shape"]
    )[order]
    arrays |= {name: arrays[name][order] for name in ("y", "train_mask", "val_mask", "test_mask")}
    arrays |= {
        "edge_index": edges[:, np.lexsort(edges[::-1])],
        "x_indptr": words.indptr,
        "x_indices": words.indices,
        "x_data": words.data,
    }
    np.savez(folder / "cora.npz", **arrays)
    return folder
