"""What the aggregate program takes for one packet, without any network: ``BPF_PROG_TEST_RUN``."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.packets.layout import NOT_YET
from retexo_fl.additions.kernel_path.packets.packets import PacketHead, pack_packets
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.xdp.aggregate import (
    ETHERNET_CELLS,
    AggregateProgram,
    TableSizes,
)
from retexo_fl.additions.kernel_path.xdp.udp_frame import udp_frame
from sims.kernel_path.workload import JOB, STAGE

_PORT: Final = 7411
_MACS: Final = (b"\2XDP-2", b"\2XDP-1")
_SENDER, _RECEIVER = ("192.0.2.1", _PORT), ("192.0.2.2", _PORT)
_PACKETS: Final = 512
_REPEATS: Final = 20_000
_ACCUMULATORS: Final = 1024
#: Variants by name: whether processors share the tables.
_VARIANTS: Final = {"sum": False, "sum, guarded": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketCost:
    """Nanoseconds for a packet of 22 cells.

    Attributes:
        new_ns: One that is added: as a duplicate in repetition, and what adding takes besides.
        duplicate_ns: One that came before, in repetition.
        single_new_ns: Median of single runs, each after a system call.
        single_duplicate_ns: Likewise, of the same packets once more.
    """

    new_ns: float
    duplicate_ns: float
    single_new_ns: float
    single_duplicate_ns: float


def packet_costs(width: int) -> dict[str, PacketCost]:
    """Return what a packet of vectors of a width takes, by variant."""
    shape = StreamShape(_PACKETS * ETHERNET_CELLS * 16 // width, width, ETHERNET_CELLS)
    sizes = TableSizes(
        cells=_ACCUMULATORS * shape.row_cells,
        seen_blocks=len(_VARIANTS) * (shape.seen_blocks + 1),
        slots=shape.rows,
        streams=len(_VARIANTS),
        regions=1,
    )
    program = AggregateProgram(_PORT, sizes)
    try:
        generator = np.random.default_rng(width)
        rows = generator.integers(0, _ACCUMULATORS, shape.rows)
        program.tables.slots[:] = rows.astype(np.uint64) * np.uint64(shape.row_cells)
        program.tables.regions["expected"] = NOT_YET
        return {
            name: _cost(program, shape, number, guarded=guarded)
            for number, (name, guarded) in enumerate(_VARIANTS.items())
        }
    finally:
        program.close()


def _cost(
    program: AggregateProgram, shape: StreamShape, number: int, *, guarded: bool
) -> PacketCost:
    head = PacketHead(token=number + 1, stream=number, job=JOB, stage=STAGE, sender=0)
    _open(program, shape, head, guarded=guarded)
    frames = _frames(shape, head)
    new = [program.program.test_run(frame).duration_ns for frame in frames]
    again = [program.program.test_run(frame).duration_ns for frame in frames]
    repeated = program.program.test_run(frames[0], repeat=_REPEATS).duration_ns
    return PacketCost(
        new_ns=repeated + median(new) - median(again),
        duplicate_ns=repeated,
        single_new_ns=median(new),
        single_duplicate_ns=median(again),
    )


def _open(
    program: AggregateProgram, shape: StreamShape, head: PacketHead, *, guarded: bool
) -> None:
    record = program.tables.streams[head.stream]
    for name, value in (
        ("rows", shape.rows),
        ("row_cells", shape.row_cells),
        ("packet_cells", shape.packet_cells),
        ("packets", shape.packets),
        ("seen_base", head.stream * (shape.seen_blocks + 1)),
        ("job", head.job),
        ("sender", head.sender),
        ("stage", head.stage),
        ("atomic", guarded),
        ("token", head.token),
    ):
        record[name] = value


def _frames(shape: StreamShape, head: PacketHead) -> list[bytes]:
    """Return the frames of all packets but the last, which may be shorter."""
    generator = np.random.default_rng(0)
    values = generator.integers(-1000, 1000, (shape.rows, shape.width), dtype=np.int32)
    seqs = np.arange(shape.packets - 1)
    packets = np.zeros((len(seqs), shape.packet_bytes), np.uint8)
    pack_packets(shape, head, values, seqs, packets, flags=np.zeros(len(seqs), np.uint8))
    return [udp_frame(_MACS, _SENDER, _RECEIVER, packet.tobytes()) for packet in packets]
