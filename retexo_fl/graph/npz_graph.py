"""A whole graph from one ``.npz`` file; the room's README documents the layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.attributes import count_values
from retexo_fl.graph.checks import ArrayChecks, largest_label
from retexo_fl.graph.features import Features
from retexo_fl.graph.graph import ArrayNames, EdgeListGraph, Graph, Split
from retexo_fl.graph.npy import NpzArchive, open_npz

_MASKS: Final = ("train_mask", "val_mask", "test_mask")
_SPARSE: Final = ("indptr", "indices", "data")


class NpzSummary(TypedDict):
    """Sizes of a data set; the keys are fields of ``DatasetInfo``."""

    nodes: int
    edges: int
    features: int
    classes: int
    split: str


def read_npz_graph(path: Path, *, attributes: Sequence[str] = ()) -> Graph:
    """Read and check a graph.

    Args:
        path: A ``.npz`` file.
        attributes: Arrays [N] of text or integers to be read as attributes of the nodes.

    Raises:
        DatasetError: The file is damaged, or an array is missing or not as documented.
    """
    with open_npz(path, error=DatasetError) as archive:
        checks = ArrayChecks(source=str(path), error=DatasetError)
        given = EdgeListGraph(
            name=path.stem,
            edges=archive.read("edge_index"),
            features=_features(archive, checks),
            labels=archive.read("y"),
            split=_split(archive, checks),
            attributes={name: archive.read(name) for name in attributes},
        )
    names = ArrayNames(source=str(path), edges="edge_index", features="x", labels="y")
    return Graph.build(given, names)


def count_npz_values(path: Path, attribute: str) -> int:
    """Return how many different values an attribute of a graph has; reads nothing else.

    Raises:
        DatasetError: The file is damaged, or has no such attribute.
    """
    with open_npz(path, error=DatasetError) as archive:
        return count_values(str(path), attribute, archive.read(attribute))


def describe_npz_graph(path: Path) -> NpzSummary:
    """Return the sizes of a graph; reads labels and masks only.

    Raises:
        DatasetError: The file cannot be a graph.
    """
    with open_npz(path, error=DatasetError) as archive:
        checks = ArrayChecks(source=str(path), error=DatasetError)
        labels = archive.read("y")
        checks.form("y", labels, kinds="iu", shape=(None,))
        split = _split(archive, checks)
        edges = archive.header("edge_index").shape
        if _is_sparse(archive, checks):
            width = _sparse_shape(archive, checks)[1]
        else:
            width = (0, *archive.header("x").shape)[-1]
        masks = [] if split is None else split.named().values()
        return NpzSummary(
            nodes=len(labels),
            edges=(0, *edges)[-1],
            features=width,
            classes=largest_label(labels) + 1,
            split="/".join(str(np.count_nonzero(mask)) for mask in masks) or "none",
        )


def _is_sparse(archive: NpzArchive, checks: ArrayChecks) -> bool:
    sparse = any(f"x_{part}" in archive.names for part in (*_SPARSE, "shape"))
    if sparse and "x" in archive.names:
        checks.fail("x", "stands beside x_indptr, ...; expected dense or sparse features")
    return sparse


def _sparse_shape(archive: NpzArchive, checks: ArrayChecks) -> tuple[int, int]:
    shape = archive.read("x_shape")
    checks.form("x_shape", shape, kinds="iu", shape=(2,))
    if shape.min() < 1 or shape.max() >= 2**31:
        checks.fail("x_shape", f"got {shape.tolist()}; expected numbers of nodes and features")
    return int(shape[0]), int(shape[1])


def _features(archive: NpzArchive, checks: ArrayChecks) -> Features:
    if not _is_sparse(archive, checks):
        return np.ascontiguousarray(archive.read("x"))
    shape = _sparse_shape(archive, checks)
    parts = {part: archive.read(f"x_{part}") for part in _SPARSE}
    features = checks.sparse_features("x", parts, num_columns=shape[1], any_order=True)
    if features.shape != shape:
        checks.fail("x_shape", f"got {shape}; expected {features.shape} by x_indptr")
    return features


def _split(archive: NpzArchive, checks: ArrayChecks) -> Split | None:
    there = [name for name in _MASKS if name in archive.names]
    if not there:
        return None
    missing = [name for name in _MASKS if name not in there]
    if missing:
        checks.fail(missing[0], f"missing; expected it beside {there[0]}")
    masks: Mapping[str, np.ndarray] = {name: archive.read(name) for name in _MASKS}
    return Split(train=masks["train_mask"], val=masks["val_mask"], test=masks["test_mask"])
