"""The balancer's decisions in a client's log, one line for each that changed something."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from retexo_fl.additions.devices.workers.balancer import Decision

logger = logging.getLogger(__name__)


def log_decision(client: int, unit: str, decision: Decision) -> None:
    """Write a decision that changed shares.

    Args:
        client: Index.
        unit: What was measured: ``epoch``, or ``stage=0 round``.
        decision: The balancer's.
    """
    if decision.is_changed:
        logger.info(
            "balance client=%d %s=%d busy_s=%s imbalance=%.3f shares=%s",
            client,
            unit,
            decision.epoch,
            _listed(decision.seconds, 4),
            decision.imbalance,
            _listed(decision.ratios, 3),
        )


def _listed(numbers: Sequence[float], digits: int) -> str:
    return "/".join(f"{number:.{digits}f}" for number in numbers)
