from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape, packet_cells_for
from retexo_fl.errors import LocalProtocolError


@pytest.mark.parametrize(
    ("mtu_bytes", "cells"), [(140, 1), (203, 1), (204, 2), (1500, 22), (9000, 139), (65536, 140)]
)
def test_packets_fill_the_mtu(mtu_bytes: int, cells: int) -> None:
    assert packet_cells_for(mtu_bytes) == cells


def test_an_mtu_below_one_cell_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="path MTU is 139 bytes, expected at least 140"):
        packet_cells_for(139)


@given(st.integers(0, 60), st.integers(1, 700), st.integers(1, 140))
def test_packets_cover_each_cell_once_in_order(rows: int, width: int, packet_cells: int) -> None:
    shape = StreamShape(rows, width, packet_cells)
    seqs = np.arange(shape.packets)
    cells = [
        (int(first) * shape.row_cells + int(offset)) + index
        for first, offset, count in zip(
            shape.first_of(seqs), shape.offset_of(seqs), shape.cells_in(seqs), strict=True
        )
        for index in range(int(count))
    ]
    assert cells == list(range(rows * -(-width // 16)))
    assert shape.total_bytes == sum(48 + 64 * int(count) for count in shape.cells_in(seqs))
    assert shape.seen_blocks * 512 >= shape.packets > (shape.seen_blocks - 1) * 512
    if shape.packets:
        assert shape.last_packet_bytes == 48 + 64 * int(shape.cells_in(seqs)[-1])
        assert (shape.cells_in(seqs)[:-1] == packet_cells).all()
        assert (shape.cells_in(seqs) >= 1).all()
    else:
        assert shape.last_packet_bytes == 0


def test_a_shape_in_numbers() -> None:
    shape = StreamShape(rows=100, width=50, packet_cells=22)
    assert (shape.row_cells, shape.cells, shape.packets) == (4, 400, 19)
    assert (shape.packet_bytes, shape.last_packet_bytes) == (1456, 304)
    assert (int(shape.first_of(1)), int(shape.offset_of(1))) == (5, 2)


@pytest.mark.parametrize(
    ("rows", "width", "packet_cells", "message"),
    [
        (-1, 1, 1, "stream of -1 vectors"),
        (1, 0, 1, "of 0 values"),
        (1, 1, 0, "packet_cells is 0, expected 1 to 140"),
        (1, 1, 141, "packet_cells is 141"),
        (1, 2**20, 1, "too large"),
        (2**32, 16, 1, "too large"),
    ],
)
def test_impossible_shapes_are_refused(
    rows: int, width: int, packet_cells: int, message: str
) -> None:
    with pytest.raises(LocalProtocolError, match=message):
        StreamShape(rows, width, packet_cells)
