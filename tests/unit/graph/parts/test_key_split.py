"""The split that needs no other node."""

from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.keys import decimal_keys
from retexo_fl.graph.parts.key_split import split_by_key

KEYS = decimal_keys(20_000)
LABELS = np.where(np.arange(20_000) % 10 == 0, -1, 0)


def test_split_by_key_is_the_same_for_any_part_of_the_nodes() -> None:
    whole = split_by_key(KEYS, LABELS, split="by-key:0.2/0.1/0.7", seed=3)
    some = np.random.default_rng(0).permutation(20_000)[:500]
    part = split_by_key(KEYS[some], LABELS[some], split="by-key:0.2/0.1/0.7", seed=3)
    for name, mask in part.named().items():
        np.testing.assert_array_equal(mask, whole.named()[name][some])


def test_split_by_key_keeps_its_draws() -> None:
    """A split is part of a partition's meaning: it may not change with the program."""
    split = split_by_key(KEYS[:40], np.zeros(40, dtype=int), split="by-key:.25/.25/.25", seed=0)
    assert np.flatnonzero(split.train).tolist() == [3, 11, 12, 19, 20, 25, 28, 33, 37, 38]
    assert np.flatnonzero(split.val).tolist() == [1, 10, 27, 29, 30]
    assert np.flatnonzero(split.test).tolist() == [4, 5, 6, 9, 14, 15, 16, 17, 21, 23, 31, 32, 34]


def test_split_by_key_shares_hold_on_average() -> None:
    split = split_by_key(KEYS, LABELS, split="by-key:0.2/0.1/0.6", seed=1)
    counts = [np.count_nonzero(mask) for mask in split.named().values()]
    # 18,000 labelled nodes; four standard deviations of a binomial are below 270.
    np.testing.assert_allclose(counts, [3600, 1800, 10_800], atol=270)
    assert not (split.train & split.val).any()
    assert not ((split.train | split.val) & split.test).any()
    assert not (split.train | split.val | split.test)[LABELS < 0].any()


def test_split_by_key_takes_all_labelled_if_shares_sum_to_one() -> None:
    split = split_by_key(KEYS, LABELS, split="by-key:0.1/0.2/0.7", seed=2)
    np.testing.assert_array_equal(split.train | split.val | split.test, LABELS >= 0)


def test_split_by_key_depends_on_the_seed() -> None:
    trains = [split_by_key(KEYS, LABELS, split="by-key:.5/.2/.3", seed=s).train for s in (0, 1)]
    both = np.count_nonzero(trains[0] & trains[1]) / np.count_nonzero(trains[0])
    assert 0.45 < both < 0.55


@pytest.mark.parametrize(
    ("split", "seed", "told"),
    [
        ("random:0.2/0.1/0.7", 0, "split: got 'random:0.2/0.1/0.7'; expected by-key:TRAIN/VAL/T"),
        ("by-key", 0, "split: got 'by-key'; expected three shares above 0"),
        ("by-key:0.5/0.5/0.5", 0, "split: got 'by-key:0.5/0.5/0.5'; expected three shares above"),
        ("by-key:1/0/0", 0, "split: got 'by-key:1/0/0'; expected three shares above 0"),
        ("by-key:0.2/0.1/0.7", -1, "seed: got -1; expected 0 to"),
        ("by-key:0.2/0.1/0.7", 2**64, "seed: got 18446744073709551616; expected 0 to"),
    ],
)
def test_split_by_key_refuses(split: str, seed: int, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        split_by_key(KEYS, LABELS, split=split, seed=seed)
    assert str(caught.value).startswith(told)
