"""The link machine: everything arrives once, however the stream is cut; all else is refused."""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.errors import (
    ChannelTimedOut,
    LocalProtocolError,
    PeerRefused,
    RemoteProtocolError,
)
from retexo_fl.exchange.link.events import (
    BlockAsked,
    BlockDelivered,
    BlockOffered,
    BlockRefused,
    JobAdmitted,
    PeerGreeted,
    PeerLeft,
)
from retexo_fl.exchange.link.limits import SessionLimits
from retexo_fl.exchange.link.messages import (
    LINK_VERSION,
    MessageKind,
    Offer,
    RefusalCode,
    encode,
    encode_greet,
    encode_key,
    encode_line,
    encode_offer,
    encode_ref,
    encode_want,
    frame_prefix,
    parse_line,
)
from retexo_fl.exchange.link.offers import OutgoingOffers
from retexo_fl.exchange.link.session import LinkSession
from tests.unit.exchange.link.links import (
    FRAME_BYTES,
    LIMITS,
    End,
    block_header,
    frames_of,
    offer_of,
    refusal,
    swap,
)


def _owing(client: int, peer: int, rows: list[int], limits: SessionLimits = LIMITS) -> End:
    end = End(client=client, peer=peer, limits=limits)
    for layer, count in enumerate(rows):
        header = block_header(client, peer, layer=layer, rows=count)
        end.owed[header.key] = frames_of(header)
    return end


def _pair(ones: list[int], twos: list[int], limits: SessionLimits = LIMITS) -> tuple[End, End]:
    return _owing(0, 1, ones, limits), _owing(1, 0, twos, limits)


def _assert_arrived(one: End, two: End) -> None:
    for sender, receiver in ((one, two), (two, one)):
        assert sender.delivered == set(sender.owed)
        assert {key: tuple(got) for key, got in receiver.arrived.items()} == sender.owed
        assert all(count == 1 for count in receiver.whole.values())


def _greeted(limits: SessionLimits = LIMITS, rows: list[int] | None = None) -> End:
    """Return an end of client 0 that client 1 has greeted."""
    end = _owing(0, 1, rows or [], limits)
    end.connect()
    end.give(encode_greet(1))
    return end


_ROWS = st.lists(st.integers(0, 12), max_size=4)


@given(ones=_ROWS, twos=_ROWS, piece_bytes=st.integers(1, 700))
def test_two_machines_deliver_everything_however_stream_is_cut(
    ones: list[int], twos: list[int], piece_bytes: int
) -> None:
    one, two = _pair(ones, twos)
    one.connect()
    two.connect()
    swap(one, two, piece_bytes=piece_bytes)
    _assert_arrived(one, two)
    assert all(count == 1 for count in (one.frames_sent + two.frames_sent).values())


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(0, 1500), max_size=6), piece_bytes=st.integers(1, 400))
def test_a_stream_may_break_at_any_byte(cuts: list[int], piece_bytes: int) -> None:
    one, two = _pair([9, 3], [5])
    for cut in cuts:
        one.connect()
        two.connect()
        left = cut
        while left > 0:
            there, back = one.pull(piece_bytes), two.pull(piece_bytes)
            kept_there = there[:left]
            kept_back = back[: max(0, left - len(kept_there))]
            left -= len(kept_there) + len(kept_back)
            if kept_there:
                two.give(kept_there)
            if kept_back:
                one.give(kept_back)
            if not there and not back:
                break
    before = one.delivered | two.delivered
    kept = {key: len(got) for end in (one, two) for key, got in end.arrived.items()}
    one.frames_sent.clear()
    two.frames_sent.clear()
    one.connect()
    two.connect()
    swap(one, two, piece_bytes=piece_bytes)
    _assert_arrived(one, two)
    if not cuts:
        return
    # What was acknowledged does not move again; the rest goes on from the first missing frame,
    # except where the first offer of a block, which is eager, did not reach the other end.
    again = one.frames_sent + two.frames_sent
    assert not [key for key, _ in again if key in before]
    assert all(sequence >= kept.get(key, 0) for key, sequence in again)


def test_a_block_that_was_offered_before_waits_to_be_asked_for() -> None:
    one, two = _pair([20], [])
    (key,) = one.owed
    two.arrived[key] = list(one.owed[key][:3])
    one.offered.add(key)
    one.connect()
    two.connect()
    swap(one, two)
    _assert_arrived(one, two)
    assert min(sequence for _, sequence in one.frames_sent) == 3


def test_an_eager_block_passes_over_frames_that_the_peer_has() -> None:
    one, two = _pair([20], [])
    (key,) = one.owed
    two.arrived[key] = list(one.owed[key][:3])
    one.connect()
    two.connect()
    swap(one, two)
    _assert_arrived(one, two)


def test_an_eager_block_stops_at_the_window_until_it_is_answered() -> None:
    limits = replace(LIMITS, eager_bytes=600)
    one = _greeted(limits, [40])
    while one.pull(2**16):
        pass
    assert 600 <= sum(len(one.owed[key][n]) for key, n in one.frames_sent) < 600 + FRAME_BYTES + 24
    one.give(encode_want(1, 0))
    while one.pull(2**16):
        pass
    assert len(one.frames_sent) == len(next(iter(one.owed.values())))


def test_a_refused_block_is_told_and_its_frames_are_passed_over() -> None:
    one, two = _pair([5], [2])
    for end in (one, two):
        end.connect()
    two.take = lambda event: (  # type: ignore[method-assign]
        two.session.refuse(event.ref, RefusalCode.JOB, "no\nsuch job", 0.0)
        if isinstance(event, BlockOffered)
        else None
    )
    events = one.give(two.pull(200))
    while there := one.pull(200):
        two.give(there)
    while back := two.pull(200):
        events += one.give(back)
    refused = [event for event in events if isinstance(event, BlockRefused)]
    assert [(event.code, event.reason) for event in refused] == [(RefusalCode.JOB, "no such job")]


def test_more_offers_than_may_be_open_wait_for_their_turn() -> None:
    one, two = _pair([1] * 20, [], replace(LIMITS, max_open_offers=3))
    one.connect()
    two.connect()
    swap(one, two)
    _assert_arrived(one, two)


def test_large_blocks_wait_until_fewer_bytes_are_pending() -> None:
    one, two = _pair([12] * 4, [], replace(LIMITS, max_pending_bytes=1500))
    one.connect()
    two.connect()
    swap(one, two)
    _assert_arrived(one, two)


def test_bytes_of_answered_offers_are_pending_no_more() -> None:
    told: list[bytes] = []
    offers = OutgoingOffers(replace(LIMITS, max_pending_bytes=100), told.append)
    offers.start()
    for layer in range(8):
        key = block_header(0, 1, layer=layer, rows=1).key
        offers.add(Offer(key=key, num_frames=3, num_bytes=40, is_eager=False))
    assert len(told) == 2
    for ref in range(1, 6):
        offers.answered(ref)
        assert len(told) == 2 + ref


def test_a_withdrawn_block_is_not_finished() -> None:
    one, two = _pair([20, 1], [])
    one.connect()
    two.connect()
    first, second = one.owed
    two.give(one.pull(2**16))
    one.give(two.pull(2**16))
    two.give(one.pull(2**16))
    one.session.withdraw(first)
    swap(one, two)
    assert one.delivered == {second}
    assert not two.whole[first]


def test_asking_for_a_block_and_admitting_a_job_reach_the_peer() -> None:
    one = _greeted(rows=[1])
    (key,) = one.owed
    events = one.give(
        encode(MessageKind.ASK, encode_key(key))
        + encode(MessageKind.ADMITTED, b"job-1")
        + encode(MessageKind.BYE, encode_line("enough"))
    )
    assert events == [BlockAsked(key=key), JobAdmitted(job="job-1"), PeerLeft(reason="enough")]
    two = LinkSession(client=1, peer=0, now_s=0.0)
    two.ask(key)
    two.admit_job("job-1")
    two.leave("enough")
    two.admit_job("job-2")
    sent = bytes(two.data_to_send(2**16, 0.0))
    assert _greeted(rows=[1]).give(sent.removeprefix(encode_greet(1))) == events


def test_nothing_moves_before_the_greeting() -> None:
    one = _owing(0, 1, [3])
    one.connect()
    assert one.pull(2**16) == encode_greet(0)
    assert one.pull(2**16) == b""
    assert one.give(encode_greet(1)) == [PeerGreeted(client=1)]
    assert one.pull(2**16)


# ---- what is refused ---------------------------------------------------------------------------

_KEY = block_header(1, 0).key
_FRAMES = frames_of(block_header(1, 0))
_OFFER = offer_of(_KEY, _FRAMES)


def _message(kind: int, body: bytes, version: int = LINK_VERSION) -> bytes:
    return struct.pack("<BBHI", version, kind, 0, len(body)) + body


def _frame(ref: int, frame: bytes) -> bytes:
    return frame_prefix(ref, len(frame)) + frame


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (_message(10, b"", version=9), "link version is 9, expected 1"),
        (_message(99, b""), "message kind 99 is unknown"),
        (_message(10, b"x"), "oversize: PING of 1 byte"),
        (_message(3, b"x"), "WANT of 1 byte, expected at least 8"),
        (frame_prefix(1, 2**20), "oversize: FRAME of"),
        (encode_greet(1), "GREET after the greeting"),
        (encode_offer(2, _OFFER), "offer 2, expected 1"),
        (encode_want(1, 0), "an answer to offer 1"),
        (encode_ref(MessageKind.HAVE, 0), "an answer to offer 0"),
        (encode_ref(MessageKind.WITHDRAW, 1), "offer 1 was never made"),
        (_frame(1, _FRAMES[0]), "offer 1 was never made"),
        (
            encode_offer(1, replace(_OFFER, num_frames=1, num_bytes=24)) + _frame(1, _FRAMES[0]),
            "oversize: offer 1 has more",
        ),
        (encode_offer(1, replace(_OFFER, num_frames=9, num_bytes=100)), "OFFER: 9 frames"),
        (
            encode_offer(1, replace(_OFFER, key=replace(_KEY, sender=5))),
            "impersonation: a block of client 5 for client 0",
        ),
        (
            encode_offer(1, replace(_OFFER, key=replace(_KEY, receiver=5))),
            "impersonation: a block of client 1 for client 5",
        ),
        (
            encode(MessageKind.ASK, encode_key(_KEY)),
            "impersonation: asks for a block of client 1 for client 0",
        ),
        (encode(MessageKind.ADMITTED, b"\n"), "job is '\\n', expected printable ASCII"),
        (encode(MessageKind.REFUSE, struct.pack("<IB", 1, 7), b"x"), "REFUSE: code 7 is unknown"),
    ],
    ids=itertools.count(),
)
def test_what_may_not_come_is_refused_by_name(data: bytes, sentence: str) -> None:
    end = _greeted()
    assert sentence in refusal(end, data)
    assert refusal(end, encode(MessageKind.PING)) == refusal(end, encode(MessageKind.PONG))


def test_a_frame_before_the_offers_answer_is_refused() -> None:
    session = _greeted().session
    session.receive_data(encode_offer(1, _OFFER) + _frame(1, _FRAMES[0]), 0.0)
    assert isinstance(session.next_event(0.0), BlockOffered)
    with pytest.raises(RemoteProtocolError, match="frame of offer 1.*not answered"):
        session.next_event(0.0)


def test_the_greeting_is_of_the_proved_client_and_comes_first() -> None:
    for data, sentence in (
        (encode_greet(2), "impersonation: greets as client 2"),
        (encode_offer(1, _OFFER), "OFFER before the greeting"),
        (_message(1, b"HTTP" + bytes(4)), "GREET: begins with"),
        (b"GET / HTTP/1.1\r\n", "link version is 71"),
    ):
        end = End(client=0, peer=1)
        end.connect()
        assert sentence in refusal(end, data)


def test_too_many_open_offers_are_a_flood() -> None:
    end = _greeted(replace(LIMITS, max_open_offers=2))
    data = b"".join(
        encode_offer(ref, replace(_OFFER, key=replace(_KEY, layer=ref))) for ref in (1, 2, 3)
    )
    assert "flood: 3 open offers" in refusal(end, data)


def test_too_many_refused_offers_of_late_are_a_flood() -> None:
    end = _greeted(replace(LIMITS, max_refusals=3, refusals_s=10.0))

    def refuse(ref: int, now_s: float) -> None:
        end.give(encode_offer(ref, replace(_OFFER, key=replace(_KEY, layer=ref))), now_s)
        end.session.refuse(ref, RefusalCode.BLOCK, "no", now_s)

    for ref in (1, 2, 3, 4, 5):
        refuse(ref, 6.0 * ref)
    refuse(6, 31.0)
    with pytest.raises(PeerRefused, match="flood: 4 offers refused within 10 s"):
        refuse(7, 32.0)


def test_bytes_that_nobody_asked_for_are_a_flood() -> None:
    end = _greeted(replace(LIMITS, max_unwanted_bytes=250))
    end.give(encode_offer(1, _OFFER))
    end.session.refuse(1, RefusalCode.BLOCK, "no", 0.0)
    end.give(_frame(1, _FRAMES[0]))
    end.give(_frame(1, _FRAMES[0]))
    assert "flood: 357 bytes" in refusal(end, _frame(1, _FRAMES[0]))


def test_a_peer_that_sends_and_never_reads_is_a_flood() -> None:
    end = _greeted()
    pings = encode(MessageKind.PING) * 40_000
    assert "flood: it sends messages without reading" in refusal(end, pings)


def test_what_was_wanted_makes_up_for_what_was_not() -> None:
    end = _greeted(replace(LIMITS, max_unwanted_bytes=250))
    end.give(_whole_block_after(end))
    for ref in range(2, 6):
        end.give(encode_offer(ref, replace(_OFFER, key=replace(_KEY, layer=ref))))
        end.session.refuse(ref, RefusalCode.BLOCK, "no", 0.0)
        end.give(_frame(ref, _FRAMES[0]))
    assert "bytes that were not requested" in refusal(end, _frame(5, _FRAMES[0]) * 9)


def _whole_block_after(end: End) -> bytes:
    return encode_offer(1, _OFFER) + b"".join(_frame(1, frame) for frame in _FRAMES)


def test_a_pong_that_nobody_asked_for_is_refused() -> None:
    assert "PONG without PING" in refusal(_greeted(), encode(MessageKind.PONG))


def test_a_block_for_another_client_cannot_be_offered() -> None:
    session = LinkSession(client=0, peer=1, now_s=0.0)
    with pytest.raises(LocalProtocolError, match="a link to client 1"):
        session.offer(_OFFER)


def test_a_want_for_the_second_time_or_beyond_the_end_is_refused() -> None:
    assert "for the second time" in refusal(
        _greeted(rows=[3]), encode_want(1, 0) + encode_want(1, 0)
    )
    assert "WANT of frame 99" in refusal(_greeted(rows=[3]), encode_want(1, 99))


def test_an_answer_that_comes_after_a_withdrawal_is_nothing() -> None:
    end = _greeted(rows=[3])
    (key,) = end.owed
    end.session.withdraw(key)
    assert end.give(encode_want(1, 0) + encode_ref(MessageKind.HAVE, 1)) == []
    assert not end.session.offers(key)


# ---- time --------------------------------------------------------------------------------------


def test_a_peer_that_does_not_greet_is_too_slow() -> None:
    session = LinkSession(client=0, peer=1, now_s=100.0)
    assert session.next_deadline_s() == 110.0
    session.check_time(109.0)
    with pytest.raises(PeerRefused, match="slow: no greeting within 10 s"):
        session.check_time(110.0)


def test_a_message_that_trickles_in_is_too_slow() -> None:
    end = _greeted()
    end.give(encode_offer(1, _OFFER))
    data = _frame(1, _FRAMES[0])
    allowed_s = LIMITS.message_s + len(data) / LIMITS.least_bytes_per_s
    end.give(data[:1], 50.0)
    for step in range(1, 8):
        end.give(data[step : step + 1], 50.0 + step)
    end.give(data[8:9], 58.0)
    assert end.session.next_deadline_s() == pytest.approx(50.0 + allowed_s)
    with pytest.raises(PeerRefused, match="slow: a message was not complete"):
        end.session.check_time(50.0 + allowed_s)


def test_each_message_has_its_own_time() -> None:
    end = _greeted()
    ping = encode(MessageKind.PING)
    for step in range(100):
        end.give(ping[4:] + ping[:4] if step else ping[:4], 20.0 * step)
        end.session.check_time(20.0 * step + 19.0)
        while end.pull(100, 20.0 * step):
            pass


def test_silence_is_asked_about_and_then_is_the_end() -> None:
    end = _greeted()
    while end.pull(2**16):
        pass
    assert end.session.next_deadline_s() == 30.0
    end.session.check_time(29.0)
    assert not end.pull(2**16, 29.0)
    end.session.check_time(30.0)
    assert end.pull(2**16, 31.0) == encode(MessageKind.PING)
    assert end.session.next_deadline_s() == 91.0
    end.give(encode(MessageKind.PONG), 90.0)
    end.session.check_time(120.0)
    assert end.pull(2**16, 120.0) == encode(MessageKind.PING)
    with pytest.raises(ChannelTimedOut, match="nothing .* 90 s"):
        end.session.check_time(180.0)


def test_a_ping_is_answered() -> None:
    end = _greeted()
    while end.pull(2**16):
        pass
    end.give(encode(MessageKind.PING))
    assert end.pull(2**16) == encode(MessageKind.PONG)
    assert math.isfinite(end.session.next_deadline_s())


@given(text=st.text(max_size=600))
def test_reasons_are_one_printable_line_of_bounded_length(text: str) -> None:
    line = encode_line(text)
    assert 1 <= len(line) <= 300
    assert parse_line(line).isprintable()


def test_delivered_is_told_once() -> None:
    end = _greeted(rows=[1])
    (key,) = end.owed
    have = encode_ref(MessageKind.HAVE, 1)
    assert end.give(have + have) == [BlockDelivered(key=key)]
