"""The arrays of a ``.npz`` data set, as converters make them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks

#: By name, as the room's README documents them.
Arrays: TypeAlias = dict[str, np.ndarray]


def once_undirected(ends: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return each edge once, without direction and self loops.

    Args:
        ends: [2, n] integers from 0 to N - 1, in any order and direction, also more than once.
        num_nodes: N.

    Returns:
        [2, E] int32, smaller end first, sorted.
    """
    low, high = ends.min(axis=0).astype(np.int64), ends.max(axis=0).astype(np.int64)
    codes = np.unique((low * num_nodes + high)[low != high])
    return np.stack((codes // num_nodes, codes % num_nodes)).astype(np.int32)


def ascending(source: str, parts: Mapping[str, np.ndarray], num_columns: int) -> csr_array:
    """Return a CSR matrix from parts that may be out of order; SciPy would trust them.

    Args:
        source: Where the parts come from, for errors.
        parts: ``indptr`` [n + 1] and ``indices`` [z] integers, ``data`` [z] numbers.
        num_columns: Width of the matrix.

    Returns:
        [n, F] float32, columns ascending in each row.

    Raises:
        DatasetError: A part is not as described, or a row has a column twice.
    """
    checks = ArrayChecks(source=source, error=DatasetError)
    indptr, indices = parts["indptr"], parts["indices"]
    checks.form("indptr", indptr, kinds="iu", shape=(None,))
    checks.form("indices", indices, kinds="iu", shape=(None,))
    if parts["data"].shape != indices.shape or parts["data"].dtype.kind not in "fiub":
        checks.fail("data", f"got {parts['data'].dtype} of {parts['data'].shape}; expected numbers")
    if not len(indptr):
        checks.fail("indptr", "is empty; expected row offsets")
    checks.offsets("indptr", indptr, num_entries=len(indices))
    if len(indices) and (indices.min() < 0 or indices.max() >= num_columns):
        checks.fail("indices", f"runs to {indices.max()}; expected 0 to {num_columns - 1}")
    order = np.lexsort((indices, entry_rows(indptr)))
    in_order = {
        "indptr": indptr.astype(np.int32),
        "indices": indices[order].astype(np.int32),
        "data": parts["data"][order].astype(np.float32),
    }
    return checks.sparse_features("features", in_order, num_columns=num_columns)


def entry_rows(indptr: np.ndarray) -> np.ndarray:
    """Return the [z] row of each entry of a CSR matrix with checked offsets."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def sparse_parts(features: csr_array, prefix: str = "x") -> Arrays:
    """Return the parts of a [N, F] CSR matrix, without stored zeros."""
    kept = features.copy()
    kept.eliminate_zeros()
    return {
        f"{prefix}_indptr": kept.indptr.astype(np.int32),
        f"{prefix}_indices": kept.indices.astype(np.int32),
        f"{prefix}_data": kept.data.astype(np.float32),
        f"{prefix}_shape": np.array(kept.shape, dtype=np.int64),
    }


def npz_content(arrays: Arrays) -> bytes:
    """Return the content of a compressed ``.npz`` file; equal arrays give equal bytes."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()
