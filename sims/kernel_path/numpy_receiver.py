"""A UDP receiver as one would write it with NumPy: a batch is checked, told apart and added."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint.receiver import UserSpaceReceiver
from retexo_fl.additions.kernel_path.packets.layout import (
    ACK_WANTED,
    BLOCK_PACKETS,
    CELL_VALUES,
    COUNTER_NAMES,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PacketKind,
    Tables,
)
from retexo_fl.additions.kernel_path.packets.packets import PacketHead, ack_packet

_NEW: Final = COUNTER_NAMES.index("data_new")
_DUPLICATE: Final = COUNTER_NAMES.index("data_duplicate")
_EVENTS: Final = COUNTER_NAMES.index("events")


class NumpyReceiver(UserSpaceReceiver):
    """Takes packets by array operations, with ``numpy.add.at``; checks no checksum.

    Args:
        tables: See :class:`UserSpaceReceiver`.
    """

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        # One bit a packet would need several steps for each batch.
        self._seen = np.zeros(tables.seen.shape[0] * BLOCK_PACKETS, np.bool_)

    def take(
        self,
        packets: NDArray[np.uint8],
        lengths: NDArray[np.int64],
        replies: NDArray[np.uint8],
        reply_lengths: NDArray[np.int64],
    ) -> None:
        """See :class:`~retexo_fl.additions.kernel_path.endpoint.receiver.PacketTaker`."""
        reply_lengths[: len(lengths)] = 0
        heads = packets[:, :HEADER_BYTES].view(HEADER)[:, 0]
        streams = self.tables.streams[heads["stream"] % len(self.tables.streams)]
        is_ours = (lengths >= HEADER_BYTES) & (heads["magic"] == MAGIC)
        is_ours &= (streams["token"] == heads["token"]) & (heads["seq"] < streams["packets"])
        is_data = is_ours & (heads["kind"] == PacketKind.DATA)
        self._take(packets, heads, streams, np.flatnonzero(is_data))
        is_asking = is_ours & (heads["kind"] == PacketKind.PING)
        is_asking |= is_data & (heads["flags"] & ACK_WANTED > 0)
        for place in np.flatnonzero(is_asking).tolist():
            answer = self._answer(heads[place], streams[place])
            replies[place, : len(answer)] = np.frombuffer(answer, np.uint8)
            reply_lengths[place] = len(answer)

    def _take(
        self, packets: NDArray[np.uint8], heads: Any, streams: Any, data: NDArray[np.int64]
    ) -> None:
        bits = streams["seen_base"][data].astype(np.int64) * BLOCK_PACKETS + heads["seq"][data]
        _, first = np.unique(bits, return_index=True)
        first = first[~self._seen[bits[first]]]
        self._seen[bits[first]] = True
        new = data[first]
        self._counted[_NEW] += np.uint64(len(new))
        self._counted[_DUPLICATE] += np.uint64(len(data) - len(new))
        sizes = heads["cells"]
        for size in np.unique(sizes[new]).tolist():
            alike = new[sizes[new] == size]
            self._add(packets, heads[alike], streams[alike], alike, size)
        np.add.at(self.tables.streams["done"], heads["stream"][new], 1)
        np.add.at(self.tables.regions["done"], streams["region"][new], 1)
        self._complete(streams["region"][new])

    def _add(
        self,
        packets: NDArray[np.uint8],
        heads: Any,
        streams: Any,
        which: NDArray[np.int64],
        size: int,
    ) -> None:
        row_cells = streams["row_cells"].astype(np.int64)[:, None]
        begin = heads["seq"].astype(np.int64) * streams["packet_cells"]
        rows, offsets = np.divmod(begin[:, None] + np.arange(size), row_cells)
        slots = self.tables.slots[streams["slot_base"][:, None] + rows]
        end = HEADER_BYTES + size * CELL_VALUES * 4
        values = packets[which, HEADER_BYTES:end].view(np.int32).reshape(-1, CELL_VALUES)
        np.add.at(
            self.tables.acc, slots.reshape(-1) + offsets.reshape(-1).astype(np.uint64), values
        )

    def _complete(self, touched: Any) -> None:
        regions = self.tables.regions
        for region in np.unique(touched).tolist():
            if regions["done"][region] == regions["expected"][region]:
                regions["complete"][region] = 1
                self._counted[_EVENTS] += np.uint64(1)

    def _answer(self, head: Any, stream: Any) -> bytes:
        base = int(head["seq"]) // BLOCK_PACKETS * BLOCK_PACKETS
        begin = int(stream["seen_base"]) * BLOCK_PACKETS + base
        bits = np.packbits(self._seen[begin : begin + BLOCK_PACKETS], bitorder="little")
        told = PacketHead(
            token=int(head["token"]),
            stream=int(head["stream"]),
            job=int(head["job"]),
            stage=int(head["stage"]),
            sender=int(head["sender"]),
        )
        return ack_packet(told, int(head["seq"]), base, bits.view(np.uint64))
