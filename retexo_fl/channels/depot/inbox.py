"""Blocks that have arrived at a depot, and those looked for too early; not thread-safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.depot.arriving import ArrivingBlock
from retexo_fl.channels.depot.files import DepotFiles


class Inbox:
    """Arriving blocks by key, and the keys that were asked for.

    Args:
        files: Where they are kept.
    """

    def __init__(self, files: DepotFiles) -> None:
        self.blocks: dict[BlockKey, ArrivingBlock] = {}
        self._files = files
        self._asked: set[BlockKey] = set()
        self._asked_by_peer: Counter[int] = Counter()

    def load(self) -> None:
        """Take over what an earlier process left; what is not whole is asked for.

        Raises:
            OSError: It cannot be read.
        """
        for key, path in self._files.blocks("inbox"):
            block = ArrivingBlock(key, path)
            block.recover()
            self.blocks[key] = block
            if not block.is_whole:
                self.ask_for(key)

    def opened(self, key: BlockKey) -> ArrivingBlock:
        """Return a block, a new one if nothing of it has arrived."""
        return self.blocks.setdefault(key, ArrivingBlock(key, self._files.incoming(key)))

    def pop(self, key: BlockKey) -> ArrivingBlock | None:
        """Take out a block and return it; None if it is not here."""
        self.asked_no_more(key)
        return self.blocks.pop(key, None)

    def has_whole(self, key: BlockKey) -> bool:
        """Return whether all of a block has arrived."""
        block = self.blocks.get(key)
        return block is not None and block.is_whole

    def missing(self, keys: Collection[BlockKey]) -> frozenset[BlockKey]:
        """Return those that have not arrived whole."""
        return frozenset(key for key in keys if not self.has_whole(key))

    def senders(self, job: str, layer: int, weights_digest: bytes) -> frozenset[int]:
        """Return every client of which something has arrived in an exchange."""
        exchange = (job, layer, weights_digest)
        return frozenset(
            key.sender
            for key, block in self.blocks.items()
            if (key.job, key.layer, key.weights_digest) == exchange and block.next_sequence
        )

    def ask_for(self, key: BlockKey) -> bool:
        """Note that a block is looked for; return whether that is new."""
        if key in self._asked or self.has_whole(key):
            return False
        self._asked.add(key)
        self._asked_by_peer[key.sender] += 1
        return True

    def asked_no_more(self, key: BlockKey) -> None:
        """Note that a block has come, or is not looked for any more."""
        if key in self._asked:
            self._asked.remove(key)
            self._asked_by_peer[key.sender] -= 1

    def asked_of_job(self, job: str) -> list[BlockKey]:
        """Return the blocks of a job that are looked for."""
        return [key for key in self._asked if key.job == job]

    def asks(self, peer: int) -> frozenset[BlockKey]:
        """Return the blocks of a peer that are looked for."""
        if not self.asks_of(peer):
            return frozenset()
        return frozenset(key for key in self._asked if key.sender == peer)

    def asks_of(self, peer: int) -> bool:
        """Return whether a block of a peer is looked for."""
        return self._asked_by_peer[peer] > 0
