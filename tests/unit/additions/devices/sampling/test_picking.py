from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from retexo_fl.additions.devices.sampling.keyed_random import below, keyed_state
from retexo_fl.additions.devices.sampling.picking import (
    _draw_few,
    _draw_many,
    fill_scales,
    pick_places,
)


def picked_places(number: int, degree: int, fanout: int) -> list[int]:
    """Return what is picked of a row; -7 stands where nothing was written."""
    marks = np.zeros(max(degree, 1), dtype=np.uint8)
    places = np.full(fanout + 4, -7, dtype=np.int64)
    key = np.uint64(below(keyed_state("test"), number))
    taken = pick_places(key, degree, fanout, marks, places, 2)
    assert not marks.any()
    assert places[:2].tolist() == [-7, -7]
    assert (places[2 + taken :] == -7).all()
    return [int(place) for place in places[2 : 2 + taken]]


@given(number=st.integers(0, 2**40), degree=st.integers(0, 40), fanout=st.integers(1, 30))
def test_places_are_distinct_and_as_many_as_there_can_be(
    number: int, degree: int, fanout: int
) -> None:
    found = picked_places(number, degree, fanout)
    assert len(set(found)) == len(found) == min(degree, fanout)
    assert set(found) <= set(range(degree))
    if degree <= fanout:
        assert found == list(range(degree))


@given(number=st.integers(0, 2**40), degree=st.integers(2, 40), data=st.data())
def test_comparing_and_marking_pick_the_same(number: int, degree: int, data: st.DataObject) -> None:
    fanout = data.draw(st.integers(1, degree - 1))
    key = np.uint64(below(keyed_state("test"), number))
    compared, marked = np.zeros((2, fanout + 1), dtype=np.int64)
    marks = np.zeros(degree, dtype=np.uint8)
    _draw_few(key, degree, fanout, compared, 1)
    _draw_many(key, degree, fanout, marks, marked, 1)
    assert compared.tolist() == marked.tolist()
    assert not marks.any()


def test_last_place_of_a_long_row_is_picked_as_often_as_first() -> None:
    counts = np.zeros(12)
    for number in range(6000):
        counts[picked_places(number, 12, 5)] += 1
    assert counts.sum() == 5 * 6000
    # Picks of one draw exclude each other: the variance is less than that of independent ones.
    assert chisquare(counts).pvalue > 1e-4
    assert np.abs(counts / 6000 - 5 / 12).max() < 5 * (5 / 12 * 7 / 12 / 6000) ** 0.5


def test_sets_are_equally_likely_though_orders_are_not() -> None:
    # Floyd's algorithm: 2 of 3 in the order drawn; the last place never comes first.
    orders = Counter(tuple(picked_places(number, 3, 2)) for number in range(6000))
    assert set(orders) == set(permutations(range(3), 2)) - {(2, 0), (2, 1)}
    sets = Counter[frozenset[int]]()
    for order, count in orders.items():
        sets[frozenset(order)] += count
    assert chisquare(list(sets.values())).pvalue > 1e-4


def test_scales_are_degrees_by_picks_of_each_target() -> None:
    scales = np.empty(5, dtype=np.float32)
    fill_scales(np.array([7, 0, 2]), np.array([0, 3, 3, 5]), scales)
    np.testing.assert_array_equal(scales, np.array([7 / 3, 7 / 3, 7 / 3, 1, 1], np.float32))
