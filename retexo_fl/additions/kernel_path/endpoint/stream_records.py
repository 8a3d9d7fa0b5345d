"""The records of a stream in a receiver's tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint.exchange_state import Exchange, OpenStream
from retexo_fl.additions.kernel_path.endpoint.records import IncomingStream
from retexo_fl.additions.kernel_path.packets.layout import FORM_AT, SKIP, Tables
from retexo_fl.errors import LocalProtocolError


def first_cells(
    incoming: IncomingStream, start: int, rows: int, row_cells: int
) -> NDArray[np.uint64]:
    """Return where each of a stream's vectors is added, and its form, or ``SKIP``.

    Args:
        incoming: The stream; its places are rows of a block.
        start: The block's first cell.
        rows: Of the block.
        row_cells: Cells of each row.

    Raises:
        LocalProtocolError: A place is none of the block's.
    """
    places = np.asarray(incoming.places, np.int64)
    if places.shape != (incoming.rows,) or (
        incoming.rows and (places.min() < -1 or places.max() >= rows)
    ):
        raise LocalProtocolError(
            f"stream of {incoming.sender}: expected {incoming.rows} places from -1 to {rows - 1}"
        )
    slots = (start + places * row_cells).astype(np.uint64)
    if incoming.forms is not None:
        slots |= incoming.forms.astype(np.uint64) << np.uint64(FORM_AT)
    slots[places < 0] = SKIP
    return slots


def describe_stream(
    tables: Tables,
    exchange: Exchange,
    stream: OpenStream,
    *,
    incoming: IncomingStream,
    slots: NDArray[np.uint64],
    atomic: bool,
) -> None:
    """Write everything about a stream but its token, without which no packet is taken."""
    _, seen, slot = stream.places
    tables.seen[seen.start : seen.start + seen.size] = 0
    tables.slots[slot.start : slot.start + slot.size] = slots
    record = tables.streams[stream.index]
    shape = stream.shape
    for name, value in (
        ("region", exchange.region),
        ("slot_base", slot.start),
        ("rows", shape.rows),
        ("row_cells", shape.row_cells),
        ("packet_cells", shape.packet_cells),
        ("packets", shape.packets),
        ("seen_base", seen.start),
        ("job", exchange.job),
        ("sender", incoming.sender),
        ("stage", exchange.stage),
        ("atomic", int(atomic)),
        ("in_bytes", int(shape.in_bytes)),
        ("done", 0),
        ("duplicates", 0),
    ):
        record[name] = value
