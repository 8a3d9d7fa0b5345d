"""Tables as arrays of one ``.npz`` file, read without pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.errors import TableError
from retexo_fl.graph.npy import open_npz
from retexo_fl.graph.sources.tables.plain import plain_array
from retexo_fl.graph.sources.tables.source import Cells
from retexo_fl.units import counted

#: Parts of sparse features; they have other lengths than the columns.
SPARSE_ARRAYS: Final = ("x_indptr", "x_indices", "x_data", "x_shape")


class NpzSource:
    """A table whose columns are arrays of equal length."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_npz(path, error=TableError) as archive:
            self.names = tuple(sorted(archive.names))

    def batches(self, columns: Sequence[str]) -> Iterator[Mapping[str, Cells]]:
        """Yield all rows of some columns at once."""
        arrays = {name: plain_array(array) for name, array in self.arrays(columns).items()}
        rows = None
        for name, array in arrays.items():
            if array.ndim not in (1, 2):
                raise TableError(
                    f"{self.path}: {name}: got shape {array.shape}; expected one entry for each row"
                )
            rows = len(array) if rows is None else rows
            if len(array) != rows:
                raise TableError(
                    f"{self.path}: {name}: got {counted(len(array), 'row')}; expected "
                    f"{rows} as {columns[0]}"
                )
        if rows:
            yield arrays

    def arrays(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return arrays as they are.

        Raises:
            TableError: One is damaged, or holds Python objects.
        """
        with open_npz(self.path, error=TableError) as archive:
            archive.check_memory(*(archive.header(name) for name in names))
            return {name: archive.read(name) for name in names}

    def place(self, row: int) -> str:
        """Return the row's number."""
        return f"row {row}"
