"""PyTorch Geometric's ``Data`` and ``HeteroData`` as a graph; neither torch nor PyG is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.labels import CLASSES, labels_for
from retexo_fl.graph.masks import Masks
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.sources.edge_rules import STRICT, EdgeList, EdgeRules
from retexo_fl.graph.sources.foreign import as_array, as_csr, as_numbers
from retexo_fl.graph.sources.from_arrays import (
    ATTRIBUTES,
    EDGE_TYPE,
    EDGES,
    FEATURES,
    MASKS,
    NAMES,
    NODE_TYPE,
    NUM_NODES,
    TIME,
    TRANSPOSED,
    WEIGHT,
    from_arrays,
)
from retexo_fl.graph.sources.label_choice import LABEL_NAMES, LABELS, chosen_labels
from retexo_fl.graph.sources.reading import Reading
from retexo_fl.graph.sources.typed import TYPE, TypedEdges, TypedNodes, typed_graph

#: Keys of a mapping that a typed graph may be.
NODES: Final = "nodes"
RELATIONS: Final = "edges"


def from_pyg(  # noqa: PLR0913 - a store has so many arrays
    data: Any,
    *,
    name: str = "pyg",
    num_classes: int | None = None,
    classes: tuple[str, ...] = (),
    attributes: Sequence[str] = (),
    rules: EdgeRules = STRICT,
    task: str = CLASSES.name,
    types: bool = False,
) -> Graph:
    """Turn a PyG ``Data`` or ``HeteroData`` into a graph.

    Args:
        data: A ``Data`` has what :func:`.from_arrays` takes by name, as tensors: ``edge_index`` or
            ``adj_t``, ``x``, ``y``, masks, ``edge_weight``, ``edge_attr``, ``edge_time``. Of a
            ``HeteroData`` each type of nodes has ``x``, or ``num_nodes``, and one of them ``y`` and
            masks; each relation has ``edge_index`` or ``adj_t``, and maybe ``edge_weight`` and
            ``edge_time`` (:func:`.typed_graph`). A mapping of its stores is taken, too.
        name: Name of the graph.
        num_classes: C; None for the classes that are there, which keep their numbers, or texts, as
            names where they do not count from 0.
        classes: Names of the C classes, where labels hold these.
        attributes: Names of [N] integers or lists of text that the graph may be cut by.
        rules: Whether edges have a direction; whether repeated ones are merged and self loops left
            out, or refused.
        task: What ``y`` is for: ``classes``, ``multi-label`` ([N, L] of 0, 1, and -1 or NaN for
            unknown), ``regression`` ([N] numbers, NaN for none), or ``links``, which reads none.
        types: Read ``node_type`` and ``edge_type`` of a ``Data``, as ``to_homogeneous`` leaves
            them with their names.

    Returns:
        A graph whose node keys are the decimal node indices. Values of ``x`` are rounded to
        float32.

    Raises:
        DatasetError: Something is missing or not as described; the message names it.
    """
    read = read_typed if is_typed(data) else read_pyg
    return read(
        data,
        name=name,
        num_classes=num_classes,
        attributes=attributes,
        reading=Reading(
            rules=rules, labels=labels_for(task), classes=classes, types=TYPE if types else ""
        ),
    )


def read_pyg(
    data: Any,
    *,
    name: str,
    attributes: Sequence[str],
    reading: Reading,
    num_classes: int | None = None,
) -> Graph:
    """Turn a PyG ``Data`` into a graph, as :func:`from_pyg` does."""
    names = (*sorted(NAMES), LABEL_NAMES, *filter(None, (reading.label,)), *attributes)
    values = {key: getattr(data, key, None) for key in names}
    for key in (NODE_TYPE, EDGE_TYPE):
        values[key] = getattr(data, key, None)
        # As PyG calls them.
        values[f"{key}_names"] = getattr(data, f"_{key}_names", None)
    if values[FEATURES] is None and values[LABELS] is None and values[EDGES] is not None:
        # Else PyG may guess it, and say so.
        values[NUM_NODES] = getattr(data, NUM_NODES, None)
    return from_arrays(
        values,
        name=name,
        num_classes=num_classes,
        attributes=attributes,
        reading=reading,
        tells_direction=True,
    )


def is_typed(made: object) -> bool:
    """Return whether an object is a PyG ``HeteroData``, or a mapping of stores of one."""
    if isinstance(made, Mapping):
        return made.keys() == {NODES, RELATIONS}
    return hasattr(made, "node_types") and hasattr(made, "edge_types")


def read_typed(
    data: Any,
    *,
    name: str,
    attributes: Sequence[str],
    reading: Reading,
    num_classes: int | None = None,
) -> Graph:
    """Turn a PyG ``HeteroData`` into a graph, or a mapping of what it has.

    Args:
        data: A ``HeteroData``; or ``nodes``, by type what it has by name, and ``edges``, by source,
            relation and target likewise, or an ``edge_index`` alone.
        name: Name of the graph.
        attributes: What the graph may be cut by: ``type``.
        reading: How it is read.
        num_classes: C; None for the classes that are there.
    """
    if isinstance(data, Mapping):
        nodes, edges = data[NODES], data[RELATIONS]
    else:
        nodes = {kind: data[kind] for kind in data.node_types}
        edges = {kind: data[kind] for kind in data.edge_types}
    return typed_graph(
        [
            _typed_nodes(kind, _named(store, FEATURES), reading.label)
            for kind, store in nodes.items()
        ],
        [_typed_edges(name, kind, _named(store, EDGES)) for kind, store in edges.items()],
        name=name,
        reading=reading,
        num_classes=num_classes,
        attributes=attributes,
    )


def _named(store: Any, alone: str) -> Mapping[str, Any]:
    """Return what a store holds by name; an array by itself gets the name ``alone``."""
    if hasattr(store, "to_dict"):
        store = {"num_nodes": getattr(store, "num_nodes", None), **store.to_dict()}
    return store if isinstance(store, Mapping) else {alone: store}


def _typed_nodes(kind: str, store: Mapping[str, Any], label: str) -> TypedNodes:
    train, val, test = (None if store.get(key) is None else as_array(store[key]) for key in MASKS)
    count = store.get("num_nodes")
    return TypedNodes(
        name=str(kind),
        count=None if count is None else int(count),
        features=store.get(FEATURES),
        labels=chosen_labels(store, label),
        masks=Masks(train=train, val=val, test=test),
    )


def _typed_edges(name: str, kind: Any, store: Mapping[str, Any]) -> TypedEdges:
    checks = ArrayChecks(source=name, error=DatasetError)
    if not isinstance(kind, tuple) or len(kind) != 3:
        checks.fail("edges", f"got {str(kind)[:60]!r}; expected (source type, name, target type)")
    source, relation, target = map(str, kind)
    called = f"relation {source} {relation} {target}"
    ends = store.get(EDGES)
    if ends is None and (matrix := as_csr(store.get(TRANSPOSED))) is not None:
        placed = matrix.tocoo()
        ends = np.stack((placed.col, placed.row))
    if ends is None:
        checks.fail(called, f"{EDGES} is missing; expected it, or {TRANSPOSED}")
    ends = as_array(ends)
    values = {
        key: None if store.get(key) is None else as_numbers(checks, f"{called}: {key}", store[key])
        for key in (WEIGHT, ATTRIBUTES)
    }
    for key, found in values.items():
        if found is not None and ends.ndim == 2 and len(found) != ends.shape[1]:
            checks.fail(called, f"has {ends.shape[1]} edges and {len(found)} {key}")
    weights, carried, times = values[WEIGHT], values[ATTRIBUTES], store.get(TIME)
    return TypedEdges(
        source=source,
        name=relation,
        target=target,
        edges=EdgeList(
            ends=ends,
            values=EdgeValues(
                weights=None if weights is None else weights.reshape(-1),
                attributes=None if carried is None else carried.reshape(len(carried), -1),
            ),
        ),
        times=None if times is None else as_array(times),
    )
