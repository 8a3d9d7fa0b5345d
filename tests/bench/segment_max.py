"""A maximum over segments with its gradient against what PyTorch offers for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import torch

from retexo_fl.layers.segment_max import Segments, segment_max
from tests.bench.measure import LEAST_REPEATS, interleaved
from tests.bench.outcome import Outcome, Row

#: Mean numbers of neighbours: of a citation graph, and of a friendship graph.
_DEGREES: Final = (20, 200)
#: Exponent of the Pareto law of degrees: few nodes with many neighbours.
_DEGREE_EXPONENT: Final = 1.5
_OURS: Final = "segment_max"
#: The least ratios; both rivals gather a row for every entry first.
_TARGETS: Final = {"torch.segment_reduce": 3.0, "torch.scatter_reduce": 6.0}


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Time all three in turn on a batch of targets, each forward and backward."""
    del data_dir
    targets, sources, width = (50, 200, 4) if quick else (8192, 60_000, 64)
    repeats = 2 if quick else LEAST_REPEATS
    ratios, times = [], []
    for degree in _DEGREES:
        cases = _cases(targets, sources, width, entries=targets * degree)
        timings = interleaved(cases, repeats=repeats, least_s=0.0)
        size = f"{degree} entries a segment"
        times += [
            Row(metric=f"{size}: {case}", unit="ms", spread=timings.spread(case, scale=1e3))
            for case in cases
        ]
        ratios += [
            Row(
                metric=f"{size}: {rival} / {_OURS}",
                unit="x",
                spread=timings.ratio(rival, _OURS),
                target=target,
            )
            for rival, target in _TARGETS.items()
        ]
    setting = {"segments": targets, "rows": sources, "width": width, "dtype": "float32"}
    return Outcome(name="segment_max", setting=setting, ratios=ratios, times=times)


def _cases(
    targets: int, sources: int, width: int, *, entries: int
) -> dict[str, Callable[[], object]]:
    rng = np.random.default_rng(0)
    weights = 1.0 + rng.pareto(_DEGREE_EXPONENT, targets)
    indptr = np.rint(np.cumsum([0, *weights]) / weights.sum() * entries).astype(np.int64)
    members = rng.integers(0, sources, entries)
    segments = Segments.of(indptr, members, num_rows=sources, dtype=torch.float32)
    offsets, indices = torch.from_numpy(indptr), torch.from_numpy(members)
    places = torch.from_numpy(np.repeat(np.arange(targets), np.diff(indptr)))
    table = torch.randn(sources, width, requires_grad=True)
    upstream = torch.randn(targets, width)

    def gathered() -> torch.Tensor:
        return table.index_select(0, indices)

    def reduced() -> torch.Tensor:
        return torch.segment_reduce(gathered(), "max", offsets=offsets, initial=0)

    def scattered() -> torch.Tensor:
        index = places[:, None].expand(-1, width)
        zeros = torch.zeros(targets, width)
        return zeros.scatter_reduce(0, index, gathered(), "amax", include_self=False)

    def both_ways(forward: Callable[[], torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(forward(), table, upstream)

    return {
        _OURS: both_ways(lambda: segment_max(segments, table)),
        "torch.segment_reduce": both_ways(reduced),
        "torch.scatter_reduce": both_ways(scattered),
    }
