"""Feature matrices, dense or sparse, and their scaling."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.errors import ConfigurationError

#: [N, F] floats: a C-contiguous array, or CSR with sorted columns.
Features: TypeAlias = np.ndarray | csr_array


def normalise_features(features: Features, how: str) -> Features:
    """Scale each row by itself, so that clients scale alike however the graph is split.

    Args:
        features: [N, F] floats.
        how: ``none``; ``row`` divides a row by the sum of its absolute values, which for the usual
            non-negative features makes it sum to one; ``l2`` by its Euclidean length. A row of
            zeros stays as it is.

    Returns:
        Of the same kind and dtype; the input itself for ``none``.

    Raises:
        ConfigurationError: There is no such scaling.
    """
    if how == "none":
        return features
    if how not in ("row", "l2"):
        raise ConfigurationError(
            f"feature-normalisation: got {how!r}; expected one of none, row, l2"
        )
    factors = _inverse(_row_norms(features, how))
    if isinstance(features, np.ndarray):
        scaled: np.ndarray = (features * factors[:, None]).astype(features.dtype)
        return scaled
    data = features.data * np.repeat(factors, np.diff(features.indptr))
    return csr_array(
        (data.astype(features.dtype), features.indices, features.indptr), shape=features.shape
    )


def _row_norms(features: Features, how: str) -> np.ndarray:
    """Return the (N,) float64 sums of absolute values, or Euclidean lengths."""
    values = features if isinstance(features, np.ndarray) else features.data
    weights = np.abs(values.astype(np.float64)) ** (2 if how == "l2" else 1)
    if isinstance(features, np.ndarray):
        sums: np.ndarray = weights.sum(axis=1)
    else:
        # A zero is added to each row, since reduceat has no empty segments.
        counts = np.diff(features.indptr)
        padded = np.zeros(len(weights) + len(counts))
        rows = np.repeat(np.arange(len(counts)), counts)
        padded[np.arange(len(weights)) + rows] = weights
        sums = np.add.reduceat(padded, features.indptr[:-1] + np.arange(len(counts)))
    return np.sqrt(sums) if how == "l2" else sums


def _inverse(norms: np.ndarray) -> np.ndarray:
    inverse = np.ones_like(norms)
    np.divide(1.0, norms, out=inverse, where=norms > 0)
    return inverse
