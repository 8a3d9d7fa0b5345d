"""What a client of a test says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retexo_fl.client.api import MESSAGE_VERSION, HelloAnswer


def hello_of(client: int, **changes: Any) -> HelloAnswer:
    """Return the hello of one of three clients that get a thousand vectors."""
    hello = HelloAnswer(
        version=MESSAGE_VERSION,
        client=client,
        num_clients=3,
        partitioning="0" * 64,
        nodes=10,
        train=4,
        validation=3,
        test=3,
        features=5,
        classes=2,
        vectors_out=1000,
        vectors_in=1000,
        label_uses=(7, 7),
    )
    return replace(hello, **changes)
