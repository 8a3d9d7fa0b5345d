"""Blocks that a depot has for its peers, and those not delivered yet; not thread-safe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.depot.outgoing import OutgoingBlock
from retexo_fl.exchange.link.messages import Offer


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """What one peer has not acknowledged yet."""

    num_blocks: int
    num_bytes: int


class Outbox:
    """Blocks by key, and by peer those that it has not acknowledged, oldest first."""

    def __init__(self) -> None:
        self.blocks: dict[BlockKey, OutgoingBlock] = {}
        self._owed: dict[int, dict[BlockKey, OutgoingBlock]] = defaultdict(dict)

    def add(self, key: BlockKey, block: OutgoingBlock) -> None:
        """Take a block."""
        self.blocks[key] = block
        if not block.is_delivered:
            self._owed[key.receiver][key] = block

    def pop(self, key: BlockKey) -> OutgoingBlock | None:
        """Take out a block and return it; None if it is not here."""
        self._owed[key.receiver].pop(key, None)
        return self.blocks.pop(key, None)

    def mark(self, key: BlockKey, *, delivered: bool) -> bool:
        """Note whether the peer has a block; return whether that is new."""
        block = self.blocks.get(key)
        if block is None or block.is_delivered == delivered:
            return False
        block.is_delivered = delivered
        if delivered:
            self._owed[key.receiver].pop(key, None)
        else:
            self._owed[key.receiver][key] = block
        return True

    def num_owed(self, peer: int) -> int:
        """Return how many blocks a peer has not acknowledged."""
        return len(self._owed.get(peer, ()))

    def owed(self) -> Mapping[int, Owed]:
        """Return by peer what it has not acknowledged."""
        return {
            peer: Owed(
                num_blocks=len(blocks), num_bytes=sum(one.num_bytes for one in blocks.values())
            )
            for peer, blocks in sorted(self._owed.items())
            if blocks
        }

    def offers(self, peer: int) -> list[Offer]:
        """Return every block that a peer has not acknowledged."""
        return [
            Offer(
                key=key,
                num_frames=block.num_frames,
                num_bytes=block.num_bytes,
                is_eager=not block.was_offered,
            )
            for key, block in self._owed.get(peer, {}).items()
        ]
