"""The datagram endpoint: takes streams of fixed-point vectors, adds them up, and sends others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint.broadcasting import BroadcastKind, Cloner, Groups
from retexo_fl.additions.kernel_path.endpoint.receiver import Receiver
from retexo_fl.additions.kernel_path.endpoint.records import (
    Destination,
    ExchangeProgress,
    IncomingStream,
    SendState,
    StreamGrant,
)
from retexo_fl.additions.kernel_path.endpoint.service import DatagramService
from retexo_fl.additions.kernel_path.endpoint.udp_socket import UdpSocket, path_mtu
from retexo_fl.additions.kernel_path.packets.pacing import WindowTimes
from retexo_fl.additions.kernel_path.packets.stream_shape import packet_cells_for

DEFAULT_MEMORY_BYTES: Final = 64 * 2**20


class DatagramEndpoint:
    """Everything that one agent sends and receives in datagrams, by one thread of its own.

    All methods may be called from any thread, and none waits for a peer. What arrives is the same
    whatever the receiver is.

    Args:
        address: ``IP:PORT`` to bind; port 0 takes a free one.
        receiver: Who takes packets into tables; closed with the endpoint.
        interface: Said in errors and counted for; the address decides where packets come from.
        memory_bytes: Most that rows of complete exchanges take that are kept for their cache key.
        cloner: Copies packets to several destinations in the kernel.
        broadcast: How several destinations are served; "auto" takes the cloner if there is one.
        socket: Bound already, in place of ``address``.
        times: After which packets are repeated and a silent destination counts as stalled.

    Raises:
        ChannelUnavailable: The address cannot be bound.
    """

    def __init__(  # noqa: PLR0913 - each but the first two has a default
        self,
        address: str,
        receiver: Receiver,
        *,
        interface: str | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        cloner: Cloner | None = None,
        broadcast: BroadcastKind = "auto",
        socket: UdpSocket | None = None,
        times: WindowTimes | None = None,
    ) -> None:
        self.interface = interface
        self._receiver = receiver
        self.memory_bytes = memory_bytes
        self._groups = Groups(cloner, broadcast)
        bound = UdpSocket(address) if socket is None else socket
        self._address = bound.address
        self._service = DatagramService(
            bound, receiver, cache_bytes=memory_bytes, kind=broadcast, times=times
        )

    @property
    def kind(self) -> str:
        """Who takes packets: ``udp``, ``xdp`` or ``af_xdp``."""
        return self._receiver.kind

    @property
    def address(self) -> str:
        """``IP:PORT`` it is bound to."""
        return self._address

    @property
    def max_cells(self) -> int:
        """Cells of the longest packet that is taken here."""
        return self._receiver.max_cells

    def start(self) -> None:
        """Begin to take and send packets."""
        self._service.start()

    def close(self) -> None:
        """End the thread and close the socket and the receiver, within 5 seconds.

        Raises:
            ChannelClosed: The thread does not end; nothing was closed.
        """
        self._service.close()
        self._groups.close()

    # ---- receiving -------------------------------------------------------------------------------

    def open_exchange(
        self,
        key: bytes,
        *,
        job: int,
        stage: int,
        width: int,
        streams_expected: int,
        cache_key: bytes | None = None,
    ) -> None:
        """Begin an exchange; a second call with the same terms does nothing.

        Args:
            key: Names it in all other calls.
            job: 32 bits that all its packets carry.
            stage: 16 bits that all its packets carry.
            width: Values of each vector.
            streams_expected: How many streams make it whole.
            cache_key: Under which its rows are kept after :meth:`close_exchange`.

        Raises:
            ChannelUnavailable: The receiver's tables have no room.
            LocalProtocolError: It was opened on other terms.
        """
        with self._service.calling:
            self._service.arena.open_exchange(
                key,
                job=job,
                stage=stage,
                width=width,
                streams_expected=streams_expected,
                cache_key=cache_key,
            )

    def add_rows(self, key: bytes, rows: int) -> int:
        """Return the handle of a new block of empty rows; streams with one handle share them.

        Handles count from 0 in each exchange, also in one that was revived.

        Raises:
            ChannelUnavailable: The receiver's tables have no room.
        """
        with self._service.calling:
            return self._service.arena.add_rows(key, rows)

    def open_stream(
        self, key: bytes, incoming: IncomingStream, handle: int, *, token: int | None = None
    ) -> StreamGrant:
        """Open a stream into a block; the same sender and handle get the same grant again.

        Args:
            key: The exchange's.
            incoming: What is opened.
            handle: The block's.
            token: Known to the sender already; None: a new one, at random.

        Raises:
            ChannelUnavailable: The receiver's tables have no room.
            LocalProtocolError: It does not fit the exchange.
        """
        with self._service.calling:
            grant = self._service.arena.open_stream(key, incoming, handle, token=token)
        if not incoming.rows:
            self._service.changes.tell()
        return grant

    def progress(self, key: bytes) -> ExchangeProgress:
        """Say how much of an exchange has been taken."""
        with self._service.calling:
            return self._service.arena.progress(key)

    def rows(self, key: bytes, handle: int) -> NDArray[np.int32]:
        """Return a block as (rows, width): a view, valid until :meth:`close_exchange`."""
        with self._service.calling:
            return self._service.arena.rows(key, handle)

    def close_exchange(self, key: bytes) -> None:
        """End an exchange: its rows are freed, or kept if it is complete and has a cache key.

        An unknown key is no error.
        """
        with self._service.calling:
            self._service.arena.close_exchange(key)

    def cached(self, cache_key: bytes) -> bool:
        """Return whether :meth:`revive` would succeed; "no" is counted as a miss."""
        with self._service.calling:
            return self._service.arena.cache.has(cache_key)

    def revive(self, cache_key: bytes, key: bytes) -> bool:
        """Open a kept exchange under ``key``, complete; counted as a hit or as a miss."""
        with self._service.calling:
            return self._service.arena.revive(cache_key, key)

    # ---- sending ---------------------------------------------------------------------------------

    def send(
        self,
        key: bytes,
        values: NDArray[np.int32] | NDArray[np.uint8],
        destinations: Sequence[Destination],
        *,
        job: int,
        stage: int,
        sender: int,
        packet_cells: int,
    ) -> None:
        """Send vectors to one destination or, the same packets, to several.

        Under a key that is known, destinations that are new join, and those with another grant
        than before begin anew: their receiver started anew.

        Args:
            key: Names it in other calls.
            values: (rows, width) int32 or, of a byte each, uint8. Read until all packets were
                acknowledged or forgotten: must not change.
            destinations: Who gets it.
            job: Of the receivers' exchange; ``stage`` and ``packet_cells`` likewise.
            stage: See above.
            sender: Of the receivers' streams.
            packet_cells: See above.

        Raises:
            ChannelUnavailable: A destination is no ``IPV4:PORT``.
            LocalProtocolError: The values' form is another, or than before under the same key.
        """
        self._service.check()
        group = self._groups.set(key, destinations)
        with self._service.calling:
            self._service.outgoing.send(
                key,
                values,
                destinations,
                job=job,
                stage=stage,
                sender=sender,
                packet_cells=packet_cells,
                group=group,
            )
        self._service.wake()

    def sending(self, key: bytes) -> SendState:
        """Say what became of what was sent under a key."""
        with self._service.calling:
            return self._service.outgoing.state(key)

    def forget_sending(self, key: bytes) -> None:
        """Stop sending; an unknown key is no error."""
        with self._service.calling:
            self._service.outgoing.forget(key)
        self._groups.remove(key)

    def packet_cells_to(self, address: str) -> int:
        """Return how many cells a packet to ``IP:PORT`` may carry, from the path's MTU.

        Raises:
            ChannelUnavailable: There is no way to it.
        """
        return packet_cells_for(path_mtu(address))

    # ---- both ------------------------------------------------------------------------------------

    def wait_for_change(self, timeout_s: float) -> None:
        """Return when something became complete, acknowledged or stalled, or after a time.

        Changes since the same thread's last call count.

        Raises:
            ChannelClosed: The endpoint was closed.
        """
        self._service.changes.wait(timeout_s)
        self._service.check()

    def counters(self) -> dict[str, int]:
        """Return what the receiver counted, by its names, and what the endpoint did.

        ``socket_packets`` came by the socket, of which ``socket_data`` held vectors; beside a
        receiver in the kernel that is what should have been taken there.
        """
        return {**self._service.counters(), **self._groups.counters()}
