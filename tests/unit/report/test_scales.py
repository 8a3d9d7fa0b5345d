"""Axes and their ticks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.report.scales import (
    Axis,
    LogByteAxis,
    Quantity,
    fitted_axis,
    tight_axis,
)

_VALUES = st.floats(min_value=-1e9, max_value=1e9, allow_nan=False)


@pytest.mark.parametrize(
    ("axis", "most", "labels"),
    [
        (Axis(low=0, high=3_629_000, quantity="bytes"), 8, "0|0.5 MB|1.0 MB|1.5 MB|2.0 MB|2.5 MB"),
        (Axis(low=0, high=900, quantity="bytes"), 4, "0|250 B|500 B|750 B"),
        (Axis(low=0.2, high=1.0, quantity="share"), 5, "20 %|40 %|60 %|80 %|100 %"),
        (Axis(low=0.9, high=0.925, quantity="share"), 5, "90.0 %|90.5 %|91.0 %|91.5 %|92.0 %"),
        (Axis(low=1, high=50, quantity="count"), 5, "1|10|20|30|40|50"),
        (Axis(low=1, high=21, quantity="count"), 8, "1|5|10|15|20"),
        (Axis(low=1, high=3, quantity="count"), 5, "1|2|3"),
        (Axis(low=30, high=5000, quantity="count"), 3, "30|2,000|4,000"),
        (Axis(low=0, high=2.5, quantity="number"), 5, "0.0|0.5|1.0|1.5|2.0|2.5"),
    ],
)
def test_axis_ticks_are_round(axis: Axis, most: int, labels: str) -> None:
    found = [label for _, label in axis.ticks(most)]
    expected = labels.split("|")
    assert found[: len(expected)] == expected


def test_axis_place_maps_ends() -> None:
    axis = Axis(low=2, high=4, quantity="number")
    assert [axis.place(value, 10, 110) for value in (2, 3, 4)] == [10, 60, 110]
    assert axis.place(4, 110, 10) == 10


@given(st.lists(_VALUES, min_size=1), st.sampled_from(["number", "count", "bytes"]))
def test_fitted_axis_holds_values(values: list[float], quantity: Quantity) -> None:
    axis = fitted_axis(values, quantity)
    slack = 1e-6 * (axis.high - axis.low)
    assert axis.low - slack <= min(values)
    assert max(values) <= axis.high + slack
    ticks = axis.ticks(5)
    assert 2 <= len(ticks) <= 8
    assert len({label for _, label in ticks}) == len(ticks) or quantity != "number"


@given(st.lists(st.floats(min_value=0, max_value=1), min_size=1))
def test_fitted_axis_of_shares_stays_within_one(values: list[float]) -> None:
    axis = fitted_axis(values, "share")
    assert 0 <= axis.low < axis.high <= 1


@pytest.mark.parametrize("quantity", ["number", "share", "count", "bytes"])
@pytest.mark.parametrize(
    "values",
    [[5.0, 6.0], [-3.0, -2.0], [1.5], [0.0, 1.5], [-1e300, 1e300], [1e300], [5e-324], [1e300, 0.5]],
)
def test_fitted_axis_of_any_values_can_be_drawn(values: list[float], quantity: Quantity) -> None:
    axis = fitted_axis(values, quantity)
    assert axis.low < axis.high
    assert all(0 <= axis.place(value, 0, 100) <= 100 for value in values)
    assert 1 <= len(axis.ticks(5)) <= 12


def test_fitted_axis_of_nothing_is_usable() -> None:
    assert fitted_axis([], "number").ticks(5)[0] == (0, "0.0")


def test_tight_axis_widens_a_point() -> None:
    assert tight_axis(3, 3, "count").high == 4


def test_log_byte_axis_spans_powers_of_ten() -> None:
    axis = LogByteAxis.around([0, 140, 6_700_000])
    assert [label for _, label in axis.ticks(9)] == [
        "100 B",
        "1 kB",
        "10 kB",
        "100 kB",
        "1 MB",
        "10 MB",
    ]
    assert [label for _, label in axis.ticks(3)] == ["100 B", "10 kB", "1 MB"]
    assert axis.place(1_000, 0, 100) == pytest.approx(20)


def test_log_byte_axis_without_bytes_is_usable() -> None:
    axis = LogByteAxis.around([0, 0])
    assert (axis.low, axis.high) == (0, 1)
