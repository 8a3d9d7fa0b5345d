"""Distinct undirected edges of a degree-corrected stochastic block model.

Nodes are numbered class by class here, and within a class from the largest expected degree to the
smallest. An edge is one number, ``smaller end * N + larger end``, so that distinct edges are
distinct numbers.

Source: Karrer, Newman, "Stochastic blockmodels and community structure in networks" (Physical
Review E 83, 2011), section II. Here the numbers of edges within and between classes are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from retexo_fl.graph.seeding import seeded_generator
from retexo_fl.graph.sources.synthetic.degrees import PowerLaw
from retexo_fl.graph.sources.synthetic.spec import SyntheticSpec

#: Edges drawn in one go: scratch of some hundred megabytes. Chosen; not tuned. Another number
#: would draw another graph from the same seed.
_CHUNK_EDGES: Final = 2**22
#: Drawn beyond what is missing, so that duplicates seldom need another pass.
_SURPLUS: Final = 1.05

#: Draws so many edges, of which some may be equal or loops (-1).
_Draw = Callable[[int], np.ndarray]


def class_starts(spec: SyntheticSpec) -> np.ndarray:
    """Return the [C + 1] first node of each class, in sizes that differ by at most one."""
    return np.arange(spec.classes + 1, dtype=np.int64) * spec.nodes // spec.classes


def edge_numbers(spec: SyntheticSpec) -> np.ndarray:
    """Return the [E] int64 numbers of the edges; distinct, without loops, in no special order."""
    generator = seeded_generator(spec.seed, "synthetic edges")
    law = PowerLaw.of(spec)
    starts = class_starts(spec)
    numbers = np.empty(spec.edges, dtype=np.int64)
    within = round(spec.edges * spec.homophily)
    shares = within * np.arange(spec.classes + 1) // spec.classes
    for one in range(spec.classes):
        draw = _within(spec, law, generator, int(starts[one]), int(starts[one + 1]))
        numbers[shares[one] : shares[one + 1]] = _distinct(
            int(shares[one + 1] - shares[one]), draw, generator
        )
    numbers[within:] = _distinct(
        spec.edges - within, _between(spec, law, generator, starts), generator
    )
    return numbers


def _within(
    spec: SyntheticSpec, law: PowerLaw, generator: np.random.Generator, start: int, stop: int
) -> _Draw:
    def draw(count: int) -> np.ndarray:
        ends = [law.ranks(generator.random(count), stop - start) for _ in range(2)]
        return _numbers(ends[0], ends[1], spec.nodes, start)

    return draw


def _between(
    spec: SyntheticSpec, law: PowerLaw, generator: np.random.Generator, starts: np.ndarray
) -> _Draw:
    sizes = np.diff(starts)

    def draw(count: int) -> np.ndarray:
        first = generator.integers(0, spec.classes, count, dtype=np.int32)
        # Any of the others with equal chance.
        second = generator.integers(0, spec.classes - 1, count, dtype=np.int32)
        second += second >= first
        ends = []
        for classes in (first, second):
            ranks = law.ranks(generator.random(count), sizes[classes])
            ends.append((ranks + starts[classes]).astype(np.int32))
        return _numbers(ends[0], ends[1], spec.nodes, 0)

    return draw


def _numbers(one: np.ndarray, other: np.ndarray, num_nodes: int, start: int) -> np.ndarray:
    """Return the [k] int64 numbers of edges between nodes counted from ``start``; a loop is -1."""
    numbers: np.ndarray = np.minimum(one, other).astype(np.int64)
    numbers += start
    numbers *= num_nodes
    numbers += np.maximum(one, other)
    numbers += start
    numbers[one == other] = -1
    return numbers


def _distinct(count: int, draw: _Draw, generator: np.random.Generator) -> np.ndarray:
    """Draw until there are ``count`` different edges; what is too many goes at random."""
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        missing = int((count - len(found)) * _SURPLUS) + 16
        chunks = [min(_CHUNK_EDGES, missing - done) for done in range(0, missing, _CHUNK_EDGES)]
        drawn = [found]
        for chunk in chunks:
            drawn.append(draw(chunk))
        found = np.concatenate(drawn)
        del drawn
        found = _unique(found)
    surplus = generator.choice(len(found), len(found) - count, replace=False)
    return np.delete(found, surplus)


def _unique(numbers: np.ndarray) -> np.ndarray:
    """Return different numbers from 0, ascending; sorts in place."""
    numbers.sort()
    new = np.empty(len(numbers), dtype=bool)
    new[:1] = True
    np.not_equal(numbers[1:], numbers[:-1], out=new[1:])
    new &= numbers >= 0
    return numbers[new]
