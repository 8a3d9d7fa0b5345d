"""Data sets that are published as one ``.npz`` file without Python objects in what is read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.npy import NpzArchive
from retexo_fl.graph.sources.layouts.npz import csr_of
from retexo_fl.graph.sources.named.arrays import (
    Arrays,
    entry_rows,
    once_undirected,
    sparse_parts,
)
from retexo_fl.units import counted

_MASKS: Final = ("train", "val", "test")


def gnn_benchmark_arrays(name: str, files: Mapping[str, bytes]) -> Arrays:
    """Convert a file of ``shchur/gnn-benchmark``: adjacency and attributes in CSR, labels.

    The graph is made undirected.

    Args:
        name: Of the data set.
        files: The one file, by its name.

    Raises:
        DatasetError: It is damaged, or not of this form.
    """
    with _only_file(name, files) as (source, archive):
        adjacency = csr_of(source, archive, "adj")
        features = csr_of(source, archive, "attr")
        labels = archive.read("labels")
    num_nodes = len(labels)
    if adjacency.shape != (num_nodes, num_nodes) or features.shape[0] != num_nodes:
        raise DatasetError(
            f"{source}: has {counted(num_nodes, 'label')}, an adjacency of "
            f"{adjacency.shape} and attributes of {features.shape}; expected one node in each row"
        )
    ends = np.stack((entry_rows(adjacency.indptr), adjacency.indices))
    return {
        "edge_index": once_undirected(ends, num_nodes),
        "y": _labels(source, "labels", labels),
        **sparse_parts(features),
    }


def heterophilous_arrays(name: str, files: Mapping[str, bytes]) -> Arrays:
    """Convert a file of ``yandex-research/heterophilous-graphs``.

    Its ten splits are kept beside the masks, which are the first of them.

    Args:
        name: Of the data set.
        files: The one file, by its name.

    Raises:
        DatasetError: It is damaged, or not of this form.
    """
    with _only_file(name, files) as (source, archive):
        checks = ArrayChecks(source=source, error=DatasetError)
        features = archive.read("node_features")
        labels = archive.read("node_labels")
        ends = archive.read("edges")
        masks = {f"{part}_masks": archive.read(f"{part}_masks") for part in _MASKS}
    checks.form("node_features", features, kinds="f", shape=(None, None))
    checks.form("edges", ends, kinds="iu", shape=(None, 2))
    num_nodes = len(features)
    checks.form("node_labels", labels, kinds="iu", shape=(num_nodes,))
    if len(ends) and (ends.min() < 0 or ends.max() >= num_nodes):
        checks.fail("edges", f"runs to {ends.max()}; expected nodes 0 to {num_nodes - 1}")
    for mask_name, mask in masks.items():
        checks.form(mask_name, mask, kinds="b", shape=(None, num_nodes))
        if not len(mask):
            checks.fail(mask_name, "is empty; expected at least one split")
    return {
        "edge_index": once_undirected(ends.T, num_nodes),
        "y": _labels(source, "node_labels", labels),
        "x": np.ascontiguousarray(features, dtype=np.float32),
        **{f"{part}_mask": np.ascontiguousarray(masks[f"{part}_masks"][0]) for part in _MASKS},
        **masks,
    }


@contextmanager
def _only_file(name: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, NpzArchive]]:
    (source, content), *_ = files.items()
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except zipfile.BadZipFile as problem:
        raise DatasetError(
            f"{name}: {source}: not a .npz file, or damaged ({problem})"
        ) from problem
    with archive:
        yield f"{name}: {source}", NpzArchive(Path(source), archive, DatasetError)


def _labels(source: str, array: str, labels: np.ndarray) -> np.ndarray:
    """Return [N] int16 classes from 0."""
    checks = ArrayChecks(source=source, error=DatasetError)
    checks.form(array, labels, kinds="iu", shape=(None,))
    checks.labels(array, labels, num_classes=np.iinfo(np.int16).max)
    return labels.astype(np.int16)
