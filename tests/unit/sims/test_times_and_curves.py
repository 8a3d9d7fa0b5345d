from __future__ import annotations

from typing import Any

import pytest

from sims.curves import accuracy_curve, bytes_until
from sims.extrapolation import at_rounds, measured_prediction
from sims.times import delays, network_time
from sims.training import train_whole

pytestmark = pytest.mark.slow

KEYS: dict[str, Any] = {
    "dataset": "synthetic:nodes=80,features=8,degree=4",
    "clients": 2,
    "hidden": 8,
    "model": "sage",
    "codec": "dense",
}


def test_curve_ends_at_all_bytes_and_has_a_point_for_each_round() -> None:
    trained = train_whole({**KEYS, "rounds": 3})
    curve = accuracy_curve(trained)
    assert len(curve) == 6
    assert curve[-1].megabytes == pytest.approx(trained.at_clients() / 1e6)
    assert [point.megabytes for point in curve] == sorted(point.megabytes for point in curve)
    assert bytes_until(curve, 0.0) == curve[0].megabytes
    assert bytes_until(curve, 1.1) is None


@pytest.mark.parametrize("algorithm", ["lazy", "standard"])
def test_few_rounds_tell_what_many_move(algorithm: str) -> None:
    keys = {**KEYS, "algorithm": algorithm}
    few, many = (train_whole({**keys, "rounds": rounds}) for rounds in (2, 5))
    assert at_rounds(few, 5) == many.at_clients("raw")
    assert measured_prediction(keys, few, 5).paper == many.at_clients("raw")


def test_network_time_is_split_and_greeting_left_out() -> None:
    keys = {**KEYS, "algorithm": "standard", "rounds": 3}
    assert network_time(train_whole(keys)).total_s == 0
    slow = train_whole({**keys, "links": "delay:1s"})
    time = network_time(slow)
    facts = slow.result["network"]
    # Weights down and updates up, three times; forward and backward, three times.
    assert time.aggregation_s == pytest.approx(6)
    assert time.message_passing_s == pytest.approx(facts["exchange_s"] + 6)
    # Validation took three forward passes more.
    assert time.total_s == facts["exchange_s"] + facts["train_s"] - 3
    assert time.validation_s == pytest.approx(3)


@pytest.mark.parametrize("algorithm", ["lazy", "standard", "bns"])
@pytest.mark.parametrize(("layers", "rounds"), [(2, 3), (3, 4)])
def test_a_delay_costs_as_often_as_messages_wait_for_each_other(
    algorithm: str, layers: int, rounds: int
) -> None:
    keys = {**KEYS, "clients": 3, "algorithm": algorithm, "layers": layers, "rounds": rounds}
    if algorithm == "bns":
        keys["boundary-rate"] = 0.5
    time = network_time(train_whole({**keys, "links": "delay:1s"}))
    assert time == pytest.approx(delays(algorithm, layers=layers, rounds=rounds))
