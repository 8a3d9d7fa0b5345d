"""Which format a table file is of."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables.bare_lines import bare_source
from retexo_fl.graph.sources.tables.csv_source import CsvSource
from retexo_fl.graph.sources.tables.frame_source import AnyTable, FrameSource
from retexo_fl.graph.sources.tables.many_files import ManyFiles, files_of
from retexo_fl.graph.sources.tables.npz_source import NpzSource
from retexo_fl.graph.sources.tables.source import KEY_COLUMN, LABEL_COLUMN, Source
from retexo_fl.graph.sources.text_form import FOUND, TextForm


def open_table(
    path: AnyTable, form: TextForm = FOUND, first: Sequence[str] = (KEY_COLUMN, LABEL_COLUMN)
) -> Source:
    """Open a table in the format that its name ends with; a DataFrame is one already.

    Args:
        path: The file; of Parquet also a folder of files, or a pattern such as ``*.parquet``.
        form: What is chosen of a text table's form.
        first: What the first columns of a text are called that does not name them.

    Raises:
        TableError: It cannot be read, is damaged, or ends in none of the known names.
    """
    if isinstance(path, FrameSource):
        return path
    if (files := files_of(path)) is not None:
        return ManyFiles(path, files)
    _check_file(path)
    name = path.name.lower()
    if (bare := bare_source(path, first)) is not None:
        return bare
    if name.endswith(".npz"):
        return NpzSource(path)
    if name.endswith(".parquet"):
        from retexo_fl.graph.sources.tables.parquet_source import ParquetSource

        return ParquetSource(path)
    if name.removesuffix(".gz").removesuffix(".zip").endswith((".csv", ".tsv")):
        return CsvSource(path, form)
    raise TableError(
        f"{path}: unknown kind of table; expected a name that ends in .csv, .tsv (both also "
        "with .gz or .zip), .parquet, .npz, .txt, .edges or .nt (these also with .gz)"
    )


def found_form(path: AnyTable, form: TextForm) -> TextForm:
    """Return the form of a table's text, which is said once; that of other tables as it is."""
    source = open_table(path, form)
    return source.form if isinstance(source, CsvSource) else form


def _check_file(path: Path) -> None:
    # A pipe could be read only once, and might never end.
    try:
        found = path.stat()
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror})") from error
    if stat.S_ISDIR(found.st_mode):
        raise TableError(f"{path}: is a folder; expected a file")
    if not stat.S_ISREG(found.st_mode):
        raise TableError(f"{path}: is not a regular file; expected a table on disk")
    if found.st_size == 0:
        raise TableError(f"{path}: is empty; expected a table")
