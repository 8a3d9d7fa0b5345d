from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.sampling import NeighbourSampler
from sims.rivals.lazygcn import part_of, recycled
from sims.sage import Sage
from tests.support.mini_batches import CLASSES, WIDTH, small_graph

pytestmark = pytest.mark.slow

GRAPH = small_graph()
SAMPLER = NeighbourSampler(GRAPH.adjacency, (3, 2), seed=0)
MEGA = SAMPLER.sample(GRAPH.train, epoch=0, batch=0)


def test_each_pass_trains_every_root_once_in_an_order_of_its_own() -> None:
    parts = list(recycled(MEGA, 6, 3, np.random.default_rng(0)))
    assert [len(part.roots) for part in parts] == [6, 6, 6, 2] * 3
    passes = [np.concatenate([p.roots for p in parts[start : start + 4]]) for start in (0, 4, 8)]
    assert all(Counter(roots.tolist()) == Counter(GRAPH.train.tolist()) for roots in passes)
    assert len({tuple(roots) for roots in passes}) == 3


def test_roots_have_the_neighbours_of_the_mega_batch() -> None:
    model = Sage((WIDTH, 5, CLASSES), dropout=0.0, seed=0)
    features = torch.from_numpy(GRAPH.features)
    whole = model(features[torch.from_numpy(MEGA.nodes)], MEGA)
    which = np.array([4, 17, 0])
    part = part_of(MEGA, which)
    np.testing.assert_array_equal(part.roots, MEGA.roots[which])
    assert len(part.nodes) < len(MEGA.nodes)
    logits = model(features[torch.from_numpy(part.nodes)], part)
    torch.testing.assert_close(logits, whole[torch.from_numpy(which)])
    np.testing.assert_array_equal(part.input_degrees, GRAPH.adjacency.degrees[part.nodes])
