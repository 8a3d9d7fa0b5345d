"""Sums of products to which each train node adds the same length, so that noise can hide it.

Symbols: n train nodes, D width of the rows that the last layer reads, F features, C classes. A
node's row is only a direction: it is scaled, by itself alone, so that what it adds has the
Euclidean length ``clip``, whatever it was. So sums with and without one node differ by ``clip``,
and no scale of rows has to be known. A row times a positive number has the same greatest score of
``row W``, so a direction is all that classes need; there is no constant beside it, and no bias.

What a node with the unit row u and the class y adds:

- to the products that a last layer is solved from, of the row r u, with e_y the indicator of y::

      upper triangle of r**2 u u'  (each value off the diagonal once),   r u e_y'

  whose squared length is ``r**4 (1 + sum u_i**4) / 2 + r**2``, since the squares of all of u u' are
  1 and those on the diagonal ``sum u_i**4``. It is ``clip**2`` for::

      r**2 = 2 clip**2 / (1 + sqrt(1 + 2 (1 + sum u_i**4) clip**2))

- to the first block of a basis, ``Z' Y``: ``clip u e_y'``; no mean is subtracted.
- to another one, ``Z' Z V``: ``clip u v'``, v the unit vector along u V.

Source: Sheffet, ICML 2017, for ridge regression by noise on its sums of products; Wang, UAI 2018,
algorithm 1, for the penalty that noise asks for.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.graph.features import Features
from retexo_fl.masking.step import SharedStep
from retexo_fl.training.judging import indicators
from retexo_fl.updates.masked import step_of

#: Of sums under masks: enough for noise, and for four million train nodes of each of 65 clients.
NOISED_SUM_BITS: Final = 48


def noised_step(clip: float, size: int) -> SharedStep:
    """Return what (size,) sums are multiples of, and the ring of their sums under masks.

    It follows from what one node adds alone.
    """
    return SharedStep(bits=NOISED_SUM_BITS, exponent=round(math.log2(step_of(clip, size))))


def clipped_values(width: int, classes: int) -> int:
    """Return how many values the products of a set of nodes have."""
    return width * (width + 1) // 2 + width * classes


def clipped_sums(
    train: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray],
    classes: int,
    clip: float,
) -> np.ndarray:
    """Return a client's products over its train nodes, over its validation nodes, and how many.

    Validation nodes are scaled likewise.

    Args:
        train: (n, D) rows of train nodes, and their labels.
        validation: The same of validation nodes.
        classes: C.
        clip: Length of what one node adds.

    Returns:
        Two times :func:`clipped_values`, and one, float64.
    """
    parts = [_products(*nodes, classes, clip) for nodes in (train, validation)]
    return np.concatenate([*parts, [float(len(validation[1]))]])


def clipped_label_products(
    rows: Features, labels: np.ndarray, classes: int, clip: float
) -> np.ndarray:
    """Return (F, C) float64 sums for the first block of a basis, of (n, F) rows with n labels."""
    return clip * _dense(_unit_rows(rows).T @ indicators(labels, classes))


def clipped_direction_sums(rows: Features, directions: np.ndarray, clip: float) -> np.ndarray:
    """Return (F, c) float64 sums for another one, of (n, F) rows and a block's (F, c) directions.

    A row that has nothing along them adds nothing.
    """
    unit = _unit_rows(rows)
    along = _unit_rows(_dense(unit @ directions.astype(np.float64)))
    assert isinstance(along, np.ndarray)
    return clip * _dense(unit.T @ along)


def clipped_rows(rows: np.ndarray, clip: float) -> np.ndarray:
    """Return the (n, D) float64 rows ``r u`` of nodes, scaled so that each adds ``clip``."""
    unit = _unit_rows(rows)
    assert isinstance(unit, np.ndarray)
    fourth = np.square(np.square(unit)).sum(axis=1)
    squares = 2 * clip**2 / (1 + np.sqrt(1 + 2 * (1 + fourth) * clip**2))
    scaled: np.ndarray = unit * np.sqrt(squares)[:, None]
    return scaled


def _products(rows: np.ndarray, labels: np.ndarray, classes: int, clip: float) -> np.ndarray:
    scaled = clipped_rows(rows, clip)
    upper = (scaled.T @ scaled)[np.triu_indices(scaled.shape[1])]
    return np.concatenate([upper, (scaled.T @ indicators(labels, classes)).reshape(-1)])


def _unit_rows(rows: Features) -> Features:
    """Return (n, F) float64 rows of length 1; zeros for one that has no direction."""
    if isinstance(rows, np.ndarray):
        wide = rows.astype(np.float64)
        largest = np.abs(wide).max(axis=1, initial=0.0)
        wide[~np.isfinite(largest)] = 0.0
        # Before squares, which must not overflow.
        wide /= _divisors(largest)[:, None]
        found: np.ndarray = wide / _divisors(np.linalg.norm(wide, axis=1))[:, None]
        return found
    sparse = csr_array(rows, dtype=np.float64, copy=True)
    count = sparse.shape[0]
    owners = np.repeat(np.arange(count), np.diff(sparse.indptr))
    wrong = np.bincount(owners[~np.isfinite(sparse.data)], minlength=count) > 0
    sparse.data[wrong[owners]] = 0.0
    largest = np.zeros(count)
    np.maximum.at(largest, owners, np.abs(sparse.data))
    sparse.data /= _divisors(largest)[owners]
    squares = np.bincount(owners, np.square(sparse.data), minlength=count)
    sparse.data /= _divisors(np.sqrt(squares))[owners]
    return sparse


def _divisors(lengths: np.ndarray) -> np.ndarray:
    """Return lengths to divide by: of nothing, and of what is not finite, 1."""
    return np.where(np.isfinite(lengths) & (lengths > 0), lengths, 1.0)


def _dense(product: object) -> np.ndarray:
    return np.asarray(product, dtype=np.float64)
