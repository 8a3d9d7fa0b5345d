"""Node keys and their hashes."""

from __future__ import annotations

import hashlib

import numpy as np

from retexo_fl.graph.keys import decimal_keys, hash_keys


def test_decimal_keys_count_from_zero() -> None:
    assert decimal_keys(1).tolist() == [b"0"]
    keys = decimal_keys(101)
    assert keys.tolist() == [b"%d" % node for node in range(101)]
    assert keys.dtype == "S3"


def test_hash_keys_is_blake2b_little_endian() -> None:
    keys = np.array([b"0", b"1433", b"a\0b"])
    expected = [
        int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        for key in (b"0", b"1433", b"a\0b")
    ]
    found = hash_keys(keys)
    assert found.tolist() == expected
    assert found.dtype == np.uint64


def test_hash_keys_does_not_depend_on_the_width_of_the_dtype() -> None:
    keys = np.array([b"7", b"42"])
    np.testing.assert_array_equal(hash_keys(keys), hash_keys(keys.astype("S20")))


def test_hash_keys_of_none_is_empty() -> None:
    assert hash_keys(np.array([], dtype="S1")).shape == (0,)
