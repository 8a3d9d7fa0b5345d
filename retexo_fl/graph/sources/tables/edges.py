"""Reading tables of edges, and finding their ends among nodes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.dates import unclear_date
from retexo_fl.errors import ConfigurationError, TableError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.sources.edge_rules import (
    STRICT,
    EdgeColumns,
    EdgeList,
    EdgeRules,
    ruled_edges,
    tell_unknown,
)
from retexo_fl.graph.sources.moments import in_one_order, read_times
from retexo_fl.graph.sources.tables.cells import (
    TimeColumn,
    direction_array,
    key_array,
    text_array,
)
from retexo_fl.graph.sources.tables.features import in_order, side_by_side
from retexo_fl.graph.sources.tables.frame_source import AnyTable, FrameSource
from retexo_fl.graph.sources.tables.nodes import read_text_column
from retexo_fl.graph.sources.tables.opening import open_table
from retexo_fl.graph.sources.tables.source import (
    TYPE_COLUMN,
    Column,
    Complaints,
    Source,
    require_columns,
    shown,
    tell_unused,
)
from retexo_fl.graph.sources.tables.table import BoundaryTable, EdgeTable, NodeTable, Table

#: How the names of attributes begin.
_ATTRIBUTE: Final = "e_"
#: What triples call the ends of an edge, and what it says.
_OF_TRIPLES: Final = (("subject", "object"), ("head", "tail"))
_PREDICATES: Final = ("predicate", "relation")
#: Predicates that an error lists.
_MOST_PREDICATES: Final = 8
#: How the names of columns end that say of which type an end is.
_TYPE: Final = f"_{TYPE_COLUMN}"

logger = logging.getLogger(__name__)

_Reader = Callable[[Column], np.ndarray]


def read_edge_table(path: AnyTable, *, rules: EdgeRules = STRICT, types: str = "") -> EdgeTable:
    """Read edges from the columns ``source`` and ``target``; there may be no rows.

    Triples may call these ``subject`` and ``object``, or ``head`` and ``tail``; where the rules
    choose predicates, rows with another ``predicate`` (or ``relation``) are left out.
    A column ``weight`` is what edges weigh, columns ``e_*`` are their attributes; a column ``time``
    is read where the rules have a bound. The rules may name other columns than these. What is not
    read is named in one line. With ``types``, a column of names of relations, that one and
    ``source_type`` and ``target_type`` (or as the rules call source and target) are read, too,
    where they are there.

    Raises:
        TableError: The file cannot be read or is damaged, a column is missing, or a cell is no key
            or no number.
    """
    names = rules.columns
    if names.source == names.target:
        raise ConfigurationError(
            f"target-column: {shown(names.target)} is the source-column, too; expected another"
        )
    opened = open_table(path, names.form, first=(names.source, names.target))
    ends = _ends_of(opened, rules)
    readers: dict[str, _Reader] = dict.fromkeys(ends, key_array)
    said = next((name for name in _PREDICATES if name in opened.names), _PREDICATES[0])
    if rules.predicates:
        readers[said] = text_array
    of_types = [*(f"{name}{_TYPE}" for name in ends), types] if types else []
    optional = dict.fromkeys(of_types, text_array)
    place, columns, values = _read(opened, readers, optional=optional, rules=rules)
    source_type, target_type, kinds = map(columns.get, of_types or ("", "", ""))
    table = EdgeTable(
        source=str(path.path if isinstance(path, FrameSource) else path),
        place=place,
        left=columns[ends[0]],
        right=columns[ends[1]],
        values=values,
        ends=ends,
        types=(source_type, target_type),
        kinds=kinds,
    )
    if rules.predicates:
        chosen = _saying(table, columns[said], rules)
        table, columns = table.taken(chosen), {name: c[chosen] for name, c in columns.items()}
    early = columns.get(rules.columns.time) if rules.before is not None else None
    return table if early is None else table.taken(_told(table, early, rules))


def _ends_of(source: Source, rules: EdgeRules) -> tuple[str, str]:
    """Return the columns of the ends: as the rules call them, or as triples do."""
    ends = (rules.columns.source, rules.columns.target)
    if ends == (EdgeColumns().source, EdgeColumns().target) and not {*ends} & {*source.names}:
        return next((pair for pair in _OF_TRIPLES if {*pair} <= {*source.names}), ends)
    return ends


def _saying(table: EdgeTable, said: np.ndarray, rules: EdgeRules) -> np.ndarray:
    """Return the numbers of the rows with a chosen predicate: all of it, or its last part."""
    there, at, counts = np.unique(said, return_inverse=True, return_counts=True)
    last = [re.split(r"[#/]", text)[-1] for text in there.tolist()]
    wanted = {*rules.predicates}
    absent = [one for one in rules.predicates if one not in {*there.tolist(), *last}]
    if absent:
        most = [str(there[n]) for n in np.argsort(-counts, kind="stable")[:_MOST_PREDICATES]]
        more = ", ..." if len(there) > len(most) else ""
        raise TableError(
            f"{table.source}: predicates: {shown(absent[0])} is in no row; expected some of: "
            f"{', '.join(map(shown, most))}{more}"
        )
    chosen = [bool({text, end} & wanted) for text, end in zip(there.tolist(), last, strict=True)]
    rows = np.flatnonzero(np.array(chosen, dtype=bool)[at])
    if others := len(said) - len(rows):
        logger.warning("%s: edges of other predicates left out: %s", table.source, f"{others:,}")
    return rows


def read_boundary_table(path: Path, *, rules: EdgeRules = STRICT, types: str = "") -> BoundaryTable:
    """Read edges to peers from the columns ``own``, ``foreign`` and ``peer``; there may be no rows.

    A column ``direction`` says whether an edge comes ``in`` from the peer's node or goes ``out`` to
    it. With ``types`` that column, ``own_type`` and ``foreign_type`` are read, too. For
    other columns see :func:`read_edge_table`.

    Raises:
        TableError: The file cannot be read or is damaged, a column is missing, or a cell is no key
            and no name.
    """
    readers = {"own": key_array, "foreign": key_array, "peer": text_array}
    opened = open_table(path, rules.columns.form, first=[*readers])
    of_types = [f"own{_TYPE}", f"foreign{_TYPE}", types] if types else []
    place, columns, values = _read(
        opened,
        readers,
        optional={"direction": direction_array, **dict.fromkeys(of_types, text_array)},
        rules=rules,
    )
    goes_out = columns.get("direction")
    own_type, foreign_type, kinds = map(columns.get, of_types or ("", "", ""))
    table = BoundaryTable(
        source=str(path),
        place=place,
        own=columns["own"],
        foreign=columns["foreign"],
        peers=columns["peer"],
        goes_out=None if goes_out is None else goes_out == 1,
        values=values,
        types=(own_type, foreign_type),
        kinds=kinds,
    )
    early = columns.get(rules.columns.time) if rules.before is not None else None
    return table if early is None else table.taken(_told(table, early, rules))


def _told(table: Table, early: np.ndarray, rules: EdgeRules) -> np.ndarray:
    """Return the numbers of early rows; say how many are left out."""
    rows = np.flatnonzero(early)
    if late := len(early) - len(rows):
        assert rules.before is not None
        told = f"edges not before {rules.before.text} left out: {late:,}"
        logger.warning("%s: %s", table.source, told)
    return rows


def first_and_last_time(path: AnyTable, rules: EdgeRules) -> tuple[float, float]:
    """Return when the first and the last edge of a table came, in seconds since 1970.

    Raises:
        TableError: The table cannot be read, has no column of times or no rows, or a cell of it is
            no date, or may be two.
    """
    column = rules.columns.time
    cells = read_text_column(path, column, rules.columns.form).tolist()
    source = str(path.path if isinstance(path, FrameSource) else path)
    if not cells:
        raise TableError(f"{source}: has no rows; expected edges with times")
    read = read_times(cells, dates=True)
    times, wrong = in_one_order(read)
    if wrong is not None:
        is_date = not np.isnan(read[wrong]).all()
        told = f"got {shown(cells[wrong])}; expected a date such as 2024-03-01"
        raise TableError(
            f"{source}: {column}: row {wrong}: {unclear_date(cells[wrong]) if is_date else told}"
        )
    return float(times.min()), float(times.max())


def edge_rows(nodes: NodeTable, edges: EdgeTable, rules: EdgeRules = STRICT) -> EdgeList:
    """Return the edges by the rows of the nodes that each joins, as the rules leave them.

    Args:
        nodes: Of which the ends are.
        edges: In the order of the file, which a strict rule keeps.
        rules: How they are read.

    Raises:
        TableError: An end is no node of the table, or the rules refuse an edge from a node to
            itself, or one that is there twice (of undirected edges in one orientation or both); one
            line for each problem names the edge's row.
    """
    edges = checked_ends(nodes, edges, rules)
    left, right = key_rows(nodes.keys, edges.left), key_rows(nodes.keys, edges.right)
    if rules.merge == "refuse":
        kept = left != right
        _check_once(edges, left, right, len(nodes.keys), kept=kept, directed=rules.directed)
    found = EdgeList(ends=np.stack((left, right)), values=edges.values)
    if rules.is_strict:
        return found
    checks = ArrayChecks(source=edges.source, error=TableError)
    return ruled_edges(
        checks, "edges", found, num_nodes=len(nodes.keys), rules=rules, has_order=True
    )


def checked_ends(nodes: NodeTable, edges: EdgeTable, rules: EdgeRules) -> EdgeTable:
    """Return the edges whose ends are nodes.

    Raises:
        TableError: An end is no node, or both are one, where the rules refuse that.
    """
    left, right = key_rows(nodes.keys, edges.left), key_rows(nodes.keys, edges.right)
    if rules.unknown == "drop" and not (known := (left >= 0) & (right >= 0)).all():
        tell_unknown(edges.source, int(np.count_nonzero(~known)))
        edges = edges.taken(np.flatnonzero(known))
        left, right = left[known], right[known]
    _check_ends(nodes, edges, left, right, rules)
    return edges


def key_rows(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where keys are among others.

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


def check_pairs_once(table: Table, codes: np.ndarray, sentence: Callable[[int, int], str]) -> None:
    """Check that no code is there twice.

    Args:
        table: Whose rows have the codes.
        codes: [e] integers.
        sentence: What is wrong, from the row that comes first and the one that repeats it.

    Raises:
        TableError: A code is there twice; a line for each row that is not the first.
    """
    order = np.argsort(codes, kind="stable")
    again = order[1:][codes[order][1:] == codes[order][:-1]]

    def problem(row: int) -> str:
        first = int(np.flatnonzero(codes == codes[row])[0])
        return sentence(first, row)

    table.check_rows(np.sort(again), problem)


def _read(
    source: Source,
    readers: Mapping[str, _Reader],
    *,
    optional: Mapping[str, _Reader] | None = None,
    rules: EdgeRules = STRICT,
) -> tuple[Callable[[int], str], dict[str, np.ndarray], EdgeValues]:
    """Read columns that must be there, others that may be, and the values of edges."""
    names = rules.columns
    times = None if rules.before is None else TimeColumn(rules.before)
    if times is not None:
        readers = {**readers, names.time: times}
    named = () if names.weight == EdgeColumns().weight else (names.weight,)
    require_columns(source, (*readers, *named))
    complaints = Complaints(source.path, source.place)
    readers = {
        **readers,
        **{name: read for name, read in (optional or {}).items() if name in source.names},
    }
    weight = (names.weight,) if names.weight in source.names else ()
    taken = {*readers, *weight, names.time}
    carried = [n for n in source.names if n.startswith(_ATTRIBUTE) and n not in taken]
    attributes = in_order(source, carried, "e") if carried else ()
    numbers = {"weights": weight, "attributes": attributes}
    uses = dict.fromkeys(_PREDICATES, "--predicates") | {names.time: "--edges-before"}
    uses[TYPE_COLUMN] = f"--type-column {TYPE_COLUMN}, or a model such as rel-sage,"
    tell_unused(source, (*readers, *weight, *attributes), uses)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in (*readers, *numbers)}
    first_row = 0
    wanted = (*readers, *weight, *attributes)
    for batch in chain(source.batches(wanted), [{name: [] for name in wanted}]):
        columns = {
            name: Column(
                source=source,
                name=name,
                first_row=first_row,
                cells=batch[name],
                complaints=complaints,
            )
            for name in wanted
        }
        for name, reader in readers.items():
            parts[name].append(reader(columns[name]))
        for name, of_edges in numbers.items():
            if of_edges and len(batch[wanted[0]]):
                parts[name].append(side_by_side([columns[each] for each in of_edges]))
        first_row += len(batch[wanted[0]])
    complaints.check()
    found = {name: np.concatenate([parts[name][-1], *parts[name][:-1]]) for name in readers}
    if times is not None:
        at = Column(source=source, name=names.time, first_row=0, cells=[])
        found[names.time] = times.early(found[names.time], at.fail)
    values = {
        name: np.concatenate([np.empty((0, len(of_edges)), dtype=np.float32), *parts[name]])
        for name, of_edges in numbers.items()
        if of_edges
    }
    weights = values.get("weights")
    return (
        source.place,
        found,
        EdgeValues(
            weights=None if weights is None else weights[:, 0], attributes=values.get("attributes")
        ),
    )


def _check_ends(
    nodes: NodeTable, edges: EdgeTable, left: np.ndarray, right: np.ndarray, rules: EdgeRules
) -> None:
    complaints = edges.complaints()
    for name, keys, rows in (
        (edges.ends[0], edges.left, left),
        (edges.ends[1], edges.right, right),
    ):
        complaints.add_rows(
            np.flatnonzero(rows < 0),
            lambda row, name=name, keys=keys: (  # type: ignore[misc]
                f"{name}: {shown(keys[row])} is not a key of {nodes.source}; expected the key of a "
                "node, or unknown-nodes drop"
            ),
        )
    if rules.self_loops == "refuse":
        complaints.add_rows(
            np.flatnonzero((left == right) & (left >= 0)),
            lambda row: (
                f"{shown(edges.left[row])} has an edge to itself; expected no self loop, or "
                "self-loops drop"
            ),
        )
    complaints.check()


def _check_once(
    edges: EdgeTable,
    left: np.ndarray,
    right: np.ndarray,
    num_nodes: int,
    *,
    kept: np.ndarray,
    directed: bool,
) -> None:
    """Check edges that are no loops (``kept``), whatever becomes of those."""
    kind = "directed" if directed else "undirected"

    def sentence(first: int, row: int) -> str:
        pair = f"{shown(edges.left[first])} and {shown(edges.right[first])}"
        turned, more = "", ""
        if left[first] != left[row]:
            turned, more = ", the other way round", ", or edges-are directed"
        return (
            f"the edge of {pair} is already in {edges.place(first)}{turned}; expected each {kind} "
            f"edge once, or merge-edges{more}"
        )

    one, other = (left, right) if directed else (np.minimum(left, right), np.maximum(left, right))
    codes = np.where(kept, one * num_nodes + other, -1 - np.arange(len(left)))
    check_pairs_once(edges, codes, sentence)
