"""Graphs, their partitions, and what neighbouring clients exchange."""

from retexo_fl.graph.features import Features, normalise_features
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.keys import hash_keys
from retexo_fl.graph.masks import Split
from retexo_fl.graph.partitioners import assign_nodes
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
from retexo_fl.graph.sources.dataset_list import DatasetInfo, list_datasets
from retexo_fl.graph.sources.datasets import load_dataset
from retexo_fl.graph.sources.edge_rules import EdgeRules
from retexo_fl.graph.sources.from_networkx import from_networkx
from retexo_fl.graph.sources.from_pyg import from_pyg
from retexo_fl.graph.splits import make_split

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
