"""Names and bytes in docs/kernel-path*.md and in the room of packets are those of the code."""

from __future__ import annotations

import re
from dataclasses import fields

import numpy as np

from retexo_fl.additions.kernel_path.endpoint import DatagramEndpoint, UserSpaceReceiver
from retexo_fl.additions.kernel_path.packets.layout import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PacketKind,
    Tables,
)
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape, packet_cells_for
from retexo_fl.additions.kernel_path.xdp.broadcast import COUNTERS
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.addresses import DATAGRAM_SCHEMES
from tests.support.commands import ROOT

PAGES = [
    *(ROOT / "docs" / f"kernel-path{of}.md" for of in ("", "-protocol")),
    ROOT / "retexo_fl/additions/kernel_path/packets/README.md",
]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_the_page_has_every_counter_and_no_other() -> None:
    tables = Tables.allocate(cells=1, seen_blocks=1, slots=1, streams=1, regions=1)
    endpoint = DatagramEndpoint("127.0.0.1:0", UserSpaceReceiver(tables))
    try:
        counters = set(endpoint.counters()) | {f"clone_{name}" for name in COUNTERS}
    finally:
        endpoint.close()
    section = TEXT.partition("| counter |")[2].partition("\n\n")[0]
    told = [name for line in section.splitlines() for name in _names(line.split("|")[1:2])]
    assert sorted(told) == sorted(counters)


def _names(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_page_has_the_fields_of_a_packet_where_they_are() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\w+) \|", TEXT, re.M)
    assert HEADER.fields is not None
    assert [(int(at), int(size), name) for at, size, name in rows] == [
        (at, dtype.itemsize, name) for name, (dtype, at, *_) in HEADER.fields.items()
    ]
    assert re.search(rf"^\| {HEADER_BYTES} \| 64 . cells \| payload \|", TEXT, re.M)
    assert f"0x{MAGIC:08X}" in TEXT
    for kind in PacketKind:
        assert f"{kind.value} {kind.name}" in TEXT


def test_the_page_has_the_size_of_a_packet() -> None:
    shape = StreamShape(rows=1000, width=16, packet_cells=packet_cells_for(1500))
    assert f"{shape.packet_cells} cells ({shape.packet_bytes:,} bytes" in TEXT


def test_the_page_has_every_scheme_and_key() -> None:
    for scheme in DATAGRAM_SCHEMES:
        assert re.search(rf"^\| `{scheme}://", TEXT, re.M), scheme
    defaults = {item.name: item.default for item in fields(AgentSettings)}
    assert f"| `datagram-memory-mib` | {defaults['datagram_memory_mib']:g} |" in TEXT
    assert f"| `broadcast` | `{defaults['broadcast']}` |" in TEXT


def test_the_error_bound_of_the_page_is_that_of_every_magnitude() -> None:
    from retexo_fl.exchange.fixed_point import error_bound, exponent_for, snap, unsnap

    for largest in (1e-20, 0.3, 1.0, 21.5, 3e30):
        exponent = exponent_for(largest)
        values = np.linspace(-largest, largest, 1001)
        moved = np.abs(unsnap(snap(values, exponent), exponent, np.float64) - values).max()
        assert moved <= error_bound(exponent) == 2.0 ** -(exponent + 1) <= 2.0**-24 * largest
