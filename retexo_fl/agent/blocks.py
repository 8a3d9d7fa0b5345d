"""Whole blocks out of the frames that have arrived, and what they come to in bytes."""

from __future__ import annotations

from retexo_fl.agent.api import Traffic
from retexo_fl.exchange import (
    BlockAssembler,
    BlockDone,
    BlockHeader,
    BlockTraffic,
    NeedData,
    ReceivingSession,
    RowsReceived,
    Vectors,
)
from retexo_fl.ledger import Volume


def decode_block(expected: BlockHeader, stream: bytes) -> tuple[Vectors | None, BlockTraffic]:
    """Run a session over what has arrived; None while the block is not complete."""
    session = ReceivingSession(expected)
    assembler = BlockAssembler(expected)
    session.receive_data(stream)
    while not isinstance(event := session.next_event(), NeedData):
        if isinstance(event, RowsReceived):
            assembler.add(event)
        if isinstance(event, BlockDone):
            return assembler.finish(), session.traffic
    return None, session.traffic


def counted_traffic(traffic: BlockTraffic, moved: int | None) -> Traffic:
    """Split a block's bytes by kind; ``moved`` is what the transport took, None if not told."""
    control = traffic.control_bytes
    return Traffic(
        boundary=Volume(
            messages=1,
            raw=traffic.raw_bytes,
            payload=traffic.payload_bytes,
            wire=None if moved is None else moved - control,
        ),
        control=Volume(messages=0, payload=control, wire=None if moved is None else control),
    )
