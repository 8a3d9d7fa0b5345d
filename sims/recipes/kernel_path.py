"""Datagrams that the kernel adds up, against user-space UDP and TCP: processor time of both ends.

The system is that of "Accelerating Distributed GNN Training through In-Kernel Operation Using eBPF"
(PINCH), whose paper has no measurement. Needs root; minutes.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from sims.catalogue import Setting
from sims.kernel_path.figures import draw_copies, draw_exchanges, draw_receivers
from sims.kernel_path.runs import FULL, QUICK, Findings, measure_all
from sims.kernel_path.tables import checks_of, described, rows_of
from sims.outcome import Outcome

PURPOSE: Final = "processor time of in-kernel aggregation and broadcast, against UDP and TCP"


def run(setting: Setting) -> Outcome:
    """Measure everything."""
    found = measure_all(QUICK if setting.quick else FULL)
    return outcome_of(found, quick=setting.quick)


def outcome_of(found: Findings, *, quick: bool) -> Outcome:
    """Return tables, lines and pictures of what was measured."""
    return Outcome(
        title="The kernel path: processor time of both ends, by way of arrival",
        setting=described(found),
        rows=rows_of(found),
        checks=checks_of(found, quick=quick),
        pictures=(
            *(partial(draw_receivers, found, width) for width in found.sizes.rows),
            partial(draw_exchanges, found),
            partial(draw_copies, found),
        ),
    )
