"""The section that shows how the test went by class: the confusion matrix, recall, precision."""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.report import markup
from retexo_fl.report.read import RunRecord
from retexo_fl.units import UNKNOWN

#: Above this many classes the matrix is left out, and the table of classes stands alone.
CLASSES_SHOWN: Final = 20


def classes_section(run: RunRecord) -> str:
    """Return recall and precision of each class, and the confusion matrix if it is readable."""
    matrix = () if run.result is None else run.result.confusion
    if not matrix or any(len(row) != len(matrix) for row in matrix):
        return ""
    counts = np.array(matrix)
    hits, labelled, predicted = np.diagonal(counts), counts.sum(axis=1), counts.sum(axis=0)
    rows = [
        [
            markup.name(c),
            markup.count(int(labelled[c])),
            markup.count(int(predicted[c])),
            _ratio(int(hits[c]), int(labelled[c])),
            _ratio(int(hits[c]), int(predicted[c])),
            _ratio(2 * int(hits[c]), int(labelled[c] + predicted[c])),
        ]
        for c in range(len(counts))
    ]
    columns = ("class", "test nodes", "predicted", "recall", "precision", "F1")
    table = markup.table("Classes", columns, rows, sortable=True)
    return markup.section("classes", "Classes", table, _matrix(counts))


def _matrix(counts: np.ndarray) -> str:
    if len(counts) > CLASSES_SHOWN:
        return ""
    rows = [
        [markup.name(c), *(markup.count(int(count)) for count in row)]
        for c, row in enumerate(counts)
    ]
    columns = ("is, predicted as", *map(str, range(len(counts))))
    caption = "Confusion matrix of the test nodes"
    return markup.paragraph(f"{caption}: a row for each class, a column for each prediction.") + (
        markup.table(caption, columns, rows)
    )


def _ratio(part: int, whole: int) -> markup.Cell:
    """Return a share; none where there is nothing to be divided by."""
    value = part / whole if whole else None
    return markup.Cell(text=UNKNOWN if value is None else f"{value:.4f}", value=value)
