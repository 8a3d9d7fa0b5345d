"""How many bytes vectors take that cross as datagrams; sender and receiver count the same.

Every packet counts once; the endpoint's counters have what is sent again, and acknowledgements.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from retexo_fl.additions.kernel_path.carrying.control import (
    Grant,
    Notice,
    Way,
    control_frames,
    notice_header,
    tail_rows,
)
from retexo_fl.additions.kernel_path.packets.layout import IP_UDP_BYTES
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.exchange import BlockHeader
from retexo_fl.ledger import Traffic, Volume

_VALUE_BYTES = 4


def datagram_traffic(header: BlockHeader, notice: Notice) -> Traffic:
    """Return the bytes of one client's vectors for one peer.

    ``payload`` is 4 bytes a value, or one; ``wire`` is packets with their headers down to IP's and
    the zeros that fill cells and packets. The notice and the grant that answers it are ``control``;
    by ticket there are none, and what follows the vectors is ``wire``.

    Args:
        header: Of the block that the vectors would make.
        notice: Announces them.
    """
    wire = 0
    for number in range(notice.num_streams):
        rows = int(np.count_nonzero(notice.streams == number))
        if notice.by_ticket:
            rows += tail_rows(header.width)
        shape = StreamShape.in_room(
            rows, header.width, notice.packet_cells, in_bytes=notice.in_bytes
        )
        wire += shape.total_bytes + shape.packets * IP_UDP_BYTES
    control = 0
    if not notice.by_ticket:
        frames = control_frames(notice_header(header), notice.numbers())
        control = sum(map(len, frames)) + grant_bytes(len(header.job), notice.num_streams)
    payload = header.num_vectors * header.width * (1 if notice.in_bytes else _VALUE_BYTES)
    return Traffic(
        boundary=Volume(messages=1, raw=header.raw_bytes, payload=payload, wire=wire),
        control=Volume(messages=0, payload=control, wire=control),
    )


@cache
def grant_bytes(job_chars: int, num_streams: int) -> int:
    """Return the bytes of a grant's frames; they do not depend on its content."""
    header = BlockHeader(
        job="j" * job_chars,
        layer=0,
        sender=0,
        receiver=1,
        weights_digest=bytes(32),
        num_edges=0,
        plan_digest=bytes(32),
        num_vectors=1,
        width=Grant.width(num_streams),
        dtype="float64",
    )
    numbers = Grant(way=Way.KEPT).numbers(num_streams)
    return sum(map(len, control_frames(header, numbers, codec="dense")))
