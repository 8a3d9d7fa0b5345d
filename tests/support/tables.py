"""Graphs and parts as the tables that a user may have: CSV, Parquet and ``.npz``."""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph import Graph, GraphPartition, Split
from retexo_fl.graph.features import Features
from retexo_fl.graph.neighbours import IN, OUT, EdgeValues

#: Endings of the files that can be written.
FORMATS = ("csv", "tsv", "csv.gz", "csv.zip", "parquet", "npz")

Columns = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """Where the tables of a graph or of a part lie; a whole graph has no boundary."""

    nodes: Path
    edges: Path
    boundary: Path | None = None

    def options(self) -> list[str]:
        """Return them as options of the command line."""
        given = {"--nodes": self.nodes, "--edges": self.edges, "--boundary": self.boundary}
        return [str(item) for pair in given.items() if pair[1] is not None for item in pair]


def export_whole(
    graph: Graph,
    folder: Path,
    fmt: str,
    *,
    split: Split | None = None,
    dense: bool = False,
    attributes: Mapping[str, np.ndarray] | None = None,
) -> TableFiles:
    """Write a whole graph as ``nodes.FMT`` and ``edges.FMT``, rows and ends of edges shuffled.

    Args:
        graph: To be written.
        folder: Made if needed.
        fmt: One of :data:`FORMATS`.
        split: For the column ``split``; None for the published one, or no column.
        dense: Write sparse features as dense ones.
        attributes: [N] text of further columns.
    """
    files = _files(folder, fmt)
    masks = graph.published_split if split is None else split
    more = {} if attributes is None else dict(attributes)
    columns = _node_columns(graph.node_keys, graph.labels, masks, more)
    _write_nodes(files.nodes, columns, _dense(graph.features) if dense else graph.features)
    _write_edges(files.edges, graph.node_keys[graph.edge_list()])
    return files


def export_part(
    part: GraphPartition,
    folder: Path,
    fmt: str,
    *,
    clients: Sequence[str] | None = None,
    dense: bool = False,
    with_split: bool = True,
) -> TableFiles:
    """Write what one client knows as three tables, rows and ends of inner edges shuffled.

    Args:
        part: To be written.
        folder: Made if needed.
        fmt: One of :data:`FORMATS`.
        clients: Names of all clients; None for ``client-0``, ``client-1``, ...
        dense: Write sparse features as dense ones.
        with_split: Whether nodes have the column ``split``.
    """
    names = clients or [f"client-{client}" for client in range(part.num_clients)]
    nodes, edges = _files(folder, fmt).nodes, _files(folder, fmt).edges
    columns = _node_columns(part.node_keys, part.labels, part.split if with_split else None, {})
    _write_nodes(nodes, columns, _dense(part.features) if dense else part.features)
    rows = np.repeat(np.arange(part.num_inner), np.diff(part.indptr))
    inner = part.indices < part.num_inner
    crossing, values = ~inner, part.edge_values
    if values.weights is not None and values.is_directed:
        # Each inner edge where it comes in; an edge to a peer in either of its directions.
        inner &= values.weights[:, IN] != 0
        comes, goes = (np.flatnonzero(crossing & (values.weights[:, side] != 0)) for side in (0, 1))
        crossing = np.concatenate((comes, goes))
        side = np.repeat((IN, OUT), (len(comes), len(goes)))
        direction = {"direction": np.array(["in", "out"])[side]}
        carried = _value_columns(values.taken(crossing), side)
        edges_carry = _value_columns(values.taken(inner), np.full(inner.sum(), IN))
        turned = None
    else:
        inner &= rows < part.indices
        direction, carried = {}, _value_columns(values.taken(crossing))
        edges_carry = _value_columns(values.taken(inner))
        turned = 0.5
    ends = part.node_keys[np.stack((part.indices[inner], rows[inner]))]
    _write_edges(edges, ends, edges_carry, turned=turned)
    slots = part.indices[crossing] - part.num_inner
    owners = part.boundary_owners[slots]
    boundary = {
        "own": part.node_keys[rows[crossing]],
        "foreign": part.boundary_keys[slots],
        "peer": np.array([names[owner] for owner in owners], dtype=np.str_),
        **direction,
        **carried,
    }
    path = nodes.with_name(f"boundary.{fmt}")
    write_table(path, _shuffled(boundary))
    return TableFiles(nodes=nodes, edges=edges, boundary=path)


def write_table(path: Path, columns: Columns) -> Path:
    """Write columns in the format that the name ends with, and return the path.

    Bytes are written as text where the format has no bytes, [n, F] numbers as lists.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        arrays = {name: np.asarray(column) for name, column in columns.items()}
        np.savez(path, **arrays)  # type: ignore[arg-type]
    elif path.suffix == ".parquet":
        _write_parquet(path, columns)
    else:
        _write_text(path, columns)
    return path


def sparse_text(features: csr_array) -> list[str]:
    """Return rows as ``INDEX:VALUE`` items."""
    return [
        " ".join(f"{features.indices[at]}:{_number(features.data[at])}" for at in range(first, end))
        for first, end in zip(features.indptr[:-1], features.indptr[1:], strict=True)
    ]


def _files(folder: Path, fmt: str) -> TableFiles:
    assert fmt in FORMATS
    return TableFiles(nodes=folder / f"nodes.{fmt}", edges=folder / f"edges.{fmt}")


def _node_columns(
    keys: np.ndarray, labels: np.ndarray, split: Split | None, more: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    columns = {"key": keys, "label": labels, **more}
    if split is not None:
        words = [(mask, name.removesuffix("_mask")) for name, mask in split.named().items()]
        masks, names = zip(*words, strict=True)
        columns["split"] = np.select(masks, names, default="")
    return columns


def _write_nodes(path: Path, columns: dict[str, np.ndarray], features: Features) -> None:
    order = np.random.default_rng(len(features.shape)).permutation(len(columns["key"]))
    rows: Features = features[order]
    shuffled = {name: column[order] for name, column in columns.items()}
    if isinstance(rows, csr_array) and path.suffix == ".npz":
        parts = {part: getattr(rows, part) for part in ("indptr", "indices", "data")}
        more = {f"x_{part}": array for part, array in parts.items()}
        write_table(path, {**shuffled, **more, "x_shape": np.array(rows.shape)})
    elif isinstance(rows, csr_array):
        write_table(path, {**shuffled, "x": sparse_text(rows)})
    elif path.suffix in (".npz", ".parquet"):
        write_table(path, {**shuffled, "x": rows})
    else:
        write_table(path, {**shuffled, **{f"x{i}": rows[:, i] for i in range(rows.shape[1])}})


def _write_edges(
    path: Path,
    ends: np.ndarray,
    carried: Mapping[str, np.ndarray] | None = None,
    *,
    turned: float | None = 0.5,
) -> None:
    turn = np.random.default_rng(1).random(ends.shape[1]) < (turned or 0)
    one, other = np.where(turn, ends[1], ends[0]), np.where(turn, ends[0], ends[1])
    write_table(path, _shuffled({"source": one, "target": other, **(carried or {})}))


def _value_columns(values: EdgeValues, side: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return the columns of edges, of a directed graph those of one direction of each."""
    arrays = values.named()
    if side is not None:
        arrays = {name: array[np.arange(len(side)), side] for name, array in arrays.items()}
    columns = {}
    if "edge_weights" in arrays:
        columns["weight"] = arrays["edge_weights"]
    for at in range(values.num_attributes):
        columns[f"e_{at}"] = arrays["edge_attributes"][:, at]
    return columns


def _shuffled(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    count = len(next(iter(columns.values())))
    order = np.random.default_rng(2).permutation(count)
    return {name: column[order] for name, column in columns.items()}


def _dense(features: Features) -> np.ndarray:
    return features if isinstance(features, np.ndarray) else features.toarray()


def _write_parquet(path: Path, columns: Columns) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    arrays = {}
    for name, column in columns.items():
        cells = column
        if isinstance(column, np.ndarray):
            cells = list(column) if column.ndim > 1 else _decoded(column)
        arrays[name] = pa.array(cells)
    # Some rows to a group, so that a reader meets several.
    parquet.write_table(pa.table(arrays), path, row_group_size=100)


def _decoded(column: np.ndarray) -> Any:
    return [key.decode() for key in column.tolist()] if column.dtype.kind == "S" else column


def _write_text(path: Path, columns: Columns) -> None:
    text = io.StringIO(newline="")
    delimiter = "\t" if ".tsv" in path.name else ","
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*map(_cells, columns.values()), strict=True))
    content = text.getvalue().encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(path.stem, content)
    else:
        path.write_bytes(content)


def _cells(column: Any) -> list[str]:
    if not isinstance(column, np.ndarray):
        return [str(cell) for cell in column]
    if column.dtype.kind == "S":
        return [cell.decode() for cell in column.tolist()]
    if column.dtype.kind == "f":
        values, places = np.unique(column, return_inverse=True)
        texts = [_number(value) for value in values]
        return [texts[place] for place in places.tolist()]
    return [str(cell) for cell in column.tolist()]


def _number(value: np.floating[Any]) -> str:
    """Return the shortest text that a reader of 64-bit numbers turns into the same value."""
    text = repr(float(value))
    return text.removesuffix(".0")
