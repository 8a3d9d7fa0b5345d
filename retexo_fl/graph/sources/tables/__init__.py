"""Tables of nodes, edges and boundary edges, as people keep them: CSV, Parquet, ``.npz``."""

from retexo_fl.graph.sources.tables.edges import edge_rows, read_boundary_table, read_edge_table
from retexo_fl.graph.sources.tables.nodes import NodeColumns, read_node_table, read_text_column
from retexo_fl.graph.sources.tables.summarising import ColumnChoice, summarise_table
from retexo_fl.graph.sources.tables.table import BoundaryTable, EdgeTable, NodeTable

__all__ = [
    "BoundaryTable",
    "ColumnChoice",
    "EdgeTable",
    "NodeColumns",
    "NodeTable",
    "edge_rows",
    "read_boundary_table",
    "read_edge_table",
    "read_node_table",
    "read_text_column",
    "summarise_table",
]
