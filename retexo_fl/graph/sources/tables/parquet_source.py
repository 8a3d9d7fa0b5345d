"""Parquet tables, read by pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables.plain import plain_cells_of
from retexo_fl.graph.sources.tables.source import Cells, Column, check_names
from retexo_fl.units import counted

#: Bounds what is decoded at a time. Chosen; not tuned.
_BATCH_ROWS: Final = 2**14
_TEXT_TYPES: Final = frozenset(
    ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "null")
)


class ParquetSource:
    """A Parquet table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            self.names = check_names(path, file.schema_arrow.names)

    def batches(self, columns: Sequence[str]) -> Iterator[Mapping[str, Cells]]:
        """Yield some columns, a bounded number of rows at a time."""
        first_row = 0
        with self._opened() as file:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns)):
                if batch.num_rows:
                    yield {
                        name: self._cells(name, first_row, batch.column(name)) for name in columns
                    }
                first_row += batch.num_rows

    def place(self, row: int) -> str:
        """Return the row's number."""
        return f"row {row}"

    def _cells(self, name: str, first_row: int, array: Any) -> Cells:
        """Turn one Arrow array into NumPy's form, or into a list."""
        import pyarrow as pa

        kind = array.type
        if pa.types.is_dictionary(kind):
            array = array.dictionary_decode()
            kind = array.type
        if _is_list(kind):
            return self._lists(name, first_row, array)
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
            if pa.types.is_timestamp(kind) and kind.unit == "ns":
                # Python's dates have microseconds.
                array = array.cast(pa.timestamp("us", kind.tz), safe=False)
            return plain_cells_of(array.to_pylist())
        plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if plain and array.null_count == 0:
            values: np.ndarray = array.to_numpy(zero_copy_only=False)
            return values
        if plain or str(kind) in _TEXT_TYPES:
            cells: list[Any] = array.to_pylist()
            return cells
        raise TableError(
            f"{self.path}: {name}: got {kind}; expected text, numbers, dates or lists of numbers"
        )

    def _lists(self, name: str, first_row: int, array: Any) -> np.ndarray:
        """Return [rows, F] numbers of lists that are equally long."""
        import pyarrow as pa
        from pyarrow import compute

        at = Column(source=self, name=name, first_row=first_row, cells=[])
        if array.null_count:
            at.fail(int(np.argmax(array.is_null().to_numpy(zero_copy_only=False))), "is empty")
        lengths = np.array(compute.list_value_length(array))
        odd = np.flatnonzero(lengths != lengths[0])
        if len(odd):
            at.fail(
                int(odd[0]),
                f"got {counted(lengths[odd[0]], 'value')}; expected "
                f"{lengths[0]} as in the rows before",
            )
        values = array.flatten()
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise TableError(f"{self.path}: {name}: got {array.type}; expected lists of numbers")
        if values.null_count:
            entry = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            at.fail(entry // lengths[0], f"value {entry % lengths[0]} is missing")
        rows: np.ndarray = values.to_numpy(zero_copy_only=False).reshape(len(lengths), -1)
        return rows

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        pyarrow, parquet = _libraries(self.path)
        try:
            with parquet.ParquetFile(self.path) as file:
                yield file
        except (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
            told = (str(error).splitlines() or [type(error).__name__])[0]
            raise TableError(f"{self.path}: not a Parquet file, or damaged ({told})") from error


def _libraries(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise TableError(
            f"{path}: Parquet needs pyarrow, which is not installed; pip install pyarrow"
        ) from error
    return pa, parquet


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
