from __future__ import annotations

import pytest

from retexo_fl.agent.request_times import Connection, RequestTimes


def ask(connection: Connection, begun_s: float, ended_s: float) -> None:
    connection.up(900, begun_s)
    connection.down(100, begun_s + (ended_s - begun_s) / 2)
    connection.down(50, ended_s)


def test_requests_close_upon_each_other_are_a_message() -> None:
    times = RequestTimes()
    one = times.connection(0.0)
    ask(one, 0.0, 0.4)  # the handshake
    for begun_s in (0.4, 0.7, 1.0):
        ask(one, begun_s, begun_s + 0.2)
    times.settle(10.0)
    assert (times.requests, times.connections, times.polls) == (3, 1, 0)
    assert times.messages_s == pytest.approx(0.4 + 3 * 0.2)


def test_what_passes_on_two_connections_at_once_counts_once() -> None:
    times = RequestTimes()
    one = times.connection(0.0)
    one.up(500, 0.0)
    two = times.connection(0.5)
    two.up(500, 0.6)
    one.down(800, 1.0)
    one.up(900, 1.0)
    two.down(800, 1.6)
    two.up(900, 1.7)
    one.down(100, 2.0)
    two.down(10_000, 2.2)
    two.down(9_000, 3.0)
    times.settle(10.0)
    assert (times.requests, times.connections) == (2, 2)
    assert times.messages_s == pytest.approx(3.0)


def test_one_request_alone_is_a_look_for_news() -> None:
    times = RequestTimes()
    one = times.connection(0.0)
    ask(one, 0.0, 0.4)
    for begun_s in (0.4, 3.6, 6.8):
        ask(one, begun_s, begun_s + 0.2)
    times.settle(10.0)
    assert (times.requests, times.polls) == (0, 3)
    assert times.polls_s == pytest.approx(0.4 + 3 * 0.2)
    assert times.messages_s == 0.0


def test_a_goodbye_and_an_unanswered_request_take_no_time() -> None:
    times = RequestTimes()
    one = times.connection(0.0)
    ask(one, 0.0, 0.2)
    ask(one, 0.2, 0.4)
    ask(one, 0.4, 0.6)
    one.down(24, 5.6)
    one.up(900, 6.0)
    one.end()
    one.down(10, 6.1)
    times.settle(20.0)
    assert (times.requests, times.polls) == (2, 0)
    assert times.messages_s == pytest.approx(0.6)
    # Nor does it stand in the way of what comes later.
    two = times.connection(30.0)
    for begun_s in (30.0, 30.2, 30.4):
        ask(two, begun_s, begun_s + 0.2)
    times.settle(40.0)
    assert (times.requests, times.polls) == (4, 0)


def test_a_message_under_way_is_not_counted_yet() -> None:
    times = RequestTimes()
    one = times.connection(0.0)
    ask(one, 0.0, 0.2)
    ask(one, 0.2, 0.4)
    one.up(900, 0.4)
    times.settle(20.0)
    assert times.requests == 0
    one.down(100, 20.4)
    times.settle(30.0)
    assert times.requests == 2
    assert times.messages_s == pytest.approx(20.4)
