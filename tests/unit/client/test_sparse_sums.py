from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.client.api import SparseSums
from retexo_fl.errors import RemoteProtocolError


@pytest.mark.parametrize(
    ("sums", "counted"),
    [
        ([0, 3, 1, 255], 4),
        ([0, 3, 1, 256], 8),
        ([7, 0, 0, 0, 0, 2**16], 8),
        ([2**32 - 1], 4),
        ([0, 0, 0], 0),
        ([2**32, 1], None),
        ([0.5, 1], None),
        ([-1, 1], None),
        ([float("inf"), 1], None),
    ],
)
def test_counts_take_few_bytes_and_come_back(sums: list[float], counted: int | None) -> None:
    given = np.array(sums, dtype=np.float64)
    sent = SparseSums.of(given)
    assert (None if sent.counts is None else len(sent.counts)) == (counted or None)
    assert sent.array().dtype == np.float64
    assert sent.array().tolist() == given.tolist()


@pytest.mark.parametrize(
    "sent",
    [
        SparseSums(length=3, counts=b"\1\2"),
        SparseSums(length=2, counts=b"\1\2\3\4\5\6"),
        SparseSums(length=2, counts=b""),
        SparseSums(length=2, values=(1.0,), counts=b"\1"),
        SparseSums(length=9, places=(1, 2), counts=b"\1"),
        SparseSums(length=0, counts=b"\1"),
        SparseSums(length=2, places=(2,), counts=b"\1"),
        SparseSums(length=2, places=(1, 0), counts=b"\1\2"),
    ],
)
def test_counts_that_are_none_are_refused(sent: SparseSums) -> None:
    with pytest.raises(RemoteProtocolError, match="places; expected"):
        sent.array()
