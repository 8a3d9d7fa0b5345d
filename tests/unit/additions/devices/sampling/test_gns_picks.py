from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from retexo_fl.additions.devices.sampling.gns_picks import (
    _pick_by_ends,
    _pick_by_weight,
    _place_of_rest,
    split_picks,
)
from tests.support.expected_picks import expected_scales


def split_of(
    degree: int, cached: int, effective: float, fanout: int, *, spare: bool
) -> tuple[float, int, int]:
    """Return alpha and the picks among cached and other neighbours of one target."""
    found = (np.empty(1), np.empty(1, np.int64), np.empty(1, np.int64))
    split_picks(
        (np.zeros(1, np.int64), np.array([degree])),
        (np.array([0, cached]), np.array([effective])),
        fanout,
        2.0 if spare else float(fanout),
        spare,
        found,
    )
    alpha, from_cache, from_rest = (array[0] for array in found)
    return float(alpha), int(from_cache), int(from_rest)


@given(
    degree=st.integers(0, 30),
    share=st.floats(0, 1),
    effective=st.just(0.0) | st.floats(0.01, 20),
    fanout=st.integers(2, 8),
    spare=st.booleans(),
)
def test_both_kinds_are_picked_wherever_their_weight_is_not_zero(
    degree: int, share: float, effective: float, fanout: int, spare: bool
) -> None:
    cached = round(share * degree)
    rest = degree - cached
    alpha, from_cache, from_rest = split_of(degree, cached, effective, fanout, spare=spare)
    assert 0 <= from_cache <= cached
    assert 0 <= from_rest <= rest
    assert from_cache + from_rest <= fanout
    assert (from_cache > 0) == (cached > 0)
    if alpha < 1:
        assert from_cache + from_rest == min(degree, fanout)
        assert (from_rest > 0) == (rest > 0)
    else:
        assert from_rest == 0


def test_input_layer_spares_others_where_cached_ones_are_enough() -> None:
    assert split_of(4, 1, 2.0, 5, spare=True) == (1.0, 1, 0)
    assert split_of(4, 0, 2.0, 5, spare=True) == (1.0, 0, 0)
    assert split_of(4, 1, 1.9, 5, spare=True) == (0.0, 1, 3)
    assert split_of(9, 1, 1.0, 5, spare=True) == (0.5, 1, 4)
    assert split_of(9, 7, 1.0, 5, spare=True) == (0.5, 4, 1)


def test_inner_layer_tops_up_to_the_fanout() -> None:
    assert split_of(4, 1, 9.0, 5, spare=False) == (0.0, 1, 3)
    assert split_of(9, 1, 2.5, 5, spare=False) == (0.5, 1, 4)
    assert split_of(9, 7, 2.5, 5, spare=False) == (0.5, 4, 1)
    assert split_of(9, 7, 5.0, 5, spare=False) == (1.0, 5, 0)


weight_lists = st.lists(st.floats(0.1, 50), min_size=1, max_size=12)


@given(weights=weight_lists, share=st.floats(0, 1), start=st.floats(0, 1, exclude_max=True))
def test_picks_by_weight_are_distinct_and_as_many_as_asked_for(
    weights: list[float], share: float, start: float
) -> None:
    count = max(1, round(share * len(weights)))
    marks = np.zeros(len(weights), np.uint8)
    picked, scales = np.empty(count, np.int32), np.empty(count, np.float32)
    _pick_by_weight(np.array(weights), start, marks, picked, scales)
    assert len(set(picked.tolist())) == count
    assert (scales > 0).all()
    assert not marks.any()
    assert scales.sum() == pytest.approx(sum(weights), rel=1e-5)


@given(weights=weight_lists, share=st.floats(0, 1))
def test_picks_by_weight_expect_each_weight_exactly(weights: list[float], share: float) -> None:
    count = max(1, round(share * len(weights)))
    np.testing.assert_allclose(expected_scales(np.array(weights), count), weights, rtol=1e-5)


@given(weights=weight_lists, share=st.floats(0, 0.9), start=st.floats(0, 1, exclude_max=True))
def test_picks_by_sums_are_those_by_weights_if_none_is_certain(
    weights: list[float], share: float, start: float
) -> None:
    ends = np.cumsum(weights)
    count = max(1, int(share * len(weights)))
    assume(count < len(weights) and max(weights) * count < ends[-1])
    found = [(np.empty(count, np.int64), np.empty(count, np.float32)) for _ in range(2)]
    _pick_by_ends(ends, start, *found[0])
    _pick_by_weight(np.array(weights), start, np.zeros(len(weights), np.uint8), *found[1])
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6)


def test_a_point_rounded_behind_the_last_item_picks_it() -> None:
    """The second of two points is 3.0, where the last item ends."""
    picked, scales = np.empty(2, np.int64), np.empty(2, np.float32)
    _pick_by_ends(np.array([1.0, 2.0, 3.0]), float(np.nextafter(1.0, 0.0)), picked, scales)
    assert picked.tolist() == [1, 2]
    assert scales.tolist() == [1.5, 1.5]


def test_none_are_picked_of_none() -> None:
    nothing = np.empty(0)
    _pick_by_weight(
        nothing, 0.5, np.zeros(0, np.uint8), np.empty(0, np.int32), np.empty(0, np.float32)
    )


@given(degree=st.integers(1, 20), data=st.data())
def test_neighbours_that_are_not_cached_are_found_by_number(
    degree: int, data: st.DataObject
) -> None:
    places = data.draw(st.sets(st.integers(0, degree - 1)))
    cached = np.array(sorted(places), np.int32)
    rest = [place for place in range(degree) if place not in places]
    assert [_place_of_rest(cached, number) for number in range(len(rest))] == rest
