"""Small whole numbers, packed."""

from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.packing import pack, packed_bytes, unpack


@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize("width", [0, 1, 3, 8, 13])
def test_numbers_come_back(bits: int, width: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 2**bits, (5, width)).astype(np.uint8)
    packed = pack(numbers, bits)
    assert packed.shape == (5, packed_bytes(width, bits))
    np.testing.assert_array_equal(unpack(packed, width, bits), numbers)


def test_the_first_number_stands_in_the_highest_bits() -> None:
    assert pack(np.array([[1, 2, 3]], np.uint8), 4).tolist() == [[0x12, 0x30]]
