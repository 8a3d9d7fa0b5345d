"""Where tests find the real graphs, and a graph of Cora's shape where there are none."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from retexo_fl.graph.sources.synthetic import make_synthetic

_SHARED = Path(__file__).resolve().parents[3] / "shared"
_DEFAULT = _SHARED / "data"
_PROTOTYPES = _SHARED / "research" / "prototypes"
#: Cora's counts of nodes, edges, classes, features and of words a node; its homophily.
_SHAPE = (
    "synthetic:nodes=2708,edges=5278,classes=7,features=1433,homophily=0.81,words=18,signal=0.4"
)
#: Nodes of Cora's published split: 20 train nodes a class, then validation and test nodes.
_TRAIN_PER_CLASS, _VAL, _TEST = 20, 500, 1000


def data_dir() -> Path:
    """Return the folder of real graphs, or skip the calling test.

    ``RETEXO_TEST_DATA`` overrides the place.
    """
    folder = _folder()
    if not (folder / "cora.npz").is_file():
        pytest.skip(f"real graphs are not at {folder} (set RETEXO_TEST_DATA)")
    return folder


def cora_dir() -> Path:
    """Return a folder with ``cora.npz``: Cora, or a synthetic graph of its shape.

    For tests of what holds on any such graph.
    """
    folder = _folder()
    return folder if (folder / "cora.npz").is_file() else _made()


def prototype(name: str) -> ModuleType:
    """Return a module that an algorithm was first tried in, or skip the calling test."""
    path = _PROTOTYPES / f"{name}.py"
    if not path.is_file():
        pytest.skip(f"{path.name} is not at {path.parent}")
    spec = importlib.util.spec_from_file_location(f"prototype_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _folder() -> Path:
    return Path(os.environ.get("RETEXO_TEST_DATA", _DEFAULT))


@cache
def _made() -> Path:
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
        **{name: np.isin(nodes, chosen) for name, chosen in masks.items()},
    }
    np.savez(folder / "cora.npz", **arrays)
    return folder
