"""Waits after failures grow and differ between peers; held blocks come back; the log is bounded."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from retexo_fl.channels import BlockKey
from retexo_fl.channels.accounts import ChannelCounters, RefusalLog
from retexo_fl.channels.limits import Backoff, Holds, LinkLimits, looks_every_s
from retexo_fl.errors import (
    ChannelClosed,
    ChannelTimedOut,
    ChannelUnavailable,
    PartitionError,
    PeerRefused,
    RemoteProtocolError,
)
from retexo_fl.exchange.link.messages import RefusalCode
from retexo_fl.exchange.link.reasons import Reason, reason_of, refused

KEY = BlockKey(job="job-1", layer=0, weights_digest=b"d" * 32, sender=0, receiver=1)


def test_waits_double_up_to_the_most_and_are_equal_in_every_run() -> None:
    waits: list[list[float]] = []
    for name in ("0 1", "0 1", "0 2"):
        backoff = Backoff(1.0, 10.0, name)
        waits.append([])
        for _ in range(8):
            backoff.failed(100.0)
            waits[-1].append(backoff.until_s - 100.0)
        backoff.succeeded()
        assert (backoff.failures, backoff.until_s) == (0, 0.0)
    assert waits[0] == waits[1] != waits[2]
    for wait, most in zip(waits[0], (1, 2, 4, 8, 10, 10, 10, 10), strict=True):
        assert 0.75 * most <= wait <= most


def test_of_a_job_that_is_not_known_one_block_is_tried() -> None:
    holds = Holds(1.0, 40.0)
    other, another = replace(KEY, layer=1), replace(KEY, job="job-2")
    assert holds.may_offer(KEY, 0.0)
    holds.refused(KEY, RefusalCode.JOB, 0.0)
    assert not holds.may_offer(other, 0.5)
    assert holds.may_offer(another, 0.5)
    assert 0.75 <= holds.next_s(0.5) <= 1.0
    assert holds.may_offer(KEY, 1.0)
    assert not holds.may_offer(other, 1.0)
    holds.released(KEY)
    assert holds.may_offer(other, 1.0)
    holds.refused(KEY, RefusalCode.JOB, 1.0)
    holds.release_job("job-1")
    assert holds.may_offer(KEY, 1.0)


def test_what_is_not_owed_any_more_is_not_held() -> None:
    holds = Holds(1.0, 40.0)
    other = replace(KEY, job="job-2")
    holds.refused(KEY, RefusalCode.BLOCK, 0.0)
    holds.refused(other, RefusalCode.JOB, 0.0)
    holds.keep_only({KEY, other})
    assert not holds.may_offer(KEY, 0.5)
    assert not holds.may_offer(other, 0.5)
    holds.keep_only(set())
    assert holds.next_s(0.0) == float("inf")
    assert holds.may_offer(KEY, 0.5)
    assert holds.may_offer(other, 0.5)


def test_a_refused_block_holds_no_other() -> None:
    holds = Holds(1.0, 40.0)
    other = replace(KEY, layer=1)
    holds.refused(KEY, RefusalCode.BLOCK, 0.0)
    assert not holds.may_offer(KEY, 0.5)
    assert holds.may_offer(other, 0.5)
    assert holds.may_offer(KEY, 1.0)
    holds.refused(KEY, RefusalCode.BLOCK, 1.0)
    assert not holds.may_offer(KEY, 2.4)
    assert holds.may_offer(KEY, 3.0)
    assert holds.next_s(3.0) == float("inf")


def test_a_flood_of_refusals_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog(10.0)
    for step in range(100):
        log.write("client 3", Reason.FLOOD, "flood: too much", 0.1 * step)
    log.write("client 4", Reason.FLOOD, "flood: too much", 5.0)
    log.write("client 3", Reason.JOB, "no such job", 5.0)
    log.write("client 3", Reason.FLOOD, "flood: too much", 11.0)
    assert [record.getMessage() for record in caplog.records] == [
        "client 3: flood: too much",
        "client 4: flood: too much",
        "client 3: job: no such job",
        "client 3: flood: too much (99 more since the last line)",
    ]
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    for number in range(5000):
        log.write(f"stranger {number}", Reason.SLOW, "slow", 12.0)
    assert len(log._next_s) <= 1000


def test_every_error_has_a_reason() -> None:
    for error, reason in (
        (refused(Reason.OVERSIZE, "too large"), Reason.OVERSIZE),
        (PeerRefused("client 2 is no peer"), Reason.PLAN),
        (PeerRefused("nonsense: x"), Reason.PLAN),
        (PartitionError("edges differ"), Reason.PLAN),
        (RemoteProtocolError("flood: is only a word here"), Reason.PROTOCOL),
        (ChannelTimedOut("nothing was heard"), Reason.SILENT),
        (ChannelUnavailable("disk full"), Reason.STORAGE),
        (ChannelClosed("gone"), Reason.CONNECTION),
    ):
        assert reason_of(error) is reason


def test_a_channel_that_is_not_told_makes_the_sum_unknown() -> None:
    counters = ChannelCounters()
    counters.add_wire(10, 20)
    counters.add_wire(1, None)
    counters.add_wire(1, 1)
    assert (counters.wire_bytes_sent, counters.wire_bytes_received) == (12, None)
    assert (ChannelCounters().reconnects, ChannelCounters(links=3).reconnects) == (0, 2)


@pytest.mark.parametrize(
    ("look_every_s", "addresses", "expected_s"),
    [
        (None, ["tcp://a:1"], 60.0),
        (None, ["bluetooth://B8:27:EB:00:00:02/3"], 30.0),
        (None, ["tcp://a:1", "bluetooth://B8:27:EB:00:00:02"], 30.0),
        (None, [], 60.0),
        (600.0, ["tcp://a:1", "bluetooth://B8:27:EB:00:00:02"], 600.0),
        (5.0, ["tcp://a:1"], 5.0),
    ],
)
def test_the_channel_says_how_often_to_look_unless_the_user_does(
    look_every_s: float | None, addresses: list[str], expected_s: float
) -> None:
    assert looks_every_s(LinkLimits(look_every_s=look_every_s), addresses) == expected_s


def test_who_is_away_for_days_is_logged_seldom(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog(10.0)
    for look in range(240):
        log.write("client 3", Reason.CONNECTION, "away", 30.0 * look, every_s=3600.0)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "client 3: connection: away",
        "client 3: connection: away (119 more since the last line)",
    ]
