"""Endpoints of one machine: whatever is lost on the way, sums are exact and everybody knows."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint import DatagramEndpoint, UserSpaceReceiver
from retexo_fl.additions.kernel_path.endpoint.broadcasting import BroadcastKind
from retexo_fl.additions.kernel_path.endpoint.receive_buffer import Received
from retexo_fl.additions.kernel_path.endpoint.udp_socket import (
    Message,
    UdpSocket,
    group_packets,
    message_for,
    path_mtu,
)
from retexo_fl.additions.kernel_path.packets.layout import USER_ACK
from retexo_fl.additions.kernel_path.packets.packets import (
    PacketHead,
    pack_packets,
    ping_packet,
)
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.errors import ChannelClosed, ChannelUnavailable, LocalProtocolError
from retexo_fl.exchange.fixed_point import byte_rows
from tests.support.datagram_endpoints import (
    JOB,
    SHORT,
    STAGE,
    UnreliableSocket,
    begin,
    complete,
    endpoint,
    expected_sum,
    grant,
    places,
    send,
    sent,
    tables,
    vectors,
    wait_until,
)


@pytest.mark.parametrize("joins_packets", [True, False])
@pytest.mark.parametrize(("width", "packet_cells"), [(64, 22), (20, 22), (602, 22), (64, 140)])
def test_a_stream_arrives_exactly(width: int, packet_cells: int, joins_packets: bool) -> None:
    values, where = vectors(1500, width), places(1500, 70)
    bound = UdpSocket("127.0.0.1:0", joins_packets=joins_packets)
    with endpoint() as sender, endpoint(bound) as receiver:
        begin(receiver, b"k", width=width, accumulators=70, streams=1)
        granted = grant(receiver, b"k", where, width=width, packet_cells=packet_cells)
        send(sender, b"s", values, [(receiver, granted)], packet_cells=packet_cells)
        complete(receiver, b"k")
        sent(sender, b"s")
        assert np.array_equal(receiver.rows(b"k", 0), expected_sum(70, [(values, where)], width))
        packets = StreamShape(1500, width, packet_cells).packets
        progress, state = receiver.progress(b"k"), sender.sending(b"s")
        assert progress.packets_expected == progress.packets_done == state.packets == packets
        assert progress.by_stream[0, 0, 0].done == packets
        assert receiver.counters()["data_new"] == packets


def test_numbers_of_a_byte_are_acknowledged_and_added_as_their_forms_say() -> None:
    generator, where = np.random.default_rng(0), places(1500, 70)
    steps = generator.integers(-127, 128, (1500, 50)) << generator.integers(0, 9, (1500, 1))
    written = byte_rows(steps.astype(np.int32))
    assert written is not None
    numbers, forms = written
    with endpoint() as sender, endpoint(UnreliableSocket(loss=0.05, seed=3)) as receiver:
        begin(receiver, b"k", width=50, accumulators=70, streams=1)
        granted = grant(receiver, b"k", where, width=50, forms=forms)
        send(sender, b"s", numbers, [(receiver, granted)])
        complete(receiver, b"k")
        sent(sender, b"s")
        summed = expected_sum(70, [(steps.astype(np.int32), where)], 50)
        assert np.array_equal(receiver.rows(b"k", 0), summed)
        shape = StreamShape.in_room(1500, 50, 22, in_bytes=True)
        assert receiver.counters()["data_new"] == sender.sending(b"s").packets == shape.packets


def test_many_senders_add_exactly_into_the_same_rows_over_faults() -> None:
    parts = [(vectors(700, 64, seed), places(700, 50, seed)) for seed in range(3)]
    with ExitStack() as stack:
        receiver = stack.enter_context(endpoint(UnreliableSocket(loss=0.05, seed=9)))
        begin(receiver, b"k", width=64, accumulators=50, streams=3)
        for number, (values, where) in enumerate(parts):
            bad = UnreliableSocket(loss=0.05, repeated=0.05, reordered=0.05, seed=number)
            sender = stack.enter_context(endpoint(bad, times=SHORT))
            granted = grant(receiver, b"k", where, width=64, sender=number)
            send(sender, b"s", values, [(receiver, granted)], number=number)
        complete(receiver, b"k")
        assert np.array_equal(receiver.rows(b"k", 0), expected_sum(50, parts, 64))
        counters = receiver.counters()
        assert counters["data_new"] == 3 * StreamShape(700, 64, 22).packets
        assert counters["data_duplicate"] > 0
        assert counters["malformed"] == counters["bad_checksum"] == counters["foreign"] == 0


@pytest.mark.parametrize("kind", ["sendto", "sendmmsg", "gso"])
def test_several_take_their_own_vectors_from_the_same_packets(kind: BroadcastKind) -> None:
    values = vectors(900, 64)
    with ExitStack() as stack:
        bad = UnreliableSocket(loss=0.03, seed=4)
        sender = stack.enter_context(endpoint(bad, broadcast=kind, times=SHORT))
        receivers = [stack.enter_context(endpoint()) for _ in range(3)]
        to, wanted = [], []
        for number, receiver in enumerate(receivers):
            where = places(900, 80, number)
            where[number::3] = -1
            begin(receiver, b"k", width=64, accumulators=80, streams=1)
            to.append((receiver, grant(receiver, b"k", where, width=64)))
            wanted.append(expected_sum(80, [(values, where)], 64))
        send(sender, b"s", values, to)
        sent(sender, b"s")
        for receiver, expected in zip(receivers, wanted, strict=True):
            assert receiver.progress(b"k").complete
            assert np.array_equal(receiver.rows(b"k", 0), expected)
        state = sender.sending(b"s")
        assert len(state.by_destination) == 3
        assert state.sent - state.retransmitted == 3 * state.packets


def test_a_dead_receiver_stalls_a_sender_that_resumes_the_rest() -> None:
    values, where = vectors(4000, 64), places(4000, 50)
    deaf = UnreliableSocket()
    with endpoint(times=SHORT) as sender, endpoint(deaf) as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        deaf.is_cut = True
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=64))])
        wait_until(sender, lambda: sender.sending(b"s").stalled)
        state = sender.sending(b"s")
        assert state.by_destination[receiver.address].reason == "no answer"
        assert not state.done
        # What arrived before nobody could say so is not added again.
        assert 0 < receiver.progress(b"k").packets_done < state.packets
        deaf.is_cut = False
        sent(sender, b"s")
        assert not sender.sending(b"s").stalled
        assert np.array_equal(receiver.rows(b"k", 0), expected_sum(50, [(values, where)], 64))


def test_a_receiver_started_anew_gets_everything_by_a_new_grant() -> None:
    values, where = vectors(600, 64), places(600, 50)
    with endpoint(times=SHORT) as sender:
        with endpoint() as first:
            begin(first, b"k", width=64, accumulators=50, streams=1)
            send(sender, b"s", values, [(first, grant(first, b"k", where, width=64))])
            complete(first, b"k")
            address = first.address
        with endpoint(address=address) as second:
            begin(second, b"k", width=64, accumulators=50, streams=1)
            send(sender, b"s", values, [(second, grant(second, b"k", where, width=64))])
            complete(second, b"k")
            sent(sender, b"s")
            assert np.array_equal(second.rows(b"k", 0), expected_sum(50, [(values, where)], 64))


def test_lost_last_answers_come_after_the_exchange_is_closed() -> None:
    values, where = vectors(300, 64), places(300, 50)
    deaf = UnreliableSocket()
    with endpoint(times=SHORT) as sender, endpoint(deaf) as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        deaf.is_cut = True
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=64))])
        complete(receiver, b"k")
        receiver.close_exchange(b"k")
        begin(receiver, b"next", width=64, accumulators=50, streams=1)
        deaf.is_cut = False
        sent(sender, b"s")
        assert not receiver.rows(b"next", 0).any()


def test_a_kept_exchange_is_revived_without_a_packet() -> None:
    values, where = vectors(100, 16), places(100, 9)
    with endpoint() as sender, endpoint() as receiver:
        assert not receiver.revive(b"layer 1", b"k")
        begin(receiver, b"k", width=16, accumulators=9, streams=1, cache_key=b"layer 1")
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=16))])
        complete(receiver, b"k")
        receiver.close_exchange(b"k")
        before = receiver.counters()
        assert receiver.cached(b"layer 1")
        assert receiver.revive(b"layer 1", b"again")
        assert receiver.progress(b"again").complete
        assert np.array_equal(receiver.rows(b"again", 0), expected_sum(9, [(values, where)], 16))
        after = receiver.counters()
        assert after["socket_data"] == before["socket_data"]
        assert (after["cache_hits"], after["cache_misses"]) == (1, 1)


def test_packets_with_a_foreign_token_change_nothing() -> None:
    values, where = vectors(200, 64), places(200, 50)
    with endpoint() as sender, endpoint() as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        granted = grant(receiver, b"k", where, width=64)
        for token, stream in ((granted.token ^ 1, granted.stream), (granted.token, 5)):
            head = PacketHead(token=token, stream=stream, job=JOB, stage=STAGE, sender=0)
            _send_raw(receiver, _data(head, values))
        wait_until(receiver, lambda: receiver.counters()["foreign"] == 74)
        assert not receiver.rows(b"k", 0).any()
        send(sender, b"s", values, [(receiver, granted)])
        complete(receiver, b"k")
        assert np.array_equal(receiver.rows(b"k", 0), expected_sum(50, [(values, where)], 64))


def test_a_ping_beyond_the_last_packet_is_malformed() -> None:
    with endpoint() as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        granted = grant(receiver, b"k", places(200, 50), width=64)
        head = PacketHead(
            token=granted.token, stream=granted.stream, job=JOB, stage=STAGE, sender=0
        )
        num_packets = StreamShape(200, 64, 22).packets
        for seq in (num_packets - 1, num_packets):
            _send_raw(receiver, np.frombuffer(ping_packet(head, seq), np.uint8))
        # Packets are counted before they are looked at.
        wait_until(receiver, lambda: receiver.counters()["malformed"] > 0)
        counters = receiver.counters()
        assert (counters["socket_packets"], counters["malformed"]) == (2, 1)


def test_what_is_no_packet_of_ours_is_counted_and_dropped() -> None:
    with endpoint() as receiver:
        head = PacketHead(token=1, stream=0, job=JOB, stage=STAGE, sender=0)
        whole = ping_packet(head, 0)
        for packet in (b"", b"x", bytes(65_000), whole[:-1], whole + b"x", whole[:50]):
            _send_raw(receiver, np.frombuffer(packet, np.uint8))
        # Packets of odd lengths that the kernel joins.
        odd = np.frombuffer(whole[:-3] * 5, np.uint8)
        _send_raw(receiver, odd, packet_bytes=len(whole) - 3)
        wait_until(receiver, lambda: receiver.counters()["malformed"] >= 8)
        counters = receiver.counters()
        assert (counters["malformed"], counters["passed"], counters["socket_packets"]) == (8, 3, 11)


class _Silent(UserSpaceReceiver):
    """Answers as an XDP program does on a device that sends nothing from XDP."""

    def take(
        self,
        packets: NDArray[np.uint8],
        lengths: NDArray[np.int64],
        replies: NDArray[np.uint8],
        reply_lengths: NDArray[np.int64],
    ) -> None:
        super().take(packets, lengths, replies, reply_lengths)
        asks_user = (packets[:, 7] & USER_ACK) != 0
        reply_lengths[: len(lengths)][~asks_user] = 0


def test_user_space_is_asked_where_a_device_answers_nothing() -> None:
    values, where = vectors(3000, 64), places(3000, 50)
    with endpoint(times=SHORT) as sender, endpoint(receiver=_Silent(tables())) as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=64))])
        sent(sender, b"s")
        assert np.array_equal(receiver.rows(b"k", 0), expected_sum(50, [(values, where)], 64))
        assert receiver.counters()["user_acks"] > 0


def test_a_path_too_narrow_is_named_and_taken_when_wide_again() -> None:
    values, where = vectors(600, 64), places(600, 50)
    narrow = UnreliableSocket()
    narrow.problem = OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
    narrow.problem_from_bytes = 1000
    with endpoint(narrow, times=SHORT) as sender, endpoint() as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=64))])
        wait_until(sender, lambda: sender.sending(b"s").stalled)
        (state,) = sender.sending(b"s").by_destination.values()
        assert "its MTU fell" in state.reason
        narrow.problem = None
        sent(sender, b"s")
        assert np.array_equal(receiver.rows(b"k", 0), expected_sum(50, [(values, where)], 64))


@pytest.mark.parametrize("number", [errno.ENOBUFS, errno.EPERM, errno.ECONNREFUSED, errno.EIO])
def test_a_send_that_the_kernel_refuses_is_a_loss_with_a_reason(number: int) -> None:
    values, where = vectors(300, 64), places(300, 50)
    refusing = UnreliableSocket()
    refusing.problem = OSError(number, os.strerror(number))
    with endpoint(refusing, times=SHORT) as sender, endpoint() as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=64))])
        wait_until(sender, lambda: sender.sending(b"s").stalled)
        (state,) = sender.sending(b"s").by_destination.values()
        assert state.reason == os.strerror(number)
        refusing.problem = None
        sent(sender, b"s")
        assert receiver.progress(b"k").complete


def test_what_a_device_cannot_cut_is_sent_as_packets() -> None:
    values, where = vectors(300, 64), places(300, 50)
    uncutting = UnreliableSocket()
    uncutting.problem, uncutting.problem_from_bytes = OSError(errno.EIO, ""), 9000
    with endpoint(uncutting) as sender, endpoint() as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=64))])
        sent(sender, b"s")
        assert np.array_equal(receiver.rows(b"k", 0), expected_sum(50, [(values, where)], 64))
        assert sender.sending(b"s").retransmitted == 0
    assert not uncutting.cuts_messages


class _FullSocket(UdpSocket):
    """Has room for nothing half of the time, and then for one message."""

    calls = 0

    def send(self, messages: Sequence[Message]) -> int:
        self.calls += 1
        self.messages_sent = 0
        if self.calls % 2:
            return 0
        return super().send(messages[:1])


def test_what_the_socket_has_no_room_for_is_sent_when_it_has() -> None:
    values, where = vectors(3000, 64), places(3000, 50)
    with endpoint(_FullSocket("127.0.0.1:0")) as sender, endpoint() as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=64))])
        sent(sender, b"s")
        assert np.array_equal(receiver.rows(b"k", 0), expected_sum(50, [(values, where)], 64))
        state = sender.sending(b"s")
        assert receiver.counters()["data_new"] == state.packets


class _FloodedSocket(UdpSocket):
    """Has something for whoever reads, as where others send without end."""

    def receive(self) -> Received | None:
        junk, size = np.zeros(128, np.uint8), np.array([64])
        names = np.zeros((1, 16), np.uint8)
        return super().receive() or Received(junk, 64, size, size, names)


def test_whoever_is_sent_packets_without_end_still_sends() -> None:
    values, where = vectors(6000, 64), places(6000, 50)
    with endpoint(_FloodedSocket("127.0.0.1:0")) as sender, endpoint() as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=64))])
        sent(sender, b"s")
        assert np.array_equal(receiver.rows(b"k", 0), expected_sum(50, [(values, where)], 64))


def test_closing_while_sending_ends_soon_and_all_calls_say_so() -> None:
    values, where = vectors(30_000, 64), places(30_000, 50)
    with endpoint() as sender, endpoint(UnreliableSocket(loss=1.0)) as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=64))])
        sender.close()
        receiver.close()
        with pytest.raises(ChannelClosed, match="closed"):
            sender.sending(b"s")
        with pytest.raises(ChannelClosed, match="closed"):
            receiver.wait_for_change(10.0)


class _Broken(UserSpaceReceiver):
    def take(self, *_: object) -> None:
        raise RuntimeError("a bug")


def test_a_thread_ended_by_a_bug_is_told_to_all_who_call_or_wait() -> None:
    with endpoint(receiver=_Broken(tables())) as broken:
        _send_raw(broken, np.zeros(64, np.uint8))
        with pytest.raises(ChannelClosed, match="its thread ended: RuntimeError"):
            broken.wait_for_change(20.0)
        with pytest.raises(ChannelClosed, match="its thread ended"):
            broken.progress(b"k")


def test_streams_to_one_receiver_share_the_way_and_none_starves() -> None:
    values = vectors(6000, 64)
    deaf = UnreliableSocket()
    with endpoint() as sender, endpoint(deaf) as receiver:
        deaf.is_cut = True
        for number in range(4):
            key = bytes((number,))
            begin(receiver, key, width=64, accumulators=50, streams=1)
            granted = grant(receiver, key, places(6000, 50, number), width=64)
            send(sender, key, values, [(receiver, granted)])
        keys = [bytes((number,)) for number in range(4)]
        wait_until(sender, lambda: all(sender.sending(key).sent for key in keys))
        assert sum(sender.sending(key).sent for key in keys) <= 256 + 3 * 16
        deaf.is_cut = False
        for number, key in enumerate(keys):
            sent(sender, key)
            expected = expected_sum(50, [(values, places(6000, 50, number))], 64)
            assert np.array_equal(receiver.rows(key, 0), expected)


def test_callers_get_their_turn_while_much_is_sent() -> None:
    values, where = vectors(30_000, 64), places(30_000, 50)
    with endpoint() as sender, endpoint() as receiver:
        begin(receiver, b"k", width=64, accumulators=50, streams=1)
        granted = grant(receiver, b"k", where, width=64, packet_cells=140)
        send(sender, b"s", values, [(receiver, granted)], packet_cells=140)
        looks = 0
        while not sender.sending(b"s").done:
            looks += 1
        assert looks > 10
        complete(receiver, b"k")


def test_an_address_that_cannot_be_bound_is_named() -> None:
    with endpoint() as taken:
        for address, message in (
            (taken.address, "in use"),
            ("203.0.113.1:4000", "assign"),
            ("localhost:1", "expected IPV4:PORT"),
            ("127.0.0.1:65536", "expected a port"),
        ):
            with pytest.raises(ChannelUnavailable, match=message):
                DatagramEndpoint(address, UserSpaceReceiver(tables()))


def test_the_path_decides_how_long_packets_are() -> None:
    with endpoint() as one:
        assert path_mtu("127.0.0.1:9") >= 65_535
        assert one.packet_cells_to("127.0.0.1:9") == 140


def test_a_change_between_a_look_and_a_wait_is_not_missed() -> None:
    values, where = vectors(10, 16), np.arange(10)
    with endpoint() as sender, endpoint() as receiver:
        begin(receiver, b"k", width=16, accumulators=10, streams=1)
        receiver.wait_for_change(0.0)
        send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=16))])
        sent(sender, b"s")
        # A change that was missed would hold either longer than a test may take.
        receiver.wait_for_change(3000.0)
        other = threading.Thread(target=receiver.wait_for_change, args=(3000.0,), daemon=True)
        other.start()
        other.join(100.0)
        assert not other.is_alive()


def test_what_is_sent_is_checked() -> None:
    with endpoint() as sender, endpoint() as receiver:
        begin(receiver, b"k", width=16, accumulators=10, streams=1)
        granted = grant(receiver, b"k", np.arange(10), width=16)
        values = vectors(10, 16)
        wrongs: tuple[Any, ...] = (values.astype(np.int64), values[:, ::2], values[0])
        for wrong in wrongs:
            with pytest.raises(LocalProtocolError, match="expected contiguous int32"):
                send(sender, b"s", wrong, [(receiver, granted)])
        send(sender, b"s", values, [(receiver, granted)])
        with pytest.raises(LocalProtocolError, match="other values"):
            send(sender, b"s", values[:5], [(receiver, granted)])
        with pytest.raises(LocalProtocolError, match="unknown"):
            sender.sending(b"t")
        sender.forget_sending(b"s")
        sender.forget_sending(b"s")


def _data(head: PacketHead, values: NDArray[np.int32]) -> NDArray[np.uint8]:
    shape = StreamShape(values.shape[0], values.shape[1], 22)
    out = np.zeros((shape.packets, shape.packet_bytes), np.uint8)
    seqs = np.arange(shape.packets)
    lengths = pack_packets(shape, head, values, seqs, out, flags=np.zeros(shape.packets, np.uint8))
    return out.reshape(-1)[: int(lengths.sum())]


def _send_raw(
    receiver: DatagramEndpoint, data: NDArray[np.uint8], packet_bytes: int = 1456
) -> None:
    raw = UdpSocket("127.0.0.1:0")
    try:
        name = message_for(b"x", receiver.address).name
        messages = group_packets(data, packet_bytes, name) if len(data) <= 64_000 else []
        if not len(data) or len(data) > 64_000:
            messages = [Message(data, max(len(data), 1), name)]
        raw.send(messages)
    finally:
        raw.close()
