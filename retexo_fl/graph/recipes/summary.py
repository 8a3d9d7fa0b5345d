"""What a client sends about its table to make a recipe: counts, moments, vocabularies."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Generic, NoReturn, Protocol, Self, TypeVar

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.labels import MOST_NAMED, class_names
from retexo_fl.graph.recipes.checked_values import (
    MOST_BYTES,
    check_keys,
    fail,
    object_of,
    parsed_json,
    switch_of,
    text_of,
    texts_of,
)
from retexo_fl.graph.recipes.moments import Moments

#: Raised when the meaning of a summary changes.
SUMMARY_VERSION: Final = 1
#: Beside the empty cell, what marks a missing number, or a label that is not known.
MISSING_WORDS: Final = frozenset(("NA", "N/A", "NaN", "nan", "null", "NULL"))
#: A column of more different texts is no column of categories, and its texts are not named.
MOST_TEXTS: Final = 1000
#: Most nodes of a table, and cells of a kind.
MOST_COUNT: Final = 2**48
_FRACTION: Final = re.compile(r"-?[0-9]{1,1500}(?:/[0-9]{1,1500})?")
_KEYS: Final = frozenset(
    ("summary-version", "key-column", "label-column", "rows", "label", "columns")
)
_COLUMN_KEYS: Final = frozenset(
    (
        "empty",
        "words",
        "number-like",
        "numbers",
        "logarithms",
        "texts",
        "too-many-texts",
        "numbers-are-dates",
    )
)
_MOMENT_KEYS: Final = frozenset(("count", "sum", "sum-of-squares"))


class ColumnLike(Protocol):
    """What a summary says of a column of tables; two can be joined."""

    @property
    def has_texts(self) -> bool:
        """Whether it is a column of texts."""
        ...

    @property
    def has_numbers(self) -> bool:
        """Whether it is a column of numbers, or of dates, which are numbers of days."""
        ...

    @property
    def are_dates(self) -> bool:
        """Whether its numbers are dates."""
        ...

    def __add__(self, other: Any) -> Any:
        """Return what a summary would say of both columns as one."""
        ...


ColumnT = TypeVar("ColumnT", bound=ColumnLike)
TableT = TypeVar("TableT", bound="Table[Any]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSummary:
    """One column of one table, or of several together.

    Attributes:
        empty: Cells without anything.
        words: Cells by word that marks a missing number, such as ``NA``.
        numbers: Moments of the cells; of none, if a cell is a text. Of dates days since 1970-01-01.
        logarithms: Moments of :func:`~.moments.signed_logarithms` of the cells.
        texts: Cells by text; of none, if the column is of numbers.
        unnamed: Cells whose texts are not named, since few nodes have them.
        too_many_texts: There are more than :data:`MOST_TEXTS`, and ``texts`` is empty.
        are_dates: The cells are dates.
    """

    empty: int = 0
    words: Mapping[str, int] = field(default_factory=dict)
    numbers: Moments = field(default_factory=Moments)
    logarithms: Moments = field(default_factory=Moments)
    texts: Mapping[str, int] = field(default_factory=dict)
    unnamed: int = 0
    too_many_texts: bool = False
    are_dates: bool = False

    @property
    def has_texts(self) -> bool:
        """Whether it is a column of texts."""
        return self.too_many_texts or bool(self.texts) or self.unnamed > 0

    @property
    def has_numbers(self) -> bool:
        """Whether it is a column of numbers."""
        return self.numbers.count > 0

    def __add__(self, other: ColumnSummary) -> ColumnSummary:
        """Return the summary of both columns as one."""
        texts = Counter(self.texts) + Counter(other.texts)
        too_many = self.too_many_texts or other.too_many_texts or len(texts) > MOST_TEXTS
        return ColumnSummary(
            empty=self.empty + other.empty,
            words=Counter(self.words) + Counter(other.words),
            numbers=self.numbers + other.numbers,
            logarithms=self.logarithms + other.logarithms,
            texts={} if too_many else texts,
            unnamed=self.unnamed + other.unnamed,
            too_many_texts=too_many,
            are_dates=self.are_dates or other.are_dates,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSummary:
    """The column of labels.

    Attributes:
        numbers: Whether there are labels that are numbers, and none that is another text.
        texts: Labels that are texts, without their counts.
        whole: Of numbers those that are there, if all are whole, at most :data:`MOST_NAMED`; else
            empty.
    """

    numbers: bool = False
    texts: frozenset[str] = frozenset()
    whole: frozenset[int] = frozenset()

    def __add__(self, other: LabelSummary) -> LabelSummary:
        """Return the summary of both columns as one."""
        whole = self.whole | other.whole
        told = all(each.whole or not each.numbers for each in (self, other))
        return LabelSummary(
            numbers=self.numbers or other.numbers,
            texts=self.texts | other.texts,
            whole=whole if told and len(whole) <= MOST_NAMED else frozenset(),
        )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, where they are not the numbers from 0."""
        return tuple(sorted(self.texts)) or class_names(self.whole)

    @classmethod
    def read(cls, path: Path, value: object) -> Self:
        """Return what :attr:`values` was, at whatever client.

        Raises:
            ConfigurationError: It is none.
        """
        label = object_of(path, "label", value)
        known = frozenset(("numbers", "texts", "whole"))
        check_keys(path, "label", label, known, optional=frozenset(("whole",)))
        numbers = switch_of(path, "label", label["numbers"])
        texts = texts_of(path, "label", label["texts"])
        if numbers and texts:
            fail(path, "label", "numbers and texts", "one of them")
        whole = label.get("whole", [])
        are_whole = isinstance(whole, list) and all(type(each) is int for each in whole)
        if not are_whole or len(whole) > MOST_NAMED or (whole and not numbers):
            fail(path, "label", whole, f"at most {MOST_NAMED} whole numbers, where labels are such")
        return cls(numbers=numbers, texts=texts, whole=frozenset(whole))

    @property
    def values(self) -> dict[str, Any]:
        """Its values for a file."""
        values = {"numbers": self.numbers, "texts": sorted(self.texts)}
        return {**values, "whole": sorted(self.whole)} if self.whole else values


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[ColumnT]):
    """What a summary says of a table of nodes.

    Attributes:
        source: Where it comes from, for errors.
        key_column: Name of the column of keys; nothing is said of it.
        label_column: Name of the column of labels.
        label: What the labels are.
        columns: By name.
    """

    source: str
    key_column: str
    label_column: str
    label: LabelSummary
    columns: Mapping[str, ColumnT]

    def without_source(self) -> Self:
        """Return it with a source that a server may read in errors: its owner's files have none."""
        return replace(self, source="this client's table")

    def without(self, names: Sequence[str]) -> Self:
        """Return it without some columns.

        Raises:
            ConfigurationError: It has no such column.
        """
        for name in names:
            if name not in self.columns:
                there = ", ".join(map(repr, sorted(self.columns)[:12])) or "none"
                raise ConfigurationError(
                    f"drop: {name[:60]!r} is no column of {self.source}; there is: {there}"
                )
        kept = {name: column for name, column in self.columns.items() if name not in names}
        return replace(self, columns=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary(Table[ColumnSummary]):
    """A table of nodes without its rows.

    Attributes:
        rows: Nodes.
    """

    rows: int

    def check_not_few(self, least: int, *, tells_all_texts: bool = True) -> None:
        """Check that no sum is over so few nodes that it reveals them, and no column names nodes.

        Args:
            least: Fewest nodes; fewest numbers of a column that has any, and nodes of the most
                frequent text.
            tells_all_texts: Also of texts that fewer nodes have.

        Raises:
            ConfigurationError: There are fewer.
        """
        told = {"nodes": self.rows}
        for name, column in sorted(self.columns.items()):
            if column.numbers.count:
                told[f"numbers in {name[:60]!r}"] = column.numbers.count
            if column.texts and tells_all_texts:
                told[f"nodes with the most frequent text in {name[:60]!r}"] = max(
                    column.texts.values()
                )
        for what, count in told.items():
            if count < least:
                raise ConfigurationError(
                    f"{self.source}: {what}: got {count}; expected at least {least}, or "
                    "--least-nodes, or --drop where the summary is made"
                )

    def to_json(self) -> str:
        """Return the text of the file; equal summaries are equal texts."""
        values = {
            "summary-version": SUMMARY_VERSION,
            "key-column": self.key_column,
            "label-column": self.label_column,
            "rows": self.rows,
            "label": self.label.values,
            "columns": {name: _column_values(self.columns[name]) for name in sorted(self.columns)},
        }
        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def merge_summaries(summaries: Sequence[TableSummary]) -> TableSummary:
    """Return the summary of all tables as one; their order makes no difference.

    Args:
        summaries: At least one.

    Raises:
        ConfigurationError: They have other columns, or a column is of numbers in one and of texts
            in another.
    """
    return replace(
        merged(summaries, ColumnSummary()), rows=sum(summary.rows for summary in summaries)
    )


def merged(tables: Sequence[TableT], nothing: ColumnLike) -> TableT:
    """Return tables as one, in all that tables of any kind have.

    Args:
        tables: At least one.
        nothing: A column of no rows.

    Raises:
        ConfigurationError: As :func:`merge_summaries`.
    """
    first = tables[0]
    for table in tables[1:]:
        _check_same_columns(first, table)
    label = sum((table.label for table in tables), LabelSummary())
    if label.numbers and label.texts:
        _fail_kinds(
            first.label_column,
            [
                (table.source, "numbers" if table.label.numbers else "texts")
                for table in tables
                if table.label.numbers or table.label.texts
            ],
            advice="expected labels of one kind at all clients",
        )
    return replace(
        first,
        source=first.source if len(tables) == 1 else f"{len(tables)} tables",
        label=label,
        columns={name: _merged(name, tables, nothing) for name in first.columns},
    )


def read_summary(path: Path) -> TableSummary:
    """Read what :meth:`TableSummary.to_json` wrote, at whatever client.

    Raises:
        ConfigurationError: It cannot be read, is of another version, or no summary.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror})") from error
    return parse_summary(content, path)


def parse_summary(content: bytes, path: Path) -> TableSummary:
    """Return the summary of a file's content, as :func:`read_summary`; errors name ``path``.

    Raises:
        ConfigurationError: As there.
    """
    values = parsed_json(content, path)
    if values.get("summary-version") != SUMMARY_VERSION:
        fail(path, "summary-version", values.get("summary-version"), str(SUMMARY_VERSION))
    check_keys(path, "summary", values, _KEYS)
    columns = object_of(path, "columns", values["columns"])
    rows = _count(path, "rows", values["rows"])
    return TableSummary(
        source=str(path),
        key_column=text_of(path, "key-column", values["key-column"]),
        # Of a type of nodes without labels it is empty.
        label_column=""
        if values["label-column"] == ""
        else text_of(path, "label-column", values["label-column"]),
        rows=rows,
        label=LabelSummary.read(path, values["label"]),
        columns={name: _column(path, name, column, rows) for name, column in columns.items()},
    )


def _merged(name: str, tables: Sequence[Table[Any]], nothing: ColumnLike) -> ColumnLike:
    columns = [(table.source, table.columns[name]) for table in tables]
    kinds = [
        (source, "texts" if column.has_texts else "dates" if column.are_dates else "numbers")
        for source, column in columns
        if column.has_texts or column.has_numbers
    ]
    if len({kind for _, kind in kinds}) > 1:
        _fail_kinds(
            name,
            kinds,
            advice=f"expected --categorical {name} or --drop {name} where summaries are made",
        )
    return sum((column for _, column in columns), nothing)


def _check_same_columns(one: Table[Any], other: Table[Any]) -> None:
    for name, mine, others in (
        ("key-column", one.key_column, other.key_column),
        ("label-column", one.label_column, other.label_column),
    ):
        if mine != others:
            raise ConfigurationError(
                f"{other.source}: {name} is {others[:60]!r}, in {one.source} {mine[:60]!r}; "
                "expected the same"
            )
    for here, there in ((one, other), (other, one)):
        missing = sorted(here.columns.keys() - there.columns.keys())
        if missing:
            raise ConfigurationError(
                f"{there.source}: column {missing[0][:60]!r} is missing, which {here.source} has; "
                "expected the same columns at all clients, or --drop"
            )


def _fail_kinds(name: str, kinds: list[tuple[str, str]], *, advice: str) -> NoReturn:
    first: dict[str, str] = {}
    for source, kind in kinds:
        first.setdefault(kind, source)
    told = " and ".join(f"{kind} in {first[kind]}" for kind in sorted(first)[:2])
    raise ConfigurationError(f"{name[:60]}: holds {told}; {advice}")


def _column_values(column: ColumnSummary) -> dict[str, Any]:
    """Return what differs from an empty column."""
    values: dict[str, Any] = {"empty": column.empty}
    if column.words:
        values["words"] = dict(sorted(column.words.items()))
    if column.numbers.count:
        values["numbers"] = _moment_values(column.numbers)
        values["logarithms"] = _moment_values(column.logarithms)
        if column.are_dates:
            values["numbers-are-dates"] = True
    if column.too_many_texts:
        values["too-many-texts"] = True
    elif column.texts:
        values["texts"] = dict(sorted(column.texts.items()))
    return values


def _moment_values(moments: Moments) -> dict[str, Any]:
    return {
        "count": moments.count,
        "sum": str(moments.total),
        "sum-of-squares": str(moments.squares),
    }


def _column(path: Path, name: str, value: object, rows: int) -> ColumnSummary:
    values = object_of(path, name, value)
    check_keys(path, name, values, _COLUMN_KEYS, optional=_COLUMN_KEYS - {"empty"})
    texts = _counts(path, name, values.get("texts", {}))
    if len(texts) > MOST_TEXTS:
        fail(path, name, f"{len(texts)} texts", f"at most {MOST_TEXTS}")
    numbers = _moments(path, name, values.get("numbers"))
    logarithms = _moments(path, name, values.get("logarithms"))
    too_many = switch_of(path, name, values.get("too-many-texts", False))
    if numbers.count != logarithms.count or (numbers.count and (texts or too_many)):
        fail(path, name, "numbers and texts", "one of them")
    column = ColumnSummary(
        empty=_count(path, name, values["empty"]),
        words=_counts(path, name, values.get("words", {})),
        numbers=numbers,
        logarithms=logarithms,
        texts=texts,
        too_many_texts=too_many,
        are_dates=switch_of(path, name, values.get("numbers-are-dates", False)),
    )
    if column.are_dates and not numbers.count:
        fail(path, name, "dates without numbers of days", "both")
    check_cells(path, name, column, rows)
    return column


def check_cells(path: Path, name: str, column: ColumnSummary, rows: int) -> None:
    """Check that a column can be one of a table of so many rows.

    Raises:
        ConfigurationError: It has other cells, or sums that no numbers have.
    """
    cells = column.empty + sum(column.words.values()) + column.numbers.count
    cells += sum(column.texts.values()) + column.unnamed
    # Texts that are too many are not in the summary.
    if cells > rows or not (cells == rows or column.too_many_texts):
        fail(path, name, f"{cells} cells", f"{rows}, one for each row")
    for moments in (column.numbers, column.logarithms):
        # Cauchy and Schwarz: else a deviation would be the root of a negative number.
        if moments.squares * moments.count < moments.total**2:
            fail(path, name, "a sum of squares that is too small", "that of numbers with this sum")


def _moments(path: Path, name: str, value: object) -> Moments:
    if value is None:
        return Moments()
    values = object_of(path, name, value)
    check_keys(path, name, values, _MOMENT_KEYS)
    return Moments(
        count=_count(path, name, values["count"]),
        total=_fraction(path, name, values["sum"]),
        squares=_fraction(path, name, values["sum-of-squares"]),
    )


def _fraction(path: Path, name: str, value: object) -> Fraction:
    if not isinstance(value, str) or not _FRACTION.fullmatch(value):
        fail(path, name, value, "a fraction, such as 3/4")
    numerator, _, denominator = value.partition("/")
    try:
        found = Fraction(int(numerator), int(denominator or "1"))
        float(found)
    except (ZeroDivisionError, OverflowError):
        fail(path, name, value, "a fraction of the range of float64")
    return found


def _counts(path: Path, name: str, value: object) -> dict[str, int]:
    return {text: _count(path, name, count) for text, count in object_of(path, name, value).items()}


def _count(path: Path, name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_COUNT:
        fail(path, name, value, "a whole number from 0")
    return value
