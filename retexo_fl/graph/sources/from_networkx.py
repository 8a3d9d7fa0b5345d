"""NetworkX graphs; NetworkX itself is not imported here."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.graph import ArrayNames, EdgeListGraph, Graph, Split
from retexo_fl.graph.labels import CLASSES, MULTI_LABEL
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.sources.attributes import demand_attributes
from retexo_fl.graph.sources.edge_rules import (
    STRICT,
    EdgeList,
    EdgeRules,
    early_edges,
    ruled_edges,
)
from retexo_fl.graph.sources.foreign import as_array, as_labels
from retexo_fl.units import counted

logger = logging.getLogger(__name__)

_SPLIT_WORDS: Final = ("train", "val", "test")

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
    task: str = CLASSES,
) -> Graph:
    """Turn a NetworkX graph into ours.

    Args:
        graph: A ``networkx.Graph``, or a ``DiGraph`` where the rules say directed; a multigraph
            where they merge. Names of nodes become keys: text as UTF-8, whole numbers as decimal
            text. Of edges, ``weight`` is what they weigh (1 where absent), and ``e_*`` are
            attributes, which every edge has if one has.
        name: Name of the graph.
        features: Attribute of every node: F numbers.
        labels: Attribute of labelled nodes: a class from 0, a sequence of 0 and 1, or a number, as
            ``task`` has it; nodes without it, with None, NaN or a class of -1 are unlabelled.
        split: Attribute of nodes: ``train``, ``val`` or ``test``, nothing for other nodes. Where no
            node has it, ``train_mask``, ``val_mask`` and ``test_mask`` are taken, if nodes have
            them.
        num_classes: C; None for the largest label plus one.
        attributes: Attributes of every node, text or whole numbers, that the graph may be cut by.
        rules: Whether edges have a direction; whether repeated ones are merged and self loops left
            out, or refused.
        task: What labels are for: ``classes``, ``multi-label`` or ``regression``.

    Returns:
        A graph whose nodes are in NetworkX's order. Features are rounded to float32.

    Raises:
        DatasetError: The graph is of a kind that the rules refuse, or a node lacks something or
            has a name that is no key; the message names the node.
    """
    checks = ArrayChecks(source=name, error=DatasetError)
    _check_kind(name, graph, rules)
    nodes: list[_Node] = list(graph.nodes(data=True))
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
        features=_features(checks, nodes, features),
        labels=_labels(checks, nodes, labels, task),
        num_classes=num_classes,
        node_keys=_keys(checks, nodes),
        split=_split(checks, nodes, split),
        attributes={key: _values(checks, nodes, key) for key in attributes},
    )
    return Graph.build(given, ArrayNames(source=name, features=features, labels=labels))


def _check_kind(name: str, graph: Any, rules: EdgeRules) -> None:
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
    if graph.is_multigraph():
        raise DatasetError(
            f"{name}: a multigraph, which may hold an edge twice; expected a simple graph, or "
            "merge-edges sum, mean or max"
        )


def _edges(checks: ArrayChecks, graph: Any, rules: EdgeRules) -> EdgeList:
    row_of = {node: row for row, node in enumerate(graph.nodes)}
    listed = list(graph.edges(data=True))
    ends = [(row_of[one], row_of[other]) for one, other, _ in listed]
    times = [there.get(_TIME) for *_, there in listed] if rules.before else None
    early = early_edges(checks.source, _TIME, times, rules)
    found = {key: None for *_, there in listed for key in there}
    carried = sorted(key for key in found if isinstance(key, str) and key.startswith("e_"))
    read = {"weight", *carried, *([_TIME] if rules.before else [])}
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
    return edges if early is None else edges.taken(early)


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


def _features(checks: ArrayChecks, nodes: list[_Node], name: str) -> np.ndarray:
    rows: list[np.ndarray] = []
    for node, there in nodes:
        try:
            row = np.asarray(as_array(there[name]), dtype=np.float64).reshape(-1)
        except KeyError:
            checks.fail(name, f"node {node!r:.60} has none; expected numbers for each node")
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


def _labels(checks: ArrayChecks, nodes: list[_Node], name: str, task: str) -> np.ndarray:
    if task == CLASSES:
        return np.array([_label(checks, node, name) for node in nodes], dtype=np.int64)
    given = [as_array(there.get(name)) for _, there in nodes]
    length = max((values.size for values in given if values.dtype.kind in "iufb"), default=1)
    rows = np.full((len(nodes), length if task == MULTI_LABEL else 1), np.nan)
    for row, values in enumerate(given):
        if values.dtype.kind == "O" and values.shape == () and values.item() is None:
            continue
        if values.dtype.kind not in "iufb" or values.size != rows.shape[1]:
            node, there = nodes[row]
            expected = f"{counted(rows.shape[1], 'number')}, or nothing"
            checks.fail(name, f"node {node!r:.60} has {there[name]!r:.60}; expected {expected}")
        rows[row] = values.reshape(-1)
    return as_labels(checks, name, rows, task)


def _label(checks: ArrayChecks, node: _Node, name: str) -> int:
    value = node[1].get(name)
    if value is None:
        return -1
    label = as_array(value)
    if label.shape == () and label.dtype.kind == "f" and np.isnan(label):
        return -1
    if label.shape != () or label.dtype.kind not in "iuf" or label != np.trunc(label):
        checks.fail(
            name, f"node {node[0]!r:.60} has {value!r:.60}; expected a class from 0, or nothing"
        )
    return int(label)


def _split(checks: ArrayChecks, nodes: list[_Node], name: str) -> Split | None:
    if any(name in there for _, there in nodes):
        for node, there in nodes:
            if there.get(name) not in (*_SPLIT_WORDS, "", None):
                checks.fail(
                    name,
                    f"node {node!r:.60} has {there[name]!r:.60}; expected train, val, test or "
                    "nothing",
                )
        masks = {
            word: np.array([there.get(name) == word for _, there in nodes]) for word in _SPLIT_WORDS
        }
        return Split(**masks)
    if not any(f"{word}_mask" in there for _, there in nodes for word in _SPLIT_WORDS):
        return None
    return Split(**{word: _mask(checks, nodes, f"{word}_mask") for word in _SPLIT_WORDS})


def _mask(checks: ArrayChecks, nodes: list[_Node], name: str) -> np.ndarray:
    values = []
    for node, there in nodes:
        value = as_array(there.get(name))
        if value.shape != () or value.dtype.kind != "b":
            checks.fail(name, f"node {node!r:.60} has {there.get(name)!r:.60}; expected a boolean")
        values.append(bool(value))
    return np.array(values, dtype=bool)


def _values(checks: ArrayChecks, nodes: list[_Node], name: str) -> np.ndarray:
    values = np.empty(len(nodes), dtype=object)
    for row, (node, there) in enumerate(nodes):
        if name not in there:
            checks.fail(name, f"node {node!r:.60} has none; expected a value for each node")
        value = there[name]
        values[row] = as_array(value).item() if hasattr(value, "detach") else value
    return values
