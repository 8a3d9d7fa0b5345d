"""Vectors as datagrams of fixed-point numbers, sans-IO: shapes, numbers, windows, tables.

Whatever is compiled is imported from its own module: ``packets`` and ``aggregation``.
"""

from retexo_fl.exchange.datagrams.fixed_point import exponent_for, snap, unsnap
from retexo_fl.exchange.datagrams.layout import COUNTER_NAMES, PacketKind, Tables
from retexo_fl.exchange.datagrams.stream_shape import StreamShape, packet_cells_for
from retexo_fl.exchange.datagrams.window import SendWindow, ack_flags

__all__ = [
    "COUNTER_NAMES",
    "PacketKind",
    "SendWindow",
    "StreamShape",
    "Tables",
    "ack_flags",
    "exponent_for",
    "packet_cells_for",
    "snap",
    "unsnap",
]
