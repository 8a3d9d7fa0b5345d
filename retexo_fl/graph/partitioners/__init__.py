"""Ways to assign nodes to clients."""

from retexo_fl.graph.partitioners.dispatch import assign_nodes

__all__ = ["assign_nodes"]
