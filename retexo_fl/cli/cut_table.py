"""The table of a rolling evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from retexo_fl.api.cuts import CutRow
from retexo_fl.cli.sentences import printable
from retexo_fl.cli.tables import figures
from retexo_fl.units import UNKNOWN, counted, format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from rich.table import Table


def cut_table(rows: Sequence[CutRow]) -> Table:
    """Show each cut, and the mean of those that have a value."""
    table = figures(
        *("trained before", "judged before", "metric", "validation", "test"),
        *("test nodes", "payload", "judging", "time"),
        left=3,
    )
    tested = []
    for row in rows:
        cells = row.cells()
        if row.failure:
            table.add_row(row.trained_before, row.judged_before, "failed", *[UNKNOWN] * 6)
            continue
        if cells["test"] is not None:
            tested.append(cells["test"])
        table.add_row(
            row.trained_before,
            row.judged_before,
            printable(cells["metric"]),
            *(_figure(cells[use]) for use in ("validation", "test")),
            format_count(cells["test_nodes"]),
            format_bytes(cells["payload_bytes"]),
            format_bytes(cells["judging_bytes"]),
            format_duration(cells["seconds"]),
        )
    if len(tested) > 1:
        table.add_row(f"mean of {len(tested)}", "", "", "", _figure(fmean(tested)), *[""] * 4)
    return table


def failures(rows: Sequence[CutRow]) -> list[str]:
    """Return what cuts failed by, if any did."""
    told = [f"before {row.trained_before}: {printable(row.failure)}" for row in rows if row.failure]
    return ["\n".join([f"{counted(len(told), 'cut')} failed:", *told])] if told else []


def _figure(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}"
