"""Rounds of mini-batches on any devices against one device, the full batch, and themselves."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.additions.devices.training.client_batches import client_graph
from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.additions.devices.training.device_rows import CacheChoice
from retexo_fl.additions.devices.training.sampled_task import ROUND, STEP, SampledSettings
from retexo_fl.additions.devices.training.sampled_trainer import MiniBatches, SampledTrainer
from retexo_fl.additions.devices.training.sampler_choice import SamplerChoice
from retexo_fl.additions.devices.workers.task import Share
from retexo_fl.config import make_config
from retexo_fl.training.end_to_end import EndToEndPlan, EndToEndTrainer
from retexo_fl.training.layer_trainer import NodeSets
from retexo_fl.training.recipe import LocalSteps, Recipe, objective_of
from retexo_fl.training.rounds import run_alone
from retexo_fl.training.tally import LayerUpdate
from tests.support.devices_here import DevicesHere
from tests.support.sampled import SmallClient, small_client

pytestmark = pytest.mark.usefixtures("forked_workers")

MODELS = ("gcn", "sage", "gat", "gin")
SAMPLERS = ("full", "neighbour", "shadow", "gns")
DTYPES = [("float64", 1e-10), ("float32", 1e-5)]
#: The small graph has 30 train nodes: three mini-batches of 11, 11 and 8.
BATCH, BATCHES, NODES = 11, 3, 30

client = cache(small_client)


def trainer(
    made: SmallClient,
    devices: ClientDevices,
    *,
    sampler: str = "neighbour",
    steps: int = 1,
    batch_nodes: int = BATCH,
    dropout: float = 0.3,
    nodes: NodeSets | None = None,
    workloads: Path | None = None,
) -> SampledTrainer:
    local = LocalSteps(count=steps, optimizer="sgd", learning_rate=0.1)
    used = made.nodes if nodes is None else nodes
    plan = EndToEndPlan(
        boundary=[made.plan] * (made.shape.layers - 1), seed=0, recipe=Recipe(local=local)
    )
    choice = SamplerChoice(
        kind=sampler, fanouts=(4, 3, 2), layers=3, seed=5, cache_share=0.3, cache_epochs=1
    )
    sampled = SampledSettings(
        shape=made.shape,
        choice=choice,
        objective=objective_of(make_config({})),
        dropout=dropout,
        seed=0,
        buffers=2,
        cache=CacheChoice(policy="lru"),
    )
    batches = MiniBatches(
        settings=sampled,
        client=3,
        local=local,
        batch_nodes=batch_nodes,
        balance="dynamic",
        workloads=workloads,
    )
    whole = EndToEndTrainer(made.shape, made.inputs, used, plan=plan)
    return SampledTrainer(whole, client_graph(made.inputs, used), devices, batches=batches)


def update(
    of: SampledTrainer, made: SmallClient, number: int, *, dropout: float = 0.3
) -> LayerUpdate:
    return run_alone(of.update_steps(made.weights(), round_number=number, dropout=dropout))


def alone() -> ClientDevices:
    return ClientDevices("cpu", threads=1)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# ---- what a round is -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("steps", [1, 3])
def test_one_mini_batch_of_everything_is_a_round_without_sampler(model: str, steps: int) -> None:
    made = client(model)
    local = LocalSteps(count=steps, optimizer="sgd", learning_rate=0.1)
    plan = EndToEndPlan(
        boundary=[made.plan] * (made.shape.layers - 1), seed=0, recipe=Recipe(local=local)
    )
    whole = EndToEndTrainer(made.shape, made.inputs, made.nodes, plan=plan)
    expected = run_alone(whole.update_steps(made.weights(), round_number=4, dropout=0.3))
    sampled = trainer(made, alone(), sampler="full", steps=steps, batch_nodes=NODES)
    found = update(sampled, made, 4)
    assert relative(found.update_sum, expected.update_sum) < 1e-10
    assert found.train.count == expected.train.count
    assert found.train.loss_sum == pytest.approx(expected.train.loss_sum)
    assert found.validation == expected.validation
    judged = [run_alone(one.tally_steps(made.weights(), "test")) for one in (sampled, whole)]
    assert judged[0] == judged[1]


@pytest.mark.parametrize("steps", [1, 2])
def test_every_train_node_is_computed_once_an_epoch(steps: int) -> None:
    made, devices = client("sage"), DevicesHere([1.0, 2.0])
    of = trainer(made, devices, steps=steps)
    counts = [update(of, made, number).train.count for number in range(1, 7)]
    assert counts == ([11, 11, 8] * 2 if steps == 1 else [NODES] * 6)
    orders = []
    for epoch in range(2):
        taken = devices.steps[epoch * BATCHES : (epoch + 1) * BATCHES]
        assert {(s.epoch, s.batch) for step in taken for s in step} == {
            (epoch, batch) for batch in range(BATCHES)
        }
        orders.append([node for step in taken for share in step for node in share.items.tolist()])
        assert sorted(orders[-1]) == made.nodes.train.tolist()
    assert orders[0] != orders[1]
    for place, step in enumerate(devices.steps):
        numbers = {ROUND: place // steps + 1, STEP: place % steps}
        assert all(dict(share.numbers) == numbers for share in step)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.each_choice
def test_a_round_is_a_function_of_its_number(sampler: str, steps: int) -> None:
    """A resumed training makes a trainer anew, in the middle of an epoch."""
    made = client("gat")
    going_on = trainer(made, alone(), sampler=sampler, steps=steps)
    rounds = [update(going_on, made, number) for number in range(1, 6)]
    for number in (5, 2):
        fresh = update(trainer(made, alone(), sampler=sampler, steps=steps), made, number)
        np.testing.assert_array_equal(fresh.update_sum, rounds[number - 1].update_sum)
        assert fresh.train == rounds[number - 1].train
    again = update(going_on, made, 3)
    np.testing.assert_array_equal(again.update_sum, rounds[2].update_sum)
    assert not np.array_equal(rounds[0].update_sum, rounds[3].update_sum)


def test_local_steps_walk_through_mini_batches() -> None:
    made = client("sage")
    singly = trainer(made, alone(), dropout=0.0)
    weights = made.weights()
    for number in (4, 5, 6):
        found = run_alone(singly.update_steps(weights, round_number=number, dropout=0.0))
        weights = weights - 0.1 * found.update_sum / found.train.count
    at_once = update(trainer(made, alone(), steps=3, dropout=0.0), made, 2, dropout=0.0)
    np.testing.assert_allclose(at_once.update_sum, (weights - made.weights()) * NODES, rtol=1e-9)


def test_a_client_without_train_nodes_adds_nothing() -> None:
    made = client("sage")
    none = np.zeros(0, np.int64)
    nodes = NodeSets(
        train=none, validation=made.nodes.validation, test=none, labels=made.nodes.labels
    )
    found = update(trainer(made, DevicesHere([1.0, 1.0]), nodes=nodes), made, 1)
    assert not found.update_sum.any()
    assert (found.train.count, found.validation.count) == (0, 12)


# ---- any split -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "sampler", "dtype", "most"),
    [
        (model, sampler, *DTYPES[(row + column) % 2])
        for row, model in enumerate(MODELS)
        for column, sampler in enumerate(SAMPLERS)
    ],
)
@settings(max_examples=3)
@given(
    seconds=st.lists(st.floats(0.01, 100), min_size=2, max_size=5), batch_nodes=st.integers(1, 40)
)
@pytest.mark.each_choice
def test_the_gradient_is_that_of_one_device(
    model: str, sampler: str, dtype: str, most: float, seconds: list[float], batch_nodes: int
) -> None:
    """Mini-batches smaller than the number of devices leave some of these without a root."""
    made = client(model, dtype=dtype)
    single = trainer(made, alone(), sampler=sampler, batch_nodes=batch_nodes)
    several = trainer(made, DevicesHere(seconds), sampler=sampler, batch_nodes=batch_nodes)
    for number in (1, 5):
        expected, found = (update(of, made, number) for of in (single, several))
        assert relative(found.update_sum, expected.update_sum) < most
        assert found.train.count == expected.train.count
        assert found.train.loss_sum == pytest.approx(expected.train.loss_sum, rel=most)
        assert found.validation == expected.validation
    several.close()


def test_processes_find_the_gradient_of_one_device() -> None:
    devices = ClientDevices("cpu:2", threads=1)
    try:
        for model, dtype, most in (("gat", "float32", 1e-5), ("gcn", "float64", 1e-10)):
            made = client(model, dtype=dtype)
            single, several = trainer(made, alone()), trainer(made, devices)
            for number in range(1, 6):
                expected, found = (update(of, made, number) for of in (single, several))
                assert relative(found.update_sum, expected.update_sum) < most
            several.close()
        assert len(devices.process_ids) == 2
    finally:
        devices.close()


# ---- the balancer --------------------------------------------------------------------------------


def test_a_slow_device_gets_less_from_the_next_epoch_on(caplog: pytest.LogCaptureFixture) -> None:
    made, devices = client("sage"), DevicesHere([1.0, 4.0])
    of = trainer(made, devices)
    with caplog.at_level(logging.INFO, "retexo_fl.additions.devices.training.balance_log"):
        for number in range(1, 2 * BATCHES + 1):
            update(of, made, number)
    (line,) = [text for text in caplog.messages if "epoch=0" in text]
    assert line.startswith("balance client=3 epoch=0 busy_s=")
    firsts = [sum(len(step[0].items) for step in steps) for steps in _epochs(devices)]
    assert abs(firsts[0] - NODES / 2) <= 4
    assert firsts[1] > firsts[0] + 4


def test_short_epochs_are_measured_together(caplog: pytest.LogCaptureFixture) -> None:
    made, devices = client("sage"), DevicesHere([0.002, 0.008])
    of = trainer(made, devices)
    with caplog.at_level(logging.INFO, "retexo_fl.additions.devices.training.balance_log"):
        for number in range(1, 6 * BATCHES + 1):
            update(of, made, number)
    # The slower device has half of the 30 train nodes: 0.12 s an epoch, so the fifth decides.
    (line,) = caplog.messages
    assert line.startswith("balance client=3 epoch=4 busy_s=0.1500/0.6000 ")
    on_first = [sum(len(step[0].items) for step in steps) for steps in _epochs(devices)]
    assert on_first[:5] == [NODES / 2] * 5
    assert on_first[5] > NODES / 2 + 4


def test_a_round_asked_for_twice_is_measured_once(caplog: pytest.LogCaptureFixture) -> None:
    made, devices = client("sage"), DevicesHere([1.0, 4.0])
    of = trainer(made, devices)
    with caplog.at_level(logging.INFO, "retexo_fl.additions.devices.training.balance_log"):
        for number in (1, 1, 1, 2):
            update(of, made, number)
        assert not caplog.messages
        update(of, made, 3)
    assert len(caplog.messages) == 1


def test_workloads_are_measured_where_several_devices_share(tmp_path: Path) -> None:
    made = client("sage")
    update(trainer(made, alone(), workloads=tmp_path / "one"), made, 1)
    assert not (tmp_path / "one").exists()
    update(trainer(made, DevicesHere([1.0, 1.0]), workloads=tmp_path / "two"), made, 1)
    (file,) = (tmp_path / "two").iterdir()
    assert file.suffix == ".npy"


def test_closing_lets_the_devices_go_until_the_next_round() -> None:
    made, devices = client("sage"), DevicesHere([1.0, 1.0])
    of = trainer(made, devices)
    first = update(of, made, 1)
    assert devices.open_tasks == 1
    of.close()
    assert devices.open_tasks == 0
    np.testing.assert_array_equal(update(of, made, 1).update_sum, first.update_sum)
    of.close()


def _epochs(devices: DevicesHere) -> list[list[list[Share]]]:
    starts = range(0, len(devices.steps), BATCHES)
    return [devices.steps[start : start + BATCHES] for start in starts]


@pytest.mark.gpu
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("dtype", "most"), DTYPES)
def test_a_gpu_beside_the_cpu_finds_the_gradient_of_the_cpu(
    sampler: str, dtype: str, most: float
) -> None:
    devices = ClientDevices("cuda:0,cpu", threads=1)
    try:
        for model in MODELS:
            made = client(model, dtype=dtype)
            single = trainer(made, alone(), sampler=sampler)
            several = trainer(made, devices, sampler=sampler)
            for number in range(1, 5):
                expected, found = (update(of, made, number) for of in (single, several))
                assert relative(found.update_sum, expected.update_sum) < most
            several.close()
    finally:
        devices.close()
