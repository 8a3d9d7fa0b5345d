"""Tables that are added up under masks: what is sent of columns before, and their sums.

First every client sends what columns it has (:class:`TableColumns`): their kinds, and the texts
that enough of its own nodes have. What all have together says which sums a client adds to, all of
them side by side in one long number. Sums of float64 numbers are whole multiples of 2**-1074, and
those of squares of 2**-2148; so no bit is lost, and the recipe has the bytes of that of all
summaries. Of a text that few of its nodes have a client sends nothing, neither the text nor a
count: whoever asks for the count of a text learns whether many nodes of one client have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from retexo_fl.errors import ConfigurationError, RemoteProtocolError, SecureAggregationRefused
from retexo_fl.graph.recipes.checked_values import (
    check_keys,
    fail,
    object_of,
    parsed_json,
    text_of,
    texts_of,
)
from retexo_fl.graph.recipes.moments import Moments
from retexo_fl.graph.recipes.summary import (
    MISSING_WORDS,
    MOST_TEXTS,
    ColumnSummary,
    LabelSummary,
    Table,
    TableSummary,
    check_cells,
    merged,
)
from retexo_fl.masking.long_number import LongNumber

#: Raised when the meaning of columns, or of their sums, changes.
_VERSION: Final = 1
_KEYS: Final = frozenset(("columns-version", "key-column", "label-column", "label", "columns"))
_KINDS: Final = ("none", "numbers", "days", "texts", "too-many-texts")
_WORDS: Final = sorted(MISSING_WORDS)
_TOTAL_UNIT: Final = Fraction(1, 2**1074)
_SQUARES_UNIT: Final = Fraction(1, 2**2148)
#: A client's count has 48 bits, and its sums are within float64: 1024 bits before the point. That
#: leaves room for a sign, and for those of 2**16 clients.
_COUNT_BYTES: Final = (48 + 24) // 8
_TOTAL_BYTES: Final = (1024 + 1074 + 30) // 8
_SQUARES_BYTES: Final = (1024 + 2148 + 28) // 8
_ROOM_BITS: Final = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """What a client sends of a column before it is added up.

    Attributes:
        kind: ``none`` without values, ``numbers``, ``days``, ``texts``, or ``too-many-texts``.
        texts: Of a column of texts, those that are named.
    """

    kind: str = "none"
    texts: frozenset[str] = frozenset()

    @property
    def has_texts(self) -> bool:
        """Whether it is a column of texts."""
        return self.kind in {"texts", "too-many-texts"}

    @property
    def has_numbers(self) -> bool:
        """Whether it is a column of numbers, or of dates, which are numbers of days."""
        return self.kind in {"numbers", "days"}

    @property
    def are_dates(self) -> bool:
        """Whether its numbers are dates."""
        return self.kind == "days"

    def __add__(self, other: ColumnKind) -> ColumnKind:
        """Return the kind of both columns as one: of two kinds that which comes later above."""
        kind, texts = max(self.kind, other.kind, key=_KINDS.index), self.texts | other.texts
        if kind == "too-many-texts" or len(texts) > MOST_TEXTS:
            return ColumnKind(kind="too-many-texts")
        return ColumnKind(kind=kind, texts=texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns(Table[ColumnKind]):
    """What columns a table has, or several together."""

    @classmethod
    def of(cls, summary: TableSummary, least: int) -> TableColumns:
        """Return what a client sends of a table.

        Args:
            summary: Of the table.
            least: Nodes that a text needs to be named.
        """
        return cls(
            source=summary.source,
            key_column=summary.key_column,
            label_column=summary.label_column,
            label=summary.label,
            columns={name: _kind(column, least) for name, column in summary.columns.items()},
        )

    @classmethod
    def parse(cls, content: bytes, path: Path) -> TableColumns:
        """Return what :meth:`to_json` wrote, at whatever client; errors name ``path``.

        Raises:
            ConfigurationError: It is of another version, or none.
        """
        values = parsed_json(content, path)
        if values.get("columns-version") != _VERSION:
            fail(path, "columns-version", values.get("columns-version"), str(_VERSION))
        check_keys(path, "columns", values, _KEYS)
        columns = object_of(path, "columns", values["columns"])
        return cls(
            source=str(path),
            key_column=text_of(path, "key-column", values["key-column"]),
            label_column=text_of(path, "label-column", values["label-column"]),
            label=LabelSummary.read(path, values["label"]),
            columns={name: _read_kind(path, name, value) for name, value in columns.items()},
        )

    def to_json(self) -> str:
        """Return it as text; equal columns are equal texts."""
        values = {
            "columns-version": _VERSION,
            "key-column": self.key_column,
            "label-column": self.label_column,
            "label": self.label.values,
            "columns": {name: _kind_values(self.columns[name]) for name in sorted(self.columns)},
        }
        return json.dumps(values, ensure_ascii=False)


def merge_columns(tables: Sequence[TableColumns]) -> TableColumns:
    """Return what columns all tables have together.

    Args:
        tables: At least one.

    Raises:
        ConfigurationError: As :func:`.merge_summaries`.
    """
    return merged(tables, ColumnKind())


def number_of(summary: TableSummary, own: TableColumns, asked: TableColumns) -> LongNumber:
    """Return what a client adds to the sums over all tables.

    Args:
        summary: Of its table.
        own: What it has sent of that.
        asked: What all clients have sent together, as the server has it.

    Raises:
        SecureAggregationRefused: The server asks of columns, or kinds, that are not there, or
            leaves out texts that this client has named.
        ConfigurationError: A sum is none of float64 numbers.
    """
    _check_asked(own, asked)
    pieces: list[bytes] = []
    borrowed = 0
    for size, number in _numbers(summary, own, asked):
        if abs(number) >> (8 * size - _ROOM_BITS):
            raise ConfigurationError(
                f"{summary.source}: a sum is larger than any of float64 numbers; expected what "
                "`retexo features summarise` writes"
            )
        # A negative one takes from the next: all of them are one number.
        left = number - borrowed
        pieces.append((left % (1 << 8 * size)).to_bytes(size, "little"))
        borrowed = int(left < 0)
    content = b"".join(pieces)
    return LongNumber.of(content, len(content))


def summary_of_sums(total: LongNumber, columns: TableColumns) -> TableSummary:
    """Return the summary of all tables as one.

    Args:
        total: Sum of all clients' numbers.
        columns: What they have sent together.

    Raises:
        RemoteProtocolError: No tables have these sums.
    """
    read = _Reader(total.content)
    rows = read.take(_COUNT_BYTES)
    path = Path("sums over all clients")
    found: dict[str, ColumnSummary] = {}
    try:
        _check_counts(path, "rows", [rows])
        for name in sorted(columns.columns):
            found[name] = _read_column(read, columns.columns[name], rows)
            _check_sums(path, name, found[name], rows)
    except ConfigurationError as error:
        raise RemoteProtocolError(
            f"{error}: a client added numbers of its own choice, or clients were asked for "
            "different sums"
        ) from error
    return TableSummary(
        source=columns.source,
        key_column=columns.key_column,
        label_column=columns.label_column,
        label=columns.label,
        columns=found,
        rows=rows,
    )


def sum_of_nothing(columns: TableColumns) -> LongNumber:
    """Return a number as wide as those of such columns, to which they are added."""
    nothing = TableSummary(
        source="",
        key_column="",
        label_column="",
        label=columns.label,
        columns=dict.fromkeys(columns.columns, ColumnSummary()),
        rows=0,
    )
    return LongNumber(size=sum(size for size, _ in _numbers(nothing, columns, columns)))


# ---- what is sent before ---------------------------------------------------------------------


def _kind(column: ColumnSummary, least: int) -> ColumnKind:
    if column.too_many_texts:
        return ColumnKind(kind="too-many-texts")
    if column.has_texts:
        named = frozenset(text for text, count in column.texts.items() if count >= least)
        return ColumnKind(kind="texts", texts=named)
    if not column.has_numbers:
        return ColumnKind()
    return ColumnKind(kind="days" if column.are_dates else "numbers")


def _kind_values(column: ColumnKind) -> dict[str, Any]:
    if column.kind != "texts":
        return {"kind": column.kind}
    return {"kind": column.kind, "texts": sorted(column.texts)}


def _read_kind(path: Path, name: str, value: object) -> ColumnKind:
    values = object_of(path, name, value)
    kind = values.get("kind")
    if kind not in _KINDS:
        fail(path, name, kind, f"one of {', '.join(_KINDS)}")
    check_keys(path, name, values, frozenset(("kind", *(["texts"] if kind == "texts" else []))))
    texts = texts_of(path, name, values.get("texts", []))
    if len(texts) > MOST_TEXTS:
        fail(path, name, f"{len(texts)} texts", f"at most {MOST_TEXTS}")
    return ColumnKind(kind=kind, texts=texts)


def _check_asked(own: TableColumns, asked: TableColumns) -> None:
    """Check that a client's table is one of those that are to be added up."""
    for name, told, here in (
        ("key-column", asked.key_column, own.key_column),
        ("label-column", asked.label_column, own.label_column),
    ):
        if told != here:
            raise SecureAggregationRefused(
                f"{asked.source}: {name}: got {told[:60]!r}; expected {here[:60]!r}, as in "
                f"{own.source}"
            )
    for name, column in asked.columns.items():
        here_too = own.columns.get(name)
        if here_too is None:
            raise SecureAggregationRefused(
                f"{asked.source}: {name[:60]!r} is no column of {own.source}; expected its columns"
            )
        # Others may have numbers, or texts, where this client has neither.
        are_others = column.has_texts or column.are_dates != here_too.are_dates
        is_other = here_too.has_numbers and are_others
        if is_other or here_too + column != column:
            raise SecureAggregationRefused(
                f"{asked.source}: {name[:60]!r}: {column.kind} without what {own.source} has told "
                "of it; expected what all clients have told together"
            )


# ---- sums ------------------------------------------------------------------------------------


def _numbers(
    summary: TableSummary, own: TableColumns, asked: TableColumns
) -> Iterator[tuple[int, int]]:
    """Yield bytes and value of every number of a client; :class:`_Reader` takes them."""
    yield _COUNT_BYTES, summary.rows
    for name in sorted(asked.columns):
        column = summary.columns[name]
        yield _COUNT_BYTES, column.empty
        for word in _WORDS:
            yield _COUNT_BYTES, column.words.get(word, 0)
        if unknown := sorted({*column.words} - MISSING_WORDS):
            raise ConfigurationError(
                f"{summary.source}: {name[:60]}: {unknown[0][:60]!r} cannot replace a missing "
                f"number; expected some of {', '.join(_WORDS)}"
            )
        if asked.columns[name].has_numbers:
            yield _COUNT_BYTES, column.numbers.count
            for moments in (column.numbers, column.logarithms):
                yield _TOTAL_BYTES, _multiple(summary, name, moments.total, _TOTAL_UNIT)
                yield _SQUARES_BYTES, _multiple(summary, name, moments.squares, _SQUARES_UNIT)
        named = own.columns[name].texts
        for text in sorted(asked.columns[name].texts):
            yield _COUNT_BYTES, column.texts.get(text, 0) if text in named else 0


def _multiple(summary: TableSummary, name: str, total: Fraction, unit: Fraction) -> int:
    found = total / unit
    if found.denominator != 1:
        raise ConfigurationError(
            f"{summary.source}: {name[:60]}: a sum is none of float64 numbers; expected what "
            "`retexo features summarise` writes"
        )
    return found.numerator


class _Reader:
    """Takes signed numbers off one, the lowest first."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = self._borrowed = 0

    def take(self, size: int) -> int:
        piece = self._content[self._at : self._at + size]
        number = int.from_bytes(piece, "little") + self._borrowed
        self._at += size
        self._borrowed = int(number >= 1 << (8 * size - 1))
        return number - (self._borrowed << 8 * size)


def _read_column(read: _Reader, kind: ColumnKind, rows: int) -> ColumnSummary:
    """Return a column of all tables; the order is that of :func:`_numbers`."""
    empty = read.take(_COUNT_BYTES)
    words = {word: read.take(_COUNT_BYTES) for word in _WORDS}
    moments: list[Moments] = []
    if kind.has_numbers:
        count = read.take(_COUNT_BYTES)
        for _ in range(2):
            total = read.take(_TOTAL_BYTES) * _TOTAL_UNIT
            squares = read.take(_SQUARES_BYTES) * _SQUARES_UNIT
            moments.append(Moments(count=count, total=total, squares=squares))
    numbers, logarithms = moments or (Moments(), Moments())
    texts = {text: read.take(_COUNT_BYTES) for text in sorted(kind.texts)}
    rest = rows - empty - sum(words.values()) - sum(texts.values())
    return ColumnSummary(
        empty=empty,
        words=words,
        numbers=numbers,
        logarithms=logarithms,
        texts=texts,
        unnamed=rest if kind.kind == "texts" else 0,
        too_many_texts=kind.kind == "too-many-texts",
        are_dates=kind.are_dates,
    )


def _check_sums(path: Path, name: str, column: ColumnSummary, rows: int) -> None:
    counts = [column.empty, *column.words.values(), column.numbers.count, column.unnamed]
    _check_counts(path, name, [*counts, *column.texts.values()])
    check_cells(path, name, column, rows)
    for moments in (column.numbers, column.logarithms):
        # Of the root of that, means are no larger.
        try:
            float(moments.squares / max(moments.count, 1))
        except OverflowError:
            fail(path, name, "a mean square", "one of the range of float64")


def _check_counts(path: Path, name: str, counts: Sequence[int]) -> None:
    if min(counts) < 0:
        fail(path, name, min(counts), "a whole number from 0")
