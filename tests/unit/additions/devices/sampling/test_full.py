from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.additions.devices.sampling import Adjacency, FullSampler
from retexo_fl.errors import ConfigurationError
from tests.support.sampler_contract import SamplerContract, random_adjacency


class TestFullSampler(SamplerContract):
    draws = False

    def sampler(self, adjacency: Adjacency, *, seed: int = 0) -> FullSampler:
        return FullSampler(adjacency, 2)


def test_every_target_has_all_its_neighbours_ascending() -> None:
    adjacency = random_adjacency()
    sample = FullSampler(adjacency, 3).sample(np.array([11, 5]), epoch=0, batch=0)
    sources = sample.nodes
    for block, targets in zip(sample.blocks, sample.layer_nodes, strict=True):
        assert block.scales is None
        for row, target in enumerate(targets):
            found = sources[block.columns[block.indptr[row] : block.indptr[row + 1]]]
            whole = slice(adjacency.indptr[target], adjacency.indptr[target + 1])
            np.testing.assert_array_equal(found, adjacency.indices[whole])
        sources = targets


def test_number_of_layers_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="layers: got 0; expected 1 or more"):
        FullSampler(random_adjacency(), 0)
