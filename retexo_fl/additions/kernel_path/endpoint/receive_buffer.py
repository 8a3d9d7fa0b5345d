"""Where a system call puts what arrived: a few long messages, or many short ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.endpoint.datagram_headers import (
    CONTROL,
    MessageTable,
    address_of,
)
from retexo_fl.additions.kernel_path.endpoint.records import SOCKADDR_BYTES

#: Messages read at once: each may hold many packets where the kernel joins them.
_JOINED_AT_ONCE: Final = 16
_JOINED_BYTES: Final = 65_536
_SINGLE_AT_ONCE: Final = 128
#: Holds the largest packet: 48 bytes of header and 140 cells of 64 bytes.
_SINGLE_BYTES: Final = 9_216
#: Most that the last packet may reach beyond its message when its message is seen as a table.
_SLACK_BYTES: Final = 65_536
_DATA_BYTES: Final = _SLACK_BYTES + max(
    _JOINED_AT_ONCE * _JOINED_BYTES, _SINGLE_AT_ONCE * _SINGLE_BYTES
)
#: So many messages, none of which was joined: joining is not for this path.
_UNJOINED_MESSAGES: Final = 256
#: So many later it is tried once more: other paths may have come.
_TRY_AGAIN_MESSAGES: Final = 2**16


@dataclass(frozen=True, slots=True)
class Received:
    """What one system call brought: message m is ``data[m * stride :][: lengths[m]]``.

    Attributes:
        data: uint8; reaches beyond the last message by as much as one message.
        stride: Bytes from one message to the next.
        lengths: (messages,) int64: bytes of each.
        packet_bytes: (messages,) int64: size of each packet in it but the last.
        names: (messages, 16) uint8: who sent it.
    """

    data: np.ndarray
    stride: int
    lengths: np.ndarray
    packet_bytes: np.ndarray
    names: np.ndarray


class ReceiveBuffer:
    """Room for what one system call brings.

    Args:
        may_join: The kernel may join packets of one sender that follow each other.

    Attributes:
        is_joining: Room is for joined packets. It ends where many come that are not, for then few
            would be read at once, and is tried once more much later.
    """

    def __init__(self, *, may_join: bool) -> None:
        self.is_joining = may_join
        self._may_join = may_join
        self._unjoined = 0
        self._data = np.zeros(_DATA_BYTES, np.uint8)
        self._joined = self._layout(_JOINED_AT_ONCE, _JOINED_BYTES)
        self._single = self._layout(_SINGLE_AT_ONCE, _SINGLE_BYTES)

    def prepared(self) -> MessageTable:
        """Return headers for the next call."""
        table = self._current.table
        table.name_bytes[:] = SOCKADDR_BYTES
        table.control_bytes[:] = CONTROL.itemsize
        return table

    def received(self, count: int) -> Received:
        """Return what the call brought, ``count`` messages; may change :attr:`is_joining`."""
        layout = self._current
        table = layout.table
        lengths = packet_bytes = table.message_bytes[:count].astype(np.int64)
        is_joined = table.control_bytes[:count] > 0
        if is_joined.any():
            packet_bytes = np.where(is_joined, table.control_values[:count], lengths)
        if self._may_join:
            self._choose(count, is_any_joined=packet_bytes is not lengths)
        return Received(
            data=self._data,
            stride=layout.stride,
            lengths=lengths,
            packet_bytes=packet_bytes,
            names=table.names[:count],
        )

    @property
    def _current(self) -> _Layout:
        return self._joined if self.is_joining else self._single

    def _choose(self, count: int, *, is_any_joined: bool) -> None:
        self._unjoined = 0 if is_any_joined else self._unjoined + count
        if self._unjoined >= (_UNJOINED_MESSAGES if self.is_joining else _TRY_AGAIN_MESSAGES):
            self._unjoined = 0
            self.is_joining = not self.is_joining

    def _layout(self, count: int, stride: int) -> _Layout:
        table = MessageTable(count)
        at = np.arange(count, dtype=np.uint64) * np.uint64(stride)
        table.piece_starts[:] = address_of(self._data) + at
        table.piece_bytes[:] = stride
        return _Layout(table, stride)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Headers of messages, each ``stride`` bytes after the one before."""

    table: MessageTable
    stride: int
