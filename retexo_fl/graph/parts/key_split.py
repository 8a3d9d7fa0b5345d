"""A split that a client can make alone: each node draws by a hash of its key."""

from __future__ import annotations

import hashlib
from itertools import accumulate
from typing import Final

import numpy as np

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.labels import labelled
from retexo_fl.graph.masks import Split
from retexo_fl.graph.splits import parse_shares

_KIND: Final = "by-key"
#: The last end of shares that sum to one still fits into 64 bits.
_DRAW_BITS: Final = 63
#: The seed is hashed as so many bytes, little-endian, before the key.
_SEED_BYTES: Final = 8


def split_by_key(keys: np.ndarray, labels: np.ndarray, *, split: str, seed: int) -> Split:
    """Choose train, validation and test nodes among the labelled ones, each node by itself.

    A node's use depends on the seed and on its key, on nothing else: clients that agree on text and
    seed need no other agreement, and a node keeps its use when others come or go. Shares therefore
    hold on average only, and a mask may be empty.

    Args:
        keys: [n] bytes, dtype ``S``.
        labels: Of one of the forms of :mod:`~retexo_fl.graph.labels`.
        split: ``by-key:TRAIN/VAL/TEST`` with shares such as 0.2/0.1/0.7.
        seed: From 0 to 2**64 - 1.

    Raises:
        ConfigurationError: The text has another form, or the seed does not fit.
    """
    kind, _, text = split.partition(":")
    if kind != _KIND:
        raise ConfigurationError(f"split: got {split[:60]!r}; expected {_KIND}:TRAIN/VAL/TEST")
    shares = parse_shares(split, text)
    if not 0 <= seed < 2 ** (8 * _SEED_BYTES):
        raise ConfigurationError(f"seed: got {seed}; expected 0 to 2**64 - 1")
    ends = [int(total * 2**_DRAW_BITS) for total in accumulate(shares)]
    uses = np.searchsorted(np.array(ends, dtype=np.uint64), _draws(keys, seed), side="right")
    known = labelled(labels)
    train, val, test = (known & (uses == use) for use in range(3))
    return Split(train=train, val=val, test=test)


def _draws(keys: np.ndarray, seed: int) -> np.ndarray:
    """Return [n] uint64 numbers below 2**63, one from each key."""
    secret = seed.to_bytes(_SEED_BYTES, "little")
    digests = [
        hashlib.blake2b(key, digest_size=8, key=secret, person=b"retexo split").digest()
        for key in keys.tolist()
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64) >> np.uint64(1)
