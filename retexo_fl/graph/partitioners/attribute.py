"""One client for each value of an attribute: the graph as its owners hold it."""

from __future__ import annotations

import numpy as np

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.sources.attributes import demand_attributes


def assign_by_attribute(graph: Graph, attribute: str, clients: int) -> np.ndarray:
    """Give the nodes of each value to a client of their own; clients ascend by value, as bytes.

    Args:
        graph: With the attribute.
        attribute: Its name.
        clients: The number of different values.

    Raises:
        DatasetError: The graph has no such attribute.
        ConfigurationError: There are more or fewer values than clients.
    """
    demand_attributes(f"data set {graph.name!r}", graph.attributes, (attribute,))
    values, assignment = np.unique(graph.attributes[attribute], return_inverse=True)
    if clients != len(values):
        raise ConfigurationError(
            f"clients: got {clients}; expected {len(values)}, one for each value of the attribute "
            f"{attribute!r} of data set {graph.name!r}"
        )
    return assignment
