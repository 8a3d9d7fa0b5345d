"""The aggregate program beside its user-space twin: each packet goes to both, and both agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.aggregation import MAX_REPLY_BYTES, take_packets
from retexo_fl.additions.kernel_path.packets.layout import (
    COUNTER_NAMES,
    FORM_AT,
    MAX_PACKET_BYTES,
    NOT_YET,
    SKIP,
    Tables,
)
from retexo_fl.additions.kernel_path.packets.packets import PacketHead, pack_packets
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.xdp.aggregate import AggregateProgram, TableSizes
from retexo_fl.additions.kernel_path.xdp.udp_frame import udp_frame
from retexo_fl.exchange.fixed_point import rows_of_bytes

PORT = 7411
XDP_DROP, XDP_PASS, XDP_TX = 1, 2, 3
#: Where the payload of UDP begins in a frame.
PAYLOAD_AT = 42
SENDER_MAC, RECEIVER_MAC = b"\2from.", b"\2to..."
SENDER, RECEIVER = ("192.0.2.1", 40123), ("192.0.2.2", PORT)
JOB, STAGE = 77, 3


def frame_of(payload: bytes) -> bytes:
    """Return the frame in which a packet arrives."""
    return udp_frame((RECEIVER_MAC, SENDER_MAC), SENDER, RECEIVER, payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStream:
    """A stream that a twin opened.

    Attributes:
        shape: Its vectors.
        head: What its packets say alike.
        rows: First cell in ``acc`` of each vector, with its form in a stream of bytes; uint64
            [rows], ``SKIP`` for none.
    """

    shape: StreamShape
    head: PacketHead
    rows: NDArray[np.uint64]

    def packets(
        self,
        values: NDArray[np.int32] | NDArray[np.uint8],
        *,
        flags: int = 0,
        seqs: NDArray[np.int64] | None = None,
    ) -> list[bytes]:
        """Return DATA packets of the stream, all of them unless ``seqs`` says which."""
        which = np.arange(self.shape.packets) if seqs is None else seqs
        out = np.zeros((len(which), self.shape.packet_bytes), dtype=np.uint8)
        every = np.full(len(which), flags, dtype=np.uint8)
        lengths = pack_packets(self.shape, self.head, values, which, out, flags=every)
        return [bytes(out[index, :length]) for index, length in enumerate(lengths)]


class Twins:
    """The loaded program and tables in user space of the same sizes and contents.

    Args:
        cells: Of ``acc``.
        max_cells: Longest packet that both take.
        streams: Most that are open at a time.
    """

    def __init__(self, *, cells: int, max_cells: int = 22, streams: int = 4) -> None:
        self.sizes = TableSizes(
            cells=cells, seen_blocks=4 * streams, slots=4096, streams=streams, regions=2
        )
        self.program = AggregateProgram(PORT, self.sizes, max_cells=max_cells)
        self.tables = Tables.allocate(
            cells=cells, seen_blocks=4 * streams, slots=4096, streams=streams, regions=2
        )
        self.max_cells = max_cells
        self._counters = np.zeros(len(COUNTER_NAMES), dtype=np.uint64)
        self._packet = np.zeros((1, MAX_PACKET_BYTES + 64), dtype=np.uint8)
        self._reply = np.zeros((1, MAX_REPLY_BYTES), dtype=np.uint8)
        self._lengths = np.zeros((2, 1), dtype=np.int64)
        self.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.close()

    @property
    def both(self) -> tuple[Tables, Tables]:
        """The tables of the program, and those of user space."""
        return self.program.tables, self.tables

    def reset(self) -> None:
        """Empty all tables; counters go on."""
        self._used_slots = 0
        for tables in self.both:
            for table in (tables.acc, tables.seen, tables.slots):
                table[:] = 0
            tables.streams[:] = np.zeros(1, dtype=tables.streams.dtype)
            tables.regions[:] = np.zeros(1, dtype=tables.regions.dtype)
            tables.regions["expected"] = NOT_YET

    def open_stream(
        self,
        number: int,
        shape: StreamShape,
        rows: NDArray[np.uint64],
        *,
        region: int = 0,
        atomic: bool = False,
    ) -> OpenStream:
        """Open a stream in both, with four blocks of seen bits of its own."""
        head = PacketHead(
            token=0xABCD0000 + number,
            stream=number,
            job=JOB,
            stage=STAGE,
            sender=number,
            in_bytes=shape.in_bytes,
        )
        base, self._used_slots = self._used_slots, self._used_slots + shape.rows
        for tables in self.both:
            tables.slots[base : base + shape.rows] = rows
            record = tables.streams[number]
            for name, value in (
                ("region", region),
                ("slot_base", base),
                ("rows", shape.rows),
                ("row_cells", shape.row_cells),
                ("packet_cells", shape.packet_cells),
                ("packets", shape.packets),
                ("seen_base", 4 * number),
                ("job", JOB),
                ("sender", number),
                ("stage", STAGE),
                ("atomic", atomic),
                ("in_bytes", shape.in_bytes),
                ("token", head.token),
            ):
                record[name] = value
        return OpenStream(shape=shape, head=head, rows=rows)

    def expect(self, packets: int, *, region: int = 0) -> None:
        """Say of how many packets an exchange consists."""
        for tables in self.both:
            tables.regions[region]["expected"] = packets

    def take(self, payload: bytes) -> tuple[int, bytes]:
        """Give a packet to both; fail unless they count and answer alike.

        Returns:
            The program's code, and its answer's UDP payload (empty for none).
        """
        before, before_there = self.program.counters(), self._counters.copy()
        ran = self.program.program.test_run(frame_of(payload))
        reply = self._take_here(payload)
        counted = {
            name: self.program.counters()[name] - before[name]
            for name in COUNTER_NAMES
            if self.program.counters()[name] != before[name]
        }
        assert counted == {
            name: int(change)
            for name, change in zip(COUNTER_NAMES, self._counters - before_there, strict=True)
            if change
        }
        answer = ran.frame[PAYLOAD_AT:] if ran.code == XDP_TX else b""
        assert answer == reply
        goes_up = counted.keys() & {"passed", "user_acks"}
        assert ran.code == (XDP_TX if reply else XDP_PASS if goes_up else XDP_DROP)
        return ran.code, answer

    def check_tables(self) -> None:
        """Fail unless the tables of both are the same, bit by bit."""
        ours, theirs = self.both
        assert np.array_equal(ours.acc, theirs.acc)
        assert np.array_equal(ours.seen, theirs.seen)
        assert np.array_equal(_bytes(ours.streams), _bytes(theirs.streams))
        assert np.array_equal(_bytes(ours.regions), _bytes(theirs.regions))

    def counted(self) -> dict[str, int]:
        """Return what both counted and that is not zero."""
        return {name: value for name, value in self.program.counters().items() if value}

    def take_in_user_space(self, payload: bytes) -> bytes:
        """Give a packet to the tables of user space; return the answer."""
        return self._take_here(payload)

    def user_space_counters(self) -> dict[str, int]:
        """Return what user space counted, by name."""
        return dict(zip(COUNTER_NAMES, map(int, self._counters), strict=True))

    def _take_here(self, payload: bytes) -> bytes:
        self._packet[0, : len(payload)] = np.frombuffer(payload, dtype=np.uint8)
        self._lengths[0, 0] = len(payload)
        take_packets(
            self.tables,
            self._packet,
            self._lengths[0],
            self._counters,
            self._reply,
            self._lengths[1],
            max_cells=self.max_cells,
            answers_user_acks=False,
        )
        return bytes(self._reply[0, : self._lengths[1, 0]])


def places(rows: int, row_cells: int, *, first: int = 0) -> NDArray[np.uint64]:
    """Return the first cells of vectors that lie one after the other."""
    return (first + np.arange(rows) * row_cells).astype(np.uint64)


def with_forms(generator: np.random.Generator, rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Give vectors of bytes that are not left out forms of all kinds."""
    forms = generator.integers(0, 19, len(rows)) + 128 * generator.integers(0, 2, len(rows))
    above = forms.astype(np.uint64) << np.uint64(FORM_AT)
    return np.where(rows == SKIP, rows, rows | above)


def values_of(
    generator: np.random.Generator, shape: StreamShape
) -> NDArray[np.int32] | NDArray[np.uint8]:
    """Draw the vectors of a stream, of all magnitudes that are allowed; [rows, width]."""
    if shape.in_bytes:
        return generator.integers(0, 256, (shape.rows, shape.width)).astype(np.uint8)
    drawn = generator.integers(-(2**24), 2**24, (shape.rows, shape.width), endpoint=True)
    return drawn.astype(np.int32)


def summed(
    stream: OpenStream, values: NDArray[np.int32] | NDArray[np.uint8], cells: int
) -> NDArray[np.int32]:
    """Return what ``acc`` holds after a stream was added to zeros; int32 [cells, 16]."""
    padded = np.zeros((stream.shape.rows, stream.shape.row_cells * 16), dtype=np.int64)
    if stream.shape.in_bytes:
        forms = (stream.rows >> np.uint64(FORM_AT)).astype(np.uint8)
        values = rows_of_bytes(values.astype(np.uint8), np.where(stream.rows == SKIP, 0, forms))
    padded[:, : stream.shape.width] = values
    acc = np.zeros((cells, 16), dtype=np.int64)
    for row, place in enumerate(stream.rows):
        if place != SKIP:
            start = int(place) % 2**FORM_AT
            acc[start : start + stream.shape.row_cells] += padded[row].reshape(-1, 16)
    return acc.astype(np.int32)


def _bytes(records: NDArray[Any]) -> NDArray[np.uint8]:
    return np.frombuffer(records.tobytes(), dtype=np.uint8)
