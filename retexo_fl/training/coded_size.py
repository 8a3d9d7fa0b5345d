"""Predicted bytes of vectors on the wire, from the description of the codings alone.

Shares no code with the codecs: these are counts in closed form, for the rows of one frame with z
non-zero values of s bytes, of which row i has z_i, in a width of w::

    dense      rows * w * s
    bits       rows * ceil(w / 8)                              + values
    columns    sum(1 + z_i // 255) + z * (2, or 4 above 65,536) + values
    gaps       sum(1 + z_i // 255) + z + sum(gap // 255)        + values

``values`` takes nothing if all non-zeros are 1, s bytes for each row that is not empty if those of
every row are equal, else z s. A frame holds as many rows as fit its limit densely or as columns
with all values, whichever is more. Only the bits of +0 are no value.

``fixed`` writes them likewise, once they are multiples of 2**-e, with the largest e at which none
of a sender's has more than 2**24 of them; what rounds to 0 is not written. So does ``fixed8`` where
all that a sender sends has v rows, z values and v + z (s + 1) < v * w. Else it takes for a frame::

    grid       2 + rows * (w + 1)

Classes in w bits each take ``ceil(rows * w / 8)`` of a frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Final, Self

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.features import Features, normalise_features
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.boundary import PeerPlans
from retexo_fl.graph.plan.vectors import stacked, with_sums
from retexo_fl.training.sent_rows import sent_rows

_ESCAPED: Final = 255
_NARROW: Final = 65_536
_MOST_STEPS: Final = 2**24
_FINEST: Final = 126
#: Values looked at in one go.
_CHUNK_VALUES: Final = 2**22
#: Rows of parts that are looked at together.
_GROUP_ROWS: Final = 2**12


def sent_bytes(
    part: GraphPartition,
    plan: PeerPlans,
    *,
    codec: str,
    frame_bytes: int,
    **how: Any,
) -> list[int]:
    """Return the payload that a client sends to each peer before the first layer is trained.

    A row that goes to several peers is looked at once.

    Args:
        part: The client's part.
        plan: What it sends before that.
        codec: ``codec``, or ``fixed8``, of which the bytes of what is not sparse are the most.
        frame_bytes: Limit of a frame.
        **how: What :func:`own_features` takes.
    """
    (sizes,) = all_sent_bytes([part], [plan], codec=codec, frame_bytes=frame_bytes, **how)
    return sizes


def all_sent_bytes(
    parts: Iterable[GraphPartition],
    plans: Iterable[PeerPlans],
    *,
    codec: str,
    frame_bytes: int,
    **how: Any,
) -> Iterator[list[int]]:
    """Yield :func:`sent_bytes` of each part.

    Small parts are looked at together: for thousands of them, NumPy's calls for each would count.
    """
    group: list[_Sent] = []
    rows = 0
    for part, plan in zip(parts, plans, strict=True):
        features = own_features(part, **how)
        if codec == "dense":
            row_bytes = features.shape[1] * features.dtype.itemsize
            yield [peer.send.count * row_bytes for peer in plan.peers]
            continue
        sent = _Sent.of(features, plan)
        if codec != "lossless":
            yield sent.sizes(codec, frame_bytes)
            continue
        is_other = bool(group) and type(group[0].vectors) is not type(sent.vectors)
        if is_other or rows + len(sent) > _GROUP_ROWS:
            yield from _lossless_sizes(group, frame_bytes)
            group, rows = [], 0
        group.append(sent)
        rows += len(sent)
    yield from _lossless_sizes(group, frame_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """What a client sends.

    Attributes:
        vectors: [v, w] rows, and sums of them.
        places: For each peer, which of them it gets.
    """

    vectors: Features
    places: list[np.ndarray]

    @classmethod
    def of(cls, features: Features, plan: PeerPlans) -> Self:
        """Gather it from [n, w] features."""
        vectors, places = with_sums(features, plan.peers)
        return cls(vectors=vectors, places=list(places.values()))

    def __len__(self) -> int:
        return int(self.vectors.shape[0])

    def looked_at(self) -> tuple[Features, list[np.ndarray]]:
        """Return the vectors that any peer gets, and each peer's among these."""
        is_sent = np.zeros(len(self), dtype=bool)
        for some in self.places:
            is_sent[some] = True
        place = is_sent.cumsum() - 1
        return self.vectors[is_sent.nonzero()[0]], [place[some] for some in self.places]

    def sizes(self, codec: str, frame_bytes: int) -> list[int]:
        """Return the payload of each peer's."""
        looked_at, blocks = self.looked_at()
        if codec == "fixed8" and blocks:
            before = RowSizes.of(looked_at).taken(np.concatenate(blocks))
            if before.plain_bytes >= before.num_values:
                width, row_bytes = before.width, before.width * before.item
                return [
                    grid_bytes(len(some), width, row_bytes=row_bytes, frame_bytes=frame_bytes)
                    for some in blocks
                ]
        if codec.startswith("fixed"):
            (looked_at,) = rounded_features([looked_at])
        return RowSizes.of(looked_at).blocks_bytes(blocks, frame_bytes)


def _lossless_sizes(group: Sequence[_Sent], frame_bytes: int) -> Iterator[list[int]]:
    """Yield each client's :meth:`_Sent.sizes` under the codec ``lossless``."""
    if not group:
        return
    starts = [0, *accumulate(len(sent) for sent in group[:-1])]
    together = _Sent(
        vectors=stacked([sent.vectors for sent in group]),
        places=[
            start + some for sent, start in zip(group, starts, strict=True) for some in sent.places
        ],
    )
    sizes = iter(together.sizes("lossless", frame_bytes))
    for sent in group:
        yield [next(sizes) for _ in sent.places]


def grid_bytes(rows: int, width: int, *, row_bytes: int, frame_bytes: int) -> int:
    """Return the payload of one block of rows of 8 bits on one grid.

    Args:
        rows: Rows of the block.
        width: Values of each.
        row_bytes: Bytes of a row as an array.
        frame_bytes: Limit of a frame.
    """
    frames = -(-rows // max(1, frame_bytes // row_bytes))
    return rows * (width + 1) + 2 * frames


def bit_bytes(rows: int, width: int, *, row_bytes: int, frame_bytes: int) -> int:
    """Return the payload of one block of rows of 0 and 1, in a bit a value.

    Args:
        rows: Rows of the block.
        width: Values of each.
        row_bytes: Bytes of a row as an array.
        frame_bytes: Limit of a frame.
    """
    most = max(1, frame_bytes // row_bytes)
    whole, rest = divmod(rows, most)
    return whole * -(-most * width // 8) + -(-rest * width // 8)


def own_features(part: GraphPartition, *, model: str, normalisation: str, dtype: str) -> Features:
    """Return the features of a client's nodes as they are sent.

    Args:
        part: The client's.
        model: Layer, which may ask for scaled rows.
        normalisation: ``feature-normalisation``.
        dtype: ``dtype``.
    """
    features = normalise_features(part.features, normalisation).astype(dtype)
    return sent_rows(model, part.degrees, features)


def rounded_features(sent: Sequence[Features]) -> list[Features]:
    """Return what the codec ``fixed`` makes of all that one client sends.

    Of magnitudes that float32 holds.
    """
    flat = [features if isinstance(features, np.ndarray) else features.data for features in sent]
    largest = max((float(np.abs(values).max(initial=0.0)) for values in flat), default=0.0)
    finest = _FINEST
    while round(largest * 2.0**finest) > _MOST_STEPS:
        finest -= 1
    return [_rounded(features, 2.0**finest) for features in sent]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSizes:
    """What the size of rows on the wire depends on, row by row; so rows are looked at once.

    Attributes:
        width: w.
        item: s.
        counts: [v] values: z_i.
        skipped: [v] sum of gap // 255.
        alike: [v] whether all values of a row are equal.
        ones: [v] whether all are 1.
    """

    width: int
    item: int
    counts: np.ndarray
    skipped: np.ndarray
    alike: np.ndarray
    ones: np.ndarray

    @classmethod
    def of(cls, vectors: Features) -> Self:
        """Look at [v, w] float32 or float64 vectors, dense or CSR with sorted columns."""
        count, width = vectors.shape
        step = max(1, _CHUNK_VALUES // width)
        looked = [
            _looked_at(vectors, begin, min(begin + step, count)) for begin in range(0, count, step)
        ]
        none = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, bool))
        counts, skipped, alike, ones = map(np.concatenate, zip(none, *looked, strict=True))
        return cls(
            width=width,
            item=vectors.dtype.itemsize,
            counts=counts,
            skipped=skipped,
            alike=alike,
            ones=ones,
        )

    def taken(self, rows: np.ndarray) -> Self:
        """Return those of some rows, in their order."""
        return replace(
            self,
            counts=self.counts[rows],
            skipped=self.skipped[rows],
            alike=self.alike[rows],
            ones=self.ones[rows],
        )

    @property
    def num_values(self) -> int:
        """Values of all rows, zeros among them."""
        return len(self.counts) * self.width

    @property
    def plain_bytes(self) -> int:
        """A byte for each row, and for each value that is not zero its bytes and one more."""
        return len(self.counts) + int(self.counts.sum()) * (self.item + 1)

    def lossless_bytes(self, frame_bytes: int) -> int:
        """Return the payload of one block of these rows under the codec ``lossless``.

        Args:
            frame_bytes: Limit of a frame.
        """
        ends = _frame_ends(self.counts, self.width, self.item, frame_bytes)
        return sum(self._frame_bytes(slice(begin, end)) for begin, end in pairwise(ends))

    def blocks_bytes(self, blocks: Sequence[np.ndarray], frame_bytes: int) -> list[int]:
        """Return the payload of blocks of some of these rows each, as :meth:`lossless_bytes` does.

        Args:
            blocks: Rows of each.
            frame_bytes: Limit of a frame.
        """
        if not blocks:
            return []
        filled = self.counts > 0
        lengths = 1 + self.counts // _ESCAPED
        of_rows = (self.counts, lengths, self.skipped, filled, ~self.alike, ~self.ones)
        places = np.concatenate(blocks)
        ends = np.cumsum([len(rows) for rows in blocks])
        before = np.zeros((len(of_rows), len(places) + 1), dtype=np.int64)
        np.cumsum(np.stack(of_rows)[:, places], axis=1, out=before[:, 1:])
        nonzeros, lengths, skipped, filled, mixed, other = np.diff(before[:, ends], prepend=0)
        rows = np.diff(ends, prepend=0)
        dense = rows * (self.width * self.item)
        values = self.item * np.where(mixed > 0, nonzeros, np.where(other > 0, filled, 0))
        columns = _column_bytes(self.width)
        of_one_frame = np.minimum.reduce(
            [
                dense,
                rows * ((self.width + 7) // 8) + values,
                lengths + nonzeros * columns + values,
                lengths + nonzeros + skipped + values,
            ]
        )
        plain = lengths + nonzeros * (columns + self.item)
        return [
            size if fits else self.taken(places).lossless_bytes(frame_bytes)
            for size, fits, places in zip(
                of_one_frame.tolist(),
                np.minimum(dense, plain) <= frame_bytes,
                blocks,
                strict=True,
            )
        ]

    def _frame_bytes(self, frame: slice) -> int:
        counts = self.counts[frame]
        rows, nonzeros = len(counts), int(counts.sum())
        values = self._value_bytes(frame, nonzeros)
        lengths = rows + int((counts // _ESCAPED).sum())
        return min(
            rows * self.width * self.item,
            rows * ((self.width + 7) // 8) + values,
            lengths + nonzeros * _column_bytes(self.width) + values,
            lengths + nonzeros + int(self.skipped[frame].sum()) + values,
        )

    def _value_bytes(self, frame: slice, nonzeros: int) -> int:
        if not self.alike[frame].all():
            return self.item * nonzeros
        if self.ones[frame].all():
            return 0
        return self.item * int(np.count_nonzero(self.counts[frame]))


def lossless_bytes(vectors: Features, *, frame_bytes: int) -> int:
    """Return the payload of one block of [v, w] vectors under the codec ``lossless``."""
    return RowSizes.of(vectors).lossless_bytes(frame_bytes)


def _rounded(features: Features, steps: float) -> Features:
    if isinstance(features, np.ndarray):
        return _nearest(features, steps)
    rounded = csr_array(
        (_nearest(features.data, steps), features.indices.copy(), features.indptr.copy()),
        shape=features.shape,
    )
    rounded.eliminate_zeros()
    return rounded


def _nearest(values: np.ndarray, steps: float) -> np.ndarray:
    nearest = np.round(values.astype(np.float64) * steps) / steps
    # Adding 0 leaves no -0.
    return (nearest + 0.0).astype(values.dtype)


def _frame_ends(counts: np.ndarray, width: int, item: int, limit: int) -> list[int]:
    """Return where frames begin, and the number of rows."""
    plain = 1 + counts // _ESCAPED + counts * (_column_bytes(width) + item)
    before = np.append(0, plain).cumsum()
    ends = [0]
    while ends[-1] < len(counts):
        begin = ends[-1]
        fitting = int(before.searchsorted(before[begin] + limit, side="right")) - 1 - begin
        ends.append(min(len(counts), begin + max(1, fitting, limit // (width * item))))
    return ends


def _looked_at(
    vectors: Features, begin: int, end: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return counts, skipped, alike and ones of some rows, as :class:`RowSizes` has them."""
    if isinstance(vectors, np.ndarray) and (full := _bits(vectors[begin:end])).all():
        # No zeros: nothing is skipped, and no places need be found.
        alike = (full == full[:, :1]).all(axis=1)
        one = _bits(np.ones(1, dtype=vectors.dtype))
        counts = np.full(end - begin, vectors.shape[1], dtype=np.int64)
        return counts, np.zeros_like(counts), alike, alike & (full[:, 0] == one)
    rows, columns, bits = _values(vectors, begin, end)
    counts = np.bincount(rows, minlength=end - begin)
    skipped = np.zeros(end - begin, dtype=np.int64)
    alike, ones = np.ones(end - begin, dtype=bool), np.ones(end - begin, dtype=bool)
    filled = counts > 0
    if len(bits):
        starts = (counts.cumsum() - counts)[filled]
        gaps = np.diff(columns.astype(np.int64), prepend=-1) - 1
        gaps[starts] = columns[starts]
        skipped[filled] = np.add.reduceat(gaps // _ESCAPED, starts)
        least, most = np.minimum.reduceat(bits, starts), np.maximum.reduceat(bits, starts)
        one = _bits(np.ones(1, dtype=vectors.dtype))
        alike[filled], ones[filled] = least == most, (least == one) & (most == one)
    return counts, skipped, alike, ones


def _values(vectors: Features, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (z,) rows, columns and bits of the non-zeros of some rows."""
    if isinstance(vectors, np.ndarray):
        bits = _bits(vectors[begin:end])
        rows, columns = bits.nonzero()
        return rows, columns, bits[rows, columns]
    part = slice(vectors.indptr[begin], vectors.indptr[end])
    bits, columns = _bits(vectors.data[part]), vectors.indices[part]
    rows = np.repeat(np.arange(end - begin), np.diff(vectors.indptr[begin : end + 1]))
    there = bits != 0
    return rows[there], columns[there], bits[there]


def _bits(values: np.ndarray) -> np.ndarray:
    bits: np.ndarray[Any, Any] = values.view(f"u{values.dtype.itemsize}")
    return bits


def _column_bytes(width: int) -> int:
    return 2 if width <= _NARROW else 4
