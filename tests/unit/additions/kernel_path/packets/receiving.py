"""A receiver of one sender's stream, for tests: tables, and what its packets did to them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.aggregation import MAX_REPLY_BYTES, take_packets
from retexo_fl.additions.kernel_path.packets.layout import COUNTER_NAMES, NOT_YET, SKIP, Tables
from retexo_fl.additions.kernel_path.packets.packets import PacketHead, pack_packets
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape

TOKEN = 0x1122334455667788
#: Not the first of anything, so that a forgotten base shows.
STREAM, REGION, SLOT_BASE, SEEN_BASE, FIRST_CELL = 2, 1, 5, 3, 7


def head_of() -> PacketHead:
    return PacketHead(token=TOKEN, stream=STREAM, job=77, stage=3, sender=9)


def vectors(shape: StreamShape, seed: int = 0) -> NDArray[np.int32]:
    generator = np.random.default_rng(seed)
    return generator.integers(
        -(2**24), 2**24, size=(shape.rows, shape.width), dtype=np.int32, endpoint=True
    )


def pack_all(
    shape: StreamShape,
    values: NDArray[np.int32],
    *,
    flags: int = 0,
) -> list[bytes]:
    seqs = np.arange(shape.packets)
    out = np.zeros((shape.packets, shape.packet_bytes), dtype=np.uint8)
    all_flags = np.full(shape.packets, flags, dtype=np.uint8)
    lengths = pack_packets(shape, head_of(), values, seqs, out, flags=all_flags)
    return [out[seq, : lengths[seq]].tobytes() for seq in seqs]


@dataclass
class Receiving:
    """One open stream; row ``i`` is added to accumulator ``places[i]``, to none if that is -1."""

    shape: StreamShape
    places: list[int]
    tables: Tables = field(init=False)
    counts: NDArray[np.uint64] = field(init=False)

    def __post_init__(self) -> None:
        row_cells = self.shape.row_cells
        self.num_rows = max([*self.places, 0]) + 1
        self.tables = Tables.allocate(
            cells=FIRST_CELL + self.num_rows * row_cells + 1,
            seen_blocks=SEEN_BASE + self.shape.seen_blocks + 1,
            slots=SLOT_BASE + self.shape.rows + 1,
            streams=STREAM + 2,
            regions=REGION + 2,
        )
        slots = [SKIP if at < 0 else FIRST_CELL + at * row_cells for at in self.places]
        self.tables.slots[SLOT_BASE : SLOT_BASE + self.shape.rows] = np.array(slots, np.uint64)
        self.tables.regions["expected"] = NOT_YET
        self.tables.regions[REGION]["expected"] = self.shape.packets
        record = self.tables.streams[STREAM]
        record["region"], record["slot_base"], record["seen_base"] = REGION, SLOT_BASE, SEEN_BASE
        record["rows"], record["row_cells"] = self.shape.rows, row_cells
        record["packet_cells"], record["packets"] = self.shape.packet_cells, self.shape.packets
        head = head_of()
        record["job"], record["stage"], record["sender"] = head.job, head.stage, head.sender
        record["token"] = head.token
        self.counts = np.zeros(len(COUNTER_NAMES), dtype=np.uint64)

    @property
    def sums(self) -> NDArray[np.int32]:
        """Accumulated rows, without what pads them."""
        cells = self.tables.acc[FIRST_CELL : FIRST_CELL + self.num_rows * self.shape.row_cells]
        return cells.reshape(self.num_rows, -1)[:, : self.shape.width]

    @property
    def counters(self) -> dict[str, int]:
        """Counters that are not 0."""
        named = zip(COUNTER_NAMES, self.counts.tolist(), strict=True)
        return {name: count for name, count in named if count}

    def take(
        self, packets: list[bytes], *, answers_user_acks: bool = True, takes_data: bool = True
    ) -> list[bytes]:
        """Take packets in one batch and return the answer to each; empty for none."""
        stride = -(-max(map(len, packets), default=0) // 8) * 8
        buffers = np.full((len(packets), max(stride, 48)), 0xA5, dtype=np.uint8)
        for index, packet in enumerate(packets):
            buffers[index, : len(packet)] = np.frombuffer(packet, dtype=np.uint8)
        replies = np.zeros((len(packets), MAX_REPLY_BYTES), dtype=np.uint8)
        reply_lengths = np.full(len(packets), -1, dtype=np.int64)
        take_packets(
            self.tables,
            buffers,
            np.array([len(packet) for packet in packets], dtype=np.int64),
            self.counts,
            replies,
            reply_lengths,
            answers_user_acks=answers_user_acks,
            takes_data=takes_data,
        )
        return [replies[index, :size].tobytes() for index, size in enumerate(reply_lengths)]

    def is_untouched(self) -> bool:
        """Say whether no packet was taken."""
        tables = self.tables
        return bool(
            not tables.acc.any()
            and not tables.seen.any()
            and not tables.regions["done"].any()
            and not tables.streams["done"].any()
        )
