"""``.npz`` files of gnn-benchmark and of heterophilous-graphs, which name arrays their own way.

Sources: Shchur et al., "Pitfalls of graph neural network evaluation" (2018); Platonov et al., "A
critical look at the evaluation of GNNs under heterophily" (ICLR 2023). Arrays that need pickle
(names of nodes and words) are not opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.npy import NpzArchive
from retexo_fl.graph.sources.from_arrays import EDGES, FEATURES, NUM_NODES, SEVERAL_MASKS
from retexo_fl.graph.sources.label_choice import LABELS
from retexo_fl.graph.sources.named.arrays import ascending, entry_rows
from retexo_fl.graph.sources.reading import Reading

_Read: TypeAlias = Callable[[str, NpzArchive, ArrayChecks, Reading], dict[str, Any]]
_DENSE: Final = "attr_matrix"


def layout_of(archive: NpzArchive) -> tuple[str, _Read] | None:
    """Return the name of the labels and what reads the arrays; None of a file of no such layout."""
    names = archive.names
    if EDGES in names or FEATURES in names:
        return None
    return next((found for signs, found in _LAYOUTS if signs <= names), None)


def _gnn_benchmark(
    source: str, archive: NpzArchive, checks: ArrayChecks, reading: Reading
) -> dict[str, Any]:
    """Return ``adj_*`` and ``attr_*``, the parts of CSR matrices, and ``labels``."""
    adjacency = csr_of(source, archive, "adj")
    num_nodes = adjacency.shape[0]
    ends = np.stack((entry_rows(adjacency.indptr), adjacency.indices))
    values: dict[str, Any] = {EDGES: ends, NUM_NODES: num_nodes}
    if "attr_data" in archive.names:
        values[FEATURES] = csr_of(source, archive, "attr")
    elif _DENSE in archive.names:
        values[FEATURES] = archive.read(_DENSE)
    if reading.labels.are_read and "labels" in archive.names:
        values[LABELS] = archive.read("labels")
    for name, there in (("attr", FEATURES), ("labels", LABELS)):
        if there in values and values[there].shape[0] != num_nodes:
            checks.fail(
                name, f"got shape {values[there].shape}; expected {num_nodes} rows, as adj has"
            )
    return values


def _heterophilous(
    source: str, archive: NpzArchive, checks: ArrayChecks, reading: Reading
) -> dict[str, Any]:
    """Return ``node_features`` [N, F], ``edges`` [E, 2], ``node_labels`` [N], masks [S, N]."""
    del source
    ends = archive.read("edges")
    checks.form("edges", ends, kinds="iu", shape=(None, 2))
    values: dict[str, Any] = {EDGES: ends.T, FEATURES: archive.read("node_features")}
    if reading.labels.are_read and "node_labels" in archive.names:
        values[LABELS] = archive.read("node_labels")
    if reading.masks:
        there = [name for name in SEVERAL_MASKS if name in archive.names]
        values |= {name: archive.read(name) for name in there}
    return values


def csr_of(source: str, archive: NpzArchive, prefix: str) -> csr_array:
    """Return a matrix of its parts ``PREFIX_data``, ``_indices``, ``_indptr`` and ``_shape``.

    Raises:
        DatasetError: They are no parts of a matrix.
    """
    checks = ArrayChecks(source=source, error=DatasetError)
    shape = archive.read(f"{prefix}_shape")
    checks.form(f"{prefix}_shape", shape, kinds="iu", shape=(2,))
    if shape.min() < 1 or shape.max() >= 2**31:
        checks.fail(f"{prefix}_shape", f"got {shape.tolist()}; expected rows and columns")
    parts = {part: archive.read(f"{prefix}_{part}") for part in ("indptr", "indices", "data")}
    matrix = ascending(f"{source}: {prefix}", parts, int(shape[1]))
    if matrix.shape != tuple(shape):
        checks.fail(f"{prefix}_shape", f"got {shape.tolist()}; expected {list(matrix.shape)}")
    return matrix


_LAYOUTS: Final[tuple[tuple[frozenset[str], tuple[str, _Read]], ...]] = (
    (frozenset(("adj_data", "adj_indices", "adj_indptr")), ("labels", _gnn_benchmark)),
    (frozenset(("node_features", "edges")), ("node_labels", _heterophilous)),
)
