"""Times calls in turn within one process, so that their ratio outlives a busy machine."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

#: Fewest repeats whose median is reported.
LEAST_REPEATS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A median and what half of the samples lie between.

    Attributes:
        median: Of all samples.
        low: First quartile.
        high: Third quartile.
        samples: How many there were.
    """

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, samples: list[float]) -> Spread:
        """Summarise at least two samples."""
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median=median, low=low, high=high, samples=len(samples))


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """CPU seconds of several cases, sample i of each taken in turn i.

    CPU seconds of one thread are its wall seconds on a quiet core, and less disturbed by others.
    """

    seconds: Mapping[str, list[float]]

    def spread(self, case: str, *, scale: float = 1.0) -> Spread:
        """Summarise one case, its seconds multiplied by ``scale``."""
        return Spread.of([scale * second for second in self.seconds[case]])

    def ratio(self, slow: str, fast: str) -> Spread:
        """Summarise by how much ``fast`` is faster, turn by turn: drift hits both alike."""
        pairs = zip(self.seconds[slow], self.seconds[fast], strict=True)
        return Spread.of([over / under for over, under in pairs])


def interleaved(
    cases: Mapping[str, Callable[[], object]], *, repeats: int, least_s: float = 0.05
) -> Timings:
    """Time every case once in each turn, after one warm-up call of each.

    Args:
        cases: What to time, by name.
        repeats: Turns.
        least_s: A sample is the mean of so many calls that it takes about this long.
    """
    calls = {name: _calls_for(call, least_s) for name, call in cases.items()}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    gc.collect()
    gc.disable()
    try:
        for turn in range(repeats):
            names = list(cases) if turn % 2 == 0 else list(cases)[::-1]
            for name in names:
                seconds[name].append(_mean_s(cases[name], calls[name]))
    finally:
        gc.enable()
    return Timings(seconds=seconds)


def _calls_for(call: Callable[[], object], least_s: float) -> int:
    call()
    return max(1, math.ceil(least_s / max(_mean_s(call, 1), 1e-7)))


def _mean_s(call: Callable[[], object], calls: int) -> float:
    begun = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - begun) / calls


def quotient(above: Spread, below: Spread) -> Spread:
    """Divide medians; the quartiles give the widest range."""
    return Spread(
        median=above.median / below.median,
        low=above.low / below.high,
        high=above.high / below.low,
        samples=min(above.samples, below.samples),
    )
