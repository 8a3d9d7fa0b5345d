"""Dropout whose mask depends on what is dropped, never on where or in which order it is computed.

A value is kept or dropped by a hash of (seed, stage, round, step, node, column); attention by
(source, target, head) in the node's place. So any number of clients, batches and threads drops the
same values, and P partitions train the weights of one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch

from retexo_fl.layers.sparse import SparsePattern, SparseRows

#: Multipliers of the 32-bit finaliser "lowbias32" (C. Wellons, hash prospector, 2018).
_MULTIPLIER_1: Final = np.uint32(0x7FEB352D)
_MULTIPLIER_2: Final = np.uint32(0x846CA68B)
#: Keys mixed at once: three passes over 256 KiB stay in the cache, which makes the mask ten times
#: cheaper than whole-array passes (20,000 x 256: 354 ms to 30 ms).
_KEYS_PER_CHUNK: Final = 2**16
#: Odd 64-bit constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, figure 14).
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryKeys:
    """What the masks of a sparse matrix share in all rounds.

    Attributes:
        counts: (R,) entries of each row.
        column_keys: (Z,) uint32 key of each entry's column.
    """

    counts: np.ndarray
    column_keys: np.ndarray

    @classmethod
    def of(cls, pattern: SparsePattern) -> Self:
        """Look up the key of each entry."""
        width = pattern.column_indptr.numel() - 1
        return cls(
            counts=np.diff(pattern.indptr.numpy()),
            column_keys=_column_keys(np.arange(width)).take(pattern.columns.numpy()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedDropout:
    """Inverted dropout at ``rate``, keyed by what it is for.

    Attributes:
        rate: Share of values dropped, in [0, 1); the others are divided by ``1 - rate``.
        seed: Seed of the training.
        stage: Stage index.
        round: Round of the stage, from 1.
        step: Local step of the round, from 0.
    """

    rate: float
    seed: int
    stage: int
    round: int
    step: int = 0

    def dense(self, rows: torch.Tensor, hashes: np.ndarray) -> torch.Tensor:
        """Drop values of (R, D) ``rows``; ``hashes`` is (R,) uint64, one for each node."""
        if self.rate == 0:
            return rows
        row_keys = self._row_keys(hashes, "values")
        column_keys = _column_keys(np.arange(rows.shape[1]))
        factors = torch.empty_like(rows)
        height = max(1, _KEYS_PER_CHUNK // max(1, rows.shape[1]))
        for start in range(0, len(rows), height):
            part = slice(start, start + height)
            self._fill(factors.numpy()[part], row_keys[part, None] + column_keys)
        return factors.mul_(rows)

    def sparse(self, rows: SparseRows, hashes: np.ndarray) -> torch.Tensor:
        """Return the (Z,) values of ``rows`` after dropout; drops what :meth:`dense` drops."""
        if self.rate == 0:
            return rows.values
        entries = EntryKeys.of(rows.pattern)
        factors = np.empty(rows.values.numel(), dtype=rows.values.numpy().dtype)
        self.fill_sparse(factors, entries, hashes)
        return torch.from_numpy(factors).mul_(rows.values)

    def fill_sparse(self, factors: np.ndarray, entries: EntryKeys, hashes: np.ndarray) -> None:
        """Write each entry's factor, 0 (dropped) or ``1 / (1 - rate)``, into (Z,) ``factors``."""
        # Entries stand row by row, so repeating replaces the slower look-up of each row's key.
        keys = np.repeat(self._row_keys(hashes, "values"), entries.counts)
        keys += entries.column_keys
        self._fill_chunks(factors, keys)

    def attention(
        self, weights: torch.Tensor, sources: np.ndarray, targets: np.ndarray
    ) -> torch.Tensor:
        """Drop (E, heads) attention ``weights`` of edges with (E,) uint64 end hashes."""
        if self.rate == 0:
            return weights
        with np.errstate(over="ignore"):
            edges = splitmix(sources) + _GAMMA * splitmix(targets ^ _MIX_1)
        heads = _column_keys(np.arange(weights.shape[1]))
        keys = self._row_keys(edges, "attention")[:, None] + heads
        return weights * self._factors(keys, weights.dtype)

    def _row_keys(self, hashes: np.ndarray, purpose: str) -> np.ndarray:
        text = f"{self.seed}/{self.stage}/{self.round}/{self.step}/{purpose}"
        stream = hashlib.blake2b(text.encode(), digest_size=8).digest()
        mixed = splitmix(hashes ^ np.frombuffer(stream, dtype="<u8"))
        return (mixed >> np.uint64(32)).astype(np.uint32)

    def _factors(self, keys: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        factors = torch.empty(keys.shape, dtype=dtype)
        self._fill_chunks(factors.view(-1).numpy(), keys.reshape(-1))
        return factors

    def _fill_chunks(self, factors: np.ndarray, keys: np.ndarray) -> None:
        for start in range(0, len(factors), _KEYS_PER_CHUNK):
            part = slice(start, start + _KEYS_PER_CHUNK)
            self._fill(factors[part], keys[part])

    def _fill(self, factors: np.ndarray, keys: np.ndarray) -> None:
        """Write 0 (dropped) or 1 / (1 - rate); ``keys`` is used up."""
        kept = _finalise(keys) >= np.uint32(self.rate * 2**32)
        np.multiply(kept, factors.dtype.type(1.0 / (1.0 - self.rate)), out=factors)


def _column_keys(columns: np.ndarray) -> np.ndarray:
    return _finalise((columns.astype(np.uint32) + np.uint32(1)) * _MULTIPLIER_1)


def _finalise(keys: np.ndarray) -> np.ndarray:
    """Mix uint32 keys in place."""
    shifted = keys >> np.uint32(16)
    keys ^= shifted
    keys *= _MULTIPLIER_1
    np.right_shift(keys, np.uint32(15), out=shifted)
    keys ^= shifted
    keys *= _MULTIPLIER_2
    np.right_shift(keys, np.uint32(16), out=shifted)
    keys ^= shifted
    return keys


def splitmix(values: np.ndarray) -> np.ndarray:
    """Mix uint64 values (Steele, Lea, Flood, OOPSLA 2014, figure 14)."""
    with np.errstate(over="ignore"):
        mixed = values + _GAMMA
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
        return np.asarray(mixed ^ (mixed >> np.uint64(31)))
