"""What knows nothing but degrees, or sides, makes of test edges: beside it a model is judged.

Popular nodes have most edges, and of a bipartite graph half of all pairs can have none, so the
product of the two degrees, or the side alone, may rank test edges high where there is no other
signal. Both need every client's degrees, which do not cross: they are computed where one process
has all parts, on the edges that layers read, and nowhere else.

Symbols: N nodes of all parts, n test pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import rankdata

from retexo_fl.config import RunConfig
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.training.link_split import LinkSplit
from retexo_fl.training.metrics import NodeRanking, metric_sums
from retexo_fl.training.recipe import Recipe

#: Pairs that are ranked at once.
_MOST_VALUES: Final = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBaselines:
    """ROC AUC of test edges beside as many pairs without one, drawn as clients draw them.

    Attributes:
        degrees: Of the product of the two degrees, of a graph with types in the relation; where
            edges have directions, of those that leave the source and those that reach the target.
        sides: Of whether the two nodes are on different sides; None where the graph is not
            bipartite, has no cycle, or has types, of whose relation all pairs are.
        ranked: The run's own metric where nodes rank others, here by their degrees; else None.
    """

    degrees: float
    sides: float | None
    ranked: float | None = None


def link_baselines(parts: Sequence[GraphPartition], config: RunConfig) -> LinkBaselines | None:
    """Judge test edges by degrees, and by sides of a bipartite graph; None without test edges.

    Args:
        parts: Of all clients.
        config: Of a training on edges; its seed and split say which edges test.
    """
    hashes = np.concatenate([np.asarray(part.node_hashes) for part in parts])
    order = np.argsort(hashes)
    ordered = hashes[order]
    firsts, seconds, begin, is_edge = [], [], [], []
    rows, columns = [], []
    # By those that begin at a node, and those that end there.
    degrees = np.zeros((2, len(hashes)), dtype=np.int64)
    splits = [LinkSplit.asked(part, config) for part in parts]
    ranked = []
    for part, split in zip(parts, splits, strict=True):
        known = np.concatenate((np.asarray(part.node_hashes), np.asarray(part.boundary_hashes)))
        places = order[np.searchsorted(ordered, known)]
        ranked.append((split, places))
        degrees[:, places[: part.num_inner]] = split.unseen.degrees()
        rows.append(np.repeat(places[: part.num_inner], np.diff(part.indptr)))
        columns.append(places[np.asarray(part.indices, np.int64)])
        pairs = split.pairs["test"]
        if not len(pairs) or split.known.is_empty:
            continue
        # As a client draws what it judges against.
        ones, others = split.known.draw(pairs.keys, 1, f"{config.seed}/test")
        for first in (pairs.first, ones[:, 0]):
            firsts.append(places[first % part.num_inner])
            begin.append(first < part.num_inner)
        seconds += [places[pairs.second], places[others[:, 0]]]
        is_edge += [np.ones(len(pairs), dtype=bool), np.zeros(len(pairs), dtype=bool)]
    if not is_edge:
        return None
    every = (firsts, seconds, begin, is_edge)
    first, second, begins, truth = (np.concatenate(each) for each in every)
    sides = None
    if parts[0].relations is None:
        sides = _sides(np.concatenate(rows), np.concatenate(columns), len(hashes))
    return LinkBaselines(
        degrees=_auc(degrees[1 - begins, first] * degrees[1 * begins, second], truth),
        sides=None if sides is None else _auc(_may_have_edge(sides, first, second), truth),
        ranked=_ranked(config, ranked, degrees[1]),
    )


def _ranked(
    config: RunConfig, parts: Sequence[tuple[LinkSplit, np.ndarray]], degrees: np.ndarray
) -> float | None:
    """Return the run's metric where nodes rank others, by their degrees alone.

    Args:
        config: Of the run.
        parts: Edges of each client, and the (N + B,) places of its nodes.
        degrees: Of all nodes, by edges that reach them.
    """
    metric = Recipe.of(config).metric
    if not isinstance(metric, NodeRanking):
        return None
    total = np.zeros(metric.length(1))
    for split, places in parts:
        for one in split.rankings("test", _MOST_VALUES):
            scores = np.broadcast_to(degrees[places[one.others]], one.labels.shape)
            labels = torch.from_numpy(one.labels)
            total += metric_sums(metric, torch.from_numpy(scores.astype(float)), labels)
    return metric.value(total)


def _may_have_edge(sides: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return whether two nodes of one component are on different sides of it."""
    found: np.ndarray = sides[0, first] == sides[1, second]
    return found


def _sides(rows: np.ndarray, columns: np.ndarray, nodes: int) -> np.ndarray | None:
    """Return [2, N] names of each node's own and other side; None where there are no two sides.

    In the double cover of a graph, where (u, 0) and (v, 1) are joined for each edge uv, a component
    of the graph falls in two where it is bipartite, and stays in one where it has an odd cycle.

    Args:
        rows: [e] one end of each edge, in both of its directions.
        columns: [e] the other end.
        nodes: N.
    """
    ones = np.ones(len(rows), dtype=np.int8)
    graph = coo_array((ones, (rows, columns)), shape=(nodes, nodes)).tocsr()
    cover = coo_array((ones, (rows, columns + nodes)), shape=(2 * nodes, 2 * nodes)).tocsr()
    count, _ = connected_components(graph, directed=False)
    doubled, names = connected_components(cover, directed=False)
    # A forest has two sides too, which mean nothing.
    if doubled != 2 * count or len(rows) // 2 <= nodes - count:
        return None
    sides: np.ndarray = names.reshape(2, nodes)
    return sides


def _auc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Return the share of pairs of a true and a false score in which the true one is higher.

    Equal ones count half (Mann and Whitney).
    """
    true = int(np.count_nonzero(truth))
    false = len(truth) - true
    above = rankdata(scores)[truth].sum() - true * (true + 1) / 2
    return float(above / (true * false))
