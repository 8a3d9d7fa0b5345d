"""The section that shows how the test went by class: the confusion matrix, recall, precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from retexo_fl.config.goals import goal_of
from retexo_fl.report import markup
from retexo_fl.report.read import RunRecord
from retexo_fl.run_log.result import LabelRow
from retexo_fl.units import UNKNOWN

#: Above this many classes the matrix is left out, and only the table of classes is shown.
CLASSES_SHOWN: Final = 20


def classes_section(run: RunRecord) -> str:
    """Return recall and precision by class or label with the confusion matrix, or errors."""
    result = run.result
    if result is None:
        return ""
    if result.labels:
        goal = goal_of(run.config)
        table = _table(goal.output, result.labels, unit=f"{goal.examples}s")
        return markup.section("classes", f"{goal.output.capitalize()}s", table)
    if result.errors:
        rows = [[markup.words(name), markup.number(v)] for name, v in result.errors.items()]
        return markup.section("classes", "Errors", markup.table("Errors", ("", "test"), rows))
    matrix = result.confusion
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        return ""
    counts = np.array(matrix)
    found = zip(np.diagonal(counts), counts.sum(axis=0), counts.sum(axis=1), strict=True)
    classes = [LabelRow(*map(int, numbers)) for numbers in found]
    names = run.classes if len(run.classes) == len(counts) else tuple(map(str, range(len(counts))))
    table = _table("class", classes, names=names)
    return markup.section("classes", "Classes", table, _matrix(counts, names))


def _table(
    what: str, rows: Sequence[LabelRow], *, unit: str = "nodes", names: Sequence[str] = ()
) -> str:
    lines = [
        [
            _class_cell(number, names),
            markup.count(row.positive),
            markup.count(row.predicted),
            _ratio(row.hits, row.positive),
            _ratio(row.hits, row.predicted),
            _ratio(2 * row.hits, row.positive + row.predicted),
        ]
        for number, row in enumerate(rows)
    ]
    columns = (what, f"test {unit}", "predicted", "recall", "precision", "F1")
    return markup.table(f"Test by {what}", columns, lines, sortable=True)


def _matrix(counts: np.ndarray, names: Sequence[str]) -> str:
    if len(counts) > CLASSES_SHOWN:
        return ""
    rows = [
        [_class_cell(c, names), *(markup.count(int(count)) for count in row)]
        for c, row in enumerate(counts)
    ]
    columns = ("is, predicted as", *names)
    caption = "Confusion matrix of the test nodes"
    return markup.paragraph(f"{caption}: a row for each class, a column for each prediction.") + (
        markup.table(caption, columns, rows)
    )


def _class_cell(number: int, names: Sequence[str]) -> markup.Cell:
    """Return the name of a class, sorted by its number."""
    return replace(markup.name(number), text=names[number]) if names else markup.name(number)


def _ratio(part: int, whole: int) -> markup.Cell:
    """Return a share; none where there is nothing to be divided by."""
    value = part / whole if whole else None
    return markup.Cell(text=UNKNOWN if value is None else f"{value:.4f}", value=value)
