"""Who takes packets into tables: the interface, and the receiver that does it in this process."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.aggregation import take_packets
from retexo_fl.additions.kernel_path.packets.layout import (
    COUNTER_NAMES,
    MAX_PACKET_CELLS,
    NUM_COUNTERS,
    Tables,
)

_EVENTS: Final = COUNTER_NAMES.index("events")


class Receiver(Protocol):
    """Takes packets into tables by itself, beside the endpoint's socket.

    It decides nothing about what arrives in the end: every receiver adds the same integers.

    Attributes:
        kind: ``udp``, ``xdp`` or ``af_xdp``.
        tables: What it takes packets into.
        atomic: Several processors may take packets at a time.
        max_cells: Cells of the longest packet that is taken.
        event_fd: Can be read when an exchange is complete (or packets wait for
            :meth:`drain_events`); None where the endpoint's socket brings everything.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def tables(self) -> Tables: ...  # noqa: D102
    @property
    def atomic(self) -> bool: ...  # noqa: D102
    @property
    def max_cells(self) -> int: ...  # noqa: D102
    @property
    def event_fd(self) -> int | None: ...  # noqa: D102

    def counters(self) -> dict[str, int]:
        """Return what was counted, by the names of ``COUNTER_NAMES``."""
        ...

    def drain_events(self) -> None:
        """Take what made ``event_fd`` readable; returns at once."""
        ...

    def close(self) -> None:
        """Release the interface; further calls do nothing."""
        ...


class PacketTaker:
    """Takes payloads that a socket brought into tables.

    Args:
        tables: Where the values go.
        takes_data: False beside a receiver in the kernel: only its questions to user space
            (``USER_ACK``) are answered here.

    Attributes:
        atomic: One thread takes packets at a time.
    """

    atomic = False

    def __init__(self, tables: Tables, *, takes_data: bool) -> None:
        self._tables = tables
        self._takes_data = takes_data
        self._counted: Final = np.zeros(NUM_COUNTERS, np.uint64)

    def take(
        self,
        packets: NDArray[np.uint8],
        lengths: NDArray[np.int64],
        replies: NDArray[np.uint8],
        reply_lengths: NDArray[np.int64],
    ) -> None:
        """Take payloads and write answers; see :func:`take_packets`."""
        take_packets(
            self._tables,
            packets,
            lengths,
            self._counted,
            replies,
            reply_lengths,
            takes_data=self._takes_data,
        )

    @property
    def events(self) -> int:
        """How many exchanges became complete."""
        return int(self._counted[_EVENTS])

    def counters(self) -> dict[str, int]:
        """Return what was counted."""
        return dict(zip(COUNTER_NAMES, map(int, self._counted), strict=True))


class UserSpaceReceiver(PacketTaker):
    """The receiver that needs nothing of the kernel but a socket.

    Args:
        tables: See :class:`Receiver`; pages of unused parts take no memory.
    """

    kind: Final = "udp"
    event_fd: Final = None
    max_cells: Final = MAX_PACKET_CELLS

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables, takes_data=True)
        self.tables = tables

    def drain_events(self) -> None:
        """See :class:`Receiver`: there are none."""

    def close(self) -> None:
        """See :class:`Receiver`: it holds nothing."""
