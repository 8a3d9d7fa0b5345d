"""Edge lists as other libraries keep them, brought to undirected edges, each once."""

from __future__ import annotations

import logging

import numpy as np

from retexo_fl.graph.checks import ArrayChecks

logger = logging.getLogger(__name__)

_HOW = "expected each edge once, or once in each direction"


def undirected_edges(
    checks: ArrayChecks, name: str, edges: np.ndarray, *, num_nodes: int, simplify: bool
) -> np.ndarray:
    """Return each undirected edge once.

    Args:
        checks: Names the source in errors.
        name: Of the list.
        edges: [2, E] integers: every edge in both directions, or every edge in one.
        num_nodes: N; numbers that are not below it are left for the checks of a graph.
        simplify: Take any list: without self loops, repeated edges once, and a single direction as
            an edge. What that changed is logged. Otherwise such a list is refused.
    """
    checks.form(name, edges, kinds="iu", shape=(2, None))
    edges = edges.astype(np.int64)
    if not edges.size or edges.min() < 0 or edges.max() >= num_nodes:
        return edges
    loops = edges[0] == edges[1]
    if loops.any() and not simplify:
        at = int(loops.argmax())
        more = _others(int(np.count_nonzero(loops)))
        checks.fail(
            name,
            f"column {at} is {_pair(edges, at)}, a self loop{more}; expected none, or "
            "simplify=True to leave them out",
        )
    if simplify:
        return _simplified(checks.source, edges, loops, num_nodes)
    codes = edges[0] * num_nodes + edges[1]
    one_way = ~np.isin(codes, edges[1] * num_nodes + edges[0])
    _check_once(checks, name, edges, codes)
    if one_way.all():
        return edges
    if one_way.any():
        at = int(one_way.argmax())
        more = _others(int(np.count_nonzero(one_way)))
        checks.fail(
            name,
            f"column {at} is {_pair(edges, at)} without its other direction{more}, while other "
            f"edges have both: a directed graph; {_HOW}, or simplify=True to take any direction "
            "as an edge",
        )
    return edges[:, edges[0] < edges[1]]


def _check_once(checks: ArrayChecks, name: str, edges: np.ndarray, codes: np.ndarray) -> None:
    order = np.argsort(codes, kind="stable")
    again = np.flatnonzero(codes[order][1:] == codes[order][:-1])
    if len(again):
        first, second = order[again[0]], order[again[0] + 1]
        checks.fail(
            name,
            f"columns {first} and {second} are both {_pair(edges, int(first))}"
            f"{_others(len(again))}; {_HOW}, or simplify=True to take it once",
        )


def _simplified(source: str, edges: np.ndarray, loops: np.ndarray, num_nodes: int) -> np.ndarray:
    kept = edges[:, ~loops]
    directed = np.unique(kept[0] * num_nodes + kept[1])
    codes = np.unique(kept.min(axis=0) * num_nodes + kept.max(axis=0))
    in_both = len(directed) - len(codes)
    changes = {
        "self loops left out": int(np.count_nonzero(loops)),
        "repetitions left out": kept.shape[1] - len(directed),
        "edges taken that have one direction only": (len(codes) - in_both) if in_both else 0,
    }
    told = ", ".join(f"{what}: {count:,}" for what, count in changes.items() if count)
    if told:
        logger.warning("%s: %s", source, told)
    return np.stack((codes // num_nodes, codes % num_nodes))


def _others(count: int) -> str:
    return f", one of {count:,}" if count > 1 else ""


def _pair(edges: np.ndarray, at: int) -> str:
    return f"({edges[0, at]}, {edges[1, at]})"
