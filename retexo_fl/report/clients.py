"""The section that lists the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from retexo_fl.report import markup
from retexo_fl.report.read import RunRecord
from retexo_fl.run_log.result import ClientRow
from retexo_fl.units import format_count

#: Above this many clients the table is cut, and a summary covers all of them.
CLIENTS_LISTED: Final = 200


def clients_section(run: RunRecord) -> str:
    """Return the table of clients; beyond :data:`CLIENTS_LISTED` a summary and the first ones."""
    if run.result is None or not run.result.client_table:
        return ""
    rows = run.result.client_table
    listed = [
        [markup.name(row.client), *(markup.count(value) for value in _counts(row)), _sent(row)]
        for row in rows[:CLIENTS_LISTED]
    ]
    head = ("nodes", "train", "validation", "test", "vectors in", "vectors out", "payload out")
    table = markup.table("Clients", ("client", *head), listed, sortable=True)
    if len(rows) <= CLIENTS_LISTED:
        return markup.section("clients", "Clients", table)
    cut = f"The first {CLIENTS_LISTED} of {format_count(len(rows))} clients:"
    summary = markup.table("All clients, summarised", ("of all clients", *head), _quantiles(rows))
    return markup.section("clients", "Clients", summary, markup.paragraph(cut), table)


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
