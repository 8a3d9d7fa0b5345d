"""Nodes and edges by queries over connections of DB-API 2.0."""

from __future__ import annotations

import sqlite3
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import retexo_fl
from retexo_fl.errors import TableError
from retexo_fl.graph.sources.table_graph import read_table_graph
from retexo_fl.graph.sources.tables import Query, tables_of
from tests.support.runs import model_bytes

NODES = "SELECT id AS key, fraud AS label, balance AS x0 FROM account ORDER BY id"
EDGES = "SELECT payer AS source, payee AS target FROM transfer"


def filled(connection: Any) -> Any:
    """Put a ring of accounts into a database."""
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE account (id INTEGER, fraud INTEGER, balance REAL)")
    cursor.execute("CREATE TABLE transfer (payer INTEGER, payee INTEGER, amount REAL)")
    rows = [(node, node % 2 if node else None, node / 10) for node in range(30)]
    cursor.executemany("INSERT INTO account VALUES (?, ?, ?)", rows)
    rows = [(node, (node + 1) % 30, node * 1.0) for node in range(30)]
    cursor.executemany("INSERT INTO transfer VALUES (?, ?, ?)", rows)
    return connection


@pytest.fixture
def bank() -> Any:
    with_rows = filled(sqlite3.connect(":memory:"))
    yield with_rows
    with_rows.close()


#: DuckDB is optional: where it is there it answers, too.
LIBRARIES = ("sqlite3", *(name for name in ("duckdb",) if find_spec(name)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_queries_are_tables(library: str) -> None:
    module = import_module(library)
    connection = filled(module.connect(":memory:"))
    edges = Query(connection, f"{EDGES} WHERE amount >= ?", [10])
    tables = tables_of((Query(connection, NODES), edges))
    assert tables is not None
    graph = read_table_graph(*tables)
    assert (graph.num_nodes, graph.num_edges, graph.num_features) == (30, 20, 1)
    assert graph.labels.tolist() == [-1, *(node % 2 for node in range(1, 30))]
    connection.close()


def test_a_run_of_queries_is_that_of_the_same_tables(tmp_path: Path, bank: Any) -> None:
    keys: dict[str, Any] = {
        **{"clients": 2, "hidden": 4, "rounds": 2, "quiet": True},
        "split": "random:0.4/0.3/0.3",
    }
    rows = bank.execute(NODES).fetchall()
    cells = "".join(f"{key},{'' if label is None else label},{x}\n" for key, label, x in rows)
    (tmp_path / "nodes.csv").write_text("key,label,x0\n" + cells)
    ends = "".join(f"{one},{other}\n" for one, other in bank.execute(EDGES))
    (tmp_path / "edges.csv").write_text("source,target\n" + ends)
    of_files = retexo_fl.run(
        nodes=tmp_path / "nodes.csv", edges=tmp_path / "edges.csv", out=tmp_path / "a", **keys
    )
    queries: dict[str, Any] = {"nodes": Query(bank, NODES), "edges": Query(bank, EDGES)}
    of_queries = retexo_fl.run(out=tmp_path / "b", **queries, **keys)
    assert model_bytes(of_files.path) == model_bytes(of_queries.path)


def test_a_query_is_sent_once(bank: Any) -> None:
    sent: list[str] = []
    bank.set_trace_callback(sent.append)
    query = Query(bank, NODES)
    for _ in range(3):
        assert tables_of((query, query)) is not None
    assert sent == [NODES]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT id FROM", "nodes: the query failed \\(OperationalError: incomplete input\\)"),
        ("CREATE TABLE other (a)", "nodes: the query returns no table; expected one such as"),
        ("SELECT 1 AS key, 2 AS key", "nodes: column 'key' appears twice"),
        ("SELECT 1 AS id", "nodes: columns 'key', 'label' are missing; the file has 'id'"),
        ("SELECT NULL AS key, 'no' AS label, 'b' AS x0", "nodes: row 0: key: "),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path: Path, bank: Any, sql: str, told: str) -> None:
    tables: dict[str, Any] = {"nodes": Query(bank, sql), "edges": Query(bank, EDGES)}
    with pytest.raises(TableError, match=f"^{told}"):
        retexo_fl.run(**tables, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_cells_of_drivers_are_plain() -> None:
    key = UUID(int=7)

    class Cursor:
        description = (("key",), ("label",), ("x0",))

        def __init__(self) -> None:
            self.rows = [(key, 1, Decimal("1.5")), ("b", 0, Decimal(2))]

        def execute(self, sql: str) -> None:
            assert sql == "SELECT"

        def fetchmany(self, count: int) -> list[Any]:
            some, self.rows = self.rows[:count], self.rows[count:]
            return some

        def close(self) -> None:
            pass

    class Connection:
        cursor = Cursor

    tables = tables_of((Query(Connection(), "SELECT"), None))
    assert tables is not None
    (batch,) = tables[0].batches(("key", "x0"))  # type: ignore[union-attr]
    assert batch == {"key": [str(key), "b"], "x0": [1.5, 2]}
