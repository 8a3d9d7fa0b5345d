"""The balancer's decisions as columns, one row for each epoch, for whoever draws or tabulates them.

Drawing itself is not done here: this room knows no chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retexo_fl.devices.balancer import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSeries:
    """What E epochs on W devices came to.

    Attributes:
        epochs: (E,) int64 numbers of the epochs.
        imbalance: (E,) idle part of the device that was done first.
        seconds: (E, W) each device was busy.
        shares: (E, W) part of the epoch's work that each device had.
        ratios: (E, W) part that it was given of the epochs to come.
        speeds: (E, W) smoothed work per second; 0 where never measured.
        changed: (E,) bool, whether the ratios to come are others than before.
    """

    epochs: np.ndarray
    imbalance: np.ndarray
    seconds: np.ndarray
    shares: np.ndarray
    ratios: np.ndarray
    speeds: np.ndarray
    changed: np.ndarray


def decision_series(decisions: Sequence[Decision]) -> DecisionSeries:
    """Arrange decisions by epoch; none gives columns of no rows.

    Args:
        decisions: Of one :class:`~retexo_fl.devices.balancer.Balancer`, in their order.
    """
    work = _rows([decision.work for decision in decisions])
    totals = work.sum(axis=1, keepdims=True)
    return DecisionSeries(
        epochs=np.array([decision.epoch for decision in decisions], np.int64),
        imbalance=np.array([decision.imbalance for decision in decisions], np.float64),
        seconds=_rows([decision.seconds for decision in decisions]),
        shares=np.divide(work, totals, out=np.zeros_like(work), where=totals > 0),
        ratios=_rows([decision.ratios for decision in decisions]),
        speeds=_rows([decision.speeds for decision in decisions]),
        changed=np.array([decision.is_changed for decision in decisions], bool),
    )


def _rows(columns: Sequence[tuple[float, ...]]) -> np.ndarray:
    width = len(columns[0]) if columns else 0
    return np.array(columns, np.float64).reshape(len(columns), width)
