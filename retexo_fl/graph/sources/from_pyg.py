"""PyTorch Geometric's ``Data`` as a graph; neither torch nor PyG is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retexo_fl.graph.graph import Graph
from retexo_fl.graph.labels import CLASSES, labels_for
from retexo_fl.graph.sources.edge_rules import STRICT, EdgeRules
from retexo_fl.graph.sources.from_arrays import (
    EDGES,
    FEATURES,
    LABELS,
    NAMES,
    NUM_NODES,
    from_arrays,
)
from retexo_fl.graph.sources.reading import Reading


def from_pyg(
    data: Any,
    *,
    name: str = "pyg",
    num_classes: int | None = None,
    classes: tuple[str, ...] = (),
    attributes: Sequence[str] = (),
    rules: EdgeRules = STRICT,
    task: str = CLASSES.name,
) -> Graph:
    """Turn a PyG ``Data`` into a graph.

    Args:
        data: Has what :func:`.from_arrays` takes by name, as tensors: ``edge_index`` or ``adj_t``,
            ``x``, ``y``, masks, ``edge_weight``, ``edge_attr``, ``edge_time``.
        name: Name of the graph.
        num_classes: C; None for the classes that are there, which keep their numbers, or texts, as
            names where they do not count from 0.
        classes: Names of the C classes, where labels hold these.
        attributes: Names of [N] integers or lists of text that the graph may be cut by.
        rules: Whether edges have a direction; whether repeated ones are merged and self loops left
            out, or refused.
        task: What ``y`` is for: ``classes``, ``multi-label`` ([N, L] of 0, 1, and -1 or NaN for
            unknown), ``regression`` ([N] numbers, NaN for none), or ``links``, which reads none.

    Returns:
        A graph whose node keys are the decimal node indices. Values of ``x`` are rounded to
        float32.

    Raises:
        DatasetError: Something is missing or not as described; the message names it.
    """
    return read_pyg(
        data,
        name=name,
        num_classes=num_classes,
        attributes=attributes,
        reading=Reading(rules=rules, labels=labels_for(task), classes=classes),
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
    values = {key: getattr(data, key, None) for key in (*sorted(NAMES), *attributes)}
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
