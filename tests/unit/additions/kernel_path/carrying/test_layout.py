"""Where vectors land among the accumulator's rows, and what is read back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.kernel_path.carrying.control import Notice
from retexo_fl.additions.kernel_path.carrying.layout import ExchangeLayout, cache_key
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.exchange.exact_sums import sum_shared
from retexo_fl.graph import PLAN_KINDS, BoundaryPlan

_WIDTH = 3


def _notice(count: int, exponent: int, digest: bytes = bytes(16)) -> Notice:
    return Notice(
        exponent=exponent,
        packet_cells=22,
        stored=1,
        digest=digest,
        streams=np.zeros(count, dtype=np.int64),
    )


def _accumulate(layout: ExchangeLayout, steps: dict[int, np.ndarray]) -> np.ndarray:
    accumulated = np.zeros((layout.rows, _WIDTH), dtype=np.int32)
    for sender, values in steps.items():
        np.add.at(accumulated, layout.places[sender], values)
    return accumulated


@given(st.data())
def test_what_is_read_back_sums_to_what_the_senders_vectors_do(
    data: st.DataObject,
) -> None:
    senders = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
    exponents = {s: data.draw(st.integers(-5, 20)) for s in senders}
    targets, steps = {}, {}
    for sender in senders:
        some = data.draw(st.lists(st.integers(0, 6), max_size=6, unique=True))
        alone = data.draw(st.integers(0 if some else 1, 3))
        targets[sender] = np.array(sorted(some) + [-1] * alone, dtype=np.int64)
        shape = (len(targets[sender]), _WIDTH)
        random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
        steps[sender] = random.integers(-(2**24), 2**24, size=shape, dtype=np.int32)
    notices = {s: _notice(len(targets[s]), exponents[s]) for s in senders}

    layout = ExchangeLayout.of(notices, targets)
    came = layout.vectors(_accumulate(layout, steps), "float32")

    order = sorted(senders)
    own = [steps[s] * 2.0 ** -exponents[s] for s in order]
    expected = sum_shared(own, [targets[s] for s in order])
    found = sum_shared([came[s].astype(np.float64) for s in order], [targets[s] for s in order])
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", PLAN_KINDS)
def test_a_plan_counts_vectors_the_accumulator_adds_to_others(kind: str) -> None:
    parts = make_parts(make_config({"clients": 4}))
    plans = [BoundaryPlan.from_partition(part, kind) for part in parts]
    for plan in plans:
        notices = {peer.peer: _notice(peer.receive.count, 3) for peer in plan.peers}
        came = ExchangeLayout.of(notices, plan.incoming_targets)
        assert plan.num_receive - came.rows == plan.num_added
        notices = {peer.peer: _notice(peer.send.count, 3) for peer in plan.peers}
        came_back = ExchangeLayout.of(notices, plan.returning_targets)
        assert plan.num_send - came_back.rows == plan.num_added_back > 0
    assert (sum(plan.num_added for plan in plans) > 0) == (kind == "cover")


def test_vectors_that_nobody_shares_come_in_the_dtype_of_the_run() -> None:
    layout = ExchangeLayout.of({4: _notice(2, 3), 1: _notice(1, 0)}, None)
    steps = {4: np.full((2, _WIDTH), 8, np.int32), 1: np.full((1, _WIDTH), 5, np.int32)}

    came = layout.vectors(_accumulate(layout, steps), "float32")

    assert layout.rows == 3
    assert came[4].dtype == np.float32
    assert (came[4] == 1).all()
    assert (came[1] == 5).all()


def test_more_senders_than_32_bits_hold_do_not_share_a_row() -> None:
    notices = {sender: _notice(1, 0) for sender in range(300)}
    targets = {sender: np.array([7]) for sender in notices}
    most = np.full((1, _WIDTH), 2**24, dtype=np.int32)

    layout = ExchangeLayout.of(notices, targets)
    came = layout.vectors(_accumulate(layout, dict.fromkeys(notices, most)), "float32")

    assert layout.rows == 3
    total = sum(vectors.sum(axis=0) for vectors in came.values())
    np.testing.assert_array_equal(total, 300.0 * 2**24)


def test_a_cache_key_tells_apart_different_accumulations() -> None:
    notices = {1: _notice(2, 3), 2: _notice(2, 3)}
    targets = {1: np.array([0, 1]), 2: np.array([0, 1])}
    keys = [
        cache_key(notices, targets, 8),
        cache_key(notices, targets, 16),
        cache_key(notices, None, 8),
        cache_key(notices, targets | {2: np.array([1, 0])}, 8),
        cache_key(notices | {2: _notice(2, 4)}, targets, 8),
        cache_key(notices | {2: _notice(2, 3, b"another digest!!")}, targets, 8),
        cache_key({1: notices[1], 3: notices[2]}, {1: targets[1], 3: targets[2]}, 8),
    ]

    assert len(set(keys)) == len(keys)
    assert keys[0] == cache_key(dict(reversed(notices.items())), targets, 8)
