"""Tables of rows that pandas may show, where it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, overload

from retexo_fl.errors import ConfigurationError
from retexo_fl.units import counted

if TYPE_CHECKING:
    import pandas as pd

Row = TypeVar("Row")


class Rows(Sequence[Row]):
    """Typed rows.

    Args:
        rows: Of the table.
        columns: Returns the cells of a row by the name of their column.
    """

    def __init__(self, rows: Iterable[Row], columns: Callable[[Row], Mapping[str, Any]]) -> None:
        self._rows = tuple(rows)
        self._columns = columns

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        return self._rows[place]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        columns = ", ".join(self._columns(self._rows[0])) if self._rows else "nothing"
        return f"<{counted(len(self), 'row')} of {columns}>"

    def _repr_html_(self) -> str:
        from retexo_fl.api.shown import cells_table

        return cells_table("Rows", self.cells())

    def cells(self) -> list[dict[str, Any]]:
        """Return each row as cells by the name of their column."""
        return [dict(self._columns(row)) for row in self._rows]

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        return data_frame(self.cells())


def data_frame(cells: list[dict[str, Any]]) -> pd.DataFrame:
    """Return rows of cells as a data frame of pandas.

    Raises:
        ConfigurationError: pandas is not installed.
    """
    if find_spec("pandas") is None:
        raise ConfigurationError("pandas: is not installed; expected pip install pandas")
    return import_module("pandas").DataFrame(cells)
