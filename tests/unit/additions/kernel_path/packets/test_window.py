from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.layout import ACK_WANTED
from retexo_fl.additions.kernel_path.packets.pacing import RoundTrip, WindowTimes, WindowWidth
from retexo_fl.additions.kernel_path.packets.window import MAX_WINDOW, SendWindow, ack_flags
from tests.unit.additions.kernel_path.packets.lossy_path import LossyPath


def bits_of(*seqs: int, base: int = 0) -> NDArray[np.uint64]:
    bits = np.zeros(512, dtype=np.bool_)
    bits[np.array(seqs, dtype=np.int64) - base] = True
    return np.packbits(bits, bitorder="little").view(np.uint64)


def is_stalled(window: SendWindow) -> bool:
    return window.stalled


@settings(max_examples=40)
@given(
    num_packets=st.integers(1, 1100),
    seed=st.integers(0, 2**16),
    loss=st.floats(0, 0.3),
    doubled=st.floats(0, 0.3),
    jitter_s=st.sampled_from([0.0, 0.0001, 0.003]),
    is_shuffled=st.booleans(),
    limit=st.sampled_from([1, 7, 64]),
)
def test_every_packet_is_acknowledged_once(
    num_packets: int,
    seed: int,
    loss: float,
    doubled: float,
    jitter_s: float,
    is_shuffled: bool,
    limit: int,
) -> None:
    path = LossyPath(
        num_packets,
        seed=seed,
        loss=loss,
        doubled=doubled,
        jitter_s=jitter_s,
        is_shuffled=is_shuffled,
        limit=limit,
    )
    path.run()
    assert path.acked == num_packets == path.window.acknowledged
    assert (path.delivered >= 1).all()
    assert path.window.sent == num_packets + path.window.retransmitted
    # With jitter of ten delays one in 2,000 paths sends packets 1.2 times again and 100 more.
    assert path.window.retransmitted <= 2 * num_packets + 4 * path.lost + 100
    assert path.window.on_their_way == 0
    assert path.window.next_deadline_s() == math.inf
    assert not len(path.window.to_send(path.now_s, 64))


def test_a_good_path_carries_each_packet_once() -> None:
    path = LossyPath(5000)
    path.run()
    assert path.window.retransmitted == path.pings == 0
    assert (path.delivered == 1).all()


@pytest.mark.parametrize("loss", [0.02, 0.05])
def test_little_more_than_what_was_lost_is_sent_again(loss: float) -> None:
    path = LossyPath(5000, loss=loss, doubled=0.05, seed=1)
    path.run()
    assert 0.8 * loss * 5000 < path.window.retransmitted < 1.5 * path.lost
    # A time-out for each loss would take 250 times 5 ms and more.
    assert path.now_s - 100.0 < 0.5


def test_a_path_that_reorders_a_batch_makes_none_lost() -> None:
    path = LossyPath(3000, is_shuffled=True, delay_s=0.001)
    path.run()
    assert path.window.retransmitted < 30


def test_a_stall_ends_when_something_is_answered() -> None:
    path = LossyPath(2000, silent=(100.002, 160.0))
    path.run(until_s=159.0)
    assert is_stalled(path.window)
    assert path.window.room == 0
    assert not len(path.window.to_send(path.now_s, 64))
    sent = path.window.sent
    # In all: what was answered, a window, one packet for each time-out.
    assert sent <= path.window.acknowledged + MAX_WINDOW + WindowTimes().timeouts
    assert 20 <= path.pings <= 40
    path.run()
    assert path.now_s < 164.0
    assert not is_stalled(path.window)
    assert path.window.retransmitted <= MAX_WINDOW + WindowTimes().timeouts + 10


def test_nothing_answered_stalls_after_bounded_retries() -> None:
    times = WindowTimes(first_s=0.1, most_s=0.5, timeouts=3, ping_s=2.0)
    window = SendWindow(1000, now_s=0.0, times=times)
    assert len(window.to_send(0.0, 1000)) == MAX_WINDOW
    due, seqs, pings = [], [], []
    while not is_stalled(window):
        now_s = window.next_deadline_s()
        due.append(round(now_s, 6))
        seqs += window.to_send(now_s, 64).tolist()
        if window.wants_ping(now_s):
            pings.append(due[-1])
            window.pinged(now_s)
    assert due == [0.1, 0.3, 0.7, 1.2]
    # The first time-out alone may be that of a packet which was lost.
    assert pings == [0.3, 0.7]
    assert seqs == [0, 0, 0]
    assert window.retransmitted == 3
    assert window.next_deadline_s() == pytest.approx(0.7 + 2.0)
    assert not window.wants_ping(2.69)
    assert window.wants_ping(2.71)
    assert window.ping_seq == 0
    # The answer to a ping: nothing was seen, but somebody is there.
    assert window.acked(0, bits_of(), 3.0) == 0
    assert not is_stalled(window)
    again = window.to_send(3.0, 300)
    assert again.tolist() == list(range(MAX_WINDOW))


def test_resuming_sends_all_that_is_not_acknowledged_again() -> None:
    window = SendWindow(10, now_s=0.0)
    window.to_send(0.0, 10)
    window.acked(0, bits_of(0, 1, 5), 0.001)
    window.resume(5.0)
    assert window.to_send(5.0, 64).tolist() == [2, 3, 4, 6, 7, 8, 9]


def test_a_gap_is_asked_after_and_then_resent() -> None:
    window = SendWindow(20, now_s=0.0)
    window.to_send(0.0, 20)
    seen = [seq for seq in range(20) if seq not in {3, 4, 9}]
    assert window.acked(0, bits_of(*seen), 0.001) == 17
    assert not len(window.to_send(0.001, 64))
    due_s = window.next_deadline_s()
    assert 0.002 < due_s <= 0.001 + WindowTimes().reordered_s
    asking = window.to_send(due_s, 64)
    assert asking.tolist() == [3]
    assert ack_flags(asking).tolist() == [ACK_WANTED]
    # Packet 9 had only been overtaken.
    assert window.acked(0, bits_of(*seen, 3, 9), due_s + 0.001) == 2
    assert window.to_send(due_s + 0.001, 64).tolist() == [4]
    assert window.acked(0, bits_of(*range(20)), due_s + 0.002) == 1
    assert window.done
    assert window.retransmitted == 2


def test_what_has_only_been_overtaken_is_not_resent() -> None:
    window = SendWindow(20, now_s=0.0)
    window.to_send(0.0, 20)
    window.acked(0, bits_of(19), 0.001)
    assert window.acked(0, bits_of(*range(20)), 0.0012) == 19
    assert window.done
    assert window.retransmitted == 0


def test_a_packet_far_behind_is_resent_at_once() -> None:
    window = SendWindow(200, now_s=0.0)
    assert window.next_deadline_s() == -math.inf
    window.to_send(0.0, 200)
    assert 0.0 < window.next_deadline_s() < math.inf
    window.acked(0, bits_of(*range(1, 180)), 0.001)
    assert (window.room, window.next_deadline_s()) == (0, -math.inf)
    assert window.to_send(0.001, 64).tolist() == [0]
    # Sent again it is as young as the newest; it does not count as lost again.
    window.acked(0, bits_of(*range(1, 190)), 0.0011)
    assert not len(window.to_send(0.0011, 64))


def test_an_ack_of_a_later_block_makes_the_earlier_want_its_own() -> None:
    window = SendWindow(1024, now_s=0.0)
    window.to_send(0.0, 256)
    window.acked(0, bits_of(*range(256)), 0.001)
    window.to_send(0.001, 256)
    window.acked(0, bits_of(*range(500)), 0.002)
    window.to_send(0.002, 256)
    # The answer to packet 511 was lost, that to 543 has come.
    window.acked(512, bits_of(*range(512, 544), base=512), 0.003)
    due_s = window.next_deadline_s() if window.room == 0 else 0.006
    resent = window.lost_to_send(max(due_s, 0.006), 64)
    assert resent.tolist() == [500]
    assert ack_flags(resent).tolist() == [ACK_WANTED]
    assert window.acked(0, bits_of(*range(512)), 0.007) == 12
    # Which says nothing of the later block.
    assert not len(window.lost_to_send(0.007, 64))


def test_what_was_never_sent_cannot_be_acknowledged() -> None:
    window = SendWindow(600, now_s=0.0)
    window.to_send(0.0, 10)
    everything = np.full(8, 2**64 - 1, dtype=np.uint64)
    assert window.acked(512, everything, 0.001) == 0
    assert window.acked(2**31, everything, 0.001) == 0
    assert window.acked(0, everything, 0.001) == 10
    assert window.acked(0, everything, 0.002) == 0
    assert window.acknowledged == 10
    assert not window.done


def test_lost_packets_come_before_new_ones() -> None:
    window = SendWindow(300, now_s=0.0)
    window.to_send(0.0, 200)
    window.acked(0, bits_of(*range(2, 200)), 0.001)
    assert window.to_send(0.001, 5).tolist() == [0, 1, 200, 201, 202]
    assert window.room == 256 - 203
    assert window.new_to_send(0.001, 2).tolist() == [203, 204]


def test_a_window_of_one_packet_sends_one_at_a_time() -> None:
    window = SendWindow(2, now_s=0.0, window=1)
    assert window.to_send(0.0, 64).tolist() == [0]
    assert not len(window.to_send(0.0, 64))
    window.acked(0, bits_of(0), 0.001)
    assert window.to_send(0.001, 64).tolist() == [1]


def test_a_stream_without_packets_is_done() -> None:
    window = SendWindow(0, now_s=0.0)
    assert window.done
    assert not len(window.to_send(0.0, 64))
    assert window.next_deadline_s() == math.inf


@pytest.mark.parametrize(
    ("seqs", "flagged"),
    [
        (range(64), [31, 63]),
        (range(40), [31, 39]),
        ([5], [5]),
        ([], []),
        ([3, 500, 512, 513], [500, 513]),
    ],
)
def test_one_in_32_and_the_last_of_a_block_ask_for_an_ack(
    seqs: list[int], flagged: list[int]
) -> None:
    batch = np.array(list(seqs), dtype=np.int64)
    flags = ack_flags(batch)
    assert set(flags.tolist()) <= {0, ACK_WANTED}
    assert batch[flags != 0].tolist() == flagged


def test_the_timer_follows_the_round_trips() -> None:
    times = WindowTimes()
    round_trip = RoundTrip()
    assert round_trip.timeout_s(times, 0) == times.first_s
    for _ in range(100):
        round_trip.measured(0.1)
    assert round_trip.timeout_s(times, 0) == pytest.approx(0.1, rel=0.01)
    assert round_trip.timeout_s(times, 2) == pytest.approx(0.4, rel=0.01)
    assert round_trip.timeout_s(times, 30) == times.most_s
    assert round_trip.reordered_s(times) == times.reordered_s
    # RFC 6298, section 2, by hand.
    two = RoundTrip()
    two.measured(0.1)
    assert two.timeout_s(times, 0) == pytest.approx(0.1 + 4 * 0.05)
    two.measured(0.2)
    mean_s, varies_s = 0.1 + 0.1 / 8, 0.05 + (0.1 - 0.05) / 4
    assert two.timeout_s(times, 0) == pytest.approx(mean_s + 4 * varies_s)
    patient = WindowTimes(reordered_s=9.0)
    assert two.reordered_s(patient) == pytest.approx(1.5 * mean_s + 4 * varies_s)
    quick = RoundTrip()
    quick.measured(1e-5)
    assert quick.timeout_s(times, 0) == times.least_s


def test_the_window_narrows_only_where_much_is_lost() -> None:
    width = WindowWidth(256)
    width.judge(arrived=240, lost=16)
    assert width.packets == 256
    width.judge(arrived=200, lost=56)
    assert width.packets == 128
    width.judge(arrived=128)
    assert width.packets == 160
    for _ in range(10):
        width.judge(lost=256)
    assert width.packets == 32
    for _ in range(100):
        width.judge(arrived=256)
    assert width.packets == 256
    narrow = WindowWidth(8)
    narrow.judge(lost=8)
    narrow.nothing_answers()
    assert narrow.packets == 8
