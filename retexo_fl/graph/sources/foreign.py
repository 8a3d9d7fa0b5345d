"""What other libraries hold, as NumPy arrays: tensors and sparse matrices, known by their methods.

No library is imported for it: a caller with such an object has imported what it needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features
from retexo_fl.graph.labels import KINDS, MULTI_LABEL, REGRESSION


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


def as_labels(checks: ArrayChecks, name: str, value: Any, task: str) -> np.ndarray:
    """Return labels in a form of :mod:`~retexo_fl.graph.labels`.

    Args:
        checks: Names the source in errors.
        name: Of the labels.
        value: [N] or [N, 1] whole numbers, -1 or NaN for unlabelled; [N, L] for several labels;
            [N] or [N, 1] numbers, NaN for none, for a regression.
        task: What they are for.
    """
    labels = as_array(value)
    if labels.ndim == 2 and labels.shape[1] == 1 and task != MULTI_LABEL:
        labels = labels[:, 0]
    if labels.ndim != (2 if task == MULTI_LABEL else 1):
        checks.fail(
            name, f"got shape {labels.shape}; expected {KINDS[task]} with task {task}, or another"
        )
    if task == REGRESSION:
        if labels.dtype.kind not in "iuf":
            checks.fail(name, f"got {labels.dtype}; expected numbers")
        return labels.astype(np.float64)
    if labels.dtype.kind == "b":
        return labels.astype(np.int8)
    if labels.dtype.kind != "f":
        return labels
    labels = np.where(np.isnan(labels), -1, labels)
    odd = np.argwhere(labels != np.trunc(labels))
    if len(odd):
        row = odd[0][0]
        checks.fail(name, f"row {row} is {labels[row]}; expected whole numbers")
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
