"""What the system tests read of recorded packets."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.support.flower_requests import halves
from tests.support.packets import Packet, bursts, packets, transfers

CLIENT, SERVER = 1, 0
DELAY_S = 0.1


def packet(
    at_s: float, sender: int, data_bytes: int = 0, *, connection: int = 40_000, syn: bool = False
) -> Packet:
    return Packet(
        sender=sender,
        receiver=CLIENT + SERVER - sender,
        left_s=at_s,
        arrived_s=at_s + DELAY_S,
        port=8_000,
        connection=connection,
        data_bytes=data_bytes,
        opens=syn and sender == CLIENT,
        is_opening=syn,
    )


def asked(at_s: float, up: int, down: int, *, connection: int = 40_000) -> list[Packet]:
    return [
        packet(at_s, CLIENT, up, connection=connection),
        packet(at_s + 0.1, SERVER, down, connection=connection),
    ]


def test_a_line_of_a_record_is_a_packet(tmp_path: Path) -> None:
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 152, 0, 0, 64, 6, 0, bytes(4), bytes(4))
    tcp = struct.pack("!HHIIBB", 40_000, 8_000, 0, 0, 8 << 4, 2)
    udp = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 152, 0, 0, 64, 17, 0, bytes(4), bytes(4))
    lines = [f"1 0 1500000000 1600000000 {(head + tcp).hex()}" for head in (ip, udp)]
    (tmp_path / "record").write_text("\n".join(lines) + "\n")
    (found,) = packets(tmp_path / "record")
    assert (found.sender, found.receiver, found.port, found.connection) == (1, 0, 8_000, 40_000)
    assert [found.left_s, found.arrived_s] == pytest.approx([1.5, 1.6])
    assert (found.data_bytes, found.opens, found.is_opening) == (100, True, True)


def test_an_acknowledgement_counts_where_data_waited_for_it() -> None:
    waited_for = [packet(0.0, CLIENT, 900), packet(0.1, SERVER), packet(0.2, CLIENT, 900)]
    (burst,) = bursts(waited_for, pause_s=1.0)
    assert burst.busy_s == pytest.approx(0.3)
    computing = [packet(0.0, CLIENT, 900), packet(0.1, SERVER), packet(0.5, SERVER, 100)]
    (burst,) = bursts(computing, pause_s=1.0)
    assert burst.busy_s == pytest.approx(0.2)
    assert [burst.begun_s, burst.ended_s] == pytest.approx([0.0, 0.6])


def test_a_transfer_begins_with_its_connection() -> None:
    found = [packet(0.0, CLIENT, syn=True), packet(0.1, SERVER, syn=True)]
    found += [packet(0.6 + n / 10, CLIENT, 1_448) for n in range(3)]
    found += [packet(5.0, CLIENT, 1_448), packet(5.1, CLIENT, 30)]
    # The pause in which nothing was under way is somebody computing.
    assert transfers(found, sender=CLIENT) == [pytest.approx(0.5), pytest.approx(0.1)]
    assert transfers(found, sender=SERVER) == []


def test_a_message_takes_requests_on_two_connections_at_once() -> None:
    found = [*asked(0.0, 897, 150), *asked(3.0, 897, 517)]
    # Two after the other on one connection; one on another, opened for it, at another time.
    found += [*asked(3.3, 971, 340), *asked(3.9, 971, 340)]
    fresh = 40_001
    found += [packet(4.4, CLIENT, connection=fresh, syn=True)]
    found += [packet(4.5, SERVER, connection=fresh, syn=True)]
    found += [*asked(4.6, 517, 844, connection=fresh), *asked(4.8, 1_051, 340, connection=fresh)]
    found += [packet(5.0, SERVER, 255, connection=fresh), *asked(5.2, 984, 150)]
    found += [*asked(6.0, 1_327, 484), *asked(6.2, 1_230, 174), packet(9.0, SERVER, 24)]
    received, sent = halves(found, client=CLIENT, server=SERVER)
    assert received.is_received
    assert received.opened == 1
    assert received.seconds == pytest.approx(0.2 + max(0.4, 0.6) + 0.2)
    assert not sent.is_received
    assert sent.opened == 0
    assert sent.seconds == pytest.approx(0.4)
