"""What a process with thousands of clients asks of Python's collector and the system."""

from __future__ import annotations

import gc

import pytest

from retexo_fl.simulation.heap import seldom_collected


def test_everything_is_collected_a_tenth_as_often_for_the_while() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), seldom_collected():  # noqa: PT012 - looks on the way
        young, middle, old = gc.get_threshold()
        assert (young, middle, old) == (*before[:2], 10 * before[2])
        raise KeyError
    assert gc.get_threshold() == before
