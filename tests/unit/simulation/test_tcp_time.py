from __future__ import annotations

import math

import pytest

from retexo_fl.simulation.links import Link, parse_link
from retexo_fl.simulation.tcp_time import (
    HEADER_BYTES,
    INITIAL_WINDOW,
    SEGMENT_BYTES,
    TLS_RECORD_BYTES,
    TLS_RECORD_MORE_BYTES,
    Path,
    connect_s,
    request_s,
    transfer_s,
    with_tls,
)

DELAY = parse_link("delay:100ms")
SITE = parse_link("rate:13.6mbit/delay:100ms")
PACKET_S = 1500 * 8 / 13.6e6


def path(link: Link) -> Path:
    return Path(there=link, back=link)


def test_without_a_rate_every_window_costs_a_round_trip() -> None:
    for windows, segments in ((0, 10), (1, 11), (1, 30), (2, 31), (2, 70), (3, 71), (4, 151)):
        size_bytes = segments * SEGMENT_BYTES
        assert transfer_s(path(DELAY), size_bytes) == pytest.approx(0.1 + 0.2 * windows)
    assert INITIAL_WINDOW == 10


def test_what_fits_the_first_window_takes_its_rate_and_the_delay() -> None:
    size_bytes = 10 * SEGMENT_BYTES
    assert transfer_s(path(SITE), size_bytes) == pytest.approx(10 * PACKET_S + 0.1)
    assert transfer_s(path(SITE), 1) == pytest.approx((1 + HEADER_BYTES) * 8 / 13.6e6 + 0.1)


def test_a_link_that_is_full_is_sent_on_without_a_pause() -> None:
    # 10 + 20 + 40 + 80 + 160 segments in five round trips; 320 fill the round trip of 227.
    trip_s = 0.2 + PACKET_S + HEADER_BYTES * 8 / 13.6e6
    for segments in (311, 500, 5_000):
        expected = 5 * trip_s + (segments - 310) * PACKET_S + 0.1
        assert transfer_s(path(SITE), segments * SEGMENT_BYTES) == pytest.approx(expected)


def test_a_slow_link_is_full_from_the_start() -> None:
    slow = parse_link("rate:256kbit/delay:100ms")
    segments = 50
    expected = segments * 1500 * 8 / 256e3 + 0.1
    assert transfer_s(path(slow), segments * SEGMENT_BYTES) == pytest.approx(expected)


def test_a_transfer_never_beats_its_link_and_grows_with_its_size() -> None:
    before_s = 0.0
    for size_bytes in range(1, 3_000_000, 7_919):
        seconds = transfer_s(path(SITE), size_bytes)
        packets = math.ceil(size_bytes / SEGMENT_BYTES)
        least_s = (size_bytes + packets * HEADER_BYTES) * 8 / 13.6e6 + 0.1
        assert seconds >= max(least_s - 1e-9, before_s)
        before_s = seconds


def test_both_directions_count_by_their_own_links() -> None:
    uneven = Path(there=parse_link("delay:30ms"), back=parse_link("delay:70ms"))
    assert connect_s(uneven) == pytest.approx(0.1)
    assert request_s(uneven, 500, 20 * SEGMENT_BYTES) == pytest.approx(0.03 + 0.1 + 0.07)
    assert uneven.reverse.there == uneven.back


def test_an_ideal_link_takes_no_time() -> None:
    assert request_s(path(Link()), 10**9, 10**9) == 0.0


def test_tls_adds_its_records() -> None:
    assert with_tls(0) == 0
    assert with_tls(1) == 1 + TLS_RECORD_MORE_BYTES
    assert with_tls(TLS_RECORD_BYTES + 1) == TLS_RECORD_BYTES + 1 + 2 * TLS_RECORD_MORE_BYTES
