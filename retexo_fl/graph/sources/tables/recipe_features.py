"""Applying a recipe to a table, batch by batch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from scipy.sparse import csr_array, vstack

from retexo_fl.dates import unclear_date
from retexo_fl.graph.features import Features
from retexo_fl.graph.recipes.moments import signed_logarithms
from retexo_fl.graph.recipes.recipe import (
    MONTHS,
    WEEKDAYS,
    CategoryColumn,
    DateColumn,
    FeatureRecipe,
    NumberColumn,
)
from retexo_fl.graph.sources.tables.cells import whole_number
from retexo_fl.graph.sources.tables.dates import DAY_FIRST, DateTally, days_of
from retexo_fl.graph.sources.tables.gapped_cells import (
    checked_range,
    is_missing,
    number_cells,
    plain_cells,
    texts_of,
)
from retexo_fl.graph.sources.tables.source import (
    Cells,
    Column,
    Complaints,
    Source,
    require_columns,
    shown,
)
from retexo_fl.units import counted

logger = logging.getLogger(__name__)

#: Wider rows are mostly zeros of categories, and are kept sparse. Chosen; not tuned.
MOST_DENSE: Final = 512
_MOST_NAMED: Final = 5


class RecipeReader:
    """Makes the features of a table of nodes.

    Attributes:
        columns: What :meth:`add` needs of each batch.
    """

    def __init__(self, source: Source, recipe: FeatureRecipe, complaints: Complaints) -> None:
        """Check that the table has the columns of the recipe.

        Raises:
            TableError: One is missing.
        """
        self._source = source
        self._recipe = recipe
        self._complaints = complaints
        self._parts: list[Features] = []
        self._unseen: dict[str, Counter[str]] = {}
        self._gaps: Counter[str] = Counter()
        self.columns = recipe.columns
        require_columns(source, recipe.columns)
        self._orders = _date_orders(source, [c.column for c in recipe.dates], complaints)

    def add(self, batch: Mapping[str, Cells], *, first_row: int) -> None:
        """Take the next rows; problems of cells go to the complaints."""
        rows = len(batch[self.columns[0]])
        matrix: np.ndarray = np.zeros((rows, self._recipe.num_features), dtype=np.float32)
        at = 0
        for column in self._recipe.in_order:
            cells = Column(
                source=self._source,
                name=column.column,
                first_row=first_row,
                cells=batch[column.column],
                complaints=self._complaints,
            )
            part = matrix[:, at : at + column.width]
            if isinstance(column, NumberColumn):
                self._fill_numbers(column, cells, part)
            elif isinstance(column, DateColumn):
                self._fill_dates(column, cells, part)
            else:
                self._fill_categories(column, cells, part)
            at += column.width
        self._parts.append(matrix if self._recipe.num_features <= MOST_DENSE else csr_array(matrix))

    def finish(self, *, num_nodes: int) -> Features:
        """Return the matrix of all rows; what the recipe has no place for is logged.

        Returns:
            [num_nodes, F] float32, CSR where F is above :data:`MOST_DENSE`.
        """
        for name, texts in self._unseen.items():
            named = ", ".join(shown(text) for text, _ in texts.most_common(_MOST_NAMED))
            more = ", ..." if len(texts) > _MOST_NAMED else ""
            logger.warning(
                "%s: %s: %s with %s that the recipe does not name, which count as other: %s%s",
                *(self._source.path, name, counted(texts.total(), "row")),
                *(counted(len(texts), "text"), named, more),
            )
        for name, count in self._gaps.items():
            logger.warning(
                "%s: %s: %s without a value, as no row was when the recipe was made",
                *(self._source.path, name, counted(count, "row")),
            )
        if isinstance(self._parts[0], csr_array):
            return csr_array(vstack(self._parts, format="csr"))
        matrix: np.ndarray = np.concatenate(self._parts)
        assert len(matrix) == num_nodes
        return matrix

    def _fill_numbers(self, column: NumberColumn, cells: Column, part: np.ndarray) -> None:
        values = number_cells(cells)
        gaps = np.isnan(values)
        if column.missing is not None:
            values = np.where(gaps, column.missing, values)
        if column.logarithm:
            values = signed_logarithms(values)
        scaled = (values - column.mean) / column.deviation
        part[:, 0] = np.nan_to_num(checked_range(cells, scaled), nan=0.0)
        if column.indicator:
            part[:, 1] = gaps
        elif gaps.any():
            self._gaps[column.column] += int(np.count_nonzero(gaps))

    def _fill_dates(self, column: DateColumn, cells: Column, part: np.ndarray) -> None:
        texts = texts_of(cells)
        order = self._orders[column.column]
        days = np.full(len(texts), np.nan)
        for row, text in enumerate(texts):
            if is_missing(text):
                continue
            found = days_of(text, order)
            if found is None:
                cells.report(
                    row, f"got {shown(text)}; expected a date such as 2024-03-01, or nothing"
                )
            else:
                days[row] = found
        there = ~np.isnan(days)
        rows, whole = np.flatnonzero(there), np.floor(days[there]).astype(np.int64)
        part[:, 0] = np.nan_to_num((days - column.mean) / column.deviation, nan=0.0)
        months = whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % MONTHS
        part[rows, 1 + months] = 1
        # The first of 1970 was a Thursday; weeks begin on Mondays.
        part[rows, 1 + MONTHS + (whole + 3) % WEEKDAYS] = 1
        if column.indicator:
            part[:, -1] = ~there
        elif not there.all():
            self._gaps[column.column] += int(np.count_nonzero(~there))

    def _fill_categories(self, column: CategoryColumn, cells: Column, part: np.ndarray) -> None:
        texts = texts_of(cells)
        places = {text: place for place, text in enumerate(column.values)}
        other = len(places)
        # A row without a category has none of the features, but for the indicator.
        missing = other + 1
        places[""] = missing
        where = np.fromiter((places.get(text, other) for text in texts), np.int64, len(texts))
        rows = np.arange(len(texts))
        there = where < part.shape[1]
        part[rows[there], where[there]] = 1
        if not column.indicator and (gaps := int(np.count_nonzero(where == missing))):
            self._gaps[column.column] += gaps
        unseen = Counter(text for text, place in zip(texts, where, strict=True) if place == other)
        if unseen:
            self._unseen.setdefault(column.column, Counter()).update(unseen)


def _date_orders(source: Source, names: Sequence[str], complaints: Complaints) -> dict[str, int]:
    """Return in which order each of some columns writes day and month, by all of its cells.

    A column that does not say so is a problem of its first cell that could be two dates.
    """
    tallies = {name: DateTally() for name in names}
    unclear: dict[str, tuple[int, str]] = {}
    first_row = 0
    for batch in source.batches(names) if names else ():
        for name, tally in tallies.items():
            column = Column(source=source, name=name, first_row=first_row, cells=batch[name])
            texts = texts_of(column)
            was_clear = tally.may_differ is None
            tally.add(Counter(text for text in texts if not is_missing(text)))
            if was_clear and tally.may_differ is not None and not tally.is_clear:
                unclear[name] = (first_row + texts.index(tally.may_differ), tally.may_differ)
        first_row += len(batch[names[0]])
    for name, tally in tallies.items():
        if not tally.is_clear and tally.orders:
            row, text = unclear[name]
            complaints.add(row, f"{name}: {unclear_date(text)}")
    return {name: (tally.orders or (DAY_FIRST,))[0] for name, tally in tallies.items()}


def class_labels(column: Column, classes: tuple[str, ...]) -> np.ndarray:
    """Return the classes of labels that are texts; problems of cells are reported.

    Args:
        column: The cells; nothing, or a word for a missing number, is an unlabelled node.
        classes: Names by class; of those that are numbers, -1 is an unlabelled node, too.

    Returns:
        [n] int64, -1 for unlabelled.
    """
    found = plain_cells(column)
    texts = texts_of(column) if isinstance(found, np.ndarray) else found
    number_of = {name: label for label, name in enumerate(classes)}
    labels = np.full(len(texts), -1, dtype=np.int64)
    for row, text in enumerate(texts):
        number = whole_number(text)
        name = text if text in number_of or number is None else str(number)
        if name in number_of:
            labels[row] = number_of[name]
        elif not is_missing(text) and number != -1:
            named = ", ".join(map(shown, classes[:12])) + (", ..." if len(classes) > 12 else "")
            column.report(row, f"got {shown(text)}; expected a class of the recipe: {named}")
    return labels
