"""Mailboxes in the memory of one process, for clients that live in it together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from retexo_fl.channels.base import BlockKey, RowPile


class MemoryChannel:
    """All clients of one process share one of these."""

    def __init__(self) -> None:
        #: By job and receiver: one inbox is looked through, never all.
        self._inboxes: dict[tuple[str, int], dict[BlockKey, bytes]] = defaultdict(dict)

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        inbox = self._inboxes[key.job, key.receiver]
        if key in inbox:
            return 0
        inbox[key] = b"".join(frames)
        return len(inbox[key])

    def receive_block(self, key: BlockKey) -> bytes | None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        return self._inbox(key.job, key.receiver).get(key)

    def senders(
        self, job: str, layer: int, weights_digest: bytes, *, receiver: int
    ) -> frozenset[int]:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        exchange = (layer, weights_digest)
        inbox = self._inbox(job, receiver)
        return frozenset(key.sender for key in inbox if (key.layer, key.weights_digest) == exchange)

    def pile(self, job: str, layer: int, weights_digest: bytes) -> RowPile | None:
        """See :class:`~retexo_fl.channels.base.Channel`; blocks cross."""
        return None

    def forget_job(self, job: str, client: int) -> None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        self._inboxes.pop((job, client), None)

    def _inbox(self, job: str, receiver: int) -> Mapping[BlockKey, bytes]:
        return self._inboxes.get((job, receiver), {})
