"""Graphs for the tests of this room: one small enough to cut by hand, and arbitrary ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy.sparse import csr_array

from retexo_fl.graph import Graph, GraphPartition, Split, cut_graph

#: Edges of the small graph by key: d-a, a-c, c-b, b-d, a-ab; z has none.
SMALL_EDGES = np.array([[0, 1, 2, 3, 1], [1, 2, 3, 0, 4]])
SMALL_KEYS = np.array([b"d", b"a", b"c", b"b", b"ab", b"z"])
SMALL_LABELS = np.array([0, 1, 0, 1, -1, 0])
#: Row u is (u, 10 u).
SMALL_FEATURES = np.array([[u, 10 * u] for u in range(6)], dtype=np.float32)


def mask(length: int, *nodes: int) -> np.ndarray:
    """Return a mask that is true for ``nodes``."""
    result = np.zeros(length, dtype=bool)
    result[list(nodes)] = True
    return result


SMALL_SPLIT = Split(train=mask(6, 0, 2), val=mask(6, 1), test=mask(6, 3, 5))


def small_graph(**changes: Any) -> Graph:
    """Return the small graph, with some arguments of ``from_edges`` changed."""
    arguments: dict[str, Any] = {
        "name": "small",
        "features": SMALL_FEATURES,
        "labels": SMALL_LABELS,
        "node_keys": SMALL_KEYS,
        "split": SMALL_SPLIT,
    }
    edges = changes.pop("edges", SMALL_EDGES)
    return Graph.from_edges(edges, **{**arguments, **changes})


def small_parts(*, sparse: bool = False) -> list[GraphPartition]:
    """Return the small graph cut in two: {a, d, z} and {ab, b, c}."""
    features = csr_array(SMALL_FEATURES) if sparse else SMALL_FEATURES
    graph = small_graph(features=features)
    return cut_graph(graph, np.array([0, 0, 1, 1, 1, 0]), SMALL_SPLIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutCase:
    """An arbitrary graph and an arbitrary way to cut it."""

    graph: Graph
    assignment: np.ndarray
    split: Split


@st.composite
def cut_cases(draw: st.DrawFn, *, valued: bool = False, directed: bool = False) -> CutCase:
    """Draw graphs of up to 14 nodes with keys in any byte order, over up to as many clients.

    Args:
        draw: Hypothesis's.
        valued: Edges weigh something or have two attributes, or both.
        directed: Edges have a direction, some both.
    """
    count = draw(st.integers(2, 14))
    pairs = [(u, v) for u in range(count) for v in range(count if directed else u) if u != v]
    edges = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    keys = draw(
        st.lists(
            st.binary(min_size=1, max_size=3).map(lambda key: key.rstrip(b"\0") or b"0"),
            min_size=count,
            max_size=count,
            unique=True,
        )
    )
    labels = draw(st.lists(st.integers(-1, 2), min_size=count - 1, max_size=count - 1))
    uses = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    clients = draw(st.integers(1, count))
    others = draw(
        st.lists(st.integers(0, clients - 1), min_size=count - clients, max_size=count - clients)
    )
    values = np.arange(count * 3, dtype=np.float32).reshape(count, 3) % 4
    given: dict[str, Any] = {"directed": directed}
    if valued:
        kinds = draw(st.sampled_from(("weights", "attributes", "both")))
        # Quarters: sums of them have no rounding.
        quarters = np.arange(1.0, len(edges) + 1) / 4
        if kinds != "attributes":
            given["edge_weights"] = quarters
        if kinds != "weights":
            given["edge_attributes"] = np.column_stack((quarters, -quarters))
    graph = Graph.from_edges(
        np.array(edges).T,
        name="drawn",
        features=csr_array(values) if draw(st.booleans()) else values,
        labels=np.array([*labels, 2]),
        num_classes=3,
        node_keys=np.array(keys),
        **given,
    )
    usable = np.where(graph.labels >= 0, uses, 3)
    return CutCase(
        graph=graph,
        assignment=np.array(draw(st.permutations([*range(clients), *others]))),
        split=Split(train=usable == 0, val=usable == 1, test=usable == 2),
    )
