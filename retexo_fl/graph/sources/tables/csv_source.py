"""Text tables: fields between commas or other marks, UTF-8 or another encoding, compressed."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import logging
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Final, TypeVar

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables.source import Cells, check_names
from retexo_fl.graph.sources.text_form import (
    FOUND,
    LOOKED_AT_BYTES,
    UTF_8,
    FoundForm,
    TextForm,
    find_form,
    wide_encoding,
)
from retexo_fl.units import counted

#: Bounds on what is in memory as text: a batch ends soon after the row that reaches one of them,
#: and a longer line is refused. Small batches of narrow rows stay in the processor's cache, which
#: makes reading twice as fast.
_BATCH_ROWS: Final = 2**12
_BATCH_CELLS: Final = 2**18
_BATCH_CHARACTERS: Final = 2**26
_MOST_LINE_CHARACTERS: Final = 2**22
_PIECE_CHARACTERS: Final = 2**18
#: Rows between two looks at the bounds.
_STEP_ROWS: Final = 64
#: What a file that cannot be read or unpacked raises.
_DAMAGE: Final = (
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,  # a compression method that Python does not know
)
#: Flag of a member of a ZIP archive (APPNOTE 6.3.10, section 4.4.4, bit 0).
_ENCRYPTED: Final = 1

_T = TypeVar("_T")

logger = logging.getLogger(__name__)


class CsvSource:
    """A text table whose first line names its columns. Empty lines count for nothing."""

    def __init__(self, path: Path, form: TextForm = FOUND) -> None:
        """Look at the beginning of the file; what it says of its form is logged."""
        self.path = path
        self._form = _form_of(path, form)
        self.numbers = self._form.numbers
        self.form = self._form.chosen
        with self._opened() as records:
            header = records.next_record()
        if header is None:
            raise TableError(f"{path}: is empty; expected a first line that names the columns")
        self.names = check_names(path, header)

    def batches(self, columns: Sequence[str]) -> Iterator[Mapping[str, Cells]]:
        """Yield some columns, a bounded number of cells and characters at a time."""
        wanted = [self.names.index(name) for name in columns]
        most_rows = max(1, min(_BATCH_ROWS, _BATCH_CELLS // len(self.names)))
        first_row = 0
        with self._opened() as records:
            records.next_record()
            while rows := records.batch(most_rows):
                self._check_widths(rows, first_row)
                cells = list(zip(*rows, strict=True))
                yield {name: list(cells[at]) for name, at in zip(columns, wanted, strict=True)}
                first_row += len(rows)

    def place(self, row: int) -> str:
        """Return the line on which a row begins; a cell in quotes may go over several lines."""
        with self._opened() as records:
            for _ in range(row + 2):
                records.next_record()
            return f"line {records.first_line}"

    @contextmanager
    def _opened(self) -> Iterator[_Records]:
        """Open the table at the header."""
        with _opened(self.path, self._form) as records:
            if self._form.has_separator_line:
                records.next_record()
            yield records

    def _check_widths(self, rows: list[list[str]], first_row: int) -> None:
        if set(map(len, rows)) == {len(self.names)}:
            return
        at = next(at for at, row in enumerate(rows) if len(row) != len(self.names))
        raise TableError(
            f"{self.path}: {self.place(first_row + at)}: got "
            f"{counted(len(rows[at]), 'field')}; "
            f"expected {len(self.names)}, one for each column"
        )


class _Records:
    """The rows of a text file as lists of fields, the header first, without empty lines.

    Attributes:
        first_line: Line, from 1, on which the record of the last :meth:`next_record` begins.
    """

    def __init__(self, path: Path, file: IO[str], delimiter: str) -> None:
        self.first_line = 1
        self._path = path
        self._file = file
        self._characters = 0
        self._lines = chain.from_iterable(self._pieces())
        self._reader = csv.reader(self._lines, delimiter=delimiter, strict=True)

    def next_record(self) -> list[str] | None:
        """Return the next record, None after the last."""
        record: list[str] = []
        while not record:
            self.first_line = self._reader.line_num + 1
            found = self._some(1)
            if not found:
                return None
            record = found[0]
        return record

    def batch(self, most_rows: int) -> list[list[str]]:
        """Return the next records, none after the last."""
        most_characters = self._characters + _BATCH_CHARACTERS
        rows: list[list[str]] = []
        while len(rows) < most_rows and (not rows or self._characters < most_characters):
            found = self._some(min(_STEP_ROWS, most_rows - len(rows)))
            if not found:
                break
            rows += filter(None, found)
        return rows

    def _some(self, count: int) -> list[list[str]]:
        try:
            return list(islice(self._reader, count))
        except csv.Error as error:
            raise TableError(
                f"{self._path}: line {self._reader.line_num}: damaged ({error}); expected fields "
                "with a separator between them, in quotes where they hold one"
            ) from error

    def _pieces(self) -> Iterator[IO[str]]:
        """Yield whole lines, some at a time; a long line grows piece by piece to its bound."""
        lines = 0
        rest = ""
        while piece := self._file.read(_PIECE_CHARACTERS):
            if not self._characters:
                # A byte order mark, as spreadsheets write it, belongs to no name.
                piece = piece.removeprefix("\ufeff")
            self._characters += len(piece)
            if "\0" in piece:
                line = lines + 1 + piece.partition("\0")[0].count("\n")
                wide = wide_encoding(_first_bytes(self._path))
                raise TableError(
                    f"{self._path}: line {line} holds a NUL character; expected "
                    f"{f'--encoding {wide}' if wide else 'text without any'}"
                )
            whole, newline, rest_of_piece = piece.rpartition("\n")
            if newline:
                lines += whole.count("\n") + 1
                yield io.StringIO(f"{rest}{whole}\n", newline="\n")
                rest = rest_of_piece
            else:
                rest += piece
            if len(rest) > _MOST_LINE_CHARACTERS:
                raise TableError(
                    f"{self._path}: line {lines + 1} has more than {_MOST_LINE_CHARACTERS} "
                    "characters; expected a table of shorter lines"
                )
        yield io.StringIO(rest, newline="\n")


@contextmanager
def _opened(path: Path, form: FoundForm) -> Iterator[_Records]:
    """Open a text table; what is wrong with its bytes becomes one line."""
    fields_before = csv.field_size_limit(_MOST_LINE_CHARACTERS)
    try:
        with _binary(path) as file:
            text = io.TextIOWrapper(file, encoding=form.encoding)
            yield _Records(path, text, form.delimiter)
    except UnicodeError as error:
        if form.encoding != UTF_8:
            raise TableError(
                f"{path}: is not all {form.encoding} ({error}); expected --encoding for another"
            ) from error
        raise TableError(
            f"{path}: {_undecodable(path)} is not UTF-8; expected text, or --encoding "
            f"{wide_encoding(_first_bytes(path)) or 'windows-1252, or another'}"
        ) from error
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or error
        raise TableError(f"{path}: cannot be read, or damaged ({reason})") from error
    finally:
        csv.field_size_limit(fields_before)


@contextmanager
def _binary(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, or what it holds compressed."""
    match path.suffix.lower():
        case ".gz":
            with gzip.open(path) as file:
                yield file  # type: ignore[misc]
        case ".zip":
            with _whole_names(path, partial(zipfile.ZipFile, path)) as archive:
                members = [member for member in archive.infolist() if member.filename[-1:] != "/"]
                if len(members) != 1:
                    files = counted(len(members), "file")
                    raise TableError(f"{path}: holds {files}; expected one table")
                if members[0].flag_bits & _ENCRYPTED:
                    raise TableError(f"{path}: is encrypted; expected a table that can be read")
                # The name is twice in an archive: in its list, and before its content.
                with _whole_names(path, partial(archive.open, members[0])) as member:
                    yield member
        case _:
            with path.open("rb") as file:
                yield file


def _whole_names(path: Path, opened: Callable[[], _T]) -> _T:
    try:
        return opened()
    except ValueError as error:  # a name that is not in the encoding that it claims
        raise TableError(f"{path}: not a ZIP archive, or damaged ({error})") from error


def _form_of(path: Path, chosen: TextForm) -> FoundForm:
    """Return how a text table is written; say what is not as its name promises."""
    start = _first_bytes(path)
    default = "\t" if ".tsv" in path.name.lower()[-8:] else ","
    fields_before = csv.field_size_limit(_MOST_LINE_CHARACTERS)
    try:
        form = find_form(str(path), start, chosen, default=default)
    finally:
        csv.field_size_limit(fields_before)
    if form.sentence:
        logger.warning("%s: read with %s", path, form.sentence)
    return form


def _first_bytes(path: Path) -> bytes:
    """Return what is looked at of a file; nothing of one that cannot be read."""
    try:
        with _binary(path) as file:
            return file.read(LOOKED_AT_BYTES)
    except _DAMAGE:
        # Whoever opens it next says so.
        return b""


def _undecodable(path: Path) -> str:
    """Return the first line that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    # It may be damaged behind that line, too.
    with suppress(*_DAMAGE), _binary(path) as file:
        while piece := file.readline(_MOST_LINE_CHARACTERS):
            try:
                decoder.decode(piece)
            except UnicodeDecodeError:
                break
            line += piece.endswith(b"\n")
    return f"line {line}"
