"""Acknowledgements: read in batches, and believed only when they are whole and for us."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.kernel_path.endpoint.acks import ack_places, ack_terms, read_acks
from retexo_fl.additions.kernel_path.packets.packets import PacketHead, ack_packet, ping_packet

HEAD = PacketHead(token=2**64 - 5, stream=7, job=2**32 - 3, stage=9, sender=11)
BITS = np.arange(8, dtype=np.uint64)
ACK = ack_packet(HEAD, 700, 512, BITS)


def _table(*packets: bytes) -> tuple[np.ndarray, np.ndarray]:
    table = np.zeros((len(packets), 160), np.uint8)
    for row, packet in zip(table, packets, strict=True):
        row[: len(packet)] = np.frombuffer(packet, np.uint8)
    return table, np.array([len(packet) for packet in packets])


def test_an_acknowledgement_says_what_was_written() -> None:
    table, lengths = _table(ping_packet(HEAD, 3), ACK, ACK[:-1], ACK)
    places = ack_places(table, lengths)
    assert places.tolist() == [1, 3]
    (heard,) = read_acks(table, places)
    assert (heard.token, heard.seq, heard.base) == (HEAD.token, 700, 512)
    assert heard.terms == ack_terms(HEAD)
    assert np.array_equal(heard.bits, BITS)


def test_an_acknowledgement_is_of_a_stream_of_the_same_kind() -> None:
    of_bytes = replace(HEAD, in_bytes=True)
    table, lengths = _table(ack_packet(of_bytes, 700, 512, BITS))
    (heard,) = read_acks(table, ack_places(table, lengths))
    assert heard.terms == ack_terms(of_bytes) != ack_terms(HEAD)


def test_of_several_of_the_same_packets_the_last_is_heard() -> None:
    other = ack_packet(HEAD, 3, 0, BITS)
    last = ack_packet(HEAD, 701, 512, BITS + 1)
    table, lengths = _table(ACK, other, last)
    heard = read_acks(table, ack_places(table, lengths))
    assert {(each.base, each.seq) for each in heard} == {(0, 3), (512, 701)}


@given(st.integers(0, len(ACK) * 8 - 1))
def test_a_changed_bit_is_noticed_or_makes_it_another_streams(bit: int) -> None:
    damaged = bytearray(ACK)
    damaged[bit // 8] ^= 1 << bit % 8
    table, lengths = _table(bytes(damaged))
    for heard in read_acks(table, ack_places(table, lengths)):
        assert heard.token != HEAD.token or heard.terms != ack_terms(HEAD)
