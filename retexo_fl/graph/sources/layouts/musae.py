"""A folder with the three tables of a graph of MUSAE.

Source: Rozemberczki, Allen, Sarkar, "Multi-scale attributed node embedding" (Journal of Complex
Networks, 2021), and graphs that its authors published likewise (LastFM, Deezer, Twitch): edges and
targets as CSV with names in the first line, features as a JSON object with a list of columns for
each node.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError, TableError
from retexo_fl.graph.features import Features
from retexo_fl.graph.graph import ArrayNames, EdgeListGraph, Graph
from retexo_fl.graph.sources.edge_rules import EdgeColumns
from retexo_fl.graph.sources.layouts.number_rows import Problems
from retexo_fl.graph.sources.layouts.rules import as_loaders_read
from retexo_fl.graph.sources.reading import Reading
from retexo_fl.graph.sources.tables.edges import edge_rows, read_edge_table
from retexo_fl.graph.sources.tables.nodes import read_text_column
from retexo_fl.graph.sources.tables.opening import open_table
from retexo_fl.graph.sources.tables.table import NodeTable

#: How the names of the tables end.
_EDGES, _TARGETS, _FEATURES = "edges.csv", "target.csv", "features.json"
#: What is known of the names of columns: ids (Twitch has others beside its own), and labels.
_IDS: Final = ("new_id", "id")
_LABELS: Final = ("target", "ml_target", "page_type", "mature")
_ENDS: Final = (("id_1", "id_2"), ("node_1", "node_2"), ("from", "to"))
_MOST_COLUMNS: Final = 2**20


def is_musae(folder: Path) -> bool:
    """Return whether a folder is laid out so."""
    return all(_of_kind(folder, kind) for kind in (_EDGES, _TARGETS))


def read_musae(folder: Path, attributes: Sequence[str], reading: Reading) -> Graph:
    """Read the graph of a folder.

    Args:
        folder: With one table of each kind; features may be missing.
        attributes: Columns of the targets that the graph may be cut by.
        reading: How it is read.

    Returns:
        A graph whose node keys are the published ids, in their order in the targets.

    Raises:
        TableError: A table is damaged, or two contradict each other; a line for each problem.
        DatasetError: There are several tables of a kind, or no such column.
    """
    targets, edges = (_only(folder, kind) for kind in (_TARGETS, _EDGES))
    names = open_table(targets).names
    key = _first(targets, names, _IDS, "ids")
    ids = read_text_column(targets, key)
    problems = Problems()
    first: dict[str, int] = {}
    for row, node in enumerate(ids.tolist()):
        if not node or node in first:
            told = "is empty" if not node else f"{node!r} is in line {first[node] + 2}, too"
            problems.add(f"{targets}: line {row + 2}: {key}: {told}; expected each id once")
        first.setdefault(node, row)
    matrix: Features | None = np.empty((len(ids), 0), dtype=np.float32)
    if reading.num_features != 0 and _of_kind(folder, _FEATURES):
        matrix = _features(_only(folder, _FEATURES), ids.tolist(), problems)
    problems.check()
    assert matrix is not None
    labels = None
    if reading.labels.are_read:
        others = tuple(name for name in names if name != key)
        column = others[0] if len(others) == 1 else ""
        if reading.label or not column:
            known = (reading.label,) if reading.label else _LABELS
            column = _first(targets, names, known, "labels")
        labels = _labels(targets, column, reading)
    table = NodeTable(
        source=str(targets),
        place=open_table(targets).place,
        keys=np.char.encode(ids, "utf-8"),
        features=matrix,
        labels=np.zeros(len(ids), dtype=np.int64),
        split=None,
        attributes={name: read_text_column(targets, name) for name in attributes},
    )
    rules = as_loaders_read(reading).rules
    there = open_table(edges).names
    source, target = next((pair for pair in _ENDS if {*pair} <= {*there}), _ENDS[0])
    columns = EdgeColumns(source=source, target=target)
    rules = replace(rules, columns=columns)
    listed = edge_rows(table, read_edge_table(edges, rules=rules), rules)
    given = EdgeListGraph(
        name=folder.name,
        edges=listed.ends,
        edge_values=listed.values,
        directed=rules.directed,
        features=matrix,
        labels=labels,
        kind=reading.labels,
        classes=reading.classes,
        num_classes=reading.outputs,
        node_keys=table.keys,
        attributes=table.attributes,
        may_lack_edges=reading.may_lack_edges,
    )
    return Graph.build(given, ArrayNames(source=str(folder), features=_FEATURES, labels=_TARGETS))


def _labels(targets: Path, column: str, reading: Reading) -> np.ndarray:
    """Return [N] text of classes, or numbers."""
    texts = read_text_column(targets, column)
    if reading.labels.are_classes:
        words = {"True": "1", "False": "0", "true": "1", "false": "0"}
        if {*texts.tolist()} <= {*words, ""}:
            texts = np.array([words.get(text, text) for text in texts.tolist()])
        return texts
    problems, numbers = Problems(), np.full(len(texts), np.nan)
    for row, text in enumerate(texts.tolist()):
        try:
            numbers[row] = float(text or "nan")
        except ValueError:
            problems.add(f"{targets}: line {row + 2}: {column}: got {text!r}; expected a number")
    problems.check()
    return numbers


def _features(path: Path, ids: Sequence[str], problems: Problems) -> csr_array | None:
    """Return [N, F] 0 and 1 of a JSON object with a list of columns for each node."""
    try:
        columns_of: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise TableError(f"{path}: is no JSON, or damaged ({error})") from error
    if not isinstance(columns_of, dict):
        raise TableError(f"{path}: expected an object with a list of columns for each node")
    rows: list[list[int]] = []
    for node in ids:
        row = columns_of.get(node)
        if not isinstance(row, list) or not all(
            type(column) is int and 0 <= column < _MOST_COLUMNS for column in row
        ):
            got = "is missing" if row is None else "is no list of whole numbers from 0"
            problems.add(f"{path}: node {node!r} {got}; expected its columns")
            continue
        rows.append(sorted({*row}))
    known = {*ids}
    for node in columns_of:
        if node not in known:
            problems.add(f"{path}: node {node!r} has no target; expected one for each node")
    if len(rows) != len(ids):
        return None
    indices = np.fromiter(chain.from_iterable(rows), dtype=np.int32)
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int32)
    shape = (len(rows), int(indices.max(initial=0)) + 1)
    return csr_array((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=shape)


def _of_kind(folder: Path, kind: str) -> list[Path]:
    return sorted(path for path in folder.glob(f"*{kind}") if path.is_file())


def _only(folder: Path, kind: str) -> Path:
    found = _of_kind(folder, kind)
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:4])
        raise DatasetError(f"{folder}: has {names}; expected one table *{kind}, of one graph")
    return found[0]


def _first(path: Path, names: Sequence[str], known: Sequence[str], what: str) -> str:
    found = next((name for name in known if name in names), None)
    if found is None:
        there = ", ".join(map(repr, names[:12]))
        raise TableError(
            f"{path}: no column of {what}; expected {' or '.join(known)}, the file has {there}"
        )
    return found
