"""A whole graph from one ``.npz`` file; the room's README documents the layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypedDict

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features
from retexo_fl.graph.graph import ArrayNames, EdgeListGraph, Graph, Split
from retexo_fl.graph.labels import CLASSES, check_label_form, class_names, task_of
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.npy import ArrayHeader, NpzArchive, open_npz
from retexo_fl.graph.sources.attributes import count_values
from retexo_fl.graph.sources.edge_rules import (
    STRICT,
    EdgeList,
    EdgeRules,
    early_edges,
    ruled_edges,
)
from retexo_fl.units import counted

_MASKS: Final = ("train_mask", "val_mask", "test_mask")
_WEIGHT: Final = "edge_weight"
_ATTRIBUTES: Final = "edge_attr"
_TIME: Final = "edge_time"
_SPARSE: Final = ("indptr", "indices", "data")


#: Labels of a file whose list line says classes and split; a longer array is not read for it.
_MOST_LISTED_BYTES: Final = 2**26


class NpzSummary(TypedDict):
    """Sizes of a data set; the keys are fields of ``DatasetInfo``."""

    nodes: int
    edges: int
    features: int
    classes: int | None
    split: str


def read_npz_graph(
    path: Path, *, attributes: Sequence[str] = (), rules: EdgeRules = STRICT
) -> Graph:
    """Read and check a graph.

    Args:
        path: A ``.npz`` file.
        attributes: Arrays [N] of text or integers to be read as attributes of the nodes.
        rules: How edges are read.

    Raises:
        DatasetError: The file is damaged, or an array is missing or not as documented.
    """
    with open_npz(path, error=DatasetError) as archive:
        checks = ArrayChecks(source=str(path), error=DatasetError)
        archive.check_memory(*_checked_headers(archive, checks, attributes, rules))
        edges = _edges(archive)
        times = archive.read(_TIME) if rules.before and _TIME in archive.names else None
        if (early := early_edges(str(path), _TIME, times, rules)) is not None:
            checks.form(_TIME, early, kinds="b", shape=(edges.ends.shape[1],))
            edges = edges.taken(early)
        if not rules.is_strict:
            count = archive.header("y").shape[0]
            edges = ruled_edges(
                checks, "edge_index", edges, num_nodes=count, rules=rules, has_order=True
            )
        given = EdgeListGraph(
            name=path.stem,
            edges=edges.ends,
            edge_values=edges.values,
            directed=rules.directed,
            features=_features(archive, checks),
            labels=archive.read("y"),
            split=_split(archive, checks),
            attributes={name: archive.read(name) for name in attributes},
        )
    names = ArrayNames(
        source=str(path),
        edges="edge_index",
        features="x",
        labels="y",
        edge_weights=_WEIGHT,
        edge_attributes=_ATTRIBUTES,
    )
    return Graph.build(given, names)


def count_npz_values(path: Path, attribute: str) -> int:
    """Return how many different values an attribute of a graph has; reads nothing else.

    Raises:
        DatasetError: The file is damaged, or has no such attribute.
    """
    with open_npz(path, error=DatasetError) as archive:
        return count_values(str(path), attribute, archive.read(attribute))


def describe_npz_graph(path: Path) -> NpzSummary:
    """Return the sizes of a graph, from headers.

    Classes and split are counted, 1 MiB at a time, where labels take at most 64 MiB; else they are
    None and ``-``.

    Raises:
        DatasetError: The file cannot be a graph.
    """
    with open_npz(path, error=DatasetError) as archive:
        checks = ArrayChecks(source=str(path), error=DatasetError)
        # Whatever the rules are that it will be read by.
        labels, edges, *_ = _checked_headers(archive, checks, (), EdgeRules(merge="max"))
        sparse = _is_sparse(archive, checks)
        width = _sparse_shape(archive, checks)[1] if sparse else archive.header("x").shape[1]
        masks = _masks_there(archive, checks)
        listed = labels.data_bytes <= _MOST_LISTED_BYTES
        return NpzSummary(
            nodes=labels.shape[0],
            edges=edges.shape[1],
            features=width,
            classes=_count_classes(archive, labels) if listed else None,
            split=_count_split(archive, masks) if listed else "-" if masks else "none",
        )


def _count_classes(archive: NpzArchive, labels: ArrayHeader) -> int:
    """Return how many classes, or labels, there are; 1 of numbers."""
    if task_of(labels) != CLASSES:
        return labels.shape[1] if len(labels.shape) == 2 else 1
    there = {label for part in archive.chunks("y") for label in np.unique(part).tolist()}
    return len(class_names(there)) or max(there, default=-1) + 1


def _count_split(archive: NpzArchive, masks: Sequence[str]) -> str:
    counts = (sum(map(np.count_nonzero, archive.chunks(name))) for name in masks)
    return "/".join(map(str, counts)) or "none"


def _checked_headers(
    archive: NpzArchive, checks: ArrayChecks, attributes: Sequence[str], rules: EdgeRules
) -> list[ArrayHeader]:
    """Check the forms of arrays before one is read, since a file may claim any size.

    Returns:
        The headers of labels, of edges, and of everything else that a graph is read from.
    """
    labels, edges = archive.header("y"), archive.header("edge_index")
    check_label_form(checks, "y", labels)
    num_nodes = labels.shape[0]
    checks.form("edge_index", edges, kinds="iu", shape=(2, None))
    most = num_nodes * (num_nodes - 1) // (1 if rules.directed else 2)
    if rules.is_strict and edges.shape[1] > most:
        pairs = counted(most, "pair")
        checks.fail("edge_index", f"has {counted(edges.shape[1], 'edge')} for {pairs} of nodes")
    masks = {name: archive.header(name) for name in _masks_there(archive, checks)}
    for name, mask in masks.items():
        checks.form(name, mask, kinds="b", shape=(num_nodes,))
    if _is_sparse(archive, checks):
        features = [archive.header(f"x_{part}") for part in _SPARSE]
        checks.form("x_shape", archive.header("x_shape"), kinds="iu", shape=(2,))
    else:
        features = [archive.header("x")]
        checks.feature_form("x", features[0], num_nodes=num_nodes)
    named = [archive.header(name) for name in attributes]
    named += [
        archive.header(name) for name in (_WEIGHT, _ATTRIBUTES, _TIME) if name in archive.names
    ]
    return [labels, edges, *masks.values(), *features, *named]


def _edges(archive: NpzArchive) -> EdgeList:
    weights, attributes = (
        archive.read(name) if name in archive.names else None for name in (_WEIGHT, _ATTRIBUTES)
    )
    if attributes is not None and attributes.ndim == 1:
        attributes = attributes[:, None]
    values = EdgeValues(weights=weights, attributes=attributes)
    return EdgeList(ends=archive.read("edge_index"), values=values)


def _masks_there(archive: NpzArchive, checks: ArrayChecks) -> Sequence[str]:
    """Return the names of all three masks, or none."""
    there = [name for name in _MASKS if name in archive.names]
    missing = [name for name in _MASKS if name not in there]
    if there and missing:
        checks.fail(missing[0], f"missing; expected it beside {there[0]}")
    return there


def _is_sparse(archive: NpzArchive, checks: ArrayChecks) -> bool:
    sparse = any(f"x_{part}" in archive.names for part in (*_SPARSE, "shape"))
    if sparse and "x" in archive.names:
        checks.fail("x", "found together with x_indptr, ...; expected dense or sparse features")
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
    masks = {name: archive.read(name) for name in _masks_there(archive, checks)}
    if not masks:
        return None
    return Split(train=masks["train_mask"], val=masks["val_mask"], test=masks["test_mask"])
