from __future__ import annotations

import numpy as np

from retexo_fl.federation.aggregators import make_aggregator
from tests.support.aggregator_contract import RobustAggregatorContract, combined, means


class TestNormClipping(RobustAggregatorContract):
    name = "norm-clipping"


class TestNormClippingToALimit(RobustAggregatorContract):
    # The contract's updates of random numbers are about 22 long, the honest ones 1.4.
    name = "norm-clipping:30"

    # A limit far above what is honest leaves a liar its weight.
    test_one_false_update_is_outvoted = None  # type: ignore[assignment]


def test_norm_clipping_shortens_what_is_too_long() -> None:
    updates = means([3.0, 4.0], [0.0, 2.0], [0.0, 0.0])
    result = combined(make_aggregator("norm-clipping:2.5"), updates)
    np.testing.assert_allclose(result, [0.5, 4 / 3], rtol=1e-15)


def test_norm_clipping_takes_the_median_length_of_the_round() -> None:
    updates = means([3.0, 4.0], [0.0, 2.0], [0.0, 100.0])
    result = combined(make_aggregator("norm-clipping"), updates)
    np.testing.assert_allclose(result, [1.0, (4 + 2 + 5) / 3], rtol=1e-15)


def test_norm_clipping_to_a_short_limit_outvotes_one_liar() -> None:
    honest = means(*([[1.0, 0.0]] * 9))
    result = combined(make_aggregator("norm-clipping:0.01"), [*honest, *means([-1e9, 0.0])])
    np.testing.assert_allclose(result, [0.008, 0.0], rtol=1e-12)
