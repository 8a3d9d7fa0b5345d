"""What the thread of an endpoint does: takes batches, reads acknowledgements, sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from retexo_fl.additions.kernel_path.endpoint.acks import Heard
from retexo_fl.additions.kernel_path.endpoint.arena import TableArena
from retexo_fl.additions.kernel_path.endpoint.broadcasting import BroadcastKind
from retexo_fl.additions.kernel_path.endpoint.changes import Changes
from retexo_fl.additions.kernel_path.endpoint.engine import Engine
from retexo_fl.additions.kernel_path.endpoint.incoming import Incoming
from retexo_fl.additions.kernel_path.endpoint.outgoing import Outgoing
from retexo_fl.additions.kernel_path.endpoint.receiver import PacketTaker, Receiver
from retexo_fl.additions.kernel_path.endpoint.sender import PacketSender
from retexo_fl.additions.kernel_path.endpoint.settling import settle_kernel
from retexo_fl.additions.kernel_path.endpoint.turns import Calling, TurnLock
from retexo_fl.additions.kernel_path.endpoint.udp_socket import UdpSocket
from retexo_fl.additions.kernel_path.packets.pacing import WindowTimes
from retexo_fl.errors import ChannelClosed

_READS_IN_A_ROW: Final = 8


class DatagramService:
    """A socket, a receiver, what is expected and on its way, and the thread that serves them.

    Args:
        socket: Bound.
        receiver: Takes packets into its tables.
        cache_bytes: See :class:`~retexo_fl.additions.kernel_path.endpoint.arena.TableArena`.
        kind: How packets for several destinations are sent.
        times: See :class:`~retexo_fl.additions.kernel_path.packets.window.SendWindow`.

    Attributes:
        arena: What is expected; used with :attr:`calling`.
        outgoing: What is on its way; used with :attr:`calling`.
        changes: Notified of what callers may wait for.
    """

    def __init__(
        self,
        socket: UdpSocket,
        receiver: Receiver,
        *,
        cache_bytes: int,
        kind: BroadcastKind,
        times: WindowTimes | None,
    ) -> None:
        self._socket = socket
        self._receiver = receiver
        self._name = f"datagrams {socket.address}"
        in_user_space = isinstance(receiver, PacketTaker)
        self._taker = (
            receiver
            if isinstance(receiver, PacketTaker)
            else PacketTaker(receiver.tables, takes_data=False)
        )
        self._lock = TurnLock()
        self.changes = Changes()
        self.arena = TableArena(
            receiver.tables,
            cache_bytes=cache_bytes,
            max_cells=receiver.max_cells,
            atomic=receiver.atomic,
            settle=None if in_user_space else settle_kernel,
        )
        self.outgoing = Outgoing(PacketSender(socket, kind), changed=self.changes.tell, times=times)
        self._incoming = Incoming(socket, self._taker, tables_lock=self._lock, on_acks=self._hear)
        self._events = 0
        self._failure: BaseException | None = None
        self._is_closed = False
        self._engine = Engine(
            name=self._name,
            socket_fd=socket.fileno(),
            event_fd=receiver.event_fd,
            work=self,
            failed=self._fail,
        )

    # ---- for callers -----------------------------------------------------------------------------

    @property
    def calling(self) -> Calling:
        """The lock of arena and outgoing, for a ``with`` block.

        Raises:
            ChannelClosed: The endpoint was closed, or its thread ended by itself.
        """
        self.check()
        return self._lock.calling

    def check(self) -> None:
        """Raise :class:`ChannelClosed` if nothing is served any more."""
        if self._is_closed:
            raise ChannelClosed(f"{self._name}: closed")
        if self._failure is not None:
            raise ChannelClosed(
                f"{self._name}: its thread ended: {self._failure!r}"
            ) from self._failure

    def start(self) -> None:
        """Start the thread."""
        self._engine.start()

    def wake(self) -> None:
        """Have the thread look for work."""
        self._engine.wake()

    def close(self) -> None:
        """End the thread and close everything; a second call does nothing.

        Raises:
            ChannelClosed: The thread does not end; nothing was closed.
        """
        if self._is_closed:
            return
        if not self._engine.close():
            raise ChannelClosed(f"{self._name}: its thread does not end")
        self._is_closed = True
        self.changes.tell()
        self._receiver.close()
        self._socket.close()

    def counters(self) -> dict[str, int]:
        """Return what was counted."""
        counted = self._receiver.counters()
        with self.calling:
            cache = self.arena.cache
            return {
                **counted,
                **self._incoming.counters(),
                **self.outgoing.counters(),
                "socket_user_acks": self._taker.counters()["user_acks"],
                "cache_hits": cache.hits,
                "cache_misses": cache.misses,
                "cache_evictions": cache.evictions,
            }

    # ---- for the thread --------------------------------------------------------------------------

    @property
    def wants_write(self) -> bool:
        """See :class:`~retexo_fl.additions.kernel_path.endpoint.engine.Work`."""
        return self.outgoing.wants_write

    def readable(self) -> bool:
        """See :class:`~retexo_fl.additions.kernel_path.endpoint.engine.Work`."""
        events, reads = self._taker.events, 0
        while reads < _READS_IN_A_ROW and self._incoming.read():
            reads += 1
        if self._taker.events != events:
            self.changes.tell()
        return reads == _READS_IN_A_ROW

    def event(self) -> None:
        """See :class:`~retexo_fl.additions.kernel_path.endpoint.engine.Work`."""
        with self._lock:
            self._receiver.drain_events()
        events = self._receiver.counters()["events"]
        if events != self._events:
            self._events = events
            self.changes.tell()

    def advance(self, now_s: float) -> bool:
        """See :class:`~retexo_fl.additions.kernel_path.endpoint.engine.Work`."""
        with self._lock:
            return self.outgoing.advance(now_s)

    def next_deadline_s(self) -> float:
        """See :class:`~retexo_fl.additions.kernel_path.endpoint.engine.Work`."""
        return self.outgoing.next_deadline_s()

    def _hear(self, acks: Sequence[Heard]) -> None:
        with self._lock:
            for ack in acks:
                self.outgoing.hear(ack)

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self.changes.tell()
