"""Samplers written for clarity: rows as lists, draws by ``random.sample``, no keys."""

from __future__ import annotations

from random import Random

from retexo_fl.additions.devices.sampling import Adjacency

#: For each layer, input layer first: the picked neighbours of each target.
Picks = list[dict[int, frozenset[int]]]


def rows_of(adjacency: Adjacency) -> list[list[int]]:
    """Return the neighbours of each node."""
    bounds = zip(adjacency.indptr[:-1], adjacency.indptr[1:], strict=True)
    return [adjacency.indices[start:stop].tolist() for start, stop in bounds]


def some_of(row: list[int], fanout: int, random: Random) -> list[int]:
    """Return ``fanout`` of a row, or all of it."""
    return random.sample(row, min(fanout, len(row)))


def neighbour_picks(
    rows: list[list[int]], roots: list[int], fanouts: list[int], random: Random
) -> Picks:
    """Draw as ``NeighbourSampler`` does: every source of a layer is a target of the next."""
    targets, layers = list(roots), []
    for fanout in fanouts:
        picks = {target: some_of(rows[target], fanout, random) for target in targets}
        layers.append({target: frozenset(picked) for target, picked in picks.items()})
        for picked in picks.values():
            targets += [node for node in picked if node not in targets]
    return layers[::-1]


def scope(rows: list[list[int]], root: int, fanouts: list[int], random: Random) -> list[int]:
    """Draw a root's scope as ``ShadowSampler`` does: each hop from what the last one found."""
    nodes, frontier = [root], [root]
    for fanout in fanouts:
        found: list[int] = []
        for node in frontier:
            picked = some_of(rows[node], fanout, random)
            found += [other for other in picked if other not in nodes + found]
        nodes += found
        frontier = found
    return nodes


def ball(rows: list[list[int]], root: int, hops: int) -> set[int]:
    """Return the nodes from which the root is reached in so many hops or fewer."""
    found = {root}
    for _ in range(hops):
        found |= {other for node in found for other in rows[node]}
    return found


def induced(rows: list[list[int]], nodes: list[int]) -> list[list[int]]:
    """Return for each of some nodes its neighbours among them, ascending."""
    return [[other for other in rows[node] if other in nodes] for node in nodes]
