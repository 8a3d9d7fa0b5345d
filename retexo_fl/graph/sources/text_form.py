"""How a text table is written: chosen, or found by a bounded look at its beginning."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Final, Self

from retexo_fl.errors import ConfigurationError, TableError
from retexo_fl.graph.recipes.summary import MISSING_WORDS
from retexo_fl.graph.sources.number_form import (
    COMMA,
    POINT,
    NumberForm,
    has_number,
    marks_told,
)

#: Delimiters by the word for them.
DELIMITERS: Final[Mapping[str, str]] = MappingProxyType(
    {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
)
_DECIMALS: Final[Mapping[str, str]] = MappingProxyType({"point": POINT, "comma": COMMA})
UTF_8: Final = "utf-8-sig"
_WINDOWS: Final = "windows-1252"
#: Encodings by the byte order mark that such a file begins with, longest first; "Unicode text" of
#: spreadsheets is the second last.
_MARKED: Final[Mapping[bytes, str]] = MappingProxyType(
    {
        codecs.BOM_UTF32_LE: "utf-32",
        codecs.BOM_UTF32_BE: "utf-32",
        codecs.BOM_UTF16_LE: "utf-16",
        codecs.BOM_UTF16_BE: "utf-16",
    }
)
#: How much of a file is looked at.
LOOKED_AT_BYTES: Final = 2**20
_LOOKED_AT_ROWS: Final = 10_000
#: Spreadsheets name the delimiter in a line of its own before the header.
_SEPARATOR: Final = "sep="


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForm:
    """What is chosen of a text table's form; what is empty is found.

    Attributes:
        delimiter: One character between fields.
        decimal: ``.`` or ``,``.
        encoding: A name that Python knows.
    """

    delimiter: str = ""
    decimal: str = ""
    encoding: str = ""

    @classmethod
    def of(cls, *, delimiter: str = "", decimal: str = "", encoding: str = "") -> Self:
        """Read what a user chose: words such as ``semicolon`` and ``comma``, or the characters.

        Raises:
            ConfigurationError: It is neither, or there is no such encoding.
        """
        found = {"delimiter": delimiter, "decimal": decimal}
        for name, words in (("delimiter", DELIMITERS), ("decimal", _DECIMALS)):
            value = words.get(found[name], found[name])
            if value and value not in words.values():
                raise ConfigurationError(
                    f"{name}: got {found[name][:60]!r}; expected {', '.join(words)}, or nothing to "
                    "find it"
                )
            found[name] = value
        if encoding:
            try:
                b"".decode(encoding)
            except (LookupError, ValueError) as error:
                raise ConfigurationError(
                    f"encoding: got {encoding[:60]!r}; expected one such as utf-8, windows-1252 or "
                    "utf-16, or nothing to find it"
                ) from error
        return cls(**found, encoding=encoding)


#: Everything is found.
FOUND: Final = TextForm()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundForm:
    """How a text table is written.

    Attributes:
        delimiter: One character between fields.
        encoding: A name that Python knows.
        numbers: How texts are read as numbers.
        has_separator_line: The first line names the delimiter, the second the columns.
        sentence: What was found that the file's name does not say; empty for nothing.
    """

    delimiter: str
    encoding: str
    numbers: NumberForm
    has_separator_line: bool
    sentence: str

    @property
    def chosen(self) -> TextForm:
        """What finds the same form again, without a word."""
        return TextForm(
            delimiter=self.delimiter, decimal=self.numbers.decimal, encoding=self.encoding
        )


def find_form(source: str, start: bytes, chosen: TextForm, *, default: str) -> FoundForm:
    """Find how a text table is written.

    Args:
        source: The file, for errors.
        start: Its first :data:`LOOKED_AT_BYTES`, or all of it.
        chosen: What need not be found.
        default: The delimiter that its name promises.

    Raises:
        TableError: Two delimiters divide it alike.
    """
    encoding = chosen.encoding or _encoding(start)
    if encoding.lower().replace("_", "-") in {"utf-8", "utf8"}:
        encoding = UTF_8
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    text = decoder.decode(start).removeprefix("\ufeff")
    if len(start) == LOOKED_AT_BYTES:
        text = text.rpartition("\n")[0]
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    first, _, rest = text.partition("\n")
    named = first.strip().strip('"')
    has_line = named.lower().startswith(_SEPARATOR) and len(named) == len(_SEPARATOR) + 1
    if has_line:
        delimiter, text = chosen.delimiter or named[-1], rest
    else:
        delimiter = chosen.delimiter or _delimiter(source, text, default)
    rows = _rows(text, delimiter) or []
    numbers, has_commas = _numbers(rows, delimiter, chosen.decimal)
    said = []
    if delimiter != default and not chosen.delimiter:
        word = next((word for word, mark in DELIMITERS.items() if mark == delimiter), delimiter)
        said.append(f"fields between {word}s")
    if chosen.decimal:
        pass
    elif numbers.decimal == COMMA:
        said.append("numbers with a decimal comma")
    elif numbers.decimal == POINT and has_commas:
        said.append("numbers with a decimal point, and commas between thousands")
    if encoding != UTF_8 and not chosen.encoding:
        said.append(f"encoding {encoding}")
    return FoundForm(
        delimiter=delimiter,
        encoding=encoding,
        numbers=numbers,
        has_separator_line=has_line,
        sentence="; ".join(said),
    )


def _encoding(start: bytes) -> str:
    """Return what a byte order mark says, Windows-1252 for what looks like it, else UTF-8."""
    for mark, wide in _MARKED.items():
        if start.startswith(mark):
            return wide
    if _decodes(start, "utf-8"):
        return UTF_8
    # What is UTF-8 in some places is UTF-8 that was damaged in others.
    is_other = start.decode("utf-8", errors="ignore").isascii()
    return _WINDOWS if is_other and _decodes(start, _WINDOWS) and _is_text(start) else UTF_8


def wide_encoding(start: bytes) -> str:
    """Return the UTF-16 that a file without a byte order mark looks like; empty for none."""
    # The names of columns are mostly of ASCII letters, one byte of which is zero, and one is not.
    first, second = start[:64:2], start[1:64:2]
    for name, high, low in (("utf-16-le", second, first), ("utf-16-be", first, second)):
        if high.count(0) > len(high) // 2 and 0 not in low:
            return name
    return ""


def _decodes(start: bytes, encoding: str) -> bool:
    try:
        # The last character may be cut.
        codecs.getincrementaldecoder(encoding)().decode(start)
    except UnicodeDecodeError:
        return False
    return True


def _is_text(start: bytes) -> bool:
    """Return whether bytes are mostly of ASCII, as names and numbers are, and none is no letter.

    No language's words are likely to have the letter 0xff, which bytes that are no text often are.
    """
    few = len(start.translate(None, bytes(range(0x80)))) <= len(start) // 3
    return few and 0 not in start and 0xFF not in start


def _rows(text: str, delimiter: str) -> list[list[str]] | None:
    """Return the first rows, without empty lines; None for what cannot be read so."""
    reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    try:
        rows += filter(None, islice(reader, _LOOKED_AT_ROWS))
    except csv.Error:
        # A field in quotes may be cut at the end of what is looked at.
        return rows if len(rows) > 1 else None
    return rows


def _delimiter(source: str, text: str, default: str) -> str:
    """Return what divides the header, and every row into as many fields."""
    divided = {mark: _rows(text, mark) for mark in DELIMITERS.values()}
    candidates = {mark: rows for mark, rows in divided.items() if rows and len(rows[0]) > 1}
    alike = [mark for mark, rows in candidates.items() if len({*map(len, rows)}) == 1]
    if len(alike) > 1:
        words = " and ".join(word for word, mark in DELIMITERS.items() if mark in alike)
        raise TableError(
            f"{source}: {words} divide its rows alike; expected --delimiter to say which"
        )
    if alike or default in candidates or len(candidates) != 1:
        return alike[0] if alike else default
    return next(iter(candidates))


def _numbers(rows: Sequence[Sequence[str]], delimiter: str, chosen: str) -> tuple[NumberForm, bool]:
    """Return how numbers are written, by columns of numbers alone, and whether any has a comma."""
    told: dict[frozenset[str], bool] = {}
    width = len(rows[0]) if rows else 0
    for at in range(width):
        cells = {row[at] for row in rows[1:] if len(row) == width}
        cells = {cell for cell in cells if cell.strip() and cell not in MISSING_WORDS}
        if has_number(cells):
            for cell in cells:
                marks = marks_told(cell)
                told[marks] = told.get(marks, False) or COMMA in cell
    has_commas = any(told.values())
    if chosen:
        return NumberForm(decimal=chosen), has_commas
    point, comma = (frozenset((mark,)) in told for mark in (POINT, COMMA))
    # Where numbers have a decimal comma, fields have another mark between them.
    may_group = delimiter == DELIMITERS["semicolon"]
    if point and comma:
        return NumberForm(decimal="" if may_group else POINT, point_may_group=may_group), has_commas
    if point or comma:
        return NumberForm(decimal=POINT if point else COMMA), has_commas
    return NumberForm(point_may_group=may_group), has_commas
