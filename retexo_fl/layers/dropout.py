"""Dropout whose mask depends on what is dropped, never on where or in which order it is computed.

A value is kept or dropped by a hash of (seed, stage, round, step, node, column); attention by
(source, target, head) in the node's place. So any number of clients, batches, threads and devices
drops the same values, and P partitions train the weights of one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch

from retexo_fl.layers.device_masks import high_halves, kept_factors, on_device
from retexo_fl.layers.device_masks import splitmix as splitmix_on_device
from retexo_fl.layers.sparse import SparsePattern, SparseRows
from retexo_fl.transfers import onto

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
#: The same, as other devices take them.
_MULTIPLIERS: Final = (int(_MULTIPLIER_1), int(_MULTIPLIER_2))
_SPLITMIX: Final = (int(_GAMMA), int(_MIX_1), int(_MIX_2))


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
        return cls(
            counts=np.diff(pattern.indptr.numpy()),
            column_keys=_column_keys(np.arange(pattern.num_columns)).take(pattern.columns.numpy()),
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
        if rows.device.type != "cpu":
            return rows * self.dense_factors_on(rows.device, hashes, rows.shape[1], rows.dtype)
        row_keys = self._row_keys(hashes, "values")
        column_keys = _column_keys(np.arange(rows.shape[1]))
        factors = torch.empty_like(rows)
        height = max(1, _KEYS_PER_CHUNK // max(1, rows.shape[1]))
        for start in range(0, len(rows), height):
            part = slice(start, start + height)
            self._fill(factors.numpy()[part], row_keys[part, None] + column_keys)
        return factors.mul_(rows)

    def dense_factors_on(
        self, device: torch.device, hashes: np.ndarray, width: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the (R, width) factors of :meth:`dense`, computed on a device."""
        rows = self._row_keys_on(on_device(hashes, device), "values")
        keys = rows[:, None] + _column_keys_on(device, width)
        return kept_factors(keys, _MULTIPLIERS, rate=self.rate, dtype=dtype)

    def sparse(self, rows: SparseRows, hashes: np.ndarray) -> torch.Tensor:
        """Return the (Z,) values of ``rows`` after dropout; drops what :meth:`dense` drops."""
        if self.rate == 0:
            return rows.values
        if rows.values.device.type != "cpu":
            return rows.values * self.sparse_factors_on_device(rows, hashes)
        entries = EntryKeys.of(rows.pattern)
        factors = torch.empty(rows.values.numel(), dtype=rows.values.dtype)
        self.fill_sparse(factors.numpy(), entries, hashes)
        return factors.mul_(rows.values)

    def sparse_factors_on_device(self, rows: SparseRows, hashes: np.ndarray) -> torch.Tensor:
        """Return the (Z,) factors of :meth:`sparse`, computed where ``rows`` are."""
        pattern, device = rows.pattern, rows.values.device
        row_keys = self._row_keys_on(on_device(hashes, device), "values")
        column_keys = _column_keys_on(device, pattern.num_columns)
        keys = row_keys.index_select(0, pattern.rows)
        keys += column_keys.index_select(0, pattern.columns)
        return kept_factors(keys, _MULTIPLIERS, rate=self.rate, dtype=rows.values.dtype)

    def fill_sparse(self, factors: np.ndarray, entries: EntryKeys, hashes: np.ndarray) -> None:
        """Write each entry's factor, 0 (dropped) or ``1 / (1 - rate)``, into (Z,) ``factors``."""
        # Entries are stored row by row, so repeating replaces the slower look-up of each row's key.
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

    def attention_on_device(
        self, weights: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """Do what :meth:`attention` does; the (E,) end hashes are int64 where ``weights`` are."""
        if self.rate == 0:
            return weights
        gamma, flip = (int(each.view(np.int64)) for each in (_GAMMA, _MIX_1))
        mixed = splitmix_on_device(targets ^ flip, _SPLITMIX)
        edges = splitmix_on_device(sources, _SPLITMIX) + mixed * gamma
        rows = self._row_keys_on(edges, "attention")
        keys = rows[:, None] + _column_keys_on(weights.device, weights.shape[1])
        return weights * kept_factors(keys, _MULTIPLIERS, rate=self.rate, dtype=weights.dtype)

    def _row_keys(self, hashes: np.ndarray, purpose: str) -> np.ndarray:
        mixed = splitmix(hashes ^ self._stream(purpose))
        return (mixed >> np.uint64(32)).astype(np.uint32)

    def _row_keys_on(self, hashes: torch.Tensor, purpose: str) -> torch.Tensor:
        stream = int(self._stream(purpose).view(np.int64)[0])
        return high_halves(splitmix_on_device(hashes ^ stream, _SPLITMIX))

    def _stream(self, purpose: str) -> np.ndarray:
        """Return the (1,) uint64 that keeps hashes apart."""
        text = f"{self.seed}/{self.stage}/{self.round}/{self.step}/{purpose}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return np.frombuffer(digest, dtype="<u8")

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


def _column_keys_on(device: torch.device, width: int) -> torch.Tensor:
    return onto(torch.from_numpy(_column_keys(np.arange(width)).view(np.int32)), device)


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
