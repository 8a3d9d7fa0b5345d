"""What other libraries hold, as NumPy arrays: tensors, sparse matrices and columns of tables.

No library is imported for it: a caller with such an object has imported what it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
from scipy.sparse import csr_array, issparse

from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.features import Features
from retexo_fl.graph.labels import REGRESSION, LabelKind

#: Types of a missing value, beside None and NaN; pandas has them.
_ABSENT: Final = frozenset(("NAType", "NaTType"))


def as_array(value: Any) -> np.ndarray:
    """Return a tensor, an array, a column or a list as a dense array."""
    if issparse(value):
        return np.asarray(value.toarray())
    if not hasattr(value, "detach"):
        try:
            return np.asarray(value)
        except ValueError:
            # Rows of different lengths: an array of what no check takes.
            rows = np.empty(len(value), dtype=object)
            rows[:] = list(value)
            return rows
    tensor = value.detach().cpu()
    tensor = tensor if _is_dense(tensor) else tensor.to_dense()
    # NumPy has no such type.
    tensor = tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor
    array: np.ndarray = tensor.resolve_conj().resolve_neg().numpy()
    return array


def as_numbers(
    checks: ArrayChecks, name: str, value: Any, *, place: Callable[[int], str] | None = None
) -> np.ndarray:
    """Return numbers of any type: floats, integers or booleans in this machine's byte order.

    Args:
        checks: Names the source in errors.
        name: Of the numbers.
        value: An array or something like it; of Python's objects, numbers, and None, NaN or NA for
            what is absent, which becomes NaN.
        place: Says where a row is; None for its number.

    Raises:
        InputError: It holds anything else, such as complex numbers, dates or text.
    """
    values = as_array(value)
    if values.dtype.kind == "O":
        values = _of_objects(checks, name, values, place or _row)
    if values.dtype.kind not in "fiub":
        checks.fail(name, f"got {_kind_of(values)}; expected numbers")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def as_features(checks: ArrayChecks, name: str, value: Any) -> Features:
    """Return numbers of any type as float32, sparse ones without explicit zeros.

    Args:
        checks: Names the source in errors.
        name: Of the features.
        value: [N, F] array, dense or sparse tensor, or SciPy matrix of any format.
    """
    sparse = as_csr(value)
    if sparse is None:
        narrow = as_numbers(checks, name, value)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(narrow, dtype=np.float32)
    if sparse.dtype == np.float32 and sparse.has_canonical_format and sparse.data.all():
        return sparse
    values = as_numbers(checks, name, sparse.data)
    with np.errstate(over="ignore"):
        tidy = csr_array((values, sparse.indices, sparse.indptr), sparse.shape).astype(np.float32)
    tidy.sum_duplicates()
    tidy.eliminate_zeros()
    return tidy


def as_labels(
    checks: ArrayChecks,
    name: str,
    value: Any,
    kind: LabelKind,
    *,
    place: Callable[[int], str] | None = None,
) -> np.ndarray:
    """Return labels in a form of :mod:`~retexo_fl.graph.labels`, or [N] text: names of classes.

    Args:
        checks: Names the source in errors.
        name: Of the labels.
        value: [N] or [N, 1] whole numbers, booleans or text, -1, NaN, None or nothing for
            unlabelled; [N, L] for several labels; [N] or [N, 1] numbers, NaN or None for none, for
            a regression.
        kind: What they are.
        place: Says where a row is; None for its number.
    """
    place = place or _row
    labels = as_array(value)
    if labels.ndim == 2 and labels.shape[1] == 1 and kind.ndim == 1:
        labels = labels[:, 0]
    if labels.ndim != kind.ndim:
        columns = ", label-column NUMBER for one of the columns" * (labels.ndim == 2)
        checks.fail(
            name,
            f"got shape {labels.shape}; expected {kind.what} with task {kind.name}{columns}, or "
            "another task",
        )
    if kind.are_classes and _is_text(labels):
        return _texts(checks, name, labels, place)
    numbers = as_numbers(checks, name, labels, place=place)
    if np.issubdtype(kind.dtype, np.floating):
        return numbers.astype(kind.dtype)
    if numbers.dtype.kind == "b":
        return numbers.astype(np.int8)
    if numbers.dtype.kind != "f":
        return numbers
    numbers = np.where(np.isnan(numbers), -1, numbers)
    odd = np.argwhere((numbers != np.trunc(numbers)) | (np.abs(numbers) >= 2.0**62))
    if len(odd):
        checks.fail(
            name,
            f"{place(int(odd[0][0]))} is {numbers[tuple(odd[0])]}; expected whole numbers, or task "
            f"{REGRESSION.name}",
        )
    return numbers.astype(np.int64)


def as_csr(value: Any) -> csr_array | None:
    """Return what is sparse, of SciPy, torch or torch_sparse, as CSR; None for what is not.

    What is there twice is added up.
    """
    if issparse(value):
        return _canonical(csr_array(value.astype(value.dtype.newbyteorder("="))))
    if hasattr(value, "sparse_sizes") and hasattr(value, "coo"):
        rows, columns, values = value.coo()
        rows, columns = as_array(rows), as_array(columns)
        data = np.ones(len(rows), dtype=np.float32) if values is None else _wide(values)
        return csr_array((data, (rows, columns)), shape=tuple(value.sparse_sizes()))
    if not hasattr(value, "detach") or _is_dense(value):
        return None
    tensor = value.detach().cpu().to_sparse_coo().coalesce()
    indices = tensor.indices().numpy()
    if len(indices) != 2 or tensor.dense_dim():
        return None
    return csr_array((_wide(tensor.values()), (indices[0], indices[1])), shape=tuple(tensor.shape))


def _canonical(matrix: csr_array) -> csr_array:
    """Return a matrix with each entry once, columns ascending; the given one stays as it is."""
    if matrix.has_canonical_format:
        return matrix
    matrix = matrix.copy()
    matrix.sum_duplicates()
    return matrix


def _wide(values: Any) -> np.ndarray:
    """Return values in a type that SciPy's matrices can have."""
    array = as_array(values)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def is_absent(value: Any) -> bool:
    """Return whether a value means nothing: None, NaN, NaT or NA."""
    if value is None or type(value).__name__ in _ABSENT:
        return True
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    return isinstance(value, float | np.floating) and math.isnan(value)


def _is_dense(tensor: Any) -> bool:
    return str(getattr(tensor, "layout", "torch.strided")) == "torch.strided"


def _row(row: int) -> str:
    return f"row {row}"


def _kind_of(values: np.ndarray) -> str:
    kinds = {"M": "dates", "m": "durations", "U": "text", "S": "text", "c": "complex numbers"}
    kind = kinds.get(values.dtype.kind)
    return f"{values.dtype}" if kind is None else f"{kind} ({values.dtype})"


def _is_text(labels: np.ndarray) -> bool:
    if labels.dtype.kind != "O":
        return labels.dtype.kind in "US"
    return any(isinstance(label, str | bytes) for label in labels.tolist())


def _texts(
    checks: ArrayChecks, name: str, labels: np.ndarray, place: Callable[[int], str]
) -> np.ndarray:
    texts = ["" if is_absent(label) else label for label in labels.tolist()]
    texts = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in texts]
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            checks.fail(name, f"{place(row)} is {text!r:.60}; expected text in all rows, or none")
    return np.array(texts, dtype=np.str_)


def _of_objects(
    checks: ArrayChecks, name: str, values: np.ndarray, place: Callable[[int], str]
) -> np.ndarray:
    """Return numbers that Python's objects are: as they are typed where nothing is absent."""
    flat = [_number(value) for value in values.reshape(-1).tolist()]
    width = values.size // len(values) if len(values) else 1
    for at, (number, value) in enumerate(zip(flat, values.reshape(-1).tolist(), strict=True)):
        if number is None:
            checks.fail(name, f"{place(at // width)} is {value!r:.60}; expected numbers")
    try:
        found = np.array(flat)
    except OverflowError:
        found = np.array(flat, dtype=np.float64)
    if found.dtype.kind == "O":
        found = found.astype(np.float64)
    return found.reshape(values.shape)


def _number(value: Any) -> float | int | bool | None:
    """Return a number as Python has it, NaN for what is absent, None for anything else."""
    if is_absent(value):
        return float("nan")
    if hasattr(value, "detach") or isinstance(value, np.generic | np.ndarray):
        value = as_array(value)
        value = value.item() if value.shape == () else value
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, bool | int | float) else None
