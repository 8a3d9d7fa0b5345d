"""Counts of cached rows: their sums, what another machine tells, and the line for a person."""

from __future__ import annotations

import math

import pytest

from retexo_fl.client.api import NUM_CACHED
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.run_log.cached_rows import CachedRows
from retexo_fl.units import UNKNOWN

READ = CachedRows(batches=2, rows=4000, hits=3000, misses=1000, gpu_bytes=8000, cpu_bytes=0)


def test_counts_come_back_as_they_are_told() -> None:
    assert READ.numbers == (2, 3000, 1000, 8000, 0)
    assert len(READ.numbers) == NUM_CACHED
    assert CachedRows.of([float(number) for number in READ.numbers]) == READ
    assert (READ + CachedRows.of((1, 2, 3, 4, 5))).numbers == (3, 3002, 1003, 8004, 5)
    assert (READ + READ).rows == 8000


@pytest.mark.parametrize("told", [(), (1,) * 4, (1,) * 6, (1, 1, 1, 1, 0.5), (1, 1, 1, 1, -1)])
def test_what_is_no_count_is_refused(told: tuple[float, ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="^cached is .*; expected 5 counts$"):
        CachedRows.of(told)


@pytest.mark.parametrize("number", [math.nan, math.inf, 2.0**62 + 2.0**10])
def test_a_count_is_finite_and_below_64_bits(number: float) -> None:
    with pytest.raises(RemoteProtocolError, match="expected 5 counts"):
        CachedRows.of((1, 1, 1, 1, number))
    assert CachedRows.of((1, 1, 1, 1, 2.0**62)).cpu_bytes == 2**62


def test_a_line_says_what_was_cached_and_copied() -> None:
    assert READ.sentence == (
        "4,000 rows read in mini-batches, 3,000 cached (75.0 %), 1,000 not, 8.0 kB copied to GPUs"
    )
    both = CachedRows.of((1, 1, 0, 20, 4000))
    assert both.sentence == (
        "1 row read in mini-batches, 1 cached (100.0 %), 0 not, 20 B copied to GPUs, "
        "4.0 kB copied by CPUs"
    )
    assert f"cached ({UNKNOWN})" in CachedRows().sentence
