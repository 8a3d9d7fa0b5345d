"""An AF_XDP socket that only receives, in copy mode: frames in shared memory, seen as arrays.

The kernel and this process exchange frames through two rings in shared memory: the fill
ring gives it free ones, the receive ring brings filled ones. Both keep the order, so frames that
arrive one after the other lie one after the other, and a batch of them is one array.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.errors import ChannelUnavailable

#: linux/if_xdp.h, linux/socket.h.
_AF_XDP: Final = 44
_SOL_XDP: Final = 283
_MMAP_OFFSETS, _RX_RING, _UMEM_REG, _FILL_RING, _COMPLETION_RING, _STATISTICS = 1, 2, 4, 5, 6, 7
_AT_RX: Final = 0
_AT_FILL: Final = 0x1_0000_0000
_COPY: Final = 1 << 1
_ADDRESS: Final = struct.Struct("=HHIII")
#: ``struct xdp_umem_reg`` as far as every kernel has it.
_MEMORY: Final = struct.Struct("=QQII")
#: ``struct xdp_mmap_offsets``: producer, consumer, entries and flags of rx, tx, fill, completion.
_OFFSETS: Final = struct.Struct("=16Q")
_LOSSES: Final = struct.Struct("=6Q")
_DESCRIPTION: Final = np.dtype([("address", "<u8"), ("bytes", "<u4"), ("options", "<u4")])
_FRAME_ADDRESS: Final = np.dtype("<u8")

#: The kernel leaves 256 bytes free before a frame; what we add so that the payload of UDP, 42 bytes
#: into the frame, begins at a multiple of 8.
_OWN_HEADROOM: Final = 6
_PAGE_BYTES: Final = 4096
_LEAST_COMPLETIONS: Final = 64
#: How long to wait for a queue that another socket holds.
_QUEUE_S: Final = 1.0
_LOOK_EVERY_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames that arrived one after the other.

    Attributes:
        memory: uint8; the first begins at its beginning, each next one ``stride`` bytes later; it
            reaches ``stride`` bytes beyond the last one's beginning at least.
        lengths: Bytes of each frame, int64 [n].
        stride: Bytes.
    """

    memory: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    stride: int

    def rows(self, offset: int) -> NDArray[np.uint8]:
        """Return uint8 [n, stride], contiguous: each row begins so many bytes into its frame."""
        count = len(self.lengths)
        return self.memory[offset : offset + count * self.stride].reshape(count, self.stride)


class XdpSocket:
    """Receives what an XDP program redirects to it.

    Args:
        interface: Number of the interface.
        queue: Its receive queue.
        frames: How many may wait, a power of two.
        frame_bytes: Room of each, a power of two, 2,048 or a page; less 262 bytes for a frame.

    Raises:
        ChannelUnavailable: Privileges, memory (``ulimit -l``) or a queue is missing.
    """

    def __init__(
        self, interface: int, queue: int, *, frames: int = 2048, frame_bytes: int = 2048
    ) -> None:
        if platform.machine() not in {"x86_64", "AMD64"}:
            # The rings are read and written without the barriers that other processors need.
            raise ChannelUnavailable(f"af_xdp: not on {platform.machine()}, only on x86_64")
        self.frame_bytes = frame_bytes
        self._frames = frames
        size = frames * frame_bytes
        # Rows begin within a frame and end within the next: the last one needs room, too.
        self._memory = mmap.mmap(-1, size + _PAGE_BYTES)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        try:
            self._socket = socket.socket(_AF_XDP, socket.SOCK_RAW)
        except OSError as error:
            raise _failed("socket", error) from error
        self._rx = self._fill = _NO_RING
        try:
            self._set_up(interface, queue, size)
        except OSError as error:
            self.close()
            raise _failed(f"interface {interface}, queue {queue}", error) from error

    def fileno(self) -> int:
        """Return the descriptor; readable when frames wait."""
        return self._socket.fileno()

    def arrived(self, most: int) -> Frames | None:
        """Return frames that wait and lie one after the other, None if none does.

        They are the caller's until :meth:`give_back`.
        """
        first = int(self._rx.consumer[0])
        count = min((int(self._rx.producer[0]) - first) & 0xFFFF_FFFF, most)
        if not count:
            return None
        place = first & self._rx.mask
        found = self._rx.entries[place : min(place + count, self._frames)]
        addresses = found["address"]
        breaks = np.flatnonzero(np.diff(addresses) != self.frame_bytes)
        if len(breaks):
            found = found[: breaks[0] + 1]
        return Frames(
            self._bytes[int(addresses[0]) :], found["bytes"].astype(np.int64), self.frame_bytes
        )

    def give_back(self, count: int) -> None:
        """Give the frames of the last :meth:`arrived` back to the kernel."""
        first = int(self._rx.consumer[0])
        came = (first + np.arange(count)) & self._rx.mask
        self._refill(self._rx.entries["address"][came] & ~np.uint64(self.frame_bytes - 1))
        self._rx.consumer[0] = (first + count) & 0xFFFF_FFFF

    def losses(self) -> dict[str, int]:
        """Return what the kernel dropped at this socket, by reason."""
        told = self._socket.getsockopt(_SOL_XDP, _STATISTICS, _LOSSES.size)
        dropped, invalid, _, ring_full, no_frame, _ = _LOSSES.unpack(
            told.ljust(_LOSSES.size, b"\0")
        )
        return {
            "dropped": dropped,
            "invalid": invalid,
            "ring_full": ring_full,
            "no_frame": no_frame,
        }

    def close(self) -> None:
        """Give the queue back; a second call does nothing.

        The kernel releases it a little later, and not before the last frames of
        :meth:`arrived` are freed.
        """
        # Rings that are still mapped would keep the socket.
        self._rx = self._fill = _NO_RING
        self._socket.close()

    def _set_up(self, interface: int, queue: int, size: int) -> None:
        memory = _MEMORY.pack(self._bytes.ctypes.data, size, self.frame_bytes, _OWN_HEADROOM)
        self._socket.setsockopt(_SOL_XDP, _UMEM_REG, memory)
        self._socket.setsockopt(_SOL_XDP, _FILL_RING, self._frames)
        # Nothing is sent, but a socket without this ring is not bound.
        self._socket.setsockopt(_SOL_XDP, _COMPLETION_RING, _LEAST_COMPLETIONS)
        self._socket.setsockopt(_SOL_XDP, _RX_RING, self._frames)
        offsets = _OFFSETS.unpack(self._socket.getsockopt(_SOL_XDP, _MMAP_OFFSETS, _OFFSETS.size))
        self._rx = self._ring(_AT_RX, offsets[0:4], _DESCRIPTION)
        self._fill = self._ring(_AT_FILL, offsets[8:12], _FRAME_ADDRESS)
        self._refill(np.arange(self._frames, dtype=np.uint64) * np.uint64(self.frame_bytes))
        self._bind(_ADDRESS.pack(_AF_XDP, _COPY, interface, queue, 0))

    def _bind(self, address: bytes) -> None:
        deadline_s = time.monotonic() + _QUEUE_S
        while ctypes.CDLL(None, use_errno=True).bind(self.fileno(), address, len(address)):
            number = ctypes.get_errno()
            # A socket that was closed just now may still hold the queue.
            if number != errno.EBUSY or time.monotonic() > deadline_s:
                raise OSError(number, os.strerror(number))
            time.sleep(_LOOK_EVERY_S)

    def _ring(self, where: int, offsets: tuple[int, ...], entry: np.dtype[Any]) -> _Ring:
        producer, consumer, entries, _ = offsets
        memory = mmap.mmap(self.fileno(), entries + self._frames * entry.itemsize, offset=where)
        return _Ring(
            producer=np.frombuffer(memory, np.uint32, 1, producer),
            consumer=np.frombuffer(memory, np.uint32, 1, consumer),
            entries=np.frombuffer(memory, entry, self._frames, entries),
            mask=self._frames - 1,
        )

    def _refill(self, addresses: NDArray[np.uint64]) -> None:
        first = int(self._fill.producer[0])
        self._fill.entries[(first + np.arange(len(addresses))) & self._fill.mask] = addresses
        self._fill.producer[0] = (first + len(addresses)) & 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    producer: NDArray[np.uint32]
    consumer: NDArray[np.uint32]
    entries: NDArray[Any]
    mask: int


_NO_RING: Final = _Ring(
    producer=np.zeros(1, np.uint32),
    consumer=np.zeros(1, np.uint32),
    entries=np.zeros(0, _DESCRIPTION),
    mask=0,
)


def _failed(what: str, error: OSError) -> ChannelUnavailable:
    needs = "needs CAP_NET_RAW, and locked memory (ulimit -l)"
    return ChannelUnavailable(f"af_xdp: {what}: {error.strerror or error} ({needs})")
