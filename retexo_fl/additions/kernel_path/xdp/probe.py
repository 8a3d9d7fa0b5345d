"""Whether this machine can take datagrams in the kernel: tried with the program itself."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.packets.layout import (
    ACK_WANTED,
    CELL_VALUES,
    DATAGRAM_VERSION,
    HEADER,
    MAGIC,
    NOT_YET,
    PacketKind,
)
from retexo_fl.additions.kernel_path.xdp.aggregate import AggregateProgram, TableSizes
from retexo_fl.additions.kernel_path.xdp.capabilities import missing_capabilities
from retexo_fl.additions.kernel_path.xdp.interfaces import interface_facts
from retexo_fl.additions.kernel_path.xdp.library import libbpf
from retexo_fl.additions.kernel_path.xdp.udp_frame import udp_frame
from retexo_fl.errors import ChannelUnavailable

_PORT: Final = 7411
_XDP_TX: Final = 3
_TINY: Final = TableSizes(cells=1, seen_blocks=1, slots=1, streams=1, regions=1)
_TOKEN: Final = 0x5EED
#: Of the frame, after the headers of Ethernet, IPv4 and UDP: where the answer's bits begin.
_BITS_AT: Final = 14 + 28 + HEADER.itemsize
_MACS: Final = (b"\2XDP-2", b"\2XDP-1")
_SENDER, _RECEIVER = ("192.0.2.1", _PORT), ("192.0.2.2", _PORT)
#: The checksum of a payload of sixteen 1, and the factors of the words of the header before it.
_FACTORS: Final = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x27D4EB2F165667C5,
    0xD6E8FEB86659FD93,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What came of trying.

    Attributes:
        ok: Whether the kernel path can be used.
        reason: Why not; empty if it can.
        mode: ``native`` or ``generic`` where an interface was tried, else empty.
    """

    ok: bool
    reason: str = ""
    mode: str = ""


def probe(interface: str | None = None) -> Probe:
    """Load the program with tiny tables and have it take one packet; a fraction of a second.

    Args:
        interface: Attach it there for a moment, too, in the first mode that works. None leaves
            all interfaces alone.
    """
    try:
        libbpf()
        if missing := missing_capabilities():
            return Probe(ok=False, reason=f"missing {', '.join(missing)}")
        loaded = AggregateProgram(_PORT, _TINY)
    except ChannelUnavailable as error:
        return Probe(ok=False, reason=str(error))
    try:
        if not _takes_a_packet(loaded):
            return Probe(ok=False, reason="the loaded program failed on its test packet")
        return Probe(ok=True, mode="" if interface is None else _attach(loaded, interface))
    except ChannelUnavailable as error:
        return Probe(ok=False, reason=str(error))
    finally:
        loaded.close()


def _takes_a_packet(loaded: AggregateProgram) -> bool:
    """Return whether one packet is added, counted, reported and acknowledged."""
    tables = loaded.tables
    tables.regions["expected"] = NOT_YET
    stream = tables.streams[0]
    for name in ("rows", "row_cells", "packet_cells", "packets"):
        stream[name] = 1
    stream["token"] = _TOKEN
    tables.regions[0]["expected"] = 1
    answer = loaded.program.test_run(udp_frame(_MACS, _SENDER, _RECEIVER, _packet()))
    counted = {name: value for name, value in loaded.counters().items() if value}
    return bool(
        answer.code == _XDP_TX
        and struct.unpack_from("<Q", answer.frame, _BITS_AT) == (1,)
        and (tables.acc == 1).all()
        and tables.regions[0]["complete"] == 1
        and counted == {"data_new": 1, "acks_sent": 1, "events": 1}
        and len(loaded.completions.consume()) == 1
    )


def _packet() -> bytes:
    # Written here and not by exchange.datagrams.packets: that compiles, which takes longer than
    # all of this.
    header = np.zeros(1, dtype=HEADER)
    header["magic"], header["version"], header["kind"] = MAGIC, DATAGRAM_VERSION, PacketKind.DATA
    header["flags"], header["token"], header["cells"] = ACK_WANTED, _TOKEN, 1
    payload = np.ones(CELL_VALUES, dtype="<i4")
    words = [int(word) for word in payload.view("<u8")]
    head = [int(word) for word in header.view("<u8")]
    covered = (head[0], head[2] >> 32, head[4], head[5], sum(words[1::2]))
    total = sum(words[::2]) + sum(w * c for w, c in zip(covered, _FACTORS, strict=True))
    header["checksum"] = total % 2**64
    return header.tobytes() + payload.tobytes()


def _attach(loaded: AggregateProgram, interface: str) -> str:
    attachment = loaded.program.attach_xdp(interface_facts(interface).index)
    attachment.detach()
    return attachment.mode
