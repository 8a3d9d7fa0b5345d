"""Ways to add vectors to rows, and what each costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

_REPEATS: Final = 5
_LEAST_S: Final = 0.01


@numba.njit(nogil=True, cache=True)
def add_rows(
    to: NDArray[np.int32], places: NDArray[np.int64], values: NDArray[np.int32]
) -> None:  # pragma: no cover - compiled
    """Add ``values[i]`` to ``to[places[i]]`` for all i: what TCP's receiver does."""
    width = values.shape[1]
    for row in range(len(places)):
        place = places[row]
        for column in range(width):
            to[place, column] += values[row, column]


def seconds_per_row(width: int, rows: int, accumulators: int = 4096) -> dict[str, float]:
    """Return the processor time per row of each way to add a block of rows."""
    ways = _ways(width, rows, accumulators)
    for add in ways.values():
        add()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_REPEATS):
        for name, add in ways.items():
            found[name].append(_seconds(add) / rows)
    return {name: median(seconds) for name, seconds in found.items()}


def _ways(width: int, rows: int, accumulators: int) -> dict[str, Callable[[], object]]:
    import torch
    from scipy.sparse import csr_matrix

    generator = np.random.default_rng(width)
    values = generator.integers(-1000, 1000, (rows, width), dtype=np.int32)
    places = generator.integers(0, accumulators, rows)
    to = np.zeros((accumulators, width), np.int32)
    tensor, index, source = torch.from_numpy(to), torch.from_numpy(places), torch.from_numpy(values)
    starts = np.arange(rows + 1)

    def by_csr() -> None:
        form = (rows, accumulators)
        matrix = csr_matrix((np.ones(rows, np.int32), places, starts), shape=form)
        np.add(to, matrix.T @ values, out=to)

    return {
        "compiled loop": lambda: add_rows(to, places, values),
        "torch.index_add_": lambda: tensor.index_add_(0, index, source),
        "scipy CSR": by_csr,
        "numpy.add.at": lambda: np.add.at(to, places, values),
    }


def _seconds(call: Callable[[], object]) -> float:
    begun, calls = time.process_time(), 0
    while time.process_time() - begun < _LEAST_S:
        call()
        calls += 1
    return (time.process_time() - begun) / calls
