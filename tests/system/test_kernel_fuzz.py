"""Packets at random over real cables: the kernel's tables are what user space makes of them.

``RETEXO_FUZZ_PACKETS`` says how many; a million take about 20 s.
"""

from __future__ import annotations

import os
import socket
import time
from itertools import islice

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from tests.support.aggregate_twin import PORT, OpenStream, Twins, with_forms
from tests.support.fuzzed_packets import fuzzed_packets
from tests.support.hosts import Hosts
from tests.support.inside import inside
from tests.support.kernel import require_bpf

pytestmark = [pytest.mark.system, pytest.mark.timeout(2400)]

_PACKETS = int(os.environ.get("RETEXO_FUZZ_PACKETS", "200000"))
#: Far below the 256 frames that a virtual cable's end holds.
_BATCH = 64
_ARRIVED_S = 5.0
#: Of these, each packet adds to exactly one.
_JUDGED = (
    *("passed", "data_new", "data_duplicate", "malformed", "bad_checksum", "foreign"),
    *("pings", "user_acks"),
)
_CELLS = 1200


def open_streams(twins: Twins, generator: np.random.Generator) -> list[OpenStream]:
    """Three streams that share rows, one of them of bytes, and one of another exchange.

    One more is of bytes, and has rows to skip.
    """
    shapes = [(40, 64, 22), (25, 50, 22), (30, 100, 21), (60, 16, 5)]
    opened = []
    for number, (rows, width, packet_cells) in enumerate(shapes):
        shape = StreamShape.in_room(rows, width, packet_cells, in_bytes=number in {1, 3})
        chosen = generator.permutation(_CELLS // shape.row_cells)[:rows] * shape.row_cells
        places = chosen.astype(np.uint64)
        if number == 3:
            places[::7] = np.uint64(2**64 - 1)
        if shape.in_bytes:
            places = with_forms(generator, places)
        opened.append(twins.open_stream(number, shape, places, region=int(number == 2)))
    twins.expect(sum(opened[number].shape.packets for number in (0, 1, 3)))
    twins.expect(opened[2].shape.packets, region=1)
    return opened


def test_no_packet_makes_a_wrong_sum() -> None:
    require_bpf()
    generator = np.random.default_rng(20_260)
    with Hosts(["sender", "receiver"]) as hosts, Twins(cells=_CELLS) as twins:
        with inside(hosts["receiver"].namespace):
            interface = socket.if_nametoindex("eth0")
            attached = twins.program.program.attach_xdp(interface, "native")
        with inside(hosts["sender"].namespace):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            with sender:
                _send_and_compare(twins, generator, sender, hosts["receiver"].address)
        finally:
            attached.detach()
        twins.check_tables()
        counted = twins.counted()
    for name in ("data_new", "data_duplicate", "malformed", "bad_checksum", "foreign"):
        assert counted[name] > _PACKETS // 1000, counted


def _send_and_compare(
    twins: Twins, generator: np.random.Generator, sender: socket.socket, address: str
) -> None:
    sent = 0
    while sent < _PACKETS:
        twins.reset()
        packets = fuzzed_packets(generator, open_streams(twins, generator))
        # New streams now and then: else everything would soon be a duplicate.
        for _ in range(20):
            before = _judged(twins)
            batch = list(islice(packets, _BATCH))
            for payload in batch:
                sender.sendto(payload, (address, PORT))
                twins.take_in_user_space(payload)
            _wait_for(twins, before + len(batch))
            sent += len(batch)
        twins.check_tables()
        assert {n: v for n, v in twins.program.counters().items() if n != "passed"} == {
            n: v for n, v in twins.user_space_counters().items() if n != "passed"
        }


def _judged(twins: Twins) -> int:
    counted = twins.program.counters()
    return sum(counted[name] for name in _JUDGED)


def _wait_for(twins: Twins, packets: int) -> None:
    deadline = time.monotonic() + _ARRIVED_S
    while _judged(twins) < packets:
        assert time.monotonic() < deadline, f"{packets - _judged(twins)} packets did not arrive"
