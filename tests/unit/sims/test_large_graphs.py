from __future__ import annotations

import numpy as np
import pytest

from sims.large_graphs import (
    LARGE,
    ROUNDS,
    boundary_of_gamma,
    predict,
    published_boundary,
    shape_of,
)
from sims.published import GAMMA, GB_PER_WORKER

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", LARGE)
def test_one_boundary_explains_all_published_bytes_of_a_graph(name: str) -> None:
    shape = shape_of(LARGE[name], "sage")
    boundary = round(published_boundary(name, shape))
    # Of two workers' random halves, nearly every node borders the other.
    assert 0.9 < boundary / (LARGE[name].nodes / 2) < 1
    volumes = predict(shape, np.array([[0, boundary], [boundary, 0]]), ROUNDS)
    for algorithm, volume in volumes.items():
        published = GB_PER_WORKER[name, algorithm]
        assert volume.paper / 2 / 1e9 == pytest.approx(published, rel=0.04), algorithm


@pytest.mark.parametrize(("name", "clients"), sorted(GAMMA))
def test_the_boundary_of_a_gamma_gives_that_gamma(name: str, clients: int) -> None:
    published = GAMMA[name, clients].theoretical
    boundary = round(boundary_of_gamma(name, published))
    # No client borders more than the nodes that it does not own.
    assert boundary < LARGE[name].nodes * (clients - 1) / clients
    volumes = predict(
        shape_of(LARGE[name], "sage"), np.array([[0, boundary], [boundary, 0]]), ROUNDS
    )
    gamma = volumes["standard"].paper / volumes["lazy"].paper
    assert gamma == pytest.approx(published, rel=1e-5)
