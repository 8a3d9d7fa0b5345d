from __future__ import annotations

import logging

import numpy as np
import pytest

from retexo_fl.additions.devices.training.measured_balance import LEAST_MEASURED_S, MeasuredBalance
from retexo_fl.errors import ConfigurationError

EPOCHS = 400


def balance(mode: str = "dynamic") -> MeasuredBalance:
    return MeasuredBalance(2, mode=mode, client=3, unit="epoch")


def run(of: MeasuredBalance, *, epoch_s: float, epochs: int = EPOCHS) -> list[tuple[float, ...]]:
    """Return the ratios of each epoch on two equal devices whose times are off by a fifth."""
    noise = np.random.default_rng(0).normal(1, 0.2, size=(epochs, 2)).clip(0.5, 1.5)
    followed = []
    for epoch in range(epochs):
        followed.append(of.ratios)
        seconds = 2 * epoch_s * np.array(of.ratios) * noise[epoch]
        of.learn(epoch, seconds=seconds.tolist(), work=of.ratios)
    return followed


def test_epochs_of_milliseconds_do_not_make_ratios_follow_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "retexo_fl"):
        short = run(balance(), epoch_s=0.005)
        # 400 epochs of 5 ms are 2 s, in which at most four decisions fit.
        assert len(caplog.messages) <= 4
        caplog.clear()
        long = run(balance(), epoch_s=1.0)
        assert len(caplog.messages) > EPOCHS / 2
    off = [float(np.abs(np.array(ratios)[:, 0] - 0.5).max()) for ratios in (short, long)]
    assert off[0] < 0.02 < off[1]


def test_an_epoch_that_is_a_measurement_itself_decides_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    of = balance()
    with caplog.at_level(logging.INFO, "retexo_fl"):
        of.learn(7, seconds=[LEAST_MEASURED_S, LEAST_MEASURED_S / 3], work=[10.0, 10.0])
    assert of.ratios == pytest.approx((0.25, 0.75))
    (line,) = caplog.messages
    assert line.startswith("balance client=3 epoch=7 busy_s=0.5000/0.1667 ")


def test_what_was_decided_on_is_not_counted_again(caplog: pytest.LogCaptureFixture) -> None:
    of = balance()
    with caplog.at_level(logging.INFO, "retexo_fl"):
        of.learn(0, seconds=[0.375, 0.125], work=[1.0, 1.0])
        assert of.ratios == (0.5, 0.5)
        of.learn(1, seconds=[0.375, 0.125], work=[1.0, 1.0])
        assert of.ratios == pytest.approx((0.25, 0.75))
        of.learn(2, seconds=[0.125, 0.375], work=[0.5, 1.5])
        assert of.ratios == pytest.approx((0.25, 0.75))
        of.learn(3, seconds=[0.125, 0.375], work=[0.5, 0.5])
    assert [line.split(" imbalance")[0] for line in caplog.messages] == [
        "balance client=3 epoch=1 busy_s=0.7500/0.2500",
        "balance client=3 epoch=3 busy_s=0.2500/0.7500",
    ]


def test_equal_parts_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "retexo_fl"):
        assert set(run(balance("equal"), epoch_s=1.0, epochs=5)) == {(0.5, 0.5)}
    assert not caplog.messages


def test_static_parts_are_those_of_the_first_measurement_and_of_no_stage_before() -> None:
    of = MeasuredBalance(2, mode="static", client=3, unit="epoch", speeds=[1.0, 9.0])
    assert of.ratios == (0.5, 0.5)
    of.learn(0, seconds=[LEAST_MEASURED_S, LEAST_MEASURED_S / 3], work=[10.0, 10.0])
    for epoch in range(1, 5):
        assert of.ratios == pytest.approx((0.25, 0.75))
        of.learn(epoch, seconds=[LEAST_MEASURED_S / 3, LEAST_MEASURED_S], work=[10.0, 10.0])


def test_unknown_mode_is_named() -> None:
    with pytest.raises(ConfigurationError, match="balance is 'fair'"):
        balance("fair")
