"""A table in several files, one after the other: ``edges/*.parquet``, or a folder of them."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables.parquet_source import ParquetSource
from retexo_fl.graph.sources.tables.source import MOST_PROBLEMS, Cells, shown

_ENDING: Final = ".parquet"


def files_of(path: Path) -> list[Path] | None:
    """Return the files of a pattern or a folder of Parquet files, in order of names.

    None for anything else, such as a file with a ``*`` in its name.

    Raises:
        TableError: No file is there, or one is no Parquet file.
    """
    if path.is_dir():
        # As Spark and pandas write a table; beside it they leave marks such as _SUCCESS.
        found = sorted(one for one in path.glob(f"*{_ENDING}") if one.is_file())
        return found or None
    if path.exists() or not glob.has_magic(str(path)):
        return None
    found = sorted(Path(one) for one in glob.glob(str(path), recursive=True))  # noqa: PTH207 - of any root
    if not found:
        raise TableError(f"{path}: no file is there; expected one at least")
    if odd := [one for one in found if one.suffix.lower() != _ENDING]:
        raise TableError(f"{odd[0]}: of {path}; expected Parquet files alone")
    return found


class ManyFiles:
    """Parquet files with the same columns, in any order, as one table."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        """Read what columns each has.

        Raises:
            TableError: One cannot be read, or has other columns than the first.
        """
        self.path = path
        self._files = [ParquetSource(file) for file in files]
        self.names = self._files[0].names
        problems = []
        for file in self._files[1:]:
            lacks = [f"lacks {shown(name)}" for name in self.names if name not in file.names]
            lacks += [f"has {shown(name)}" for name in file.names if name not in self.names]
            if lacks:
                told = f"{', '.join(lacks[:4])}; expected the columns of {self._files[0].path}"
                problems.append(f"{file.path}: {told}")
        if problems:
            raise TableError(*problems[:MOST_PROBLEMS])
        #: Rows before each file that has been read to its end, and before the next.
        self._starts = [0]

    def batches(self, columns: Sequence[str]) -> Iterator[Mapping[str, Cells]]:
        """Yield some columns, file by file."""
        self._starts = [0]
        for file in self._files:
            rows = 0
            for batch in file.batches(columns):
                yield batch
                rows += len(next(iter(batch.values())))
            self._starts.append(self._starts[-1] + rows)

    def place(self, row: int) -> str:
        """Return the file and the row's number in it."""
        file = max(at for at, start in enumerate(self._starts) if start <= row)
        file = min(file, len(self._files) - 1)
        return f"{self._files[file].path.name}, {self._files[file].place(row - self._starts[file])}"
