"""Vectors as datagrams of fixed-point numbers, sans-IO: shapes, windows, tables.

Whatever is compiled is imported from its own module: ``packets`` and ``aggregation``.
"""

from retexo_fl.additions.kernel_path.packets.layout import COUNTER_NAMES, PacketKind, Tables
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape, packet_cells_for
from retexo_fl.additions.kernel_path.packets.window import SendWindow, ack_flags

__all__ = [
    "COUNTER_NAMES",
    "PacketKind",
    "SendWindow",
    "StreamShape",
    "Tables",
    "ack_flags",
    "packet_cells_for",
]
