"""Mailboxes in the memory of one process whose clients share rows: no bytes are made of them."""

from __future__ import annotations

from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.memory import MemoryChannel
from retexo_fl.exchange.shared_rows import RowPile


class SharingChannel(MemoryChannel):
    """Takes blocks, too: what a client cannot share, and of what was shared those that are read."""

    def __init__(self) -> None:
        super().__init__()
        #: By job, and by layer and digest of its exchanges.
        self._piles: dict[str, dict[tuple[int, bytes], RowPile]] = {}

    def pile(self, job: str, layer: int, weights_digest: bytes) -> RowPile:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        piles, name = self._piles.setdefault(job, {}), (layer, weights_digest)
        if name not in piles:
            piles[name] = RowPile(job, layer, weights_digest)
        return piles[name]

    def receive_block(self, key: BlockKey) -> bytes | None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        pile = self._piles.get(key.job, {}).get((key.layer, key.weights_digest))
        shared = {} if pile is None else pile.senders(key.receiver)
        if key.sender in shared:
            return b"".join(shared[key.sender].encoded(key.receiver).frames)
        return super().receive_block(key)

    def senders(
        self, job: str, layer: int, weights_digest: bytes, *, receiver: int
    ) -> frozenset[int]:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        pile = self._piles.get(job, {}).get((layer, weights_digest))
        sharing = () if pile is None else pile.senders(receiver)
        return super().senders(job, layer, weights_digest, receiver=receiver).union(sharing)

    def forget_job(self, job: str, client: int) -> None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        super().forget_job(job, client)
        piles = self._piles.get(job, {})
        self._piles[job] = {name: pile for name, pile in piles.items() if not pile.forget(client)}
        if not self._piles[job]:
            del self._piles[job]
