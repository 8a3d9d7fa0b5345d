"""A split by time: early nodes train, later ones choose the best model, the last ones test it."""

from __future__ import annotations

from typing import Final, NoReturn

import numpy as np

from retexo_fl.dates import Moment, check_order
from retexo_fl.errors import ConfigurationError, DatasetError
from retexo_fl.graph.labels import labelled
from retexo_fl.graph.masks import Split
from retexo_fl.graph.sources.moments import early_times, read_times, wrong_time

#: A split by time; its points in time follow a colon.
BY_TIME: Final = "time"
_BEGIN: Final = f"{BY_TIME}:"
#: The attribute of nodes that holds their times, if no other is named.
TIME_COLUMN: Final = "time"
_EXPECTED: Final = (
    "expected time:VAL/TEST or time:VAL/TEST/END, points in time that ascend, all numbers or all "
    "dates such as 2024-03-01"
)


def time_columns(split: str, column: str) -> tuple[str, ...]:
    """Return the attributes of nodes that a split needs: one, or none."""
    return (column or TIME_COLUMN,) if split.partition(":")[0] == BY_TIME else ()


def time_cuts(split: str) -> tuple[Moment, ...]:
    """Return the points in time of ``time:VAL/TEST`` or ``time:VAL/TEST/END``.

    Raises:
        ConfigurationError: The text has another form, or the points do not ascend.
    """
    texts = split.removeprefix(_BEGIN).split("/")
    if not split.startswith(_BEGIN) or len(texts) not in {2, 3}:
        raise ConfigurationError(
            f"split: got {split[:60]!r}; {_EXPECTED}, or --cuts with {BY_TIME}"
        )
    cuts = tuple(Moment.of(text, key="split") for text in texts)
    check_order(cuts, key="split", text=split)
    return cuts


def split_by_time(
    times: np.ndarray, labels: np.ndarray, *, split: str, source: str, column: str
) -> Split:
    """Choose train, validation and test nodes among the labelled ones by when they came.

    A node's use depends on its own time alone, so clients need agree on nothing but the text.

    Args:
        times: [N] text or bytes: numbers, or dates in any form of :mod:`retexo_fl.dates`.
        labels: Of one of the forms of :mod:`~retexo_fl.graph.labels`.
        split: ``time:VAL/TEST``: nodes before VAL train, those from VAL on and before TEST
            validate, those from TEST on test; with ``/END``, those from TEST on and before END.
        source: Where the times come from, for errors.
        column: What they are called there.

    Returns:
        Disjoint masks; one may be empty.

    Raises:
        ConfigurationError: The text has another form, or its points in time do not ascend.
        DatasetError: A node has no time, or one that may be two.
    """
    cuts = time_cuts(split)
    cells = [c.decode(errors="replace") if isinstance(c, bytes) else c for c in times.tolist()]
    read = read_times(cells, dates=cuts[0].is_date)

    def fail(row: int) -> NoReturn:
        told = wrong_time(cells[row], cuts[0], repr(cells[row][:40]), key="the split")
        raise DatasetError(f"{source}: {column}: node {row}: {told}")

    before = []
    for cut in cuts:
        early, wrong = early_times(read, cut)
        if wrong is not None:
            fail(wrong)
        before.append(early)
    known = labelled(labels)
    end = before[2] if len(before) == 3 else np.ones(len(cells), dtype=bool)
    return Split(
        train=known & before[0],
        val=known & before[1] & ~before[0],
        test=known & end & ~before[1],
    )
