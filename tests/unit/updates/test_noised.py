"""Updates that noise is added to: a fixed step, bits enough for all sums, nothing else told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.masking.ring import Ring
from retexo_fl.updates import UpdateKey
from retexo_fl.updates.masked import (
    MOST_SIGMA,
    NOISED_BITS,
    MaskedUpdates,
    NoisedUpdates,
    is_noised,
    step_of,
    steps_changed,
)

CODEC = NoisedUpdates(0.7)
KEY = UpdateKey(seed=3, job="job-0123456789ab", stage=1, round=2, client=4)
SIZE = 1000


def test_a_sum_is_read_to_half_a_step_for_each_client() -> None:
    steps = CODEC.first_steps(SIZE, most_train=100, terms=3)
    updates = np.random.default_rng(0).normal(size=(3, SIZE)).astype(np.float32)
    coded = [CODEC.encode_update(one, KEY, steps) for one in updates]
    found = CODEC.decode_update(np.sum(coded, axis=0), KEY, steps)
    assert np.abs(found - updates.sum(0, dtype=np.float64)).max() <= 1.5 * step_of(0.7, SIZE)
    assert CODEC.steps(CODEC.measure(found, np.sum(coded, axis=0)), steps) == steps


def test_beside_its_numbers_an_update_tells_nothing() -> None:
    steps = CODEC.first_steps(SIZE, most_train=100, terms=3)
    small, large = (CODEC.encode_update(np.full(SIZE, v), KEY, steps) for v in (1e-9, 1e3))
    assert small[SIZE:].tolist() == large[SIZE:].tolist() == [0]


def test_what_one_contribution_changes_allows_for_rounding() -> None:
    rng, step = np.random.default_rng(1), step_of(0.7, SIZE)
    for scale in (1e-6, 1.0, 1e3):
        update = rng.normal(size=SIZE) * scale
        one = rng.normal(size=SIZE)
        one *= 0.7 / np.linalg.norm(one)
        before, after = (np.rint(values / step) for values in (update, update + one))
        assert np.linalg.norm(after - before) <= steps_changed(0.7, SIZE)
    # Nearly all of it is the contribution's own.
    assert 1 < steps_changed(0.7, SIZE) / (0.7 / step) < 1.005


@pytest.mark.parametrize(("train", "bits"), [(1, NOISED_BITS), (10**6, NOISED_BITS), (10**9, 48)])
def test_numbers_have_bits_for_all_train_nodes_and_the_noise(train: int, bits: int) -> None:
    steps = CODEC.first_steps(SIZE, most_train=train, terms=10)
    assert MaskedUpdates.shared(steps)[0].ring == Ring(bits)
    reach = (10 * train + 16 * math.sqrt(10) * MOST_SIGMA) * steps_changed(0.7, SIZE)
    assert reach < Ring(bits).most


def test_steps_of_other_updates_are_refused() -> None:
    of_masked = MaskedUpdates().first_steps(SIZE, most_train=9, terms=3)
    assert not is_noised(of_masked)
    assert is_noised(CODEC.first_steps(SIZE, most_train=9, terms=3))
    with pytest.raises(RemoteProtocolError, match="steps of a noised update are missing"):
        CODEC.encode_update(np.zeros(SIZE), KEY, of_masked)
    with pytest.raises(RemoteProtocolError, match="got 0 steps for 1000 values"):
        MaskedUpdates().encode_update(
            np.zeros(SIZE), KEY, CODEC.first_steps(9, most_train=9, terms=3)
        )
    with pytest.raises(RemoteProtocolError, match="steps are of 64 bits"):
        is_noised(bytes([64, 3, 0, 0, 0]))
    with pytest.raises(RemoteProtocolError, match="has 1 numbers"):
        CODEC.decode_update(np.zeros(1, np.int64), KEY, b"")
