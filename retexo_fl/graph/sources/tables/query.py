"""What a database is asked for as a table, over any connection of Python's DB-API 2.0 (PEP 249)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

#: Rows that a database is asked for at once. Chosen; not tuned.
_AT_ONCE: Final = 2**14


class Query:
    """A query whose rows are nodes or edges: its columns are named as those of a table's file.

    It is sent once, when its rows are first needed; they are kept, so that all who read it see the
    same ones.

    Args:
        connection: Of DB-API 2.0: ``sqlite3``, ``psycopg``, ``duckdb``, ``pyodbc``, ... It is
            neither committed nor closed.
        sql: Returns rows. ``AS`` names columns: ``SELECT id AS key, age AS x_age FROM person``.
        parameters: Of the query, in the connection's own style.
    """

    def __init__(
        self, connection: Any, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> None:
        self._connection = connection
        self._sql = sql
        self._parameters = parameters

    def __repr__(self) -> str:
        return f"<Query {' '.join(self._sql.split())[:60]!r}>"

    @cached_property
    def columns(self) -> list[tuple[str, list[Any]]]:
        """Name and cells of each column."""
        cursor = self._connection.cursor()
        try:
            if self._parameters:
                cursor.execute(self._sql, self._parameters)
            else:
                cursor.execute(self._sql)
            names = [str(column[0]) for column in cursor.description or ()]
            cells: list[list[Any]] = [[] for _ in names]
            while names and (rows := cursor.fetchmany(_AT_ONCE)):
                for column, some in zip(cells, zip(*rows, strict=True), strict=True):
                    column.extend(some)
        finally:
            cursor.close()
        return [*zip(names, cells, strict=True)]
