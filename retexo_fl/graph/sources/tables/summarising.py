"""From a table of nodes to its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.dates import is_date, unclear_date
from retexo_fl.errors import ConfigurationError, TableError
from retexo_fl.graph.labels import MOST_NAMED
from retexo_fl.graph.recipes.moments import Moments, signed_logarithms
from retexo_fl.graph.recipes.summary import (
    MISSING_WORDS,
    MOST_TEXTS,
    ColumnSummary,
    LabelSummary,
    TableSummary,
)
from retexo_fl.graph.sources.number_form import looks_like_number
from retexo_fl.graph.sources.tables.cells import (
    MOST_TEXT,
    is_number,
    number_hint,
    without_booleans,
    without_words,
)
from retexo_fl.graph.sources.tables.dates import (
    DAY_FIRST,
    MONTH_FIRST,
    DateTally,
    days_of,
)
from retexo_fl.graph.sources.tables.frame_source import AnyTable
from retexo_fl.graph.sources.tables.gapped_cells import (
    checked_range,
    is_in_range,
    is_missing,
    numbers_in,
    plain_cells,
    texts_of,
)
from retexo_fl.graph.sources.tables.opening import open_table
from retexo_fl.graph.sources.tables.source import (
    KEY_COLUMN,
    LABEL_COLUMN,
    USES_OF_NODES,
    Column,
    Complaints,
    Source,
    numbered_columns,
    require_columns,
    shown,
)
from retexo_fl.graph.sources.text_form import FOUND, TextForm

_UNLABELLED: Final = -1
#: Numbers of so few kinds, each on many rows, may be codes, such as those of a country's regions.
_MOST_CODES: Final = 10
#: Cells of a column that an error shows.
_MOST_SHOWN: Final = 3
#: More classes than this are names or numbers that were taken for classes.
_MOST_CLASSES: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChoice:
    """Which columns of a table a recipe is made for.

    Attributes:
        key: Column of keys.
        label: Column of labels; without one of that name, those of several labels a node,
            ``LABEL_0``, ``LABEL_1``, ...; empty for none.
        columns: Those that become features; empty for all but key, label and ``split``.
        drop: Those that do not; named as labels are.
        categorical: Those whose numbers are names, such as postcodes.
        unlabelled: What is in the column of labels beside nothing where none is known.
        form: What is chosen of a text table's form.
    """

    key: str = KEY_COLUMN
    label: str = LABEL_COLUMN
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    unlabelled: frozenset[str] = frozenset()
    form: TextForm = FOUND


def summarise_table(path: AnyTable, choice: ColumnChoice) -> TableSummary:
    """Read a table of nodes and return its counts, moments and vocabularies.

    Args:
        path: A DataFrame, or a ``.csv``, ``.tsv`` (both also with ``.gz`` or ``.zip``),
            ``.parquet`` or ``.npz`` file; none of its columns needs a particular name.
        choice: Of its columns.

    Raises:
        TableError: It cannot be read or is damaged, a column is missing, or a number is not finite
            as float32; one line for each problem.
    """
    source = open_table(path, choice.form)
    labels = columns_of(source, choice.label) if choice.label else ()
    dropped = [name for given in choice.drop for name in columns_of(source, given)]
    require_columns(source, (choice.key, *labels, *choice.columns, *dropped, *choice.categorical))
    names = _features(source, choice, {choice.key, *labels, *USES_OF_NODES, *dropped})
    tallies = {name: _Tally(as_text=name in choice.categorical) for name in names}
    label = _LabelTally()
    complaints = Complaints(source.path, source.place)
    rows = 0
    for batch in source.batches(tuple(dict.fromkeys((choice.key, *labels, *names)))):
        for name in (*labels, *names):
            column = Column(
                source=source,
                name=name,
                first_row=rows,
                cells=batch[name],
                complaints=complaints,
            )
            if name in labels:
                label.add(without_words(column, choice.unlabelled))
            else:
                tallies[name].add(column)
        rows += len(batch[choice.key])
    columns = {name: tally.finish() for name, tally in tallies.items()}
    complaints.check()
    if not rows:
        raise TableError(f"{source.path}: has no rows; expected at least one node")
    return TableSummary(
        source=str(source.path),
        key_column=choice.key,
        label_column=choice.label,
        rows=rows,
        label=label.finish(source.path, choice.label),
        columns=columns,
    )


def choices_by_table(
    paths: Sequence[AnyTable], choice: ColumnChoice, *, drop: str = "drop"
) -> list[ColumnChoice]:
    """Return what of a choice each of several tables has.

    Args:
        paths: Of the tables.
        choice: Of columns of any of them.
        drop: What errors call those that are dropped.

    Raises:
        TableError: One cannot be read.
        ConfigurationError: No table has a column that becomes features, is dropped, or has names.
    """
    sources = [open_table(path, choice.form) for path in paths]
    chosen = {"columns": choice.columns, drop: choice.drop, "categorical": choice.categorical}
    for option, names in chosen.items():
        for name in names:
            if not any(_has(source, name) for source in sources):
                there = ", ".join(dict.fromkeys(one for source in sources for one in source.names))
                raise ConfigurationError(
                    f"{option}: {name[:60]!r} is a column of no type; there is: {there[:400]}"
                )
    found = []
    for source in sources:
        columns, dropped, categorical = (
            tuple(name for name in names if _has(source, name)) for names in chosen.values()
        )
        if choice.columns and not columns:
            dropped = tuple(name for name in source.names if name != choice.key)
        label = choice.label if choice.label and _has(source, choice.label) else ""
        found.append(
            replace(choice, label=label, columns=columns, drop=dropped, categorical=categorical)
        )
    return found


def _has(source: Source, name: str) -> bool:
    return {*columns_of(source, name)} <= {*source.names}


def columns_of(source: Source, name: str) -> tuple[str, ...]:
    """Return the columns that a name is of: its own, or without one ``NAME_0``, ``NAME_1``, ..."""
    several = () if name in source.names else numbered_columns(source, name)
    return several or (name,)


def _features(source: Source, choice: ColumnChoice, others: Collection[str]) -> tuple[str, ...]:
    if choice.columns:
        return tuple(name for name in choice.columns if name not in choice.drop)
    return tuple(name for name in source.names if name not in others)


def _otherwise(column: Column) -> str:
    """Return how a column is used that is none of numbers or dates."""
    return f"`retexo features fit` with --categorical or --drop {column.name}"


@dataclass(slots=True)
class _Near:
    """How near a column of texts is to one of another kind.

    Attributes:
        alike: Cells that look like that.
        odd: The first that are not.
    """

    alike: int = 0
    odd: list[tuple[Column, int]] = field(default_factory=list)


class _Tally:
    """One column, batch by batch."""

    def __init__(self, *, as_text: bool) -> None:
        self._as_text = as_text
        self._is_text = as_text
        self._empty = 0
        self._words: Counter[str] = Counter()
        self._numbers = Moments()
        self._logarithms = Moments()
        #: Batches with numbers that are out of range; no problem in a column of texts.
        self._out_of_range: list[tuple[Column, np.ndarray]] = []
        #: Of every cell that is a text, and of numbers that are written out, until there are too
        #: many: a text further down makes texts of them.
        self._texts: Counter[str] = Counter()
        self._too_many = False
        self._there = 0
        self._has_numbers = False
        self._near = {kind: _Near() for kind in ("numbers", "dates")}
        self._dates = DateTally()
        #: The first cells that may be two dates, by row.
        self._unclear: list[tuple[Column, int]] = []

    def add(self, column: Column) -> None:
        """Take the next cells."""
        found = texts_of(column) if self._as_text else plain_cells(column)
        if isinstance(found, np.ndarray):
            self._add_numbers(column, found)
            self._has_numbers = self._has_numbers or bool(np.isfinite(found).any())
            return
        counts = Counter(found)
        self._empty += counts.pop("", 0)
        self._words.update({word: counts.pop(word) for word in MISSING_WORDS & counts.keys()})
        form = column.numbers
        values = None if self._is_text else numbers_in(found, form)
        if values is not None:
            self._add_moments(column, values)
        else:
            self._is_text = self._is_text or not all(is_number(text, form) for text in counts)
        if not self._as_text:
            self._note_odd(column, found, counts)
        self._note(counts)

    def finish(self) -> ColumnSummary:
        """Return the summary of the column."""
        if not self._is_text:
            for column, values in self._out_of_range:
                checked_range(column, values)
            return ColumnSummary(
                empty=self._empty,
                words=self._words,
                numbers=self._numbers,
                logarithms=self._logarithms,
            )
        dates = self._dates
        if not self._as_text and self._there and dates.orders and not self._has_numbers:
            if not dates.is_clear:
                for column, row in self._unclear:
                    column.report(
                        row, f"{unclear_date(str(column.cells[row]))}; or {_otherwise(column)}"
                    )
            numbers, logarithms = dates.moments
            return ColumnSummary(
                empty=self._empty,
                words=self._words,
                numbers=numbers,
                logarithms=logarithms,
                are_dates=True,
            )
        codes = len(self._texts)
        if self._too_many or codes > _MOST_CODES or self._there < _MOST_CODES * codes:
            self._report_odd()
        too_many = self._too_many or len(self._texts) > MOST_TEXTS
        return ColumnSummary(
            empty=self._empty,
            words=self._words,
            texts={} if too_many else self._texts,
            too_many_texts=too_many,
        )

    def _add_numbers(self, column: Column, values: np.ndarray) -> None:
        self._empty += int(np.count_nonzero(np.isnan(values)))
        self._add_moments(column, values)

    def _add_moments(self, column: Column, values: np.ndarray) -> None:
        if not is_in_range(values):
            self._out_of_range.append((column, values))
        there = values[np.isfinite(values)]
        self._numbers += Moments.of(there)
        self._logarithms += Moments.of(signed_logarithms(there))

    def _note_odd(self, column: Column, texts: list[str], counts: Counter[str]) -> None:
        """Note how many cells look like numbers or dates, and where the first are that are not."""
        self._there += counts.total()
        dates = {text for text in counts if is_date(text)}
        alike = {
            "numbers": ({text for text in counts if looks_like_number(text)} - dates),
            "dates": dates,
        }
        numbers = {text for text in counts if is_number(text, column.numbers)}
        for kind, fine in (("numbers", numbers), ("dates", dates)):
            near = self._near[kind]
            near.alike += sum(counts[text] for text in alike[kind])
            rows = (row for row, text in enumerate(texts) if text in counts and text not in fine)
            near.odd += [(column, row) for row in islice(rows, _MOST_SHOWN - len(near.odd))]
        if self._dates.orders:
            self._dates.add(counts)
            rows = (
                row
                for row, text in enumerate(texts)
                if text in dates and days_of(text, DAY_FIRST) != days_of(text, MONTH_FIRST)
            )
            found = islice(rows, _MOST_SHOWN - len(self._unclear))
            self._unclear += [(column, row) for row in found]

    def _report_odd(self) -> None:
        """Report cells of a column that is one of numbers, or of dates, but for them."""
        for kind, near in self._near.items():
            if 2 * near.alike <= self._there:
                continue
            for column, row in near.odd:
                cell = column.cells[row]
                hint = number_hint(cell, column.numbers)
                column.report(
                    row,
                    f"got {shown(cell)}, where {near.alike:,} of {self._there:,} cells look like "
                    f"{kind}; expected {kind}, or nothing{hint}; or {_otherwise(column)}",
                )

    def _note(self, counts: Counter[str]) -> None:
        if self._too_many:
            return
        self._texts.update(counts)
        longest = max(map(len, counts), default=0)
        if len(self._texts) > MOST_TEXTS or longest > MOST_TEXT:
            self._too_many = True
            self._texts.clear()


class _LabelTally:
    """The column of labels, batch by batch."""

    def __init__(self) -> None:
        self._texts: set[str] = set()
        self._numbers = False
        #: Numbers that came as such; none of them once one is not whole, or there are too many.
        self._whole: set[int] | None = set()

    def add(self, column: Column) -> None:
        """Take the next cells."""
        found = plain_cells(column)
        if isinstance(found, np.ndarray):
            there = np.unique(found[np.isfinite(found)])
            self._numbers = self._numbers or bool(len(there))
            self._note(there.tolist())
        elif len(self._texts) <= _MOST_CLASSES:
            self._texts |= {text for text in found if not is_missing(text)}

    def finish(self, path: Path, name: str) -> LabelSummary:
        """Return what the labels are.

        Raises:
            TableError: There are more texts than there could be classes.
        """
        numerals = without_booleans(self._texts)
        if all(map(is_number, numerals)):
            self._note(map(float, numerals))
            return LabelSummary(
                numbers=self._numbers or bool(self._texts), whole=frozenset(self._whole or ())
            )
        if len(self._texts) > _MOST_CLASSES:
            raise TableError(
                f"{path}: {name}: has more than {_MOST_CLASSES} different texts; expected classes"
            )
        return LabelSummary(texts=frozenset(self._texts))

    def _note(self, numbers: Iterable[float]) -> None:
        for number in numbers:
            if self._whole is None or number == _UNLABELLED:
                continue
            self._whole.add(int(number))
            if not number.is_integer() or len(self._whole) > MOST_NAMED:
                self._whole = None
