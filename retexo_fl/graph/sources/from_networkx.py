"""NetworkX graphs; NetworkX itself is not imported here."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.graph import ArrayNames, EdgeListGraph, Graph
from retexo_fl.graph.labels import CLASSES, labels_for
from retexo_fl.graph.masks import Masks, Split
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.sources.attributes import demand_attributes
from retexo_fl.graph.sources.edge_rules import (
    STRICT,
    EdgeList,
    EdgeRules,
    early_edges,
    ruled_edges,
)
from retexo_fl.graph.sources.foreign import as_array, as_labels, is_absent
from retexo_fl.graph.sources.label_choice import LABEL_KEY, LABELS
from retexo_fl.graph.sources.reading import Reading
from retexo_fl.graph.sources.typed import TYPE, TypedWhole, known_labels, typed_whole
from retexo_fl.units import counted

logger = logging.getLogger(__name__)

_SPLIT_WORDS: Final = ("train", "val", "test")

#: What relations are called where edges do not say it, and the type of nodes that do not.
_TO: Final = "to"
_NODE: Final = "node"
#: When an edge came.
_TIME: Final = "time"

#: A node's name and its attributes.
_Node = tuple[Any, Mapping[str, Any]]
#: Its ends' names and its attributes.
_Edge = tuple[Any, Any, Mapping[str, Any]]


def from_networkx(  # noqa: PLR0913 - a node has so many attributes
    graph: Any,
    *,
    name: str = "networkx",
    features: str = "x",
    labels: str = "y",
    split: str = "split",
    num_classes: int | None = None,
    attributes: Sequence[str] = (),
    rules: EdgeRules = STRICT,
    task: str = CLASSES.name,
    types: str = "",
) -> Graph:
    """Turn a NetworkX graph into ours.

    Args:
        graph: A ``networkx.Graph``, or a ``DiGraph`` where the rules say directed; a multigraph
            where they merge. Names of nodes become keys: text as UTF-8, whole numbers as decimal
            text. Of edges, ``weight`` is what they weigh (1 where absent), and ``e_*`` are
            attributes, which every edge has if one has.
        name: Name of the graph.
        features: Attribute of every node: F numbers.
        labels: Attribute of labelled nodes: a class (a whole number, a boolean or text), a sequence
            of 0 and 1, or a number, as ``task`` has it; nodes without it, with None, NaN or a class
            of -1 are unlabelled. Not read of ``links``.
        split: Attribute of nodes: ``train``, ``val`` or ``test``, nothing for other nodes. Where no
            node has it, ``train_mask``, ``val_mask`` and ``test_mask`` are taken, if nodes have
            them.
        num_classes: C; None for the largest label plus one.
        attributes: Attributes of every node, text or whole numbers, that the graph may be cut by.
        rules: Whether edges have a direction; whether repeated ones are merged and self loops left
            out, or refused.
        task: What labels are for: ``classes``, ``multi-label``, ``regression`` or ``links``.
        types: Attribute of every node that says its type, and of every edge that says its relation;
            empty for a graph without types. Nodes of a type have features of one width, or none,
            and nodes of one type have labels. A multigraph holds edges of several relations. Where
            no edge has it, relations are called ``to``.

    Returns:
        A graph whose nodes are in NetworkX's order. Features are rounded to float32.

    Raises:
        DatasetError: The graph is of a kind that the rules refuse, or a node lacks something or
            has a name that is no key; the message names the node.
    """
    return read_networkx(
        graph,
        name=name,
        names=NodeNames(features=features, labels=labels, split=split),
        num_classes=num_classes,
        attributes=attributes,
        reading=Reading(rules=rules, labels=labels_for(task), types=types),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNames:
    """Names of attributes of nodes."""

    features: str = "x"
    labels: str = "y"
    split: str = "split"


def read_networkx(
    graph: Any,
    *,
    name: str,
    attributes: Sequence[str],
    reading: Reading,
    names: NodeNames | None = None,
    num_classes: int | None = None,
) -> Graph:
    """Turn a NetworkX graph into ours, as :func:`from_networkx` does."""
    names = names or NodeNames(labels=reading.label or LABELS)
    checks = ArrayChecks(source=name, error=DatasetError)
    rules = reading.rules
    nodes: list[_Node] = list(graph.nodes(data=True))
    if reading.types and _has_types(graph, nodes, reading.types):
        return _read_typed(graph, nodes, name, attributes, reading, names)
    _check_kind(name, graph, rules)
    if not reading.types and _has_types(graph, nodes, TYPE) and TYPE not in attributes:
        logger.warning(
            "%s: attribute %s of nodes and edges not used (type-column %s, or a model such as "
            "rel-sage, reads it)",
            *(name, TYPE, TYPE),
        )
    for key in attributes:
        demand_attributes(name, {key for _, there in nodes[:1] for key in there}, (key,))
    edges = ruled_edges(
        checks, "edges", _edges(checks, graph, rules), num_nodes=len(nodes), rules=rules
    )
    given = EdgeListGraph(
        name=name,
        edges=edges.ends,
        edge_values=edges.values,
        directed=rules.directed,
        features=_features(checks, nodes, names.features, reading),
        labels=_labels(checks, nodes, names.labels, reading),
        kind=reading.labels,
        classes=reading.classes,
        num_classes=num_classes if reading.outputs is None else reading.outputs,
        node_keys=_keys(checks, nodes),
        split=_masks(checks, nodes, names.split) if reading.masks else None,
        attributes={key: _values(checks, nodes, key) for key in attributes},
        may_lack_edges=reading.may_lack_edges,
    )
    return Graph.build(given, ArrayNames(source=name, features=names.features, labels=names.labels))


def _has_types(graph: Any, nodes: list[_Node], types: str) -> bool:
    return any(types in there for _, there in nodes) or any(
        types in there for *_, there in graph.edges(data=True)
    )


def _read_typed(  # noqa: PLR0917 - as read_networkx
    graph: Any,
    nodes: list[_Node],
    name: str,
    attributes: Sequence[str],
    reading: Reading,
    names: NodeNames,
) -> Graph:
    """Return a graph whose nodes and edges say what they are."""
    checks = ArrayChecks(source=name, error=DatasetError)
    _check_kind(name, graph, reading.rules, may_repeat=True)
    said = _types(checks, ((f"node {node!r:.60}", there) for node, there in nodes), reading.types)
    if not said:
        said = [_NODE] * len(nodes)
    of_type = {kind: place for place, kind in enumerate(dict.fromkeys(said))}
    listed = list(graph.edges(data=True))
    places = ((f"edge {one!r:.60} - {other!r:.60}", there) for one, other, there in listed)
    of_edges = _types(checks, places, reading.types)
    if not of_edges:
        logger.warning("%s: no edge has a %s; their relations are called to", name, reading.types)
        of_edges = [_TO] * len(listed)
    labels = _labels(checks, nodes, names.labels, reading)
    edges, times = _listed_edges(checks, graph, reading.rules, known=(reading.types,))
    whole = TypedWhole(
        types=[*of_type],
        kinds=np.array([of_type[kind] for kind in said], dtype=np.int64),
        features=[
            _features(
                checks,
                [node for node, mine in zip(nodes, said, strict=True) if mine == kind],
                names.features,
                reading,
            )
            for kind in of_type
        ],
        keys=_keys(checks, nodes),
        labels=labels,
        known=known_labels(labels, reading.labels, len(nodes)),
        masks=_masks(checks, nodes, names.split) if reading.masks else Masks(),
        edges=edges,
        names=np.array(of_edges, dtype=np.str_),
        times=times,
    )
    return typed_whole(whole, name=name, source=name, reading=reading, attributes=attributes)


def _types(
    checks: ArrayChecks, things: Iterable[tuple[str, Mapping[str, Any]]], key: str
) -> list[str]:
    """Return what nodes or edges say that they are; nothing where none says it."""
    said, silent = [], ""
    for called, there in things:
        value = there.get(key)
        if is_absent(value) or value == "":
            silent = silent or called
        elif not isinstance(value, str | int | np.integer | np.str_):
            checks.fail(key, f"{called} has {value!r:.60}; expected text or a whole number")
        said.append(str(value))
    if silent and {*said} - {"None", "", "nan"}:
        checks.fail(key, f"{silent} has none; expected one for each, as others have it")
    return [] if silent else said


def _check_kind(name: str, graph: Any, rules: EdgeRules, *, may_repeat: bool = False) -> None:
    if rules.directed and not graph.is_directed():
        raise DatasetError(
            f"{name}: an undirected graph; expected a directed one, as graph.to_directed() makes, "
            "or edges-are undirected"
        )
    if rules.merge != "refuse":
        return
    # What NetworkX makes of either, to_undirected() or Graph(), keeps one weight of two.
    if graph.is_directed() and not rules.directed:
        raise DatasetError(
            f"{name}: a directed graph; expected edges-are directed, or merge-edges sum, mean or "
            "max, by which an edge and the one back are one"
        )
    if graph.is_multigraph() and not may_repeat:
        raise DatasetError(
            f"{name}: a multigraph, which may hold an edge twice; expected a simple graph, or "
            "merge-edges sum, mean or max"
        )


def _edges(checks: ArrayChecks, graph: Any, rules: EdgeRules) -> EdgeList:
    edges, times = _listed_edges(checks, graph, rules)
    early = early_edges(checks.source, _TIME, times, rules)
    return edges if early is None else edges.taken(early)


def _listed_edges(
    checks: ArrayChecks, graph: Any, rules: EdgeRules, *, known: Sequence[str] = ()
) -> tuple[EdgeList, Any]:
    """Return all edges, and when they came, where the rules have a bound.

    Args:
        checks: Names the source in errors.
        graph: That has them.
        rules: How they are read.
        known: Attributes of theirs that are read, too.
    """
    row_of = {node: row for row, node in enumerate(graph.nodes)}
    listed = list(graph.edges(data=True))
    ends = [(row_of[one], row_of[other]) for one, other, _ in listed]
    times = [there.get(_TIME) for *_, there in listed] if rules.before else None
    found = {key: None for *_, there in listed for key in there}
    carried = sorted(key for key in found if isinstance(key, str) and key.startswith("e_"))
    read = {"weight", *carried, *known, *([_TIME] if rules.before else [])}
    if unused := [str(key) for key in found if key not in read]:
        logger.warning("%s: attributes of edges not used: %.400s", checks.source, ", ".join(unused))
    weights = None
    if "weight" in found:
        weights = np.array([_number(checks, edge, "weight", absent=1.0) for edge in listed])
    attributes = None
    if carried:
        attributes = np.array([[_number(checks, e, key) for key in carried] for e in listed])
    edges = EdgeList(
        ends=np.array(ends, dtype=np.int64).reshape(-1, 2).T,
        values=EdgeValues(weights=weights, attributes=attributes),
    )
    return edges, times


def _number(checks: ArrayChecks, edge: _Edge, key: str, absent: float | None = None) -> float:
    one, other, there = edge
    value = there.get(key, absent)
    number = as_array(value)
    if value is None or number.shape != () or number.dtype.kind not in "iufb":
        checks.fail(key, f"edge {one!r:.60} - {other!r:.60} has {value!r:.60}; expected a number")
    return float(number)


def _keys(checks: ArrayChecks, nodes: list[_Node]) -> np.ndarray:
    keys = [_key(checks, node) for node, _ in nodes]
    return np.array(keys or [b""], dtype=np.bytes_)[: len(keys)]


def _key(checks: ArrayChecks, node: Any) -> bytes:
    if isinstance(node, int | np.integer) and not isinstance(node, bool):
        return str(int(node)).encode()
    key = node.encode(errors="surrogatepass") if isinstance(node, str) else node
    # An array of dtype S does not keep a NUL at the end.
    if not isinstance(key, bytes) or not key or b"\0" in key:
        checks.fail(
            "nodes",
            f"{node!r:.60} cannot be a key; expected text without NUL or a whole number, as "
            "networkx.convert_node_labels_to_integers gives",
        )
    return key


def _features(checks: ArrayChecks, nodes: list[_Node], name: str, reading: Reading) -> np.ndarray:
    if reading.num_features == 0 or not any(name in there for _, there in nodes):
        return np.empty((len(nodes), 0), dtype=np.float32)
    rows: list[np.ndarray] = []
    for node, there in nodes:
        if name not in there:
            checks.fail(name, f"node {node!r:.60} has none; expected numbers for each node")
        try:
            row = np.asarray(_real(there[name]), dtype=np.float64).reshape(-1)
        except (TypeError, ValueError):
            checks.fail(name, f"node {node!r:.60} has {there[name]!r:.60}; expected numbers")
        if rows and len(row) != len(rows[0]):
            checks.fail(
                name,
                f"node {node!r:.60} has {counted(len(row), 'value')}; expected "
                f"{len(rows[0])} as others",
            )
        with np.errstate(over="ignore"):
            rows.append(row.astype(np.float32))
    return np.stack(rows) if rows else np.empty((0, 1), dtype=np.float32)


def _real(value: Any) -> np.ndarray:
    """Return an array of anything but what NumPy would make numbers of by leaving something out.

    Raises:
        TypeError: It holds complex numbers, dates or durations.
    """
    array = as_array(value)
    if array.dtype.kind in "cmM":
        raise TypeError(array.dtype)
    return array


def _labels(checks: ArrayChecks, nodes: list[_Node], name: str, reading: Reading) -> Any:
    """Return labels of one form for all nodes; None where there are none, and none are needed."""
    given = [there.get(name) for _, there in nodes]
    lacks_all = all(map(is_absent, given))
    if not reading.labels.are_read or (lacks_all and reading.outputs is not None):
        return None
    if lacks_all and reading.label:
        checks.fail(LABEL_KEY, f"no node has {name[:60]!r}; expected the name of an attribute")

    def place(row: int) -> str:
        return f"node {nodes[row][0]!r:.60}"

    if reading.labels.ndim == 1:
        alone = np.empty(len(given), dtype=object)
        for row, value in enumerate(given):
            alone[row] = _alone(value)
        return as_labels(checks, name, alone, reading.labels, place=place)
    arrays = [None if is_absent(value) else as_array(value) for value in given]
    length = max((values.size for values in arrays if values is not None), default=1)
    rows = np.full((len(nodes), length), np.nan)
    for row, values in enumerate(arrays):
        if values is None:
            continue
        if values.dtype.kind not in "iufb" or values.size != length:
            expected = f"{counted(length, 'number')}, or nothing"
            checks.fail(name, f"{place(row)} has {given[row]!r:.60}; expected {expected}")
        rows[row] = values.reshape(-1)
    return as_labels(checks, name, rows, reading.labels, place=place)


def _alone(value: Any) -> Any:
    """Return the one value of an array or tensor, and anything else as it is."""
    if not hasattr(value, "shape"):
        return value
    array = as_array(value)
    return array.reshape(-1)[0] if array.size == 1 else value


def _masks(checks: ArrayChecks, nodes: list[_Node], name: str) -> Masks:
    """Return the split that nodes name."""
    masks = {}
    if any(name in there for _, there in nodes):
        for node, there in nodes:
            if not is_absent(there.get(name)) and there[name] not in (*_SPLIT_WORDS, ""):
                checks.fail(
                    name,
                    f"node {node!r:.60} has {there[name]!r:.60}; expected train, val, test or "
                    "nothing",
                )
        named = {
            word: np.array([there.get(name) == word for _, there in nodes]) for word in _SPLIT_WORDS
        }
        return Masks.of(Split(**named))
    for word in _SPLIT_WORDS:
        key = f"{word}_mask"
        if any(key in there for _, there in nodes):
            masks[word] = as_array([as_array(there.get(key, False)) for _, there in nodes])
    return Masks(**masks)


def _values(checks: ArrayChecks, nodes: list[_Node], name: str) -> np.ndarray:
    values = np.empty(len(nodes), dtype=object)
    for row, (node, there) in enumerate(nodes):
        if name not in there:
            checks.fail(name, f"node {node!r:.60} has none; expected a value for each node")
        value = there[name]
        values[row] = as_array(value).item() if hasattr(value, "detach") else value
    return values
