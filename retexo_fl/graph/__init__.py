"""Graphs, their partitions, and what neighbouring clients exchange.

What reads whole graphs and assigns their nodes is imported when it is asked for: a client has its
part, and needs neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from retexo_fl.graph.features import Features, normalise_features
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.keys import hash_keys
from retexo_fl.graph.masks import Split
from retexo_fl.graph.parts.agreement import PartitionsReport, PartReport, check_partitions
from retexo_fl.graph.parts.cutting import cut_graph
from retexo_fl.graph.parts.partition import GraphPartition, check_partition
from retexo_fl.graph.parts.storage import (
    find_partitions,
    open_partition,
    write_partition,
    write_partitions,
)
from retexo_fl.graph.plan.boundary import PLAN_KINDS, BoundaryPlan
from retexo_fl.graph.plan.vectors import IncomingVectors, OutgoingVectors, PeerPlan
from retexo_fl.graph.splits import make_split

if TYPE_CHECKING:
    from retexo_fl.graph.partitioners import assign_nodes
    from retexo_fl.graph.sources.dataset_list import DatasetInfo, list_datasets
    from retexo_fl.graph.sources.datasets import load_dataset
    from retexo_fl.graph.sources.edge_rules import EdgeRules
    from retexo_fl.graph.sources.from_networkx import from_networkx
    from retexo_fl.graph.sources.from_pyg import from_pyg

__all__ = [
    "PLAN_KINDS",
    "BoundaryPlan",
    "DatasetInfo",
    "EdgeRules",
    "Features",
    "Graph",
    "GraphPartition",
    "IncomingVectors",
    "OutgoingVectors",
    "PartReport",
    "PartitionsReport",
    "PeerPlan",
    "Split",
    "assign_nodes",
    "check_partition",
    "check_partitions",
    "cut_graph",
    "find_partitions",
    "from_networkx",
    "from_pyg",
    "hash_keys",
    "list_datasets",
    "load_dataset",
    "make_split",
    "normalise_features",
    "open_partition",
    "write_partition",
    "write_partitions",
]

_HOMES = {
    "DatasetInfo": "sources.dataset_list",
    "EdgeRules": "sources.edge_rules",
    "assign_nodes": "partitioners",
    "from_networkx": "sources.from_networkx",
    "from_pyg": "sources.from_pyg",
    "list_datasets": "sources.dataset_list",
    "load_dataset": "sources.datasets",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
