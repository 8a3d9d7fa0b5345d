"""What an agent that may choose takes as datagrams, and what as blocks."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.carrying.choice import (
    LEAST_BYTES,
    LEAST_SENDERS,
    LEAST_TIMES,
    WayChoice,
    why_block,
)
from retexo_fl.additions.kernel_path.carrying.control import Notice, Way
from retexo_fl.additions.kernel_path.carrying.tickets import IssuedBooks
from retexo_fl.errors import ChannelUnavailable
from retexo_fl.exchange import BlockHeader
from tests.support.datagram_endpoints import endpoint

_WIDTH = 64
_LARGE = LEAST_BYTES // (4 * _WIDTH)


def _notice(
    vectors: int, *, stored: int | None = None, packet_cells: int = 22, in_bytes: bool = False
) -> Notice:
    return Notice(
        exponent=3,
        packet_cells=packet_cells,
        stored=vectors * _WIDTH if stored is None else stored,
        digest=bytes(16),
        streams=np.zeros(vectors, dtype=np.int64),
        forms=np.zeros(vectors, dtype=np.uint8) if in_bytes else None,
    )


def _ways(choice: WayChoice, notice: Notice, *, senders: int = LEAST_SENDERS) -> set[Way]:
    notices = dict.fromkeys(range(senders), notice)
    return set(choice.ways(notices, _WIDTH, senders=senders, max_cells=22).values())


@pytest.mark.parametrize(
    ("vectors", "expected"), [(4 * _LARGE, Way.DATAGRAMS), (4 * _LARGE - 1, Way.BLOCK)]
)
def test_numbers_of_a_byte_are_as_many_bytes(vectors: int, expected: Way) -> None:
    # Zeros among them take none in a block that they do not take in a datagram.
    assert _ways(_choosing(), _notice(vectors, stored=1, in_bytes=True)) == {expected}


def _choosing(*, in_kernel: bool = True) -> WayChoice:
    return WayChoice(automatic=True, in_kernel=in_kernel)


@pytest.mark.parametrize("in_kernel", [True, False])
def test_who_may_not_choose_takes_everything_as_datagrams(in_kernel: bool) -> None:
    choice = WayChoice(automatic=False, in_kernel=in_kernel)

    assert _ways(choice, _notice(_LARGE)) == {Way.DATAGRAMS}
    assert _ways(choice, _notice(50, stored=1), senders=1) == {Way.DATAGRAMS}


@pytest.mark.parametrize(
    ("vectors", "stored", "senders", "in_kernel", "expected"),
    [
        (_LARGE, None, LEAST_SENDERS, True, Way.DATAGRAMS),
        (_LARGE - 1, None, LEAST_SENDERS, True, Way.BLOCK),
        (_LARGE, None, LEAST_SENDERS - 1, True, Way.BLOCK),
        (_LARGE, None, LEAST_SENDERS, False, Way.BLOCK),
        (_LARGE, _LARGE, LEAST_SENDERS, True, Way.BLOCK),
    ],
)
def test_datagrams_are_chosen_where_they_were_measured_to_win(
    vectors: int, stored: int | None, senders: int, in_kernel: bool, expected: Way
) -> None:
    choice = _choosing(in_kernel=in_kernel)
    assert _ways(choice, _notice(vectors, stored=stored), senders=senders) == {expected}


def test_small_exchanges_that_recur_come_as_datagrams_where_the_kernel_takes_them() -> None:
    notices = dict.fromkeys(range(3), _notice(5, stored=1))
    for in_kernel, expected in ((True, Way.DATAGRAMS), (False, Way.BLOCK)):
        for times, way in ((LEAST_TIMES, expected), (LEAST_TIMES - 1, Way.BLOCK)):
            choice = _choosing(in_kernel=in_kernel)
            ways = choice.ways(notices, _WIDTH, senders=3, max_cells=22, recurring={1}, times=times)
            assert ways == {0: Way.BLOCK, 1: way, 2: Way.BLOCK}


@pytest.mark.parametrize("vectors", [1, 1000, 1023, 1024, _LARGE - 1, _LARGE, 4 * _LARGE])
@pytest.mark.parametrize("times", [0, LEAST_TIMES - 1, LEAST_TIMES])
@pytest.mark.parametrize("most_senders", [1, LEAST_SENDERS - 1, LEAST_SENDERS])
def test_what_is_a_block_without_a_notice_is_one_with_any(
    vectors: int, times: int, most_senders: int
) -> None:
    header = _header(vectors)
    with endpoint(memory_bytes=2**26) as receiver:
        recurring = {0} if IssuedBooks(receiver).may_issue(header) else set()
    ways = {
        way
        for stored in (1, vectors * _WIDTH)
        for in_bytes in (True, False)
        for senders in {1, most_senders}
        for way in _choosing()
        .ways(
            {0: _notice(vectors, stored=stored, in_bytes=in_bytes)},
            _WIDTH,
            senders=senders,
            max_cells=22,
            recurring=recurring,
            times=times,
        )
        .values()
    }
    told = bool(why_block(header, times=times, most_senders=most_senders))
    # It is told of every exchange whose notice could not ask for datagrams, and of no other.
    assert told == (ways == {Way.BLOCK})
    assert _choosing().is_block(header, times=times, most_senders=most_senders) == told


def test_without_a_program_every_exchange_is_a_block_without_a_notice() -> None:
    for automatic in (True, False):
        choice = WayChoice(automatic=automatic, in_kernel=False)
        assert choice.is_block(_header(5), times=LEAST_TIMES, most_senders=1) == automatic


def _header(vectors: int) -> BlockHeader:
    return BlockHeader(
        job="job-1",
        layer=0,
        sender=0,
        receiver=1,
        weights_digest=bytes(32),
        num_edges=0,
        plan_digest=bytes(32),
        num_vectors=vectors,
        width=_WIDTH,
        dtype="float32",
    )


def test_each_reason_for_blocks_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    choice = _choosing()
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            _ways(choice, _notice(5))
            _ways(choice, _notice(5), senders=1)
    assert len([record for record in caplog.records if "instead_of" in record.message]) == 2


@pytest.mark.parametrize("automatic", [True, False])
def test_packets_longer_than_any_that_is_taken_come_as_blocks(automatic: bool) -> None:
    choice = WayChoice(automatic=automatic, in_kernel=True)
    assert _ways(choice, _notice(_LARGE, packet_cells=23)) == {Way.BLOCK}


def test_no_room_is_an_error_only_where_datagrams_were_demanded() -> None:
    error = ChannelUnavailable("no cells are left")
    _choosing().no_room(error)
    with pytest.raises(ChannelUnavailable, match="no cells are left; raise datagram-memory-mib"):
        WayChoice(automatic=False, in_kernel=True).no_room(error)
