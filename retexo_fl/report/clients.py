"""The section that lists the clients."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from retexo_fl.report import markup
from retexo_fl.report.read import RunRecord
from retexo_fl.run_log.result import ClientRow
from retexo_fl.units import clients_named, format_count, format_counted, format_metric

#: Above this many clients the table is cut, and a summary covers all of them.
CLIENTS_LISTED: Final = 200


def clients_section(run: RunRecord) -> str:
    """Return the table of clients, or of cohorts; of many a summary and the first ones."""
    if run.result is None or not run.result.client_table:
        return ""
    rows = run.result.client_table
    metric = run.result.metric.name if run.result.metric else "accuracy"
    own = [row.test_metric for row in rows if row.test_metric is not None]
    listed = [
        [
            markup.words(clients_named(row.cohort)) if row.cohort else markup.name(row.client),
            *(markup.count(value) for value in _counts(row)),
            _sent(row),
            *([_own(metric, row.test_metric)] if own else []),
        ]
        for row in rows[:CLIENTS_LISTED]
    ]
    head = ("nodes", "train", "validation", "test", "vectors in", "vectors out", "payload out")
    what = "cohort" if rows[0].cohort else "client"
    columns = (what, *head, *([f"test {metric}"] if own else []))
    table = markup.table("Clients", columns, listed, sortable=True)
    if len(rows) <= CLIENTS_LISTED:
        return markup.section("clients", "Clients", _spread(metric, own), table)
    cut = f"The first {CLIENTS_LISTED} of {format_count(len(rows))} {what}s:"
    summary = markup.table(f"All {what}s, summarised", (f"of all {what}s", *head), _quantiles(rows))
    return markup.section(
        "clients", "Clients", _spread(metric, own), summary, markup.paragraph(cut), table
    )


def _own(metric: str, value: float | None) -> markup.Cell:
    return markup.Cell(text=format_metric(metric, value, digits=2), value=value)


def _spread(metric: str, own: Sequence[float]) -> str:
    """Return how clients' own figures differ, where they were asked for."""
    if not own:
        return ""
    ordered = sorted(own)
    least, most, median = ordered[0], ordered[-1], statistics.median(ordered)
    shown = [format_metric(metric, value) for value in (least, median, most)]
    return markup.paragraph(
        f"Test {metric} of each client's own nodes: from {shown[0]} to {shown[2]}, median "
        f"{shown[1]}, of {format_counted(len(own), 'client')} whose nodes define it."
    )


def _counts(row: ClientRow) -> tuple[int, ...]:
    sets = (row.nodes, row.train, row.val, row.test)
    return (*sets, row.boundary_vectors_in, row.boundary_vectors_out)


def _sent(row: ClientRow) -> markup.Cell:
    return markup.size(row.boundary_payload_out)


def _quantiles(rows: Sequence[ClientRow]) -> list[list[markup.Cell]]:
    columns = [sorted(values) for values in zip(*(_counts(row) for row in rows), strict=True)]
    sent = sorted(row.boundary_payload_out for row in rows)
    lines = []
    for name, share in (("least", 0.0), ("10 %", 0.1), ("median", 0.5), ("90 %", 0.9), ("most", 1)):
        at = round(share * (len(rows) - 1))
        counts = [markup.count(values[at]) for values in columns]
        lines.append([markup.words(name), *counts, markup.size(sent[at])])
    return lines
