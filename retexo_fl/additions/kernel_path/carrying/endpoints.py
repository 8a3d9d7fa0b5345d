"""Makes the endpoint that an address of datagrams asks for."""

from __future__ import annotations

import fcntl
import logging
import socket
import struct
from contextlib import ExitStack
from typing import Final

from retexo_fl.additions.kernel_path.endpoint.endpoint import DatagramEndpoint
from retexo_fl.additions.kernel_path.endpoint.receiver import Receiver, UserSpaceReceiver
from retexo_fl.additions.kernel_path.packets.layout import CELL_BYTES, Tables
from retexo_fl.additions.kernel_path.xdp.af_xdp import AfXdpReceiver
from retexo_fl.additions.kernel_path.xdp.aggregate import TableSizes
from retexo_fl.additions.kernel_path.xdp.broadcast import TcBroadcast
from retexo_fl.additions.kernel_path.xdp.capabilities import drop_after_loading
from retexo_fl.additions.kernel_path.xdp.probe import probe
from retexo_fl.additions.kernel_path.xdp.receiver import XdpReceiver
from retexo_fl.channels.addresses import DatagramAddress
from retexo_fl.client.log_lines import line
from retexo_fl.errors import ChannelUnavailable

logger = logging.getLogger(__name__)

#: Exchanges that are open or kept, and streams in them.
_REGIONS: Final = 4096
_STREAMS: Final = 8192
#: Of each sum a cell or more; a packet of 22 cells or more has one of a block's 512 bits.
_CELLS_PER_SEEN_BLOCK: Final = 512
_LEAST_SEEN_BLOCKS: Final = _STREAMS
_SIOCGIFADDR: Final = 0x8915


def make_endpoint(wanted: DatagramAddress, *, memory_bytes: int, clones: bool) -> DatagramEndpoint:
    """Take datagrams at an address, in the kernel where that is asked for and can be.

    What needs privileges is done here; the calling thread, and those that it starts later, then
    drop them.

    Args:
        wanted: The address.
        memory_bytes: For sums.
        clones: Have the kernel copy packets that several peers need.

    Raises:
        ChannelUnavailable: The address cannot be used, or ``xdp`` is demanded but not possible.
    """
    sizes = _sizes(memory_bytes)
    with ExitStack() as on_failure:
        receiver = _receiver(wanted, sizes)
        on_failure.callback(receiver.close)
        cloner = TcBroadcast(_interface_of(wanted.host)) if clones else None
        if cloner is not None:
            on_failure.callback(cloner.close)
        endpoint = DatagramEndpoint(
            wanted.endpoint,
            receiver,
            memory_bytes=memory_bytes,
            cloner=cloner,
            broadcast="auto" if clones else "gso",
        )
        on_failure.pop_all()
    drop_after_loading()
    return endpoint


def _receiver(wanted: DatagramAddress, sizes: TableSizes) -> Receiver:
    if wanted.scheme == "xdp":
        return _xdp_receiver(wanted, sizes)
    if wanted.scheme == "auto":
        found = probe()
        if found.ok:
            try:
                return _xdp_receiver(wanted, sizes)
            except ChannelUnavailable as error:
                _say_why(str(error))
        else:
            _say_why(found.reason)
    tables = Tables.allocate(
        cells=sizes.cells,
        seen_blocks=sizes.seen_blocks,
        slots=sizes.slots,
        streams=sizes.streams,
        regions=sizes.regions,
    )
    if wanted.scheme == "af-xdp":
        return AfXdpReceiver(_interface_of(wanted.host), wanted.port, tables)
    return UserSpaceReceiver(tables)


def _xdp_receiver(wanted: DatagramAddress, sizes: TableSizes) -> XdpReceiver:
    return XdpReceiver(_interface_of(wanted.host), wanted.port, sizes=sizes, address=wanted.host)


def _say_why(reason: str) -> None:
    logger.warning(line("datagrams", taken_by="udp", instead_of="xdp", reason=reason))


def _sizes(memory_bytes: int) -> TableSizes:
    cells = max(memory_bytes // CELL_BYTES, 1)
    return TableSizes(
        cells=cells,
        seen_blocks=max(cells // _CELLS_PER_SEEN_BLOCK, _LEAST_SEEN_BLOCKS),
        slots=cells,
        streams=_STREAMS,
        regions=_REGIONS,
    )


def _interface_of(host: str) -> str:
    """Return the interface that has an IPv4 address.

    Raises:
        ChannelUnavailable: None has.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
            except OSError:
                # An interface without an IPv4 address.
                continue
            if socket.inet_ntoa(answer[20:24]) == host:
                return name
    raise ChannelUnavailable(f"{host}: no interface of this machine has that address")
