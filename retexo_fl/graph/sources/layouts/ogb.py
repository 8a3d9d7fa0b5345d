"""A folder of one graph as the package ``ogb`` unpacks it.

Source: Hu et al., "Open Graph Benchmark: datasets for machine learning on graphs" (NeurIPS 2020);
the layout is that of ``ogb.io.read_graph_raw``. ``raw/`` has tables without headers: ``edge``,
``num-node-list``, ``node-label``, maybe ``node-feat``, ``edge-feat``, ``edge_weight`` and
``edge_year``; ``split/NAME/`` the numbers of ``train``, ``valid`` and ``test`` nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.sources.from_arrays import (
    ATTRIBUTES,
    EDGES,
    FEATURES,
    MASKS,
    NUM_NODES,
    TIME,
    WEIGHT,
    from_arrays,
)
from retexo_fl.graph.sources.label_choice import LABELS
from retexo_fl.graph.sources.layouts.number_rows import Problems, read_rows
from retexo_fl.graph.sources.layouts.rules import as_loaders_read
from retexo_fl.graph.sources.reading import Reading
from retexo_fl.units import counted

_ENDINGS: Final = (".csv.gz", ".csv")
#: Of a graph with several types of nodes or edges.
_TYPED: Final = ("num-node-dict", "triplet-type-list")
_USES: Final = ("train", "valid", "test")
_OF_EDGES: Final = {ATTRIBUTES: "edge-feat", WEIGHT: "edge_weight"}
_TIMES: Final = "edge_year"


def is_ogb(folder: Path) -> bool:
    """Return whether a folder is laid out so."""
    raw = folder / "raw"
    return any(_found(raw, name) is not None for name in ("edge", "num-node-list", *_TYPED))


def read_ogb(folder: Path, attributes: Sequence[str], reading: Reading) -> Graph:
    """Read the graph of a folder.

    Args:
        folder: With ``raw``, and maybe ``split``.
        attributes: Names of further tables in ``raw``, a whole number for each node
            (``node_year``), that the graph may be cut by.
        reading: How it is read.

    Returns:
        A graph whose node keys are the decimal node numbers. Several folders in ``split`` are
        several published splits, in the order of their names.

    Raises:
        TableError: Tables are damaged or contradict each other; a line for each problem.
        DatasetError: It has several types or several graphs, or is none that can be trained on.
    """
    raw = folder / "raw"
    for name in _TYPED:
        if (path := _found(raw, name)) is not None:
            raise DatasetError(
                f"{path}: a graph of several types of nodes or edges; expected one of each"
            )
    problems = Problems()
    num_nodes = _num_nodes(raw, problems)
    values: dict[str, Any] = {NUM_NODES: num_nodes}
    ends = _demanded(raw, "edge", problems, dtype=np.int64, width=2)
    if ends is not None:
        if num_nodes is not None:
            path = _path(raw, "edge")
            odd = np.flatnonzero(((ends < 0) | (ends >= num_nodes)).any(axis=1))
            told = f"got {{}}; expected nodes 0 to {num_nodes - 1}"
            if reading.rules.unknown == "refuse":
                problems.add_rows(path, odd, told, ends)
        values[EDGES] = ends.T
    values |= _of_nodes(raw, problems, num_nodes, attributes, reading)
    wanted = _OF_EDGES | ({TIME: _TIMES} if reading.rules.before else {})
    for key, name in wanted.items():
        rows = _counted(raw, name, problems, None if ends is None else len(ends), "edge")
        if rows is not None:
            values[key] = rows if key == ATTRIBUTES else rows[:, 0]
    if reading.masks and num_nodes is not None:
        values |= _masks(folder / "split", problems, num_nodes)
    problems.check()
    return from_arrays(
        values,
        name=folder.name,
        source=str(folder),
        attributes=attributes,
        reading=as_loaders_read(reading),
    )


def _of_nodes(
    raw: Path,
    problems: Problems,
    num_nodes: int | None,
    attributes: Sequence[str],
    reading: Reading,
) -> dict[str, Any]:
    """Return features, labels and attributes, as far as they are there."""
    values: dict[str, Any] = {}
    features = _counted(raw, "node-feat", problems, num_nodes, "node", dtype=np.float32)
    if features is not None:
        values[FEATURES] = features
    if reading.labels.are_read:
        labels = _counted(raw, "node-label", problems, num_nodes, "node")
        if labels is not None:
            are_whole = np.isfinite(labels).all() and bool((labels == np.rint(labels)).all())
            is_number = reading.labels.name == "regression"
            labels = labels.astype(np.int64) if are_whole and not is_number else labels
            values[LABELS] = labels[:, 0] if labels.shape[1] == 1 else labels
    for name in attributes:
        found = _counted(raw, name, problems, num_nodes, "node", dtype=np.int64)
        if found is not None:
            values[name] = found[:, 0]
    return values


def _num_nodes(raw: Path, problems: Problems) -> int | None:
    rows = _demanded(raw, "num-node-list", problems, dtype=np.int64, width=1)
    if rows is None:
        return None
    if len(rows) != 1:
        problems.add(
            f"{_path(raw, 'num-node-list')}: has {counted(len(rows), 'graph')}; expected one"
        )
        return None
    return int(rows[0, 0])


def _masks(folder: Path, problems: Problems, num_nodes: int) -> dict[str, np.ndarray]:
    """Return [N, S] masks of the S splits that there are."""
    splits = sorted(path for path in folder.glob("*") if path.is_dir())
    splits = [one for one in splits if any(_found(one, use) is not None for use in _USES)]
    if not splits:
        return {}
    masks = {name: np.zeros((num_nodes, len(splits)), dtype=bool) for name in MASKS}
    for column, split in enumerate(splits):
        taken: dict[int, str] = {}
        for use, mask in zip(_USES, masks.values(), strict=True):
            rows = _demanded(split, use, problems, dtype=np.int64, width=1)
            if rows is None:
                continue
            path, nodes = _path(split, use), rows[:, 0]
            odd = (nodes < 0) | (nodes >= num_nodes)
            problems.add_rows(
                path, np.flatnonzero(odd), f"got {{}}; expected nodes 0 to {num_nodes - 1}", nodes
            )
            for row in np.flatnonzero([node in taken for node in nodes.tolist()]).tolist():
                other = taken[int(nodes[row])]
                problems.add(f"{path}: line {row + 1}: {nodes[row]} is in {other}, too")
            taken |= dict.fromkeys(nodes.tolist(), use)
            mask[nodes[~odd], column] = True
    return masks


def _counted(
    folder: Path,
    name: str,
    problems: Problems,
    count: int | None,
    what: str,
    *,
    dtype: type[np.generic] = np.float64,
) -> np.ndarray | None:
    """Return a table that may be there, with a row for each node or edge."""
    path = _found(folder, name)
    if path is None or (rows := read_rows(path, problems, dtype=dtype)) is None:
        return None
    if count is not None and len(rows) != count:
        got = counted(len(rows), "row")
        problems.add(f"{path}: has {got}; expected {count:,}, one for each {what}")
    return rows


def _demanded(
    folder: Path, name: str, problems: Problems, *, dtype: type[np.generic], width: int
) -> np.ndarray | None:
    path = _found(folder, name)
    if path is None:
        problems.add(f"{_path(folder, name)}: missing; expected it as ogb unpacks it")
        return None
    return read_rows(path, problems, dtype=dtype, width=width)


def _path(folder: Path, name: str) -> Path:
    return _found(folder, name) or folder / f"{name}{_ENDINGS[0]}"


def _found(folder: Path, name: str) -> Path | None:
    paths = (folder / f"{name}{ending}" for ending in _ENDINGS)
    return next((path for path in paths if path.is_file()), None)
