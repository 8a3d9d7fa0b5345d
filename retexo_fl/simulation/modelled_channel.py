"""A channel that reports every block that passes to the modelled network."""

from __future__ import annotations

from collections.abc import Sequence

from retexo_fl.channels import BlockKey, Channel
from retexo_fl.simulation.virtual_network import VirtualNetwork


class ModelledChannel:
    """Passes everything to another channel; a block counts when it is sent and when it is taken."""

    def __init__(self, channel: Channel, network: VirtualNetwork) -> None:
        self._channel = channel
        self._network = network

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int | None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        moved = self._channel.send_block(key, frames)
        if moved != 0:
            size_bytes = sum(map(len, frames)) if moved is None else moved
            self._network.send_block(key.sender, key.receiver, size_bytes, key)
        return moved

    def receive_block(self, key: BlockKey) -> bytes | None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        stream = self._channel.receive_block(key)
        if stream:
            self._network.take_block(key.receiver, key)
        return stream

    def senders(
        self, job: str, layer: int, weights_digest: bytes, *, receiver: int
    ) -> frozenset[int]:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        return self._channel.senders(job, layer, weights_digest, receiver=receiver)

    def pile(self, job: str, layer: int, weights_digest: bytes) -> None:
        """See :class:`~retexo_fl.channels.base.Channel`; blocks cross."""

    def forget_job(self, job: str, client: int) -> None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        self._channel.forget_job(job, client)
