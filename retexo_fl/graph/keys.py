"""Node keys: the bytes by which every client names a node, and their hashes."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from retexo_fl.graph.checks import ArrayChecks

_HASH_BYTES: Final = 8
#: Between the key of a node and the point in time as of which it is meant.
_AS_OF: Final = b" before "


def decimal_keys(num_nodes: int) -> np.ndarray:
    """Return the node indices as decimal text.

    Returns:
        [N] bytes, dtype ``S`` as wide as the last index.
    """
    width = len(str(max(num_nodes - 1, 0)))
    return np.arange(num_nodes).astype(f"S{width}")


def hash_keys(keys: np.ndarray) -> np.ndarray:
    """Return the first eight bytes of each key's BLAKE2b digest as a number.

    Keyed randomness (dropout masks) depends on these, so they never change. A node has the same at
    each point in time (:func:`of_cut`).

    Args:
        keys: [n] bytes, dtype ``S``.

    Returns:
        [n] uint64, read little-endian.
    """
    digests = [
        hashlib.blake2b(key.partition(_AS_OF)[0], digest_size=_HASH_BYTES).digest()
        for key in keys.tolist()
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def of_cut(keys: np.ndarray, cut: str) -> np.ndarray:
    """Return the [n] keys of nodes as of a point in time, of their own [n] bytes."""
    return np.char.add(keys, _AS_OF + cut.encode())


def narrow_keys(keys: np.ndarray) -> np.ndarray:
    """Return keys in a dtype that is as wide as the longest of them.

    What a client stores must not depend on keys that it does not have.

    Args:
        keys: [n] bytes, dtype ``S``.
    """
    longest = int(np.char.str_len(keys).max(initial=1))
    return keys.astype(f"S{longest}")


def quoted(key: bytes) -> str:
    """Return a key as an error shows it: the text in quotes that the owner knows it by."""
    return repr(key.decode(errors="backslashreplace"))


def check_keys(checks: ArrayChecks, name: str, keys: np.ndarray, *, num_nodes: int) -> None:
    """Check that keys are ``num_nodes`` different, non-empty byte strings."""
    checks.form(name, keys, kinds="S", shape=(num_nodes,))
    empty = np.flatnonzero(keys == b"")
    if len(empty):
        checks.fail(name, f"row {empty[0]} is empty; expected a key for each node")
    ordered = np.sort(keys)
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(repeated):
        key = bytes(ordered[repeated[0]])
        rows = np.flatnonzero(keys == key)
        checks.fail(
            name, f"rows {rows[0]} and {rows[1]} are both {quoted(key)}; expected unique keys"
        )
