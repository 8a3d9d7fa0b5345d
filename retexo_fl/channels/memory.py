"""Mailboxes in the memory of one process, for clients that live in it together."""

from __future__ import annotations

from collections.abc import Sequence

from retexo_fl.channels.base import BlockKey


class MemoryChannel:
    """All clients of one process share one of these."""

    def __init__(self) -> None:
        self._blocks: dict[BlockKey, bytes] = {}

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        if key in self._blocks:
            return 0
        self._blocks[key] = b"".join(frames)
        return len(self._blocks[key])

    def receive_block(self, key: BlockKey) -> bytes | None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        return self._blocks.get(key)

    def forget_job(self, job: str, client: int) -> None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        for key in [key for key in self._blocks if key.job == job and key.receiver == client]:
            del self._blocks[key]
