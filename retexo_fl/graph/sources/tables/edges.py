"""Reading tables of edges, and finding their ends among nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from retexo_fl.graph.sources.tables.cells import key_array, text_array
from retexo_fl.graph.sources.tables.opening import open_table
from retexo_fl.graph.sources.tables.source import Column, Complaints, require_columns, shown
from retexo_fl.graph.sources.tables.table import BoundaryTable, EdgeTable, NodeTable, Table


def read_edge_table(path: Path) -> EdgeTable:
    """Read undirected edges from the columns ``source`` and ``target``; there may be no rows.

    Raises:
        TableError: The file cannot be read or is damaged, a column is missing, or a cell is no key.
    """
    place, columns = _read(path, {"source": key_array, "target": key_array})
    return EdgeTable(source=str(path), place=place, left=columns["source"], right=columns["target"])


def read_boundary_table(path: Path) -> BoundaryTable:
    """Read edges to peers from the columns ``own``, ``foreign`` and ``peer``; there may be no rows.

    Raises:
        TableError: The file cannot be read or is damaged, a column is missing, or a cell is no key
            and no name.
    """
    place, columns = _read(path, {"own": key_array, "foreign": key_array, "peer": text_array})
    return BoundaryTable(
        source=str(path),
        place=place,
        own=columns["own"],
        foreign=columns["foreign"],
        peers=columns["peer"],
    )


def edge_rows(nodes: NodeTable, edges: EdgeTable) -> np.ndarray:
    """Return the rows of the nodes that each edge joins.

    Returns:
        [2, e] int64 rows of ``nodes``, in the order of the edges.

    Raises:
        TableError: An end is no node of the table, an edge joins a node to itself, or an edge is
            there twice, in one orientation or both; one line names the edge's row.
    """
    left, right = key_rows(nodes.keys, edges.left), key_rows(nodes.keys, edges.right)
    _check_ends(nodes, edges, left, right)
    _check_once(edges, left, right, len(nodes.keys))
    return np.stack((left, right))


def key_rows(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where keys stand.

    Args:
        keys: [n] bytes, unique; n is at least 1.
        wanted: [e] bytes.

    Returns:
        [e] int64 index into ``keys``, -1 for a key that is not there.
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    at = np.minimum(np.searchsorted(ordered, wanted), len(keys) - 1)
    return np.where(ordered[at] == wanted, order[at], -1)


def check_pairs_once(table: Table, codes: np.ndarray, sentence: Callable[[int, str], str]) -> None:
    """Check that no code is there twice.

    Args:
        table: Whose rows the codes stand for.
        codes: [e] integers.
        sentence: What is wrong, from the row that comes first and the place where it stands.

    Raises:
        TableError: A code is there twice; a line for each row that is not the first.
    """
    order = np.argsort(codes, kind="stable")
    again = order[1:][codes[order][1:] == codes[order][:-1]]

    def problem(row: int) -> str:
        first = int(np.flatnonzero(codes == codes[row])[0])
        return sentence(first, table.place(first))

    table.check_rows(np.sort(again), problem)


def _read(
    path: Path, readers: Mapping[str, Callable[[Column], np.ndarray]]
) -> tuple[Callable[[int], str], dict[str, np.ndarray]]:
    source = open_table(path)
    require_columns(source, tuple(readers))
    parts: dict[str, list[np.ndarray]] = {name: [] for name in readers}
    complaints = Complaints(source.path, source.place)
    first_row = 0
    for batch in source.batches(tuple(readers)):
        for name, reader in readers.items():
            column = Column(
                source=source,
                name=name,
                first_row=first_row,
                cells=batch[name],
                complaints=complaints,
            )
            parts[name].append(reader(column))
        first_row += len(batch[next(iter(readers))])
    complaints.check()
    empty = {
        name: reader(Column(source=source, name=name, first_row=0, cells=[]))
        for name, reader in readers.items()
    }
    return source.place, {name: np.concatenate([empty[name], *parts[name]]) for name in readers}


def _check_ends(nodes: NodeTable, edges: EdgeTable, left: np.ndarray, right: np.ndarray) -> None:
    complaints = edges.complaints()
    for name, keys, rows in (("source", edges.left, left), ("target", edges.right, right)):
        complaints.add_rows(
            np.flatnonzero(rows < 0),
            lambda row, name=name, keys=keys: (  # type: ignore[misc]
                f"{name}: {shown(keys[row])} is not a key of {nodes.source}; expected the key of a "
                "node"
            ),
        )
    complaints.add_rows(
        np.flatnonzero((left == right) & (left >= 0)),
        lambda row: f"{shown(edges.left[row])} has an edge to itself; expected no self loop",
    )
    complaints.check()


def _check_once(edges: EdgeTable, left: np.ndarray, right: np.ndarray, num_nodes: int) -> None:
    def sentence(first: int, place: str) -> str:
        pair = f"{shown(edges.left[first])} and {shown(edges.right[first])}"
        return f"the edge of {pair} is already in {place}; expected each undirected edge once"

    check_pairs_once(edges, np.minimum(left, right) * num_nodes + np.maximum(left, right), sentence)
