"""Rows that clients of one process share as they are: no bytes are made of them.

What a client sends in an exchange are rows, of which each peer gets some (:class:`Selection`). In
one process peers can read these rows where they lie: :class:`SharedRows` has them once, and knows
how many bytes each peer's block would be, for the account. A :class:`RowPile` has what all clients
share in one exchange, and gathers what one of them gets; it is what their channel hands them.

What a peer reads is to the bit what it would decode, and :meth:`SharedRows.encoded` makes the bytes
that would cross, for whoever wants to see them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange.block import MIN_HELLO_BYTES, BlockHeader, BlockTraffic, Edges
from retexo_fl.exchange.block_frames import EncodedBlock, encode_block, frame_block
from retexo_fl.exchange.frames import DEFAULT_MAX_FRAME_BYTES, HEADER_BYTES
from retexo_fl.exchange.levels import decode_levels, level_table
from retexo_fl.exchange.row_coding import encode_levels, level_bits
from retexo_fl.exchange.row_sizes import level_payloads, one_frame_payloads
from retexo_fl.exchange.vectors import (
    VALUES_PER_NONZERO,
    Vectors,
    checked_rows,
    count_nonzeros,
    make_csr,
    to_csr,
    to_dense,
)

_Places: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """Which rows each peer gets.

    Attributes:
        rows: (k,) int64 rows that any peer gets, ascending.
        chosen: (z,) int64 what each peer gets of these, peer after peer.
        ends: (b,) int64 where each of b peers' ends among ``chosen``.
        spans: By peer, where its begin and end there.
        edges: By peer, what is between it and the client.
    """

    rows: _Places
    chosen: _Places
    ends: _Places
    spans: Mapping[int, tuple[int, int]]
    edges: Mapping[int, Edges]

    @classmethod
    def of(cls, rows: Mapping[int, _Places], edges: Mapping[int, Edges]) -> Self:
        """Join what peers get.

        Args:
            rows: By peer, (n,) the rows that it gets.
            edges: By peer, what is between it and the client.
        """
        ends = np.cumsum([len(some) for some in rows.values()], dtype=np.int64)
        together = np.concatenate([*rows.values(), np.zeros(0, np.int64)])
        needed, chosen = np.unique(together, return_inverse=True)
        begins = [0, *ends.tolist()]
        spans = dict(zip(rows, pairwise(begins), strict=True))
        return cls(rows=needed, chosen=chosen, ends=ends, spans=spans, edges=edges)


@dataclass(slots=True, kw_only=True, eq=False)
class _Content:
    """Rows in memory, maybe among those of other clients.

    Attributes:
        rows: (n, width) rows, or (n, bytes) uint8 of levels.
        first: Where the client's begin among them.
    """

    rows: Vectors
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedRows:
    """What one client sends in an exchange.

    Attributes:
        pile: Of the exchange.
        sender: The client.
        width: Values per row.
        dtype: ``float32`` or ``float64``.
        wire_codec: How blocks would be written.
        bits: Of a level, where all blocks are levels; else 0.
        selection: Which rows each peer gets.
        payloads: By peer, the bytes of its rows as they would be encoded.
        content: The rows.
    """

    pile: RowPile
    sender: int
    width: int
    dtype: str
    wire_codec: str
    bits: int
    selection: Selection
    payloads: Mapping[int, int]
    content: _Content

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as an array."""
        return self.width * np.dtype(self.dtype).itemsize

    def fits(self, receiver: int, edges: Edges, *, width: int, dtype: str) -> bool:
        """Return whether a receiver, which lists these edges, expects what is there for it."""
        mine = self.selection.edges[receiver]
        return (mine, self.width, self.dtype) == (edges, width, dtype)

    def encoded(self, receiver: int) -> EncodedBlock:
        """Return the block that a receiver would get."""
        num_edges, digest, count = self.selection.edges[receiver]
        header = BlockHeader(
            job=self.pile.job,
            layer=self.pile.layer,
            sender=self.sender,
            receiver=receiver,
            weights_digest=self.pile.weights_digest,
            num_edges=num_edges,
            plan_digest=digest,
            num_vectors=count,
            width=self.width,
            dtype=self.dtype,
        )
        rows = self.content.rows[self.places(receiver)]
        if not self.bits:
            return encode_block(header, rows, codec=self.wire_codec)
        levels = encode_levels(rows, width=self.width, bits=self.bits)
        return frame_block(header, [(count, *levels)] if count else ())

    def places(self, receiver: int) -> _Places:
        """Return where in :attr:`content` a receiver's rows are."""
        begin, end = self.selection.spans[receiver]
        return self.selection.chosen[begin:end] + self.content.first


def share_rows(
    rows: Vectors,
    selection: Selection,
    pile: RowPile,
    *,
    sender: int,
    codec: str,
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
) -> SharedRows | None:
    """Return what a client sends of its (N, width) rows; None where only blocks can say it.

    That is where a block takes several frames, where blocks of one client choose different codings
    of which some round, and where rows cannot be sent: their block says which.

    Args:
        rows: Dense, or CSR with sorted columns.
        selection: Which of them each peer gets.
        pile: Of the exchange; nothing is added to it here.
        sender: The client.
        codec: How blocks would be written: one of :data:`.CODECS`, but ``grid8``.
        max_frame_bytes: Payload limit of a frame.
    """
    if len(selection.rows) < rows.shape[0]:
        rows = rows[selection.rows]
    try:
        rows = checked_rows(rows)
        sizes = one_frame_payloads(
            rows, selection.chosen, selection.ends, codec=codec, max_frame_bytes=max_frame_bytes
        )
        if sizes is None:
            return None
        payloads, is_rounded = sizes
        bits = level_bits(codec) if is_rounded else 0
        width, content = rows.shape[1], rows
        if bits:
            content = level_table(to_dense(rows), bits)
            payloads = level_payloads(
                content, selection.chosen, selection.ends, width=width, bits=bits
            )
    except LocalProtocolError:
        return None
    return SharedRows(
        pile=pile,
        sender=sender,
        width=width,
        dtype=str(rows.dtype),
        wire_codec=codec,
        bits=bits,
        selection=selection,
        payloads=dict(zip(selection.spans, payloads.tolist(), strict=True)),
        content=_Content(rows=content),
    )


def _traffic_of(blocks: Iterable[tuple[SharedRows, int]]) -> BlockTraffic:
    """Return the bytes of blocks: of what a sender shares, and a receiver of it."""
    raw = payload = control = frames = 0
    for shared, receiver in blocks:
        _, _, count = shared.selection.edges[receiver]
        raw += count * shared.row_bytes
        payload += shared.payloads[receiver]
        control += MIN_HELLO_BYTES - 1 + len(shared.pile.job)
        # HELLO, DONE, and ROWS if there are any.
        frames += 3 if count else 2
    return BlockTraffic(
        raw_bytes=raw,
        payload_bytes=payload,
        control_bytes=control,
        wire_bytes=HEADER_BYTES * frames + control + payload,
    )


# ---- what all clients share ----------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class RowPile:
    """What the clients of a process share in one exchange; what was shared once stays.

    Attributes:
        job: Name of the training.
        layer: Stage index.
        weights_digest: 32 bytes that name the weights that made the rows.
    """

    job: str
    layer: int
    weights_digest: bytes

    _by_receiver: dict[int, dict[int, SharedRows]] = field(
        default_factory=lambda: defaultdict(dict), init=False
    )
    #: Not put together with others yet.
    _apart: list[SharedRows] = field(default_factory=list, init=False)

    def share(
        self,
        rows: Vectors,
        chosen: Mapping[int, _Places],
        edges: Mapping[int, Edges],
        *,
        sender: int,
        codec: str,
    ) -> tuple[int, BlockTraffic] | None:
        """See :class:`~retexo_fl.channels.base.RowPile`."""
        shared = share_rows(rows, Selection.of(chosen, edges), self, sender=sender, codec=codec)
        if shared is None:
            return None
        fresh = self.add(shared)
        return len(fresh), _traffic_of((shared, peer) for peer in fresh)

    def shared_with(
        self, receiver: int, edges: Mapping[int, Edges], *, width: int, dtype: str
    ) -> frozenset[int]:
        """See :class:`~retexo_fl.channels.base.RowPile`."""
        senders = self.senders(receiver)
        return frozenset(
            sender
            for sender in edges.keys() & senders.keys()
            if senders[sender].fits(receiver, edges[sender], width=width, dtype=dtype)
        )

    def traffic(self, receiver: int, senders: Iterable[int]) -> BlockTraffic:
        """See :class:`~retexo_fl.channels.base.RowPile`."""
        shared = self.senders(receiver)
        return _traffic_of((shared[sender], receiver) for sender in senders)

    def gathered(self, receiver: int, senders: Sequence[int]) -> Vectors:
        """See :class:`~retexo_fl.channels.base.RowPile`."""
        self.put_together()
        shared = [self.senders(receiver)[sender] for sender in senders]
        first = shared[0].content.rows
        if all(some.content.rows is first for some in shared):
            return _gathered(shared, receiver)
        parts = [_gathered([some], receiver) for some in shared]
        if any(isinstance(part, np.ndarray) for part in parts):
            return np.concatenate([to_dense(part) for part in parts])
        return _stacked(parts)

    def add(self, shared: SharedRows) -> list[int]:
        """Let peers have a client's rows; return those that did not have them."""
        inboxes = {peer: self._by_receiver[peer] for peer in shared.selection.spans}
        fresh = [peer for peer, inbox in inboxes.items() if shared.sender not in inbox]
        for peer in fresh:
            inboxes[peer][shared.sender] = shared
        if fresh:
            self._apart.append(shared)
        return fresh

    def senders(self, receiver: int) -> Mapping[int, SharedRows]:
        """Return what a client gets, by sender."""
        return self._by_receiver.get(receiver, {})

    def forget(self, receiver: int) -> bool:
        """Drop what a client got; return whether nothing is left."""
        self._by_receiver.pop(receiver, None)
        return not self._by_receiver

    def put_together(self) -> None:
        """Have rows of one kind lie in one piece, so that those of many senders are taken at once.

        Clients' own arrays are let go.
        """
        kinds: dict[tuple[object, ...], list[_Content]] = defaultdict(list)
        for shared in self._apart:
            rows = shared.content.rows
            kinds[type(rows), rows.dtype, shared.width, shared.bits].append(shared.content)
        self._apart.clear()
        for contents in kinds.values():
            parts = [content.rows for content in contents]
            whole, first = _stacked(parts), 0
            for content, part in zip(contents, parts, strict=True):
                content.rows, content.first = whole, first
                first += part.shape[0]


def _gathered(senders: Sequence[SharedRows], receiver: int) -> Vectors:
    """Return what a client gets of senders whose rows lie in one piece."""
    first = senders[0]
    rows = first.content.rows[np.concatenate([shared.places(receiver) for shared in senders])]
    if first.bits:
        rows = decode_levels(
            rows.reshape(-1),
            num_rows=len(rows),
            width=first.width,
            bits=first.bits,
            dtype=first.dtype,
        )
    sizes = [shared.selection.edges[receiver][2] for shared in senders]
    return to_csr(rows) if _is_sparse(rows, np.cumsum(sizes)) else to_dense(rows)


def _stacked(parts: Sequence[Vectors]) -> Vectors:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    sparse = [to_csr(part) for part in parts]
    return make_csr(
        np.concatenate([part.data for part in sparse]),
        np.concatenate([part.indices for part in sparse]),
        np.concatenate([np.diff(part.indptr) for part in sparse]),
        width=parts[0].shape[1],
    )


def _is_sparse(rows: Vectors, ends: _Places) -> bool:
    """Return whether each block, of rows that end where ``ends`` says, would be decoded as CSR."""
    if isinstance(rows, np.ndarray) and np.count_nonzero(rows) * VALUES_PER_NONZERO >= rows.size:
        return False
    so_far = np.concatenate(([0], np.cumsum(count_nonzeros(rows))))
    nonzeros = np.diff(so_far[ends], prepend=0)
    values = np.diff(ends, prepend=0) * rows.shape[1]
    return bool((nonzeros * VALUES_PER_NONZERO < values).all())
