"""How many bytes blocks of rows take, without writing them.

The length of every coding of :mod:`.row_coding` is a sum over rows: of their non-zero values, of
the bytes of their counts and gaps, and of whether a row has one value only, or only ones. So each
row is looked at once, however many blocks it is in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from retexo_fl.exchange.levels import (
    count_nonzero_levels,
    level_bytes,
    nonzero_level_bytes,
)
from retexo_fl.exchange.row_coding import checked_bits, column_dtype, level_bits
from retexo_fl.exchange.vectors import Vectors, bits_of, row_batches, slice_rows, to_csr
from retexo_fl.packing import packed_bytes

_ESCAPE: Final = 255
_Counts = npt.NDArray[np.int64]


def one_frame_payloads(
    rows: Vectors, chosen: _Counts, ends: _Counts, *, codec: str, max_frame_bytes: int
) -> tuple[_Counts, bool] | None:
    """Return the payload of each of b blocks without loss, and whether all are levels instead.

    Args:
        rows: Dense, or CSR with sorted columns and no explicit zeros; all finite.
        chosen: The rows of all blocks, block after block.
        ends: Where each block ends among them.
        codec: One of :data:`.CODECS`, but ``grid8``.
        max_frame_bytes: Payload limit of a frame.

    Returns:
        None where a block takes more than one frame, or some are levels and others not.

    Raises:
        LocalProtocolError: Rows are not what the codec is for.

    Shapes:
        rows: ``[n, width]``, chosen: ``[z]``, ends: ``[b]``, result: ``[b]`` int64.
    """
    width, itemsize = rows.shape[1], rows.dtype.itemsize
    sizes = np.diff(ends, prepend=0)
    dense = sizes * (width * itemsize)
    if codec == "bits":
        checked_bits(rows)
        fits = dense.max(initial=0) <= max_frame_bytes
        return (packed_bytes(sizes * width, 1), False) if fits else None
    if codec == "dense":
        return (dense, False) if dense.max(initial=0) <= max_frame_bytes else None
    exact, plain = _exact_bytes(rows, chosen, ends)
    if codec == "lossless":
        fits = np.minimum(dense, plain).max(initial=0) <= max_frame_bytes
        return (exact, False) if fits else None
    if dense.max(initial=0) > max_frame_bytes:
        return None
    levels = level_bytes(1, width, level_bits(codec)) * sizes
    is_shorter = levels < exact
    if is_shorter.any() and not is_shorter[sizes > 0].all():
        return None
    return exact, bool(is_shorter.any())


def level_payloads(
    table: npt.NDArray[np.uint8], chosen: _Counts, ends: _Counts, *, width: int, bits: int
) -> _Counts:
    """Return the payload of each of b blocks of levels: of all, or of those that are not 0.

    Args:
        table: The rows, as :func:`~.levels.level_table` returns them.
        chosen: As for :func:`one_frame_payloads`.
        ends: As for :func:`one_frame_payloads`.
        width: Values per row.
        bits: Of a level.

    Shapes:
        table: ``[n, bytes]``, chosen: ``[z]``, ends: ``[b]``, result: ``[b]`` int64.
    """
    sizes = np.diff(ends, prepend=0)
    (nonzeros,) = _summed(count_nonzero_levels(table, width=width, bits=bits)[None], chosen, ends)
    all_levels = level_bytes(sizes, width, bits)
    payloads: _Counts = np.minimum(all_levels, nonzero_level_bytes(sizes, width, bits, nonzeros))
    return payloads


def _exact_bytes(rows: Vectors, chosen: _Counts, ends: _Counts) -> tuple[_Counts, _Counts]:
    """Return what each block takes in its shortest coding, and as COLUMNS with FULL values."""
    width = rows.shape[1]
    itemsize, column_bytes = rows.dtype.itemsize, column_dtype(width).itemsize
    none = np.zeros((6, 0), dtype=np.int64)
    terms = np.concatenate([none, *(_terms(part) for part in _batches(rows))], axis=1)
    nonzeros, count_bytes, gap_bytes, filled, mixed, not_ones = _summed(terms, chosen, ends)
    size = np.diff(ends, prepend=0)
    values = np.where(mixed > 0, nonzeros, np.where(not_ones > 0, filled, 0)) * itemsize
    exact = np.minimum.reduce(
        [
            size * (width * itemsize),
            size * -(-width // 8) + values,
            count_bytes + nonzeros * column_bytes + values,
            count_bytes + gap_bytes + values,
        ]
    )
    return exact, count_bytes + nonzeros * (column_bytes + itemsize)


def _batches(rows: Vectors) -> Iterator[sp.csr_array]:
    """Yield rows as CSR, a part of dense ones after the other."""
    if isinstance(rows, sp.csr_array):
        yield rows
        return
    for first, end in row_batches(rows):
        yield to_csr(slice_rows(rows, first, end))


def _terms(rows: sp.csr_array) -> _Counts:
    """Return (6, n) numbers that are added up over the rows of a block.

    Non-zero values; bytes of their count; bytes of their gaps; whether there are any; whether these
    differ; whether they are all the same, and not 1.
    """
    counts = np.diff(rows.indptr).astype(np.int64)
    terms = np.zeros((6, len(counts)), dtype=np.int64)
    terms[0], terms[1] = counts, 1 + counts // _ESCAPE
    terms[2] = counts
    filled = counts > 0
    terms[3] = filled
    if not len(rows.data):
        return terms
    begins, bits = rows.indptr[:-1][filled], bits_of(rows.data)
    first = bits[begins]
    terms[4, filled] = np.logical_or.reduceat(bits != np.repeat(first, counts[filled]), begins)
    terms[5, filled] = first != bits_of(np.ones(1, rows.dtype))
    if rows.shape[1] > _ESCAPE:
        gaps = np.diff(rows.indices, prepend=-1) - 1
        gaps[begins] = rows.indices[begins]
        terms[2, filled] += np.add.reduceat(gaps // _ESCAPE, begins)
    return terms


def _summed(terms: _Counts, chosen: _Counts, ends: _Counts) -> _Counts:
    """Return the (6, b) sums of terms over the rows of each block."""
    so_far = np.zeros((len(terms), len(chosen) + 1), dtype=np.int64)
    np.cumsum(terms[:, chosen], axis=1, out=so_far[:, 1:])
    return np.diff(so_far[:, ends], axis=1, prepend=0)
