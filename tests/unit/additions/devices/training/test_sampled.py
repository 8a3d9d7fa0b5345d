"""The gradient over a sample against the full batch's, and over its shares against the whole's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.additions.devices.sampling.adjacency import Adjacency
from retexo_fl.additions.devices.sampling.base import Sampler
from retexo_fl.additions.devices.sampling.full import FullSampler
from retexo_fl.additions.devices.sampling.neighbour import NeighbourSampler
from retexo_fl.additions.devices.sampling.shadow import ShadowSampler
from retexo_fl.additions.devices.training.sampled import SampledModel, SampledSums
from retexo_fl.layers.base import RowBatch
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.end_to_end import EndToEndPlan, EndToEndTrainer
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.rounds import run_alone
from tests.support.sampled import SmallClient, small_client
from tests.support.watched_copies import watched_copies

MODELS = ("gcn", "sage", "gat", "gin", "sage-pool")
DROPOUT = KeyedDropout(rate=0.3, seed=0, stage=0, round=4)
LAYERS = 3
SAMPLERS: dict[str, Callable[[Adjacency], Sampler]] = {
    "full": lambda adjacency: FullSampler(adjacency, LAYERS),
    "neighbour": lambda adjacency: NeighbourSampler(adjacency, (4, 3, 2), seed=1),
    "shadow": lambda adjacency: ShadowSampler(adjacency, (4, 2), layers=LAYERS, seed=1),
}

made = cache(small_client)


def sums_of(
    client: SmallClient, sampler: Sampler, roots: np.ndarray, *, device: str = "cpu"
) -> SampledSums:
    """Return the sums over some roots of mini-batch 5 of epoch 2."""
    model = SampledModel(
        client.shape,
        hashes=client.inputs.own_hashes,
        labels=client.nodes.labels,
        device=torch.device(device),
    )
    sample = sampler.sample(roots, epoch=2, batch=5)
    rows = torch.from_numpy(client.rows[sample.nodes]).to(device)
    weights = torch.from_numpy(client.weights()).to(device)
    return model.sums(weights, model.prepare(sample, rows), DROPOUT)


@pytest.mark.parametrize("model", MODELS)
def test_all_neighbours_of_all_roots_are_the_full_batch(model: str) -> None:
    client = made(model)
    plan = EndToEndPlan(boundary=[client.plan] * (client.shape.layers - 1), seed=0, recipe=Recipe())
    trainer = EndToEndTrainer(client.shape, client.inputs, client.nodes, plan=plan)
    expected = run_alone(trainer.update_steps(client.weights(), round_number=4, dropout=0.3))
    found = sums_of(client, FullSampler(client.adjacency, LAYERS), client.nodes.train)
    assert relative(found.gradient_sum.numpy(), expected.update_sum) < 1e-10
    assert found.loss_sum == pytest.approx(expected.train.loss_sum, rel=1e-12)
    assert found.count == expected.train.count


def test_roots_stand_in_the_order_in_which_they_are_given() -> None:
    client = made("sage")
    sampler = FullSampler(client.adjacency, LAYERS)
    forward = sums_of(client, sampler, client.nodes.train)
    backward = sums_of(client, sampler, client.nodes.train[::-1].copy())
    assert relative(backward.gradient_sum.numpy(), forward.gradient_sum.numpy()) < 1e-12
    assert forward.correct == backward.correct


@st.composite
def cuts(draw: st.DrawFn) -> list[np.ndarray]:
    """Return one to four shares of the train nodes, some of which may be empty."""
    roots = made("sage").nodes.train
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(roots)
    ends = draw(st.lists(st.integers(0, len(roots)), max_size=3))
    return np.split(order, sorted(ends))


@pytest.mark.parametrize(
    ("model", "sampler", "dtype", "most"),
    [
        *((model, sampler, "float64", 1e-10) for model in MODELS for sampler in SAMPLERS),
        *(("sage", sampler, "float32", 1e-5) for sampler in SAMPLERS),
    ],
)
@settings(max_examples=5)
@given(shares=cuts())
@pytest.mark.each_choice
def test_gradients_of_shares_add_up_to_that_of_the_mini_batch(
    model: str, sampler: str, dtype: str, most: float, shares: list[np.ndarray]
) -> None:
    client = made(model, dtype=dtype)
    of = SAMPLERS[sampler](client.adjacency)
    whole = sums_of(client, of, np.sort(np.concatenate(shares)))
    parts = [sums_of(client, of, share) for share in shares]
    total = np.sum([part.gradient_sum.numpy() for part in parts], axis=0)
    assert relative(total, whole.gradient_sum.numpy()) < most
    assert sum(part.count for part in parts) == whole.count
    assert sum(part.correct for part in parts) == whole.correct
    assert sum(part.loss_sum for part in parts) == pytest.approx(whole.loss_sum, rel=most)


@pytest.mark.parametrize("model", MODELS)
def test_a_subgraph_of_everything_is_the_full_batch(model: str) -> None:
    client = made(model, layers=2)
    everything = ShadowSampler(client.adjacency, (1000,) * 8, layers=2, seed=0)
    full = FullSampler(client.adjacency, 2)
    roots = client.nodes.train[:6]
    expected = sums_of(client, full, roots).gradient_sum.numpy()
    assert relative(sums_of(client, everything, roots).gradient_sum.numpy(), expected) < 1e-10


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin"])
def test_subgraph_edges_are_prepared_once_but_for_the_last_layer(model: str) -> None:
    client = made(model, layers=5)
    layer = SampledModel(client.shape, hashes=client.inputs.own_hashes, labels=client.nodes.labels)
    sampler = ShadowSampler(client.adjacency, (3, 2), layers=5, seed=0)
    sample = sampler.sample(client.nodes.train[:6], epoch=0, batch=0)
    batch = layer.prepare(sample, torch.from_numpy(client.rows[sample.nodes]))
    # The last one reads the roots alone.
    assert [batch.makers.index(maker) for maker in batch.makers] == [0, 0, 0, 0, 4]


@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_sampled_sums_of_the_first_layer_are_unbiased(model: str) -> None:
    """Their mean over many draws is the sum over all neighbours."""
    client = made(model, layers=1)
    layer = SampledModel(client.shape, hashes=client.inputs.own_hashes, labels=client.nodes.labels)
    roots = client.nodes.train[:12]

    def aggregates(sampler: Sampler, epoch: int) -> np.ndarray:
        sample = sampler.sample(roots, epoch=epoch, batch=0)
        batch = layer.prepare(sample, torch.from_numpy(client.rows[sample.nodes]))
        aggregated = batch.makers[0](batch.rows)
        assert isinstance(aggregated, RowBatch)
        return np.asarray(aggregated.rows)

    drawn = np.stack(
        [
            aggregates(NeighbourSampler(client.adjacency, (2,), seed=epoch), epoch)
            for epoch in range(400)
        ]
    )
    whole = aggregates(FullSampler(client.adjacency, 1), 0)
    errors = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
    moving = errors > 1e-12
    assert moving.any()
    np.testing.assert_allclose(drawn.mean(axis=0)[~moving], whole[~moving], atol=1e-9)
    scores = (drawn.mean(axis=0) - whole)[moving] / errors[moving]
    # Of normal scores 0.27 % lie beyond three; of biased ones nearly all would.
    assert np.mean(np.abs(scores) > 3) < 0.05


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_all_of_a_pass_lies_on_the_models_device(model: str, sampler: str) -> None:
    """On ``meta`` every operation that mixes devices is refused, and no value is computed."""
    client, meta = made(model), torch.device("meta")
    found = SampledModel(
        client.shape, hashes=client.inputs.own_hashes, labels=client.nodes.labels, device=meta
    )
    sample = SAMPLERS[sampler](client.adjacency).sample(client.nodes.train, epoch=0, batch=0)
    rows = torch.empty((len(sample.nodes), 5), dtype=torch.float64, device=meta)
    weights = torch.empty(found.num_weights, dtype=torch.float64, device=meta)
    with watched_copies() as copies:
        prepared = found.prepare(sample, rows)
        gradient, loss, _ = found.differentiated(weights, prepared, DROPOUT)
    copies.demand_locked()
    assert gradient.device == loss.device == meta
    assert gradient.shape == weights.shape


@pytest.mark.gpu
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("dtype", "most"), [("float64", 1e-10), ("float32", 1e-5)])
def test_a_gpu_finds_the_gradient_of_the_cpu(
    model: str, sampler: str, dtype: str, most: float
) -> None:
    client = made(model, dtype=dtype)
    of = SAMPLERS[sampler](client.adjacency)
    expected = sums_of(client, of, client.nodes.train)
    found = sums_of(client, of, client.nodes.train, device="cuda")
    assert relative(found.gradient_sum.cpu().numpy(), expected.gradient_sum.numpy()) < most
    assert found.loss_sum == pytest.approx(expected.loss_sum, rel=most)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference as a share of the largest value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())
