from __future__ import annotations

import re

import numpy as np
import pytest

from retexo_fl.additions.devices.sampling.base import (
    checked_fanouts,
    checked_layers,
    checked_roots,
    checked_seed,
    fanouts_text,
)
from retexo_fl.errors import ConfigurationError, DatasetError


def test_roots_are_copied_as_64_bits_in_their_order() -> None:
    given = np.array([4, 0, 2], dtype=np.int32)
    roots = checked_roots(given, 5)
    given[0] = 1
    assert roots.dtype == np.int64
    assert roots.tolist() == [4, 0, 2]
    assert checked_roots(np.zeros(0, dtype=np.int64), 0).tolist() == []


@pytest.mark.parametrize(
    ("roots", "words"),
    [
        ([[1, 2]], "roots: got an array of (1, 2); expected one of (B,)"),
        ([5], "roots: 5 is no node; expected 0 to 4"),
        ([2, -1], "roots: -1 is no node; expected 0 to 4"),
        ([3, 1, 3], "roots: 3 is given twice; expected each root once"),
    ],
)
def test_roots_that_are_none_are_refused(roots: list[int], words: str) -> None:
    with pytest.raises(DatasetError, match=re.escape(words)):
        checked_roots(np.array(roots), 5)


def test_fanouts_are_written_as_a_configuration_has_them() -> None:
    assert checked_fanouts([15, 10, 5]) == (15, 10, 5)
    assert fanouts_text((15, 10, 5)) == "15/10/5"


@pytest.mark.parametrize("fanouts", [(), (3, 0), (-1,)])
def test_fanouts_that_are_none_are_refused(fanouts: tuple[int, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"fanouts: got '.*'; expected numbers from 1"):
        checked_fanouts(fanouts)


def test_layers_and_seeds_have_their_bounds() -> None:
    assert checked_layers(1) == 1
    assert checked_seed(0) == 0
    assert checked_seed(2**63 - 1) == 2**63 - 1
    with pytest.raises(ConfigurationError, match="layers: got 0; expected 1 or more"):
        checked_layers(0)
    for seed in (-1, 2**63):
        with pytest.raises(ConfigurationError, match=f"seed: got {seed}; expected 0 to"):
            checked_seed(seed)
