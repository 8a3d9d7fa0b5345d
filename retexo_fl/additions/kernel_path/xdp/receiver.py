"""A receiver whose packets the kernel takes: the aggregate program at an interface."""

from __future__ import annotations

from typing import Final

from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.additions.kernel_path.packets.stream_shape import packet_cells_for
from retexo_fl.additions.kernel_path.xdp.aggregate import MAX_CELLS, AggregateProgram, TableSizes
from retexo_fl.additions.kernel_path.xdp.attachments import XdpMode
from retexo_fl.additions.kernel_path.xdp.interfaces import interface_facts
from retexo_fl.additions.kernel_path.xdp.neighbours import demand_ethernet
from retexo_fl.errors import ChannelUnavailable


class XdpReceiver:
    """Takes the datagrams to one UDP port that arrive by one interface; until :meth:`close`.

    All else that arrives goes its way untouched, and so do packets that come by another interface,
    loopback included: they reach the socket that listens at the port.

    Args:
        interface: Name, in this network namespace.
        port: UDP port.
        sizes: Of the tables; the kernel takes the memory at once.
        mode: ``native`` (in the driver), ``generic`` (after it), or ``auto``: the first that works.
        address: IPv4 address to which packets must be; None for any. A machine that forwards
            others' packets has to say it.

    Attributes:
        tables: The program's own memory as arrays, not copies.
        event_fd: Becomes readable when an exchange is complete; see :meth:`drain_events`.
        mode: The one that is used: ``native`` or ``generic``.
        atomic: Several processors may run the program at a time: in generic mode, and where the
            interface has more than one receive queue. The program then guards what it adds to.
        max_cells: Longest packet that is taken, by the interface's MTU.

    Raises:
        ChannelUnavailable: No such interface, no libbpf, no privilege, another XDP program is
            there, a kernel that is too old, or no memory; the message says which.
    """

    kind: Final = "xdp"

    def __init__(
        self,
        interface: str,
        port: int,
        *,
        sizes: TableSizes,
        mode: XdpMode = "auto",
        address: str | None = None,
    ) -> None:
        facts = interface_facts(interface)
        demand_ethernet(interface)
        self.max_cells = min(packet_cells_for(facts.mtu_bytes), MAX_CELLS)
        self._loaded = AggregateProgram(port, sizes, address=address, max_cells=self.max_cells)
        # Until it is known that one context alone runs it.
        self._loaded.expect_several_contexts(True)
        try:
            self._attachment = self._loaded.program.attach_xdp(facts.index, mode)
        except ChannelUnavailable:
            self._loaded.close()
            raise
        self.mode = self._attachment.mode
        self.atomic = self.mode == "generic" or facts.receive_queues != 1
        self._loaded.expect_several_contexts(self.atomic)

    @property
    def tables(self) -> Tables:
        """See the class."""
        return self._loaded.tables

    @property
    def event_fd(self) -> int:
        """See the class."""
        return self._loaded.completions.fd

    def counters(self) -> dict[str, int]:
        """Return what the program counted, by ``COUNTER_NAMES``; no call to the kernel."""
        return self._loaded.counters()

    def drain_events(self) -> None:
        """Take what makes :attr:`event_fd` readable; the regions say what happened."""
        self._loaded.completions.consume()

    def close(self) -> None:
        """Detach the program; the arrays stay valid, and nothing writes to them any more."""
        self._attachment.detach()
        self._loaded.close()
