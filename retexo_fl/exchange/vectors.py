"""Blocks of vectors, dense or CSR, seen by the bits of their values: only +0.0 counts as zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange.block import BlockHeader

#: float32 or float64 ``[num_vectors, width]``: C-contiguous, or CSR with sorted column numbers.
Vectors: TypeAlias = npt.NDArray[Any] | sp.csr_array
Integers: TypeAlias = npt.NDArray[Any]

#: Values looked at in one go, so that scratch arrays stay in the cache. Chosen, not tuned.
_CHUNK_VALUES: Final = 2**18
#: A block is returned as CSR if less than one value in so many is not zero: CSR then takes less
#: than half of the dense memory (8 bytes per non-zero float32 against 4 per value).
VALUES_PER_NONZERO: Final = 4


def bits_of(values: npt.NDArray[Any]) -> Integers:
    """Return floats as unsigned integers of the same bits, without a copy."""
    return values.view(f"u{values.itemsize}")


def nonzero_mask(vectors: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a dense block holds anything but the bits of +0.0."""
    mask: npt.NDArray[np.bool_] = bits_of(vectors) != 0
    return mask


def count_nonzeros(vectors: Vectors) -> Integers:
    """Return the non-zero values of each vector.

    Args:
        vectors: Dense, or CSR without explicit zeros.

    Shapes:
        result: ``[num_vectors]`` int64.
    """
    if isinstance(vectors, sp.csr_array):
        per_row: Integers = np.diff(vectors.indptr).astype(np.int64)
        return per_row
    counts = np.zeros(len(vectors), dtype=np.int64)
    for first, end in row_batches(vectors):
        counts[first:end] = np.count_nonzero(nonzero_mask(vectors[first:end]), axis=1)
    return counts


def row_batches(vectors: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield first and end of rows that are looked at in one go: of none, nothing."""
    step = max(1, _CHUNK_VALUES // vectors.shape[1])
    for first in range(0, len(vectors), step):
        yield first, min(first + step, len(vectors))


def make_csr(
    values: npt.NDArray[Any], columns: Integers, counts: Integers, *, width: int
) -> sp.csr_array:
    """Build a CSR block from its non-zero values, their columns and their number per row."""
    index_dtype = sp.get_index_dtype(maxval=max(len(values), width))
    starts = np.zeros(len(counts) + 1, dtype=index_dtype)
    np.cumsum(counts, out=starts[1:])
    return sp.csr_array(
        (values, columns.astype(index_dtype, copy=False), starts),
        shape=(len(counts), width),
    )


def to_csr(vectors: Vectors) -> sp.csr_array:
    """Return the block as CSR with every bit kept, which ``csr_array(dense)`` does not: -0.0."""
    if isinstance(vectors, sp.csr_array):
        return vectors
    mask = nonzero_mask(vectors)
    places = np.flatnonzero(mask)
    values, columns = vectors.reshape(-1).take(places), places % vectors.shape[1]
    return make_csr(values, columns, mask.sum(axis=1), width=vectors.shape[1])


def to_dense(vectors: Vectors) -> npt.NDArray[Any]:
    """Return the block as an array with every bit kept, which ``toarray()`` does not: -0.0.

    Args:
        vectors: Dense, returned as it is, or CSR without duplicates.
    """
    if not isinstance(vectors, sp.csr_array):
        return vectors
    dense = np.zeros(vectors.shape, dtype=vectors.dtype)
    rows = np.repeat(np.arange(len(dense)), np.diff(vectors.indptr))
    dense.reshape(-1)[rows * vectors.shape[1] + vectors.indices] = vectors.data
    return dense


def slice_rows(vectors: Vectors, first: int, end: int) -> Vectors:
    """Return vectors ``first`` to ``end`` (exclusive) as a view."""
    if not isinstance(vectors, sp.csr_array):
        return vectors[first:end]
    starts = vectors.indptr[first : end + 1]
    part = slice(starts[0], starts[-1])
    return sp.csr_array(
        (vectors.data[part], vectors.indices[part], starts - starts[0]),
        shape=(end - first, vectors.shape[1]),
    )


def is_ascending(columns: Integers, counts: Integers) -> bool:
    """Return whether the column numbers of every row are strictly ascending.

    Shapes:
        columns: ``[num_nonzeros]``, counts: ``[num_rows]``.
    """
    rises = np.diff(columns) > 0
    ends = np.cumsum(counts)
    between = ends[(ends > 0) & (ends < len(columns))]
    rises[between - 1] = True
    return bool(rises.all())


def check_vectors(vectors: Vectors, header: BlockHeader) -> Vectors:
    """Check that vectors match their header and can be sent.

    Args:
        vectors: The block.
        header: Its identity.

    Returns:
        The block, without explicit zeros (+0.0) if it is CSR.

    Raises:
        LocalProtocolError: Shape or dtype differ from the header, a value is not finite, or CSR
            column numbers are out of range, unsorted or repeated.
    """
    if vectors.shape != (header.num_vectors, header.width) or vectors.dtype != header.dtype:
        raise LocalProtocolError(
            f"vectors are {vectors.dtype} {vectors.shape}, expected {header.dtype} "
            f"({header.num_vectors}, {header.width})"
        )
    return checked_rows(vectors)


def checked_rows(vectors: Vectors) -> Vectors:
    """Check that vectors can be sent.

    Returns:
        The vectors, without explicit zeros (+0.0) if they are CSR.

    Raises:
        LocalProtocolError: As :func:`check_vectors`.
    """
    if isinstance(vectors, sp.csr_array):
        return _checked_csr(vectors)
    for first, end in row_batches(vectors):
        finite = np.isfinite(vectors[first:end])
        if not finite.all():
            row = first + int(np.argmin(finite.all(axis=1)))
            raise LocalProtocolError(f"vector {row} holds NaN or infinity, expected finite values")
    return vectors


def _checked_csr(vectors: sp.csr_array) -> sp.csr_array:
    try:
        vectors.check_format(full_check=True)
    except ValueError as error:
        raise LocalProtocolError(f"vectors are not a CSR array: {error}") from error
    counts = count_nonzeros(vectors)
    if not is_ascending(vectors.indices, counts):
        raise LocalProtocolError("CSR column numbers must be sorted and unique in every row")
    finite = np.isfinite(vectors.data)
    if not finite.all():
        row = int(np.searchsorted(vectors.indptr, np.argmin(finite), side="right")) - 1
        raise LocalProtocolError(f"vector {row} holds NaN or infinity, expected finite values")
    nonzero = bits_of(vectors.data) != 0
    if nonzero.all():
        return vectors
    nonzero_before = np.concatenate(([0], np.cumsum(nonzero)))
    counts = np.diff(nonzero_before[vectors.indptr])
    return make_csr(vectors.data[nonzero], vectors.indices[nonzero], counts, width=vectors.shape[1])
