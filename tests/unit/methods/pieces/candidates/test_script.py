"""What a round of a stage with fixed weights gives its aggregator."""

from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.federation.aggregators import RoundFacts, make_aggregator
from retexo_fl.methods.pieces.candidates.script import _WithoutFixed
from retexo_fl.training.candidates import FixedWeights

FIXED = FixedWeights(places=np.array([False, True, False]), values=np.array([0.0, 5.0, 0.0]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_aggregators_get_no_update_of_fixed_weights(dtype: str) -> None:
    """Rules that compare clients would judge them by gradients along which no step is taken."""
    given: list[np.ndarray] = []

    class Kept:
        needs = "each"

        def start(self, begun: RoundFacts) -> None:
            del begun

        def add(self, client: int, update_sum: np.ndarray, count: int) -> None:
            assert (client, count) == (4, 2)
            given.append(update_sum)

        def finish(self) -> np.ndarray:
            return given[0]

    aggregator = _WithoutFixed(Kept(), FIXED)  # type: ignore[arg-type]
    assert aggregator.needs == "each"
    aggregator.add(4, np.array([1.0, 2.0, 3.0], dtype), 2)
    assert aggregator.finish().tolist() == [1.0, 0.0, 3.0]
    assert given[0].dtype == dtype


def test_a_large_gradient_of_a_fixed_weight_does_not_shorten_an_update() -> None:
    inner = make_aggregator("norm-clipping:1")
    aggregator = _WithoutFixed(inner, FIXED)
    aggregator.start(RoundFacts(seed=0, stage=0, number=1, size=3, dtype="float64"))
    aggregator.add(0, np.array([0.6, 100.0, 0.0]), 1)
    np.testing.assert_allclose(aggregator.finish(), [0.6, 0.0, 0.0])
