"""What other libraries hold, as NumPy arrays: tensors and sparse matrices, known by their methods.

No library is imported for it: a caller with such an object has imported what it needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features


def as_array(value: Any) -> np.ndarray:
    """Return a dense tensor, an array or a list as an array."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    tensor = value.detach().cpu()
    # NumPy has no such type.
    tensor = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    array: np.ndarray = tensor.numpy()
    return array


def as_features(checks: ArrayChecks, name: str, value: Any) -> Features:
    """Return numbers of any type as float32, sparse ones without explicit zeros.

    Args:
        checks: Names the source in errors.
        name: Of the features.
        value: [N, F] array, dense or sparse tensor, or SciPy matrix.
    """
    sparse = _as_csr(value)
    values = as_array(value) if sparse is None else sparse
    if values.dtype.kind not in "fiub":
        checks.fail(name, f"got {values.dtype}; expected numbers")
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if isinstance(narrow, np.ndarray):
        return np.ascontiguousarray(narrow)
    narrow.sum_duplicates()
    narrow.eliminate_zeros()
    return narrow


def as_labels(checks: ArrayChecks, name: str, value: Any) -> np.ndarray:
    """Return classes as integers; NaN, as some libraries write it, is unlabelled.

    Args:
        checks: Names the source in errors.
        name: Of the labels.
        value: [N] or [N, 1] whole numbers, -1 for unlabelled.
    """
    labels = as_array(value)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        checks.fail(name, f"got shape {labels.shape}; expected one class for each node")
    if labels.dtype.kind != "f":
        return labels
    labels = np.where(np.isnan(labels), -1, labels)
    odd = np.flatnonzero(labels != np.trunc(labels))
    if len(odd):
        checks.fail(name, f"row {odd[0]} is {labels[odd[0]]}; expected whole numbers")
    return labels.astype(np.int64)


def _as_csr(value: Any) -> csr_array | None:
    """Return what is sparse as CSR, None for what is not."""
    if issparse(value):
        return csr_array(value)
    if str(getattr(value, "layout", "torch.strided")) == "torch.strided":
        return None
    tensor = value.detach().cpu().to_sparse_coo().coalesce()
    indices = tensor.indices().numpy()
    return csr_array((tensor.values().numpy(), (indices[0], indices[1])), shape=tuple(tensor.shape))
