from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.full import FullSampler
from retexo_fl.additions.devices.sampling.gns import GnsSampler
from retexo_fl.additions.devices.sampling.neighbour import NeighbourSampler
from retexo_fl.additions.devices.sampling.shadow import ShadowSampler
from retexo_fl.additions.devices.training.sampler_choice import SamplerChoice
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError

RING = Adjacency.from_edges(np.arange(50), (np.arange(50) + 1) % 50, num_nodes=50)
TRAIN = np.arange(10)


def choice(client: int = 0, **keys: Any) -> SamplerChoice:
    values = {"algorithm": "drop", "fanouts": "4/3", "layers": 2, **keys}
    return SamplerChoice.of(make_config(values), client=client)


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("full", FullSampler),
        ("neighbour", NeighbourSampler),
        ("shadow", ShadowSampler),
        ("gns", GnsSampler),
    ],
)
def test_every_name_is_a_sampler_of_the_models_layers(kind: str, made: type) -> None:
    sampler = choice(sampler=kind).make(RING, TRAIN)
    assert type(sampler) is made
    assert sampler.num_layers == 2


def test_hops_of_subgraphs_need_not_be_layers() -> None:
    assert choice(sampler="shadow", layers=5).make(RING, TRAIN).num_layers == 5


def test_every_client_and_every_seed_draws_differently() -> None:
    seeds = [choice(client, seed=seed).seed for client in range(3) for seed in range(3)]
    assert len(set(seeds)) == 9
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert choice(1, seed=2).seed == choice(1, seed=2).seed


def test_a_cache_needs_a_layer_that_weighs_edges() -> None:
    expected = "^sampler: 'gns' .*edge weights.* sage-pool .*; expected"
    with pytest.raises(ConfigurationError, match=expected):
        choice(sampler="gns", model="sage-pool")
    for model in ("gcn", "sage", "gat", "gin"):
        assert choice(sampler="gns", model=model).kind == "gns"
    assert choice(sampler="neighbour", model="sage-pool").kind == "neighbour"
