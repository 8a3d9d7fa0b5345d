"""Predicted bytes of vectors on the wire, from the description of the codings alone.

Shares no code with the codecs: counts stand here in closed form, for the rows of one frame with z
non-zero values of s bytes, of which row i has z_i, in a width of w::

    dense      rows * w * s
    bits       rows * ceil(w / 8)                              + values
    columns    sum(1 + z_i // 255) + z * (2, or 4 above 65,536) + values
    gaps       sum(1 + z_i // 255) + z + sum(gap // 255)        + values

``values`` takes nothing if all non-zeros are 1, s bytes for each row that is not empty if those of
every row are equal, else z s. A frame holds as many rows as fit its limit densely or as columns
with all values, whichever is more. Only the bits of +0 are no value.

``fixed`` writes them likewise, once they are multiples of 2**-e, with the largest e at which none
of a sender's has more than 2**24 of them; what rounds to 0 is not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph import BoundaryPlan, GraphPartition, normalise_features
from retexo_fl.graph.features import Features
from retexo_fl.training.sent_rows import sent_rows

_ESCAPED: Final = 255
_NARROW: Final = 65_536
_MOST_STEPS: Final = 2**24
_FINEST: Final = 126
#: Values looked at in one go.
_CHUNK_VALUES: Final = 2**22


def sent_features(
    part: GraphPartition, plan: BoundaryPlan, *, model: str, normalisation: str, dtype: str
) -> Iterator[Features]:
    """Yield what a client sends to each peer before the first layer is trained.

    Args:
        part: The client's part.
        plan: Its plan.
        model: Layer, which may ask for scaled rows.
        normalisation: ``feature-normalisation``.
        dtype: ``dtype``.
    """
    features = normalise_features(part.features, normalisation).astype(dtype)
    features = sent_rows(model, part.degrees, features)
    for peer in plan.peers:
        yield peer.send.gather(features)


def rounded_features(sent: Sequence[Features]) -> list[Features]:
    """Return what the codec ``fixed`` makes of all that one client sends, in :func:`sent_features`.

    Of magnitudes that float32 holds.
    """
    flat = [features if isinstance(features, np.ndarray) else features.data for features in sent]
    largest = max((float(np.abs(values).max(initial=0.0)) for values in flat), default=0.0)
    finest = _FINEST
    while round(largest * 2.0**finest) > _MOST_STEPS:
        finest -= 1
    return [_rounded(features, 2.0**finest) for features in sent]


def lossless_bytes(vectors: Features, *, frame_bytes: int) -> int:
    """Return the payload of one block under the codec ``lossless``.

    Args:
        vectors: [v, w] float32 or float64, dense or CSR with sorted columns.
        frame_bytes: Limit of a frame.
    """
    width, item = vectors.shape[1], vectors.dtype.itemsize
    counts = _nonzeros_by_row(vectors)
    return sum(
        _frame_bytes(*_rows(vectors, begin, end), width=width, item=item)
        for begin, end in pairwise(_frame_ends(counts, width, item, frame_bytes))
    )


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


def _rows(vectors: Features, begin: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the (rows,) counts, and (z,) columns and bits of the non-zeros of some rows."""
    if isinstance(vectors, np.ndarray):
        bits = _bits(vectors[begin:end])
        rows, columns = bits.nonzero()
        return np.bincount(rows, minlength=end - begin), columns, bits[rows, columns]
    part = slice(vectors.indptr[begin], vectors.indptr[end])
    bits, columns = _bits(vectors.data[part]), vectors.indices[part]
    rows = np.repeat(np.arange(end - begin), np.diff(vectors.indptr[begin : end + 1]))
    there = bits != 0
    return np.bincount(rows[there], minlength=end - begin), columns[there], bits[there]


def _frame_bytes(
    counts: np.ndarray, columns: np.ndarray, bits: np.ndarray, *, width: int, item: int
) -> int:
    rows, nonzeros = len(counts), len(columns)
    values = _value_bytes(counts, bits, item)
    lengths = rows + int((counts // _ESCAPED).sum())
    starts = counts.cumsum() - counts
    skipped = np.diff(columns.astype(np.int64), prepend=-1) - 1
    first = starts[counts > 0]
    skipped[first] = columns[first]
    return min(
        rows * width * item,
        rows * ((width + 7) // 8) + values,
        lengths + nonzeros * _column_bytes(width) + values,
        lengths + nonzeros + int((skipped // _ESCAPED).sum()) + values,
    )


def _value_bytes(counts: np.ndarray, bits: np.ndarray, item: int) -> int:
    filled = counts[counts > 0]
    if not len(filled):
        return 0
    starts = filled.cumsum() - filled
    least, most = np.minimum.reduceat(bits, starts), np.maximum.reduceat(bits, starts)
    if (least != most).any():
        return item * len(bits)
    one = np.ones(1, dtype=f"f{item}").view(bits.dtype)[0]
    return 0 if (least == one).all() else item * len(filled)


def _nonzeros_by_row(vectors: Features) -> np.ndarray:
    rows = max(1, _CHUNK_VALUES // vectors.shape[1])
    counted = [
        _rows(vectors, begin, min(begin + rows, vectors.shape[0]))[0]
        for begin in range(0, vectors.shape[0], rows)
    ]
    return np.concatenate(counted) if counted else np.zeros(0, dtype=np.int64)


def _bits(values: np.ndarray) -> np.ndarray:
    bits: np.ndarray[Any, Any] = values.view(f"u{values.dtype.itemsize}")
    return bits


def _column_bytes(width: int) -> int:
    return 2 if width <= _NARROW else 4
