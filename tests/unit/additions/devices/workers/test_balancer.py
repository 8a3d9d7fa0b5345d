from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.devices.workers.balancer import (
    DEAD_BAND,
    LEAST_RATIO,
    Balancer,
    assign,
    cut,
    imbalance,
)
from retexo_fl.errors import ConfigurationError
from tests.support.simulated_devices import epoch_seconds, skewed_workloads


def trained(
    balancer: Balancer, speeds: Callable[[int], Sequence[float]], epochs: int
) -> list[float]:
    """Return the imbalance of each epoch on devices of such speeds."""
    workloads = skewed_workloads(4096, seed=0)
    for epoch in range(epochs):
        found = epoch_seconds(workloads, balancer.ratios, speeds(epoch), epoch=epoch)
        balancer.observe(epoch, seconds=found.seconds, work=found.work)
    return [decision.imbalance for decision in balancer.decisions]


@pytest.mark.parametrize(
    "speeds", [(1, 2), (1, 4), (1, 8), (8, 1), (1, 1), (1, 2, 4), (1, 1, 8, 3)]
)
def test_dynamic_ratios_even_out_devices_within_three_epochs(speeds: tuple[float, ...]) -> None:
    balancer = Balancer(len(speeds))
    assert max(trained(balancer, lambda epoch: speeds, 8)[3:]) < 0.05
    assert balancer.ratios == pytest.approx(np.array(speeds) / sum(speeds), rel=0.05)


@pytest.mark.parametrize("start", [(0.05, 0.95), (0.95, 0.05)])
def test_bad_start_is_made_good_within_three_epochs(start: tuple[float, float]) -> None:
    balancer = Balancer(2, speeds=start)
    assert max(trained(balancer, lambda epoch: (1, 2), 6)[3:]) < 0.05


@pytest.mark.parametrize(
    ("before", "after"),
    [((1, 4), (4, 4)), ((1, 2), (1, 8)), ((1, 8), (1, 6.8)), ((1, 1), (1, 1.2))],
)
def test_change_of_speed_is_followed_within_three_epochs(
    before: tuple[float, float], after: tuple[float, float]
) -> None:
    found = trained(Balancer(2), lambda epoch: before if epoch < 6 else after, 16)
    assert max(found[3:6]) < 0.05
    assert max(found[9:]) < 0.05


def test_noise_does_not_make_ratios_swing() -> None:
    draws = np.random.default_rng(1)
    balancer = Balancer(2)
    trained(balancer, lambda epoch: (1 + draws.uniform(-0.1, 0.1), 4), 60)
    shares = np.array([decision.ratios[0] for decision in balancer.decisions[3:]])
    # Without smoothing every share would be off by the noise of one epoch: 0.058 of it.
    assert shares.std() / shares.mean() < 0.04
    assert abs(shares.mean() - 0.2) < 0.01
    swings = np.diff(shares)
    assert np.abs(swings).max() / 0.2 < 0.1


def test_swinging_speed_is_averaged_and_drifting_one_followed() -> None:
    """Kesten's rule, for changes below those that make a speed a new one."""

    def speed_after(measured: Sequence[float]) -> float:
        balancer = Balancer(1)
        for epoch, speed in enumerate(measured):
            balancer.observe(epoch, seconds=[1.0], work=[speed])
        return balancer.decisions[-1].speeds[0]

    assert speed_after([1.0, 1.1, 1.0, 1.1, 1.0, 1.1]) < 1.07
    assert speed_after([1.0, 1.1, 1.2, 1.3]) == pytest.approx(1.3)


def test_small_differences_change_nothing() -> None:
    balancer = Balancer(2)
    balancer.observe(0, seconds=[1.0, 1 - DEAD_BAND / 2], work=[1.0, 1.0])
    assert balancer.ratios == (0.5, 0.5)
    assert not balancer.decisions[0].is_changed
    uneven = Balancer(2, speeds=[1, 4])
    uneven.observe(0, seconds=[1.0, 1 - DEAD_BAND / 2], work=[1.0, 4.0])
    assert uneven.ratios == (0.2, 0.8)
    assert not uneven.decisions[0].is_changed


def test_static_ratios_stay_as_given() -> None:
    balancer = Balancer(3, mode="static", speeds=[1, 1, 2])
    trained(balancer, lambda epoch: (5, 1, 1), 5)
    assert balancer.ratios == (0.25, 0.25, 0.5)
    assert len(balancer.decisions) == 5
    assert not any(decision.is_changed for decision in balancer.decisions)


def test_static_ratios_are_those_of_the_first_measured_epoch() -> None:
    balancer = Balancer(2, mode="static")
    trained(balancer, lambda epoch: (1, 3) if epoch == 0 else (3, 1), 5)
    assert balancer.ratios == pytest.approx((0.25, 0.75))
    assert [decision.is_changed for decision in balancer.decisions] == [True] + 4 * [False]


def test_equal_ratios_stay_equal() -> None:
    balancer = Balancer(2, mode="equal")
    trained(balancer, lambda epoch: (1, 3), 5)
    assert balancer.ratios == (0.5, 0.5)


def test_no_device_is_left_without_work_or_measurement() -> None:
    balancer = Balancer(3)
    balancer.observe(0, seconds=[1.0, 1.0, 1.0], work=[1.0, 1e6, 2e6])
    assert balancer.ratios[0] == pytest.approx(LEAST_RATIO)
    assert sum(balancer.ratios) == pytest.approx(1)
    assert balancer.ratios[2] == pytest.approx(2 * balancer.ratios[1])


def test_speed_of_a_device_that_had_nothing_is_what_it_was() -> None:
    balancer = Balancer(2)
    balancer.observe(0, seconds=[0.0, 1.0], work=[0.0, 9.0])
    assert balancer.ratios == (0.5, 0.5)
    balancer.observe(1, seconds=[1.0, 1.0], work=[1.0, 3.0])
    assert balancer.ratios == pytest.approx((0.25, 0.75))
    balancer.observe(2, seconds=[0.0, 1.0], work=[0.0, 3.0])
    assert balancer.ratios == pytest.approx((0.25, 0.75))
    # An empty share may take time all the same.
    balancer.observe(3, seconds=[0.1, 1.0], work=[0.0, 3.0])
    assert balancer.ratios == pytest.approx((0.25, 0.75))


def test_decision_tells_what_it_was_made_from() -> None:
    balancer = Balancer(2)
    balancer.observe(7, seconds=[2.0, 1.0], work=[10.0, 10.0])
    (decision,) = balancer.decisions
    assert (decision.epoch, decision.seconds, decision.work) == (7, (2.0, 1.0), (10.0, 10.0))
    assert decision.imbalance == 0.5
    assert decision.speeds == pytest.approx((5, 10))
    assert decision.ratios == pytest.approx((1 / 3, 2 / 3))
    assert decision.is_changed


def test_workload_cuts_beat_cuts_by_number_where_items_differ() -> None:
    workloads = skewed_workloads(4096, seed=3)
    for speeds in [(1, 2), (1, 8)]:
        ratios = [speed / sum(speeds) for speed in speeds]
        by_work = epoch_seconds(workloads, ratios, speeds, epoch=0)
        by_number = epoch_seconds(workloads, ratios, speeds, epoch=0, by_number=True)
        assert by_work.makespan_s < 0.97 * by_number.makespan_s


def test_workload_cuts_are_cuts_by_number_where_items_are_alike() -> None:
    workloads = np.full(4096, 7.0)
    by_work = epoch_seconds(workloads, [0.2, 0.8], (1, 4), epoch=0)
    by_number = epoch_seconds(workloads, [0.2, 0.8], (1, 4), epoch=0, by_number=True)
    assert by_work.makespan_s == pytest.approx(by_number.makespan_s, rel=1e-9)


@given(
    st.lists(st.floats(0, 1e6, allow_subnormal=False), max_size=60),
    st.lists(st.floats(0, 1), max_size=5).map(sorted),
)
def test_shares_are_contiguous_and_end_near_their_borders(
    workloads: list[float], parts: list[float]
) -> None:
    costs = np.array(workloads, np.float64)
    borders = np.array(parts) * costs.sum()
    bounds = cut(costs, borders)
    assert bounds[0] == 0
    assert bounds[-1] == len(costs)
    assert (np.diff(bounds) >= 0).all()
    ends = np.concatenate(([0.0], np.cumsum(costs)))[bounds[1:-1]]
    slack = costs.max(initial=0) / 2 + 1e-9 * costs.sum()
    assert (np.abs(ends - borders) <= slack).all()


def test_pieces_go_to_the_device_that_is_done_first() -> None:
    costs = np.array([2.0, 3.0, 2.0, 3.0, 2.0])
    assert [pieces.tolist() for pieces in assign(costs, [1.0, 1.0])] == [[0, 1, 4], [2, 3]]
    # Heaviest first: 6 s for the fast one alone, and the slow one has none for which it pays.
    assert [pieces.tolist() for pieces in assign(costs, [2.0, 0.1])] == [[0, 1, 2, 3, 4], []]


@given(
    costs=st.lists(st.floats(0.1, 100.0), min_size=1, max_size=12),
    speeds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4),
)
def test_no_device_is_busy_longer_than_the_fastest_alone(
    costs: list[float], speeds: list[float]
) -> None:
    given_costs = np.array(costs)
    assigned = assign(given_costs, speeds)
    assert sorted(np.concatenate(assigned).tolist()) == list(range(len(costs)))
    longest_s = max(
        given_costs[pieces].sum() / speed for pieces, speed in zip(assigned, speeds, strict=True)
    )
    assert longest_s <= given_costs.sum() / max(speeds) * (1 + 1e-9)


def test_imbalance_is_the_idle_part_of_the_fastest() -> None:
    assert imbalance([4.0, 3.0, 1.0]) == 0.75
    assert imbalance([0.0, 0.0]) == 0.0


def test_unknown_mode_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match="balance is 'fair'; expected dynamic, static, equal"
    ):
        Balancer(2, mode="fair")


@pytest.mark.parametrize("speeds", [[1.0], [1.0, 0.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_speeds_that_are_none_are_named(speeds: list[float]) -> None:
    with pytest.raises(ConfigurationError, match="expected 2 positive numbers"):
        Balancer(2, speeds=speeds)
