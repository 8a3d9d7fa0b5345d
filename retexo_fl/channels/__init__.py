"""Transports between two peers; bytes meet the operating system only here."""

from retexo_fl.channels.base import BlockKey, Channel, RowPile
from retexo_fl.channels.memory import MemoryChannel
from retexo_fl.channels.shared import SharingChannel
from retexo_fl.channels.spool import SpoolChannel

__all__ = ["BlockKey", "Channel", "MemoryChannel", "RowPile", "SharingChannel", "SpoolChannel"]
