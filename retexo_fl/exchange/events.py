"""What a receiver learns from a stream, one event at a time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import Final

from retexo_fl.exchange.block import BlockHeader
from retexo_fl.exchange.vectors import Vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloReceived:
    """The sender speaks of the expected block."""

    header: BlockHeader


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowsReceived:
    """Vectors ``first`` to ``first + len - 1`` of the block, in plan order."""

    first: int
    vectors: Vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDone:
    """Every vector of the block has arrived."""

    num_vectors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockAborted:
    """The sender took the block back."""

    reason: str


@unique
class NeedData(Enum):
    """Type of :data:`NEED_DATA`."""

    NEED_DATA = "NEED_DATA"


#: No event until more bytes are given.
NEED_DATA: Final = NeedData.NEED_DATA

Event = HelloReceived | RowsReceived | BlockDone | BlockAborted
