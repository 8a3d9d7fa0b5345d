from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange.escapes import decode_numbers, encode_numbers, escaped_bytes


def test_encode_numbers_writes_one_escape_per_255() -> None:
    numbers = np.array([0, 254, 255, 256, 510, 3])
    expected = bytes([0, 254, 255, 0, 255, 1, 255, 255, 0, 3])
    assert encode_numbers(numbers) == expected
    assert escaped_bytes(numbers) == len(expected)


@given(st.lists(st.integers(0, 5000)), st.binary(max_size=5))
def test_decode_numbers_inverts_encode_and_leaves_the_rest(numbers: list[int], rest: bytes) -> None:
    encoded = encode_numbers(np.array(numbers, dtype=np.int64))
    data = np.frombuffer(encoded + rest, dtype=np.uint8)
    decoded, after = decode_numbers(data, len(numbers))
    assert decoded.tolist() == numbers
    assert after.tobytes() == rest


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\xff\xff"])
def test_decode_numbers_refuses_a_missing_end(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"hold \d of 2 numbers"):
        decode_numbers(np.frombuffer(data, dtype=np.uint8), 2)
