from __future__ import annotations

import logging

import pytest

from retexo_fl.additions.devices.training.balance_log import log_decision
from retexo_fl.additions.devices.workers.balancer import Decision


def decision(*, is_changed: bool) -> Decision:
    return Decision(
        epoch=7,
        seconds=(0.5, 2.0),
        work=(10.0, 10.0),
        imbalance=0.75,
        speeds=(20.0, 5.0),
        ratios=(0.8, 0.2),
        is_changed=is_changed,
    )


def test_a_decision_is_one_line_and_none_where_nothing_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "retexo_fl"):
        log_decision(2, "epoch", decision(is_changed=False))
        log_decision(2, "epoch", decision(is_changed=True))
    assert caplog.messages == [
        "balance client=2 epoch=7 busy_s=0.5000/2.0000 imbalance=0.750 shares=0.800/0.200"
    ]
