"""A whole graph from one ``.npz`` file; the room's README documents the layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypedDict

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.labels import class_names, kind_of
from retexo_fl.graph.npy import ArrayHeader, NpzArchive, open_npz
from retexo_fl.graph.sources.attributes import count_values
from retexo_fl.graph.sources.edge_rules import EdgeRules
from retexo_fl.graph.sources.foreign import as_numbers
from retexo_fl.graph.sources.from_arrays import (
    ADJACENCY,
    ATTRIBUTES,
    EDGE_TYPE,
    EDGES,
    FEATURES,
    MASKS,
    NODE_TYPE,
    NUM_NODES,
    OF_TYPE,
    SEVERAL_MASKS,
    TIME,
    TRANSPOSED,
    WEIGHT,
    from_arrays,
)
from retexo_fl.graph.sources.label_choice import LABEL_NAMES, LABELS
from retexo_fl.graph.sources.layouts.npz import layout_of
from retexo_fl.graph.sources.layouts.rules import as_loaders_read
from retexo_fl.graph.sources.reading import Reading
from retexo_fl.units import counted

#: What may be stored as the parts of a CSR matrix.
_MATRICES: Final = (FEATURES, ADJACENCY, TRANSPOSED)
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
    path: Path, *, attributes: Sequence[str] = (), reading: Reading | None = None
) -> Graph:
    """Read and check a graph.

    Args:
        path: A ``.npz`` file.
        attributes: Arrays [N] of text or integers to be read as attributes of the nodes.
        reading: How it is read; None to train for what the form of ``y`` says.

    Raises:
        DatasetError: The file is damaged, or an array is missing or not as documented.
    """
    with open_npz(path, error=DatasetError) as archive:
        checks = ArrayChecks(source=str(path), error=DatasetError)
        values: dict[str, Any]
        if (layout := layout_of(archive)) is not None:
            labels, read = layout
            reading = reading or Reading(labels=kind_of(archive.header(labels)))
            values = read(str(path), archive, checks, reading)
            values |= {name: archive.read(name) for name in attributes}
            reading = as_loaders_read(reading)
            return from_arrays(
                values, name=path.stem, source=str(path), attributes=attributes, reading=reading
            )
        reading = reading or Reading(labels=kind_of(archive.header(LABELS)))
        has_matrix = any(f"{name}_indptr" in archive.names for name in (ADJACENCY, TRANSPOSED))
        if not has_matrix and not {ADJACENCY, TRANSPOSED} & archive.names:
            _ = reading.may_lack_edges or archive.header(EDGES)
        _ = not reading.needs_labels or reading.label or archive.header(LABELS)
        wanted = [name for name in _wanted(reading) if name in archive.names]
        if reading.types:
            wanted += sorted(name for name in archive.names if name.startswith(OF_TYPE))
        sparse = [name for name in _MATRICES if _is_sparse(archive, checks, name)]
        parts = [f"{name}_{part}" for name in sparse for part in (*_SPARSE, "shape")]
        headers = [archive.header(name) for name in (*wanted, *parts, *attributes)]
        archive.check_memory(*headers)
        _check_sizes(archive, checks, reading)
        values = {name: archive.read(name) for name in wanted}
        values |= {name: _sparse_matrix(archive, checks, name) for name in sparse}
        values |= {name: archive.read(name) for name in attributes}
    return from_arrays(
        values, name=path.stem, source=str(path), attributes=attributes, reading=reading
    )


def _wanted(reading: Reading) -> list[str]:
    """Return the names of the arrays that are read where they are there."""
    names = [EDGES, *_MATRICES, WEIGHT, ATTRIBUTES, NUM_NODES]
    if reading.labels.are_read:
        names += [LABELS, LABEL_NAMES, *filter(None, (reading.label,))]
    names += [*MASKS, *SEVERAL_MASKS] if reading.masks else []
    names += [NODE_TYPE, EDGE_TYPE, *(f"{key}_names" for key in (NODE_TYPE, EDGE_TYPE))]
    return names + ([TIME] if reading.rules.before else [])


def _check_sizes(archive: NpzArchive, checks: ArrayChecks, reading: Reading) -> None:
    """Check that what is about to be read can be a graph, since a file may claim any size."""
    shape = _sizes(archive, checks)
    num_nodes = archive.header(LABELS).shape[0] if LABELS in archive.names else shape[0]
    wanted = {*_wanted(reading)} & archive.names
    for name in (name for name in (LABELS, *MASKS) if name in wanted):
        form = archive.header(name)
        if len(form.shape) not in (1, 2) or form.shape[0] != num_nodes:
            checks.fail(
                name,
                f"got {form.dtype} of shape {form.shape}; expected ({num_nodes}), or "
                f"({num_nodes}, columns)",
            )
    if shape[0] != num_nodes:
        checks.fail(FEATURES, f"got shape {shape}; expected ({num_nodes}, F) with F at least 1")
    if EDGES not in archive.names:
        return
    edges = archive.header(EDGES)
    checks.form(EDGES, edges, kinds="iu", shape=(2, None))
    # Each may be listed in both directions.
    most = num_nodes * (num_nodes - 1)
    if reading.rules.is_strict and EDGE_TYPE not in archive.names and edges.shape[1] > most:
        pairs = counted(most // 2, "pair")
        checks.fail(EDGES, f"has {counted(edges.shape[1], 'edge')} for {pairs} of nodes")


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
        if layout_of(archive) is not None:
            return _summary_of(read_npz_graph(path))
        # Whatever the rules are that it will be read by.
        _check_sizes(archive, checks, Reading(rules=EdgeRules(merge="max")))
        num_nodes, width = _sizes(archive, checks)
        labels = archive.header(LABELS) if LABELS in archive.names else None
        edges = _edge_count(archive)
        masks = [name for name in MASKS if name in archive.names]
        listed = labels is not None and labels.data_bytes <= _MOST_LISTED_BYTES
        return NpzSummary(
            nodes=num_nodes,
            edges=edges,
            features=width,
            classes=_count_classes(archive, labels) if labels is not None and listed else None,
            split=_count_split(archive, masks) if listed else "-" if masks else "none",
        )


def _summary_of(graph: Graph) -> NpzSummary:
    columns = graph.masks.columns
    return NpzSummary(
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        features=graph.num_features,
        classes=graph.num_classes,
        split="none" if not columns else "several" if columns > 1 else "one",
    )


def _edge_count(archive: NpzArchive) -> int:
    """Return how many edges are listed, or entries of a matrix are stored."""
    if EDGES in archive.names:
        return archive.header(EDGES).shape[1]
    found = [f"{name}_indices" for name in (ADJACENCY, TRANSPOSED)]
    return next((archive.header(name).shape[0] for name in found if name in archive.names), 0)


def _count_classes(archive: NpzArchive, labels: ArrayHeader) -> int | None:
    """Return how many classes, or labels, there are; 1 of numbers; None of what is no number."""
    several = len(labels.shape) == 2 and labels.shape[1] > 1
    if several or labels.dtype.kind == "f":
        return labels.shape[1] if several else 1
    if labels.dtype.kind not in "iub":
        return None
    there = {int(label) for part in archive.chunks(LABELS) for label in np.unique(part).tolist()}
    return len(class_names(there)) or max(there, default=-1) + 1


def _count_split(archive: NpzArchive, masks: Sequence[str]) -> str:
    if any(len(archive.header(name).shape) > 1 for name in masks):
        return "several"
    counts = [sum(map(np.count_nonzero, archive.chunks(name))) for name in masks]
    return "/".join(map(str, counts)) or "none"


def _is_sparse(archive: NpzArchive, checks: ArrayChecks, name: str) -> bool:
    sparse = any(f"{name}_{part}" in archive.names for part in (*_SPARSE, "shape"))
    if sparse and name in archive.names:
        checks.fail(
            name, f"found together with {name}_indptr, ...; expected a dense or a sparse matrix"
        )
    return sparse


def _sizes(archive: NpzArchive, checks: ArrayChecks) -> tuple[int, int]:
    """Return N and F, which is 0 where there are no features."""
    if _is_sparse(archive, checks, FEATURES):
        return _sparse_shape(archive, checks, FEATURES)
    if FEATURES not in archive.names:
        return _num_nodes(archive, checks), 0
    shape = archive.header(FEATURES).shape
    if len(shape) != 2 or not shape[1]:
        checks.fail(FEATURES, f"got shape {shape}; expected (N, F) with F at least 1")
    return shape[0], shape[1]


def _num_nodes(archive: NpzArchive, checks: ArrayChecks) -> int:
    """Return how many nodes a file without features has: by labels, masks, or edges."""
    for name in (LABELS, NODE_TYPE, *MASKS):
        if name in archive.names and archive.header(name).shape:
            return archive.header(name).shape[0]
    for name in (ADJACENCY, TRANSPOSED):
        if _is_sparse(archive, checks, name):
            return _sparse_shape(archive, checks, name)[0]
        if name in archive.names and archive.header(name).shape:
            return archive.header(name).shape[0]
    if NUM_NODES in archive.names:
        return int(archive.read(NUM_NODES).reshape(-1)[:1].sum())
    checks.form(EDGES, archive.header(EDGES), kinds="iu", shape=(2, None))
    return max((int(part.max()) + 1 for part in archive.chunks(EDGES) if part.size), default=0)


def _sparse_shape(archive: NpzArchive, checks: ArrayChecks, name: str) -> tuple[int, int]:
    shape = archive.read(f"{name}_shape")
    checks.form(f"{name}_shape", shape, kinds="iu", shape=(2,))
    if shape.min() < 1 or shape.max() >= 2**31:
        checks.fail(f"{name}_shape", f"got {shape.tolist()}; expected numbers of rows and columns")
    return int(shape[0]), int(shape[1])


def _sparse_matrix(archive: NpzArchive, checks: ArrayChecks, name: str) -> csr_array:
    shape = _sparse_shape(archive, checks, name)
    parts = {part: archive.read(f"{name}_{part}") for part in _SPARSE}
    with np.errstate(over="ignore"):
        values = as_numbers(checks, f"{name}_data", parts["data"]).astype(np.float32)
    offsets, columns = (
        parts[part].astype(parts[part].dtype.newbyteorder("="), copy=False)
        for part in ("indptr", "indices")
    )
    matrix = checks.sparse_features(
        name,
        {"data": values, "indptr": offsets, "indices": columns},
        num_columns=shape[1],
        any_order=True,
    )
    if matrix.shape != shape:
        checks.fail(f"{name}_shape", f"got {shape}; expected {matrix.shape} by {name}_indptr")
    return matrix
