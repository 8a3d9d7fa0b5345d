"""Tables of nodes, edges and boundary edges, as people keep them: CSV, Parquet, ``.npz``."""

from retexo_fl.graph.sources.tables.edges import edge_rows, read_boundary_table, read_edge_table
from retexo_fl.graph.sources.tables.frame_source import (
    AnyTable,
    FrameSource,
    is_frame,
    tables_of,
)
from retexo_fl.graph.sources.tables.nodes import NodeColumns, read_node_table, read_text_column
from retexo_fl.graph.sources.tables.query import Query
from retexo_fl.graph.sources.tables.summarising import (
    ColumnChoice,
    choices_by_table,
    summarise_table,
)
from retexo_fl.graph.sources.tables.table import BoundaryTable, EdgeTable, NodeTable

__all__ = [
    "AnyTable",
    "BoundaryTable",
    "ColumnChoice",
    "EdgeTable",
    "FrameSource",
    "NodeColumns",
    "NodeTable",
    "Query",
    "choices_by_table",
    "edge_rows",
    "is_frame",
    "read_boundary_table",
    "read_edge_table",
    "read_node_table",
    "read_text_column",
    "summarise_table",
    "tables_of",
]
