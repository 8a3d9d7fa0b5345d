"""The name of one block between two clients, as mailboxes and links use it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKey:
    """The mailbox of one block: the vectors of one sender for one receiver in one exchange.

    Attributes:
        job: Name of the training.
        layer: Stage index of the exchange.
        weights_digest: 32 bytes that name the weights which made the vectors.
        sender: Client index.
        receiver: Client index.
    """

    job: str
    layer: int
    weights_digest: bytes
    sender: int
    receiver: int
