"""A whole synthetic graph from its text."""

from __future__ import annotations

import numpy as np

from retexo_fl.errors import DatasetError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.seeding import seeded_generator
from retexo_fl.graph.sources.synthetic.edges import class_starts, edge_numbers
from retexo_fl.graph.sources.synthetic.features import make_features
from retexo_fl.graph.sources.synthetic.spec import SyntheticSpec, parse_synthetic
from retexo_fl.units import counted


def make_synthetic(name: str) -> Graph:
    """Make the graph that a name asks for; the same bits for the same name.

    The classes have equally many nodes, to one. Degrees follow a power law, the same in each class.
    Of E edges, ``round(E * homophily)`` join nodes of one class. Node indices carry no information.

    Args:
        name: See :func:`~retexo_fl.graph.sources.synthetic.spec.parse_synthetic`.

    Raises:
        DatasetError: The name asks for what is not possible, or for more than memory holds.
    """
    spec = parse_synthetic(name)
    try:
        return _graph(name, spec)
    except MemoryError as error:
        raise DatasetError(
            f"{name}: {counted(spec.edges, 'edge')} and {spec.nodes} x "
            f"{counted(spec.features, 'feature')} do not fit "
            "into memory; ask for fewer"
        ) from error


def _graph(name: str, spec: SyntheticSpec) -> Graph:
    # Nodes are drawn class by class and by degree; here each gets its final place.
    place = seeded_generator(spec.seed, "synthetic places").permutation(spec.nodes)
    place = place.astype(np.int32)
    labels = np.empty(spec.nodes, dtype=np.int32)
    labels[place] = np.repeat(np.arange(spec.classes, dtype=np.int32), np.diff(class_starts(spec)))
    return Graph.from_edges(
        _edges(spec, place),
        name=name,
        features=make_features(spec, labels),
        labels=labels,
        num_classes=spec.classes,
    )


def _edges(spec: SyntheticSpec, place: np.ndarray) -> np.ndarray:
    """Return the [2, E] int32 edges between final places."""
    numbers = edge_numbers(spec)
    edges = np.empty((2, spec.edges), dtype=np.int32)
    edges[0] = place[numbers // spec.nodes]
    numbers %= spec.nodes
    edges[1] = place[numbers]
    return edges
