from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.devices.workers.plan import EpochPlan, epoch_plan

RATIOS = st.lists(st.floats(0.01, 1), min_size=1, max_size=5).map(
    lambda parts: [part / sum(parts) for part in parts]
)


def plan_of(ratios: list[float], *, seed: int = 0, epoch: int = 0, count: int = 50) -> EpochPlan:
    return epoch_plan(np.arange(count), None, batch_size=16, ratios=ratios, seed=seed, epoch=epoch)


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.floats(0, 1e5)), max_size=80),
    st.integers(1, 90),
    RATIOS,
)
def test_every_item_is_computed_exactly_once(
    costs: list[tuple[int, float]], batch_size: int, ratios: list[float]
) -> None:
    items = np.array([item for item, _ in costs], np.int64)
    workloads = np.array([cost for _, cost in costs], np.float64)
    plan = epoch_plan(items, workloads, batch_size=batch_size, ratios=ratios, seed=1, epoch=2)
    assert plan.num_batches == -(-len(items) // batch_size)
    parts = [share.items for batch in range(plan.num_batches) for share in plan.shares(batch)]
    assert sorted(np.concatenate([[], *parts]).tolist()) == sorted(items.tolist())
    counts = [plan.count(batch) for batch in range(plan.num_batches)]
    assert all(count == batch_size for count in counts[:-1])
    assert plan.work.sum() == pytest.approx(workloads.sum())


@given(RATIOS, RATIOS)
def test_mini_batches_do_not_depend_on_the_devices(one: list[float], other: list[float]) -> None:
    plans = plan_of(one), plan_of(other)
    np.testing.assert_array_equal(plans[0].items, plans[1].items)
    np.testing.assert_array_equal(plans[0].bounds[:, [0, -1]], plans[1].bounds[:, [0, -1]])


def test_work_is_what_the_items_of_each_device_cost() -> None:
    costs = np.random.default_rng(0).exponential(size=50)
    plan = epoch_plan(np.arange(50), costs, batch_size=16, ratios=[0.25, 0.75], seed=0, epoch=0)
    shares = [plan.shares(batch) for batch in range(plan.num_batches)]
    spent = [sum(costs[share[w].items].sum() for share in shares) for w in range(2)]
    np.testing.assert_allclose(plan.work, spent, rtol=1e-12)
    assert spent[0] / costs.sum() == pytest.approx(0.25, abs=0.05)


def test_mini_batches_keep_the_order_that_items_were_given_in() -> None:
    items = np.array([7, 3, 9, 1, 8, 2, 6, 0, 5, 4])
    plan = epoch_plan(items, None, batch_size=4, ratios=[0.5, 0.5], seed=0, epoch=0)
    places = np.argsort(items)[plan.items]
    assert all((np.diff(piece) > 0).all() for piece in (places[:4], places[4:8], places[8:]))
    assert places.tolist() != list(range(10))


def test_order_is_drawn_for_seed_and_epoch() -> None:
    orders = {plan_of([1.0], seed=s, epoch=e).items.tobytes() for s in (0, 1) for e in (0, 1)}
    assert len(orders) == 4
    again = plan_of([1.0], seed=1, epoch=1).items.tobytes()
    assert again in orders


def test_shares_follow_ratios_and_may_be_empty() -> None:
    plan = plan_of([0.75, 0.25, 0.0], count=48)
    assert [len(share.items) for share in plan.shares(0)] == [12, 4, 0]
    assert plan.work.tolist() == [36, 12, 0]


def test_items_that_cost_nothing_are_cut_by_their_number() -> None:
    nothing = np.zeros(40)
    plan = epoch_plan(nothing, nothing, batch_size=20, ratios=[0.3, 0.7], seed=0, epoch=0)
    assert [len(share.items) for share in plan.shares(1)] == [6, 14]


def test_what_whole_items_leave_over_does_not_add_up() -> None:
    # A third of 16 items is none: every mini-batch alone would give the first device 5.
    plan = plan_of([1 / 3, 2 / 3], count=16 * 30)
    assert plan.work.tolist() == [160, 320]


def test_share_says_what_it_is_part_of() -> None:
    share = plan_of([1.0], epoch=3).shares(2)[0]
    assert (share.epoch, share.batch, share.purpose) == (3, 2, "train")


def test_announcement_has_the_shares_of_each_worker() -> None:
    plan = plan_of([0.5, 0.5])
    announced = plan.announced()
    assert [len(shares) for shares in announced] == [plan.num_batches] * 2
    assert announced[1][2].same_as(plan.shares(2)[1])
