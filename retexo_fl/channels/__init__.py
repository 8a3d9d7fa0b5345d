"""Transports between two peers; bytes meet the operating system only here."""

from retexo_fl.channels.base import BlockKey, Channel
from retexo_fl.channels.memory import MemoryChannel
from retexo_fl.channels.spool import SpoolChannel

__all__ = ["BlockKey", "Channel", "MemoryChannel", "SpoolChannel"]
