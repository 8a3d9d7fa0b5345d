from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chisquare

from retexo_fl.additions.devices.sampling.keyed_random import (
    advanced,
    below,
    bounded,
    keyed_state,
    mixed,
    unit,
)

_64_BITS = 2**64


def splitmix64(seed: int, count: int) -> list[int]:
    """Return the first outputs, by whole numbers of Python."""
    outputs = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) % _64_BITS
        value = seed
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % _64_BITS
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % _64_BITS
        outputs.append(value ^ (value >> 31))
    return outputs


def test_stream_is_splitmix64() -> None:
    # The first outputs of seed 0 are those that its authors' implementation prints.
    assert splitmix64(0, 2) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    for seed in (0, 1, 2**63, _64_BITS - 1):
        state, found = np.uint64(seed), []
        for _ in range(20):
            state = np.uint64(advanced(state))
            found.append(int(mixed(state)))
        assert found == splitmix64(seed, 20)


def test_going_down_by_a_number_is_that_output_of_the_stream() -> None:
    outputs = splitmix64(77, 30)
    assert [int(below(np.uint64(77), number)) for number in range(30)] == outputs


def test_keys_differ_by_purpose_number_and_order() -> None:
    keys = [
        keyed_state("a", 1, 2),
        keyed_state("a", 2, 1),
        keyed_state("b", 1, 2),
        keyed_state("a", 1),
        keyed_state("a", 1, 2, 0),
        keyed_state("a", 2**63 - 1),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == keyed_state("a", 1, 2)
    assert keys[0].dtype == np.uint64


@pytest.mark.parametrize("bound", [1, 2, 3, 17, 2**20 + 1, 2**31 - 1, 2**40 + 3])
def test_bounded_ends_below_its_bound(bound: int) -> None:
    assert bounded(np.uint64(0), bound) == 0
    assert bounded(np.uint64(_64_BITS - 1), bound) == bound - 1


def test_unit_is_within_zero_and_one() -> None:
    assert unit(np.uint64(0)) == 0.0
    assert unit(np.uint64(_64_BITS - 1)) == 1.0 - 2.0**-53


def test_neighbouring_keys_draw_uniformly() -> None:
    above = keyed_state("test", 3)
    keys = (below(above, number) for number in range(20_000))
    # A kernel's uint64 comes back as a number of Python, which the next would take for signed.
    drawn = [bounded(np.uint64(mixed(np.uint64(key))), 10) for key in keys]
    assert chisquare(np.bincount(drawn, minlength=10)).pvalue > 1e-4
    pairs = [10 * one + other for one, other in pairwise(drawn)]
    assert chisquare(np.bincount(pairs, minlength=100)).pvalue > 1e-4
