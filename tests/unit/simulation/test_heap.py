"""What a process with thousands of clients asks of Python's collector."""

from __future__ import annotations

import gc

import pytest

from retexo_fl.simulation.heap import SELDOM_COLLECTED


def test_everything_is_collected_a_tenth_as_often_while_runs_last() -> None:
    before = gc.get_threshold()
    seldom = (*before[:2], 10 * before[2])
    with SELDOM_COLLECTED:
        assert gc.get_threshold() == seldom
        with pytest.raises(KeyError), SELDOM_COLLECTED:
            raise KeyError
        assert gc.get_threshold() == seldom
    assert gc.get_threshold() == before
