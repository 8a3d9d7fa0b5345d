from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.packets.layout import (
    COUNTER_NAMES,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    REGION,
    STREAM,
    Tables,
)
from retexo_fl.errors import LocalProtocolError


def offsets(dtype: np.dtype[np.void]) -> dict[str, int]:
    assert dtype.fields is not None
    return {name: field[1] for name, field in dtype.fields.items() if "pad" not in name}


def test_records_have_the_bytes_of_the_c_structs() -> None:
    assert MAGIC.to_bytes(4, "little") == b"RTXV"
    assert (HEADER.itemsize, STREAM.itemsize, REGION.itemsize) == (HEADER_BYTES, 64, 32)
    assert offsets(HEADER) == {
        "magic": 0,
        "version": 4,
        "kind": 5,
        "in_bytes": 6,
        "flags": 7,
        "token": 8,
        "stream": 16,
        "job": 20,
        "checksum": 24,
        "stage": 32,
        "sender": 34,
        "seq": 36,
        "first": 40,
        "offset": 44,
        "cells": 46,
    }
    assert offsets(STREAM) == {
        "token": 0,
        "region": 8,
        "slot_base": 12,
        "rows": 16,
        "row_cells": 20,
        "packet_cells": 24,
        "packets": 28,
        "seen_base": 32,
        "job": 36,
        "sender": 40,
        "stage": 42,
        "atomic": 44,
        "in_bytes": 45,
        "done": 48,
        "duplicates": 52,
    }
    assert offsets(REGION) == {"expected": 0, "done": 8, "complete": 16, "generation": 20}
    assert len(set(COUNTER_NAMES)) == 10


def test_tables_are_zero_and_begin_at_cache_lines() -> None:
    tables = Tables.allocate(cells=3, seen_blocks=2, slots=5, streams=4, regions=1)
    assert tables.acc.shape == (3, 16)
    assert tables.seen.shape == (2, 8)
    assert (len(tables.slots), len(tables.streams), len(tables.regions)) == (5, 4, 1)
    for table in (tables.acc, tables.seen, tables.slots, tables.streams, tables.regions):
        assert table.ctypes.data % 64 == 0
        assert table.flags.c_contiguous
        assert table.flags.writeable
        assert not any(table.tobytes())


def test_tables_without_room_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="slots is 0, expected at least 1"):
        Tables.allocate(cells=1, seen_blocks=1, slots=0, streams=1, regions=1)


def test_importing_layout_or_the_window_does_not_import_numba() -> None:
    script = "import sys, retexo_fl.additions.kernel_path.packets; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=500)
