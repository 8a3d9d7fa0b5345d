"""PyTorch Geometric's ``Data`` as a graph; neither torch nor PyG is imported here."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.graph import ArrayNames, EdgeListGraph, Graph, Split
from retexo_fl.graph.labels import CLASSES
from retexo_fl.graph.neighbours import EdgeValues
from retexo_fl.graph.sources.attributes import demand_attributes
from retexo_fl.graph.sources.edge_rules import (
    STRICT,
    EdgeList,
    EdgeRules,
    early_edges,
    ruled_edges,
)
from retexo_fl.graph.sources.foreign import as_array, as_features, as_labels
from retexo_fl.units import counted

logger = logging.getLogger(__name__)

_MASKS: Final = ("train_mask", "val_mask", "test_mask")
#: Numbers of edges: their weights, and their attributes.
_WEIGHT: Final = "edge_weight"
_ATTRIBUTES: Final = "edge_attr"
_TIME: Final = "edge_time"


def from_pyg(  # noqa: PLR0913 - so much may be chosen
    data: Any,
    *,
    name: str = "pyg",
    num_classes: int | None = None,
    classes: tuple[str, ...] = (),
    mask_column: int | None = None,
    attributes: Sequence[str] = (),
    rules: EdgeRules = STRICT,
    task: str = CLASSES,
) -> Graph:
    """Turn a PyG ``Data`` into a graph.

    Args:
        data: Has ``edge_index`` [2, E], ``x`` [N, F] (dense or sparse) and ``y`` [N]; and
            ``train_mask``, ``val_mask``, ``test_mask`` [N], all three or none. Of undirected edges
            every one may stand in both directions, as PyG has it, or every one once. With
            ``edge_weight`` [E] edges have weights, with ``edge_attr`` [E] or [E, A] attributes,
            with ``edge_time`` [E] times.
        name: Name of the graph.
        num_classes: C; None for the classes that are there, which keep their numbers as names
            where they do not count from 0.
        classes: Names of the C classes, where labels hold these.
        mask_column: Which of several splits to take where masks are [N, S].
        attributes: Names of [N] integers or lists of text that the graph may be cut by.
        rules: Whether edges have a direction; whether repeated ones are merged and self loops left
            out, or refused.
        task: What ``y`` is for: ``classes``, ``multi-label`` ([N, L] of 0, 1, and -1 or NaN for
            unknown) or ``regression`` ([N] numbers, NaN for none).

    Returns:
        A graph whose node keys are the decimal node indices. Values of ``x`` are rounded to
        float32.

    Raises:
        DatasetError: Something is missing or not as described; the message names it.
    """
    checks = ArrayChecks(source=name, error=DatasetError)
    found = {key: _demand(checks, data, key) for key in ("edge_index", "x", "y")}
    labels = as_labels(checks, "y", found["y"], task)
    there = {key: getattr(data, key, None) for key in attributes}
    demand_attributes(name, {key for key, value in there.items() if value is not None}, attributes)
    listed = EdgeList(ends=as_array(found["edge_index"]), values=_edge_values(data))
    times = getattr(data, _TIME, None)
    early = early_edges(name, _TIME, None if times is None else as_array(times), rules)
    if early is not None:
        checks.form(_TIME, early, kinds="b", shape=(listed.ends.shape[1],))
        listed = listed.taken(early)
    edges = ruled_edges(
        checks, "edge_index", listed, num_nodes=len(labels), rules=rules, has_order=True
    )
    if not rules.directed and edges.ends.shape == listed.ends.shape:
        logger.warning(
            "%s: edge_index: edges stand in one direction each, which is not used (edges-are "
            "directed uses it)",
            name,
        )
    given = EdgeListGraph(
        name=name,
        edges=edges.ends,
        edge_values=edges.values,
        directed=rules.directed,
        features=as_features(checks, "x", found["x"]),
        labels=labels,
        num_classes=num_classes,
        classes=classes,
        split=_split(checks, data, mask_column),
        attributes={key: as_array(value) for key, value in there.items()},
    )
    names = ArrayNames(
        source=name,
        edges="edge_index",
        features="x",
        labels="y",
        edge_weights=_WEIGHT,
        edge_attributes=_ATTRIBUTES,
    )
    return Graph.build(given, names)


def _edge_values(data: Any) -> EdgeValues:
    weights, attributes = (getattr(data, key, None) for key in (_WEIGHT, _ATTRIBUTES))
    carried = None if attributes is None else as_array(attributes)
    return EdgeValues(
        weights=None if weights is None else as_array(weights),
        attributes=carried[:, None] if carried is not None and carried.ndim == 1 else carried,
    )


def _demand(checks: ArrayChecks, data: Any, key: str) -> Any:
    value = getattr(data, key, None)
    if value is None:
        checks.fail(
            key, f"{type(data).__name__} has none; expected a PyG Data with edge_index, x and y"
        )
    return value


def _split(checks: ArrayChecks, data: Any, column: int | None) -> Split | None:
    masks = {key: getattr(data, key, None) for key in _MASKS}
    missing = [key for key, mask in masks.items() if mask is None]
    if len(missing) == len(masks):
        return None
    if missing:
        there = next(key for key in masks if key not in missing)
        checks.fail(missing[0], f"missing; expected it beside {there}")
    train, val, test = (_mask(checks, key, as_array(mask), column) for key, mask in masks.items())
    return Split(train=train, val=val, test=test)


def _mask(checks: ArrayChecks, key: str, mask: np.ndarray, column: int | None) -> np.ndarray:
    if mask.ndim != 2:
        return mask
    if column is None or not 0 <= column < mask.shape[1]:
        checks.fail(
            key,
            f"holds {counted(mask.shape[1], 'split')}; expected mask_column, 0 to "
            f"{mask.shape[1] - 1}, to choose one",
        )
    chosen: np.ndarray = mask[:, column]
    return chosen
