"""A whole graph from arrays by name: a PyG ``Data``, a mapping, SciPy matrices, a ``.npz`` file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.graph import ArrayNames, EdgeListGraph, Graph
from retexo_fl.graph.labels import LINKS
from retexo_fl.graph.masks import Masks
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.sources.attributes import demand_attributes
from retexo_fl.graph.sources.edge_rules import EdgeList, early_edges, ruled_edges
from retexo_fl.graph.sources.foreign import as_array, as_csr, as_features, as_labels, as_numbers
from retexo_fl.graph.sources.label_choice import LABEL_KEY, LABELS, chosen_labels, told_choice
from retexo_fl.graph.sources.reading import TRAINING, Reading
from retexo_fl.graph.sources.typed import TypedWhole, known_labels, typed_whole

logger = logging.getLogger(__name__)

EDGES: Final = "edge_index"
FEATURES: Final = "x"
MASKS: Final = ("train_mask", "val_mask", "test_mask")
#: [S, N] masks of several splits, as heterophilous-graphs has them, in the place of the others.
SEVERAL_MASKS: Final = ("train_masks", "val_masks", "test_masks")
#: Numbers of edges: their weights, their attributes, and when they came.
WEIGHT: Final = "edge_weight"
ATTRIBUTES: Final = "edge_attr"
TIME: Final = "edge_time"
#: Sparse matrices in the place of :data:`EDGES`: entry (u, v) is an edge from u to v, and from v to
#: u.
ADJACENCY: Final = "adj"
TRANSPOSED: Final = "adj_t"
#: What nodes and edges are; numbers have names in arrays so called with ``_names`` behind it.
NODE_TYPE: Final = "node_type"
EDGE_TYPE: Final = "edge_type"
#: Before the name of a type whose features these are.
OF_TYPE: Final = f"{FEATURES}/"
NAMES: Final = frozenset(
    {
        *(EDGES, ADJACENCY, TRANSPOSED, FEATURES, LABELS),
        *(*MASKS, *SEVERAL_MASKS, WEIGHT, ATTRIBUTES, TIME),
    }
)
#: How many nodes there are, where neither features nor labels say it.
NUM_NODES: Final = "num_nodes"


def from_arrays(
    values: Mapping[str, Any],
    *,
    name: str = "graph",
    source: str = "",
    num_classes: int | None = None,
    attributes: Sequence[str] = (),
    reading: Reading = TRAINING,
    tells_direction: bool = False,
) -> Graph:
    """Turn arrays into a graph.

    Args:
        values: ``x`` [N, F], dense or sparse, or nothing of nodes without features; ``edge_index``
            [2, E], or a sparse matrix [N, N] as ``adj`` (rows are sources) or ``adj_t`` (columns
            are), whose values are weights where one is not 1; ``y`` [N], or what the reading
            chooses (:func:`.chosen_labels`). Maybe ``train_mask``, ``val_mask`` and ``test_mask``
            (:class:`.Masks`), or ``train_masks``, ... [S, N]; ``edge_weight`` [E], ``edge_attr``
            [E] or [E, A], ``edge_time`` [E]; ``node_type`` [N] and ``edge_type`` [E], where types
            are read. What is None is not there. Undirected edges are all listed in both
            directions, or all once.
        name: Name of the graph.
        source: What errors name; the name where it is empty.
        num_classes: C; None for the largest label plus one.
        attributes: Names of [N] integers or text that the graph may be cut by.
        reading: How it is read.
        tells_direction: Say that edges which are listed in one direction each lose it.

    Returns:
        A graph whose node keys are the decimal node indices. Values of ``x`` are rounded to
        float32.

    Raises:
        DatasetError: Something is missing or not as described; the message names it.
    """
    source = source or name
    checks = ArrayChecks(source=source, error=DatasetError)
    there = {key: value for key, value in values.items() if value is not None}
    if {NODE_TYPE, EDGE_TYPE} & there.keys():
        if reading.types:
            return _typed(checks, there, name, reading, attributes)
        told = " and ".join(key for key in (NODE_TYPE, EDGE_TYPE) if key in there)
        logger.warning(
            "%s: %s not used (type-column type, or a model such as rel-sage, reads types)",
            *(source, told),
        )
    if not {EDGES, ADJACENCY, TRANSPOSED} & there.keys():
        _demanded(checks, there, FEATURES, reading)
    labels = _labels(checks, there, reading)
    if reading.num_features == 0 or FEATURES not in there:
        there[FEATURES] = np.empty((_num_nodes(checks, there), 0), np.float32)
    features = as_features(checks, FEATURES, there[FEATURES])
    demand_attributes(source, there, attributes)
    edges_name, listed = _listed(checks, there, reading)
    times = there.get(TIME)
    rules = reading.rules
    early = early_edges(source, TIME, None if times is None else as_array(times), rules)
    if early is not None:
        checks.form(TIME, early, kinds="b", shape=(listed.ends.shape[1],))
        listed = listed.taken(early)
    num_nodes = int(features.shape[0])
    edges = ruled_edges(
        checks, edges_name, listed, num_nodes=num_nodes, rules=rules, has_order=True
    )
    one_way = listed.ends.size and edges.ends.shape == listed.ends.shape
    if tells_direction and one_way and not rules.directed and reading.outputs is None:
        logger.warning(
            "%s: %s: edges stand in one direction each, which is not used (edges-are directed "
            "uses it)",
            *(source, edges_name),
        )
    masks = _masks(checks, there) if reading.masks else Masks()
    given = EdgeListGraph(
        name=name,
        edges=edges.ends,
        edge_values=edges.values,
        directed=rules.directed,
        features=features,
        labels=labels,
        kind=reading.labels,
        classes=reading.classes,
        num_classes=num_classes if reading.outputs is None else reading.outputs,
        split=masks,
        attributes={key: as_array(there[key]) for key in attributes},
        may_lack_edges=reading.may_lack_edges,
    )
    names = ArrayNames(
        source=source,
        edges=edges_name,
        features=FEATURES,
        labels=LABELS,
        edge_weights=WEIGHT,
        edge_attributes=ATTRIBUTES,
    )
    return Graph.build(given, names)


def _typed(
    checks: ArrayChecks,
    there: Mapping[str, Any],
    name: str,
    reading: Reading,
    attributes: Sequence[str],
) -> Graph:
    """Return a graph whose arrays say types.

    ``node_type`` [N] are texts, or numbers, of which ``node_type_names`` [T] has the texts;
    ``edge_type`` [E] likewise, where ``edge_type_names`` may also be [R, 3]: source type, name,
    target type. Features are ``x``, or for a type T ``x/T`` with a row for each of its nodes.
    """
    kinds, types = _said(checks, there, NODE_TYPE)
    of_edges, names = _said(checks, there, EDGE_TYPE)
    if kinds is None:
        whole = as_array(there.get(FEATURES, ()))
        count = len(whole) or _num_nodes(checks, there)
        kinds, types = np.zeros(count, dtype=np.int64), ["node"]
    shape_of = {FEATURES: np.empty((len(kinds), 0), dtype=np.float32)}
    edges_name, listed = _listed(checks, {**there, **shape_of}, reading)
    if of_edges is None:
        logger.warning("%s: no %s; relations are called to", checks.source, EDGE_TYPE)
        of_edges, names = np.zeros(listed.ends.shape[1], dtype=np.int64), ["to"]
    if edges_name != EDGES:
        checks.fail(EDGE_TYPE, f"cannot be given with {edges_name}, a matrix; expected {EDGES}")
    checks.form(EDGE_TYPE, of_edges, kinds="iu", shape=(listed.ends.shape[1],))
    labels = _labels(checks, there, reading)
    if labels is not None:
        labels = as_labels(checks, LABELS, labels, reading.labels)
        if len(labels) != len(kinds):
            checks.fail(LABELS, f"has {len(labels)} rows; expected {len(kinds)}")
    times = there.get(TIME)
    given = TypedWhole(
        types=types,
        kinds=kinds,
        features=_features_of_types(checks, there, kinds, types),
        keys=None,
        labels=labels,
        known=known_labels(labels, reading.labels, len(kinds)),
        masks=_masks(checks, {**there, **shape_of}) if reading.masks else Masks(),
        edges=listed,
        names=np.array(names, dtype=np.str_)[of_edges],
        times=None if times is None else as_array(times),
    )
    return typed_whole(
        given, name=name, source=checks.source, reading=reading, attributes=attributes
    )


def _said(
    checks: ArrayChecks, there: Mapping[str, Any], key: str
) -> tuple[np.ndarray | None, list[str]]:
    """Return the numbers of types or relations and their names; None where none is said."""
    if key not in there:
        return None, []
    said = as_array(there[key])
    if said.dtype.kind == "O":
        said = said.astype(np.str_)
    if said.dtype.kind not in "iuU" or said.ndim != 1:
        checks.fail(
            key, f"got {said.dtype} of shape {said.shape}; expected texts or whole numbers [n]"
        )
    if said.dtype.kind == "U":
        texts, first, numbers = np.unique(said, return_index=True, return_inverse=True)
        order = np.argsort(first)
        return np.argsort(order)[numbers], texts[order].tolist()
    listed = f"{key}_names"
    if listed not in there:
        texts = np.unique(said)
        return np.searchsorted(texts, said), list(map(str, texts.tolist()))
    names = as_array(there[listed])
    if names.dtype.kind != "U" or names.shape not in {(len(names),), (len(names), 3)}:
        checks.fail(listed, f"got {names.dtype} of shape {names.shape}; expected names [n]")
    if len(said) and not (said.min() >= 0 and said.max() < len(names)):
        at = int(np.argmax((said < 0) | (said >= len(names))))
        checks.fail(key, f"row {at} is {said[at]}; expected 0 to {len(names) - 1}, as {listed} has")
    return said.astype(np.int64), (names if names.ndim == 1 else names[:, 1]).tolist()


def _features_of_types(
    checks: ArrayChecks, there: Mapping[str, Any], kinds: np.ndarray, types: Sequence[str]
) -> list[Any]:
    """Return the features of each type's nodes; None for a type without any."""
    own = {key: value for key, value in there.items() if key.startswith(OF_TYPE)}
    if unknown := [key for key in own if key.removeprefix(OF_TYPE) not in types]:
        checks.fail(unknown[0], f"is of no type; expected one of {', '.join(types)}")
    if FEATURES not in there:
        return [own.get(f"{OF_TYPE}{name}") for name in types]
    if own:
        checks.fail(FEATURES, f"found together with {min(own)}; expected one of the two")
    features = as_features(checks, FEATURES, there[FEATURES])
    if features.shape[0] != len(kinds):
        checks.fail(FEATURES, f"has {features.shape[0]} rows; expected {len(kinds)}")
    return [features[kinds == kind] for kind in range(len(types))]


def _labels(checks: ArrayChecks, there: Mapping[str, Any], reading: Reading) -> Any:
    """Return the labels that are read; None where there are none, and none are needed."""
    if not reading.labels.are_read:
        return None
    labels = chosen_labels(there, reading.label)
    if labels is None and reading.needs_labels:
        if reading.label:
            checks.fail(LABEL_KEY, f"got {reading.label[:60]!r}; expected {told_choice(there)}")
        _demanded(checks, there, LABELS, reading)
    return labels


def _demanded(checks: ArrayChecks, there: Mapping[str, Any], key: str, reading: Reading) -> Any:
    if key not in there:
        wanted = f"{LABELS}, or task {LINKS.name}" if key == LABELS else key
        found = ", ".join(sorted(map(str, there))[:12]) or "nothing"
        checks.fail(key, f"missing; expected {wanted}; there is: {found}")
    return there[key]


def _masks(checks: ArrayChecks, there: Mapping[str, Any]) -> Masks:
    """Return the masks; those of several splits take the place of those of one, which is theirs."""
    names = SEVERAL_MASKS if any(name in there for name in SEVERAL_MASKS) else MASKS
    found = [as_array(there[name]) if name in there else None for name in names]
    if names == SEVERAL_MASKS:
        for name, mask in zip(names, found, strict=True):
            if mask is not None:
                checks.form(name, mask, kinds="biuf", shape=(None, there[FEATURES].shape[0]))
        found = [None if mask is None else mask.T for mask in found]
    train, val, test = found
    return Masks(train=train, val=val, test=test)


def _num_nodes(checks: ArrayChecks, there: Mapping[str, Any]) -> int:
    """Return how many nodes a graph has without features: by labels, masks, edges, or as it says.

    A number that other arrays contradict is found when these are checked.
    """
    for key in (LABELS, NODE_TYPE, *MASKS, ADJACENCY, TRANSPOSED):
        if key in there:
            shape = getattr(there[key], "shape", None)
            return int(as_array(there[key]).shape[0] if shape is None else shape[0])
    if NUM_NODES in there:
        return int(there[NUM_NODES])
    ends = as_array(there.get(EDGES, ()))
    if not ends.size or ends.dtype.kind not in "iu":
        checks.fail(FEATURES, f"missing; expected it, {LABELS}, or {NUM_NODES}")
    return max(int(ends.max()) + 1, 0)


def _listed(
    checks: ArrayChecks, there: Mapping[str, Any], reading: Reading
) -> tuple[str, EdgeList]:
    """Return the name of the edges, and the edges as they are listed."""
    name = next((key for key in (EDGES, ADJACENCY, TRANSPOSED) if key in there), EDGES)
    matrix = as_csr(there.get(name))
    if matrix is None and name in there and name != EDGES:
        dense = as_numbers(checks, name, there[name])
        checks.form(name, dense, kinds="fiub", shape=(None, None))
        matrix = csr_array(dense)
    if matrix is None:
        if name not in there and reading.may_lack_edges:
            return name, EdgeList(ends=np.zeros((2, 0), dtype=np.int64))
        ends = as_array(_demanded(checks, there, EDGES, reading))
        if not ends.size and ends.dtype.kind == "f":
            ends = ends.astype(np.int64)
        return name, EdgeList(ends=ends, values=_edge_values(checks, there))
    num_nodes = int(there[FEATURES].shape[0])
    if matrix.shape != (num_nodes, num_nodes):
        checks.fail(name, f"got shape {matrix.shape}; expected ({num_nodes}, {num_nodes})")
    if found := [key for key in (WEIGHT, ATTRIBUTES, TIME) if key in there]:
        checks.fail(
            found[0],
            f"cannot be given with {name}, a matrix, whose entries have no such order; expected "
            f"{EDGES}",
        )
    weights = as_numbers(checks, name, matrix.data)
    entries = weights != 0
    placed = matrix.tocoo()
    sources, targets = placed.row, placed.col
    if name == TRANSPOSED:
        sources, targets = targets, sources
    # An entry that is 0 is no edge.
    ends = np.stack((sources, targets)).astype(np.int64)[:, entries]
    # In order of sources, whatever the matrix was; an edge in both directions keeps both.
    order = np.lexsort((ends[1], ends[0]))
    weights = weights[entries][order]
    values = EdgeValues(weights=None if (weights == 1).all() else weights)
    return name, EdgeList(ends=ends[:, order], values=values)


def _edge_values(checks: ArrayChecks, there: Mapping[str, Any]) -> EdgeValues:
    weights, carried = (
        as_numbers(checks, key, there[key]) if key in there else None
        for key in (WEIGHT, ATTRIBUTES)
    )
    if weights is not None and weights.ndim == 2 and weights.shape[1] == 1:
        weights = weights[:, 0]
    return EdgeValues(
        weights=weights,
        attributes=carried[:, None] if carried is not None and carried.ndim == 1 else carried,
    )
