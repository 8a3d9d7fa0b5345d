"""Sums of floats that are exact until they are rounded once, whatever their order and grouping.

A sum is kept as several float64 values that together are exactly it; each addition passes on the
error of the one before. So peers' vectors may be added one by one, in any order, or some of them
elsewhere: the bits of the result are the same. Holds while no sum overflows a float64 and no value
is below its normal range; fixed-point vectors are far from both.

Source: Shewchuk, Adaptive Precision Floating-Point Arithmetic and Fast Robust Geometric Predicates
(1997), theorem 10 (expansions); Boldo and Melquiond, Emulation of FMA and Correctly Rounded Sums:
Proved Algorithms Using Rounding to Odd (2008), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from retexo_fl.exchange.vectors import Vectors, slice_rows, to_csr, to_dense

#: Values summed in one go, so that scratch arrays stay in the cache. Chosen, not tuned.
_CHUNK_VALUES: Final = 2**17

_Floats = npt.NDArray[np.float64]


def exact_total(
    parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[Any]:
    """Add arrays value by value; each sum is the exact one, rounded once to the nearest.

    Args:
        parts: At least one, all of one shape; float32 or float64, finite. Float64 values that are
            sums of others (integers of one exponent, added elsewhere) must be exact.
        dtype: ``float32`` or ``float64``.

    Returns:
        The sums, of the parts' shape; a sum of zero is +0.0.
    """
    expansion = _Expansion(np.array(parts[0], dtype=np.float64))
    for part in parts[1:]:
        expansion.add(part)
    return expansion.rounded(dtype)


def sum_shared(parts: Sequence[Vectors], targets: Sequence[np.ndarray]) -> list[Vectors]:
    """Put the sum of vectors with one target in the place of the first of them, zeros elsewhere.

    Whoever adds the vectors of a target afterwards gets their exact sum, rounded once.

    Args:
        parts: Vectors by sender, all of one width and dtype; they are left as they are.
        targets: Of each part, the number of what each of its vectors is only ever added to, or -1
            where it is read by itself.

    Returns:
        As many parts: CSR where all are, else dense; the parts themselves where no two vectors
        have one target.

    Shapes:
        parts: ``[num_vectors, width]`` each, targets: ``[num_vectors]`` int64 each.
    """
    groups = _Groups.of(np.concatenate([*targets, np.zeros(0, dtype=np.int64)]))
    if not groups.count:
        return list(parts)
    ends = [0, *accumulate(part.shape[0] for part in parts)]
    if all(isinstance(part, sp.csr_array) for part in parts):
        whole = _summed_sparse(sp.csr_array(sp.vstack(parts, format="csr")), groups)
    else:
        whole = _summed_dense(np.concatenate([to_dense(part) for part in parts]), groups)
    return [slice_rows(whole, first, end) for first, end in pairwise(ends)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Groups:
    """Vectors that share a target with another one, the largest groups first.

    Attributes:
        places: [m] int64 numbers of these vectors, group by group, ascending within each.
        starts: [g] int64 where each group begins in ``places``.
        sizes: [g] int64, at least 2, descending.
    """

    places: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, targets: np.ndarray) -> Self:
        """Find them among all vectors' targets."""
        places = np.flatnonzero(targets >= 0)
        places = places[targets[places].argsort(kind="stable")]
        _, starts, sizes = np.unique(targets[places], return_index=True, return_counts=True)
        order = (-sizes).argsort(kind="stable")
        order = order[: np.count_nonzero(sizes > 1)]
        return cls(places=places, starts=starts[order], sizes=sizes[order])

    @property
    def count(self) -> int:
        """Number of groups: g."""
        return len(self.sizes)

    @property
    def firsts(self) -> np.ndarray:
        """[g] int64 the lowest vector of each group."""
        firsts: np.ndarray = self.places[self.starts]
        return firsts

    @property
    def members(self) -> np.ndarray:
        """[m'] int64 all vectors of the groups."""
        within = np.arange(self.sizes.sum()) - np.repeat(
            np.cumsum(self.sizes) - self.sizes, self.sizes
        )
        members: np.ndarray = self.places[np.repeat(self.starts, self.sizes) + within]
        return members

    def sums(self, vectors: Vectors) -> Iterator[npt.NDArray[Any]]:
        """Yield the sums of all groups in their order, some at a time."""
        step = max(1, _CHUNK_VALUES // vectors.shape[1])
        for begin in range(0, self.count, step):
            starts, sizes = self.starts[begin : begin + step], self.sizes[begin : begin + step]
            expansion = _Expansion(to_dense(vectors[self.places[starts]]).astype(np.float64))
            for rank in range(1, int(sizes[0])):
                # Sizes descend: the groups that have so many vectors come first.
                there = int(np.count_nonzero(sizes > rank))
                expansion.add(to_dense(vectors[self.places[starts[:there] + rank]]))
            yield expansion.rounded(vectors.dtype)


def _summed_dense(whole: npt.NDArray[Any], groups: _Groups) -> npt.NDArray[Any]:
    """Sum in place, in an array that has no other user."""
    sums = np.concatenate(list(groups.sums(whole)))
    whole[groups.members] = 0
    whole[groups.firsts] = sums
    return whole


def _summed_sparse(whole: sp.csr_array, groups: _Groups) -> sp.csr_array:
    sums = [to_csr(part) for part in groups.sums(whole)]
    nothing = sp.csr_array((1, whole.shape[1]), dtype=whole.dtype)
    num_vectors = whole.shape[0]
    chosen = np.arange(num_vectors)
    chosen[groups.members] = num_vectors + groups.count
    chosen[groups.firsts] = num_vectors + np.arange(groups.count)
    return sp.csr_array(sp.vstack([whole, *sums, nothing], format="csr")[chosen])


class _Expansion:
    """Sums as float64 components, which together are exactly the sums."""

    def __init__(self, values: _Floats) -> None:
        """Begin with values, in an array that may be changed."""
        self._components = [values]

    def add(self, values: npt.NDArray[Any]) -> None:
        """Add values to as many of the sums, from the first on."""
        there, rest = len(values), np.asarray(values, dtype=np.float64)
        for component in self._components:
            sums, rest = _two_sum(component[:there], rest)
            component[:there] = sums
            if not rest.any():
                return
        component = np.zeros_like(self._components[0])
        component[:there] = rest
        self._components.append(component)

    def rounded(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return each sum, rounded to the nearest value of ``dtype``, ties to even."""
        # Adding +0.0 turns -0.0 into it.
        if len(self._components) == 1:
            return self._components[0].astype(dtype) + np.zeros(1, dtype=dtype)
        high, low, below = _leading(_apart(self._components))
        if np.dtype(dtype) == np.float64:
            return _away_from_tie(high, low, below) + 0.0
        return _to_odd(high, low).astype(dtype) + np.zeros(1, dtype=dtype)


def _two_sum(one: _Floats, other: _Floats) -> tuple[_Floats, _Floats]:
    """Return the rounded sum and its error (Knuth's TwoSum); together they are exact."""
    total = one + other
    part = total - one
    return total, (one - (total - part)) + (other - part)


def _apart(components: list[_Floats]) -> list[_Floats]:
    """Return components of the same sums that do not overlap, the smallest first."""
    separate: list[_Floats] = []
    for component in components:
        rest, grown = component, []
        for smaller in separate:
            rest, error = _two_sum(rest, smaller)
            grown.append(error)
        separate = [*grown, rest]
    return separate


def _leading(components: list[_Floats]) -> tuple[_Floats, _Floats, _Floats]:
    """Return the rounded sums, the largest part of what they lack, and the largest below that.

    All that is below is less than the middle one.
    """
    high = components[-1]
    low, below = np.zeros_like(high), np.zeros_like(high)
    for component in reversed(components[:-1]):
        is_whole = low == 0
        total, error = _two_sum(high, component)
        below = np.where(~is_whole & (below == 0), component, below)
        low = np.where(is_whole, error, low)
        high = np.where(is_whole, total, high)
    return high, low, below


def _away_from_tie(high: _Floats, low: _Floats, below: _Floats) -> _Floats:
    """Correct sums that were rounded as if they lay in the middle of two floats."""
    other = high + 2 * low
    is_tie = (other - high == 2 * low) & (low * below > 0)
    return np.where(is_tie, other, high)


def _to_odd(high: _Floats, low: _Floats) -> _Floats:
    """Return an inexact sum's neighbour with an odd last bit, which rounds as the sum does.

    Rounding to fewer than 52 bits cannot take it for a tie.
    """
    is_even = (np.ascontiguousarray(high).view(np.int64) & 1) == 0
    towards = np.copysign(np.inf, low)
    return np.where((low != 0) & is_even, np.nextafter(high, towards), high)
