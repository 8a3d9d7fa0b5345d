"""Quantities as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.units import (
    counted,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_number,
    format_share,
)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_234_567, "1.2 MB"),
        (99_949, "99.9 kB"),
        (99_950, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (5 * 10**12, "5.0 TB"),
        (7 * 10**18, "7000 PB"),
    ],
)
def test_format_bytes_is_decimal(size_bytes: int | None, text: str) -> None:
    assert format_bytes(size_bytes) == text


@given(st.integers(min_value=0, max_value=10**17))
def test_format_bytes_is_close_and_short(size_bytes: int) -> None:
    text = format_bytes(size_bytes)
    value, unit = text.split(" ")
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[unit]
    assert abs(float(value) * scale - size_bytes) <= 0.05 * size_bytes + 1e-9
    assert len(text) <= 7


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.421, "0.42 s"),
        (9.999, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (356_400, "4 d 03 h"),
    ],
)
def test_format_duration_has_two_units(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


def test_format_share_never_hides_something_as_zero() -> None:
    assert format_share(0.9137) == "91.4 %"
    assert format_share(0.9137, digits=2) == "91.37 %"
    assert format_share(0.0001) == "< 0.1 %"
    assert format_share(0.0) == "0.0 %"
    assert format_share(None) == "-"


def test_format_count_and_number() -> None:
    assert (format_count(1_234_567), format_count(None)) == ("1,234,567", "-")
    assert (format_number(0.123456), format_number(None)) == ("0.1235", "-")


@pytest.mark.parametrize(
    ("count", "as_shown", "as_error"),
    [
        (0, "0 boundary rows", "0 boundary rows"),
        (1, "1 boundary row", "1 boundary row"),
        (2, "2 boundary rows", "2 boundary rows"),
        (1_234_567, "1,234,567 boundary rows", "1234567 boundary rows"),
    ],
)
def test_what_is_counted_agrees_with_its_number(count: int, as_shown: str, as_error: str) -> None:
    assert format_counted(count, "boundary row") == as_shown
    assert counted(count, "boundary row") == as_error


def test_what_is_counted_may_be_unknown() -> None:
    assert format_counted(None, "client") == "- clients"
