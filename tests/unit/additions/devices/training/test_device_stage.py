"""A stage on several devices against the same stage on one."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.additions.devices.training.device_stage import DevicePlan, DeviceStage
from retexo_fl.additions.devices.training.stage_task import unit_nodes
from retexo_fl.config import make_config
from retexo_fl.errors import DeviceFailed, TrainingDiverged
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.losses import make_class_loss
from retexo_fl.training.metrics import make_metric
from retexo_fl.training.recipe import LocalSteps, Recipe, objective_of
from retexo_fl.training.stage_model import initial_weights
from tests.support.devices_here import DevicesHere
from tests.support.sampled import SmallClient, small_client

pytestmark = pytest.mark.usefixtures("forked_workers")

#: Several units of every use: 300, 120 and 180 nodes.
GRAPH = "synthetic:nodes=600,edges=2400,classes=3,features=5"
MODELS = ("gcn", "sage", "gat", "gin", "sage-pool")
DTYPES = [("float64", 1e-10), ("float32", 1e-5)]
DROPOUT = 0.3
METRIC = "tests.unit.training.test_metrics:MacroRecall"


@cache
def client(model: str, dtype: str = "float64") -> SmallClient:
    return small_client(model, layers=2, dtype=dtype, graph=GRAPH, heads_between=True)


@cache
def eight_units() -> SmallClient:
    graph = "synthetic:nodes=2048,edges=2048,classes=2,features=3"
    return small_client("sage", layers=2, graph=graph, heads_between=True)


def weights_of(made: SmallClient, stage: int = 0) -> np.ndarray:
    drawn = initial_weights(made.shape, stage, seed=1)
    noise = np.random.default_rng(2).normal(scale=0.1, size=drawn.shape)
    weights: np.ndarray = drawn + noise.astype(drawn.dtype)
    return weights


def recipe(steps: int = 1, metric: str = "accuracy") -> Recipe:
    return Recipe(
        loss=make_class_loss("cross-entropy"),
        metric=make_metric(metric),
        local=LocalSteps(count=steps),
    )


def one(made: SmallClient, of: Recipe, nodes: NodeSets | None = None) -> LayerTrainer:
    return LayerTrainer(made.shape, 0, made.inputs, nodes or made.nodes, seed=0, recipe=of)


def shared(
    made: SmallClient,
    devices: ClientDevices,
    of: Recipe,
    nodes: NodeSets | None = None,
    *,
    metric: str = "accuracy",
    balance: str = "dynamic",
) -> DeviceStage:
    plan = DevicePlan(
        devices=devices,
        client=3,
        balance=balance,
        objective=objective_of(make_config({"metric": metric})),
        dropout=DROPOUT,
        seed=0,
    )
    return DeviceStage(made.shape, 0, made.inputs, nodes or made.nodes, recipe=of, plan=plan)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# ---- any split -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "dtype", "most", "steps"),
    [
        (model, *DTYPES[(row + column) % 2], steps)
        for row, model in enumerate(MODELS)
        for column, steps in enumerate((1, 3))
    ],
)
def test_updates_and_tallies_are_those_of_one_device(
    model: str, dtype: str, most: float, steps: int
) -> None:
    made, of = client(model, dtype), recipe(steps)
    alone, stage = one(made, of), shared(made, DevicesHere([1.0, 0.2, 3.0]), of)
    weights = weights_of(made)
    for number in (1, 2):
        expected = alone.update(weights, round_number=number, dropout=DROPOUT)
        found = stage.update(weights, round_number=number, dropout=DROPOUT)
        assert relative(found.update_sum, expected.update_sum) < most * steps
        assert found.update_sum.dtype == expected.update_sum.dtype
        assert found.train.count == expected.train.count
        assert found.train.loss_sum == pytest.approx(expected.train.loss_sum, rel=most)
        assert found.validation.count == expected.validation.count
        assert found.validation.correct == expected.validation.correct
        assert found.validation.loss_sum == pytest.approx(expected.validation.loss_sum, rel=most)
    for which in ("train", "validation", "test"):
        expected_tally, tally = alone.evaluate(weights, which), stage.evaluate(weights, which)
        assert (tally.count, tally.correct) == (expected_tally.count, expected_tally.correct)
        assert tally.loss_sum == pytest.approx(expected_tally.loss_sum, rel=most)
    np.testing.assert_array_equal(stage.embed(weights), alone.embed(weights))


@pytest.mark.parametrize("model", ["sage", "gat"])
@settings(max_examples=8)
@given(seconds=st.lists(st.floats(0.01, 100), min_size=2, max_size=6))
def test_no_bit_depends_on_the_number_or_speed_of_devices(model: str, seconds: list[float]) -> None:
    """With more devices than units some shares are empty."""
    made, of = client(model, "float32"), recipe()
    single, devices = shared(made, DevicesHere([1.0]), of), DevicesHere(seconds)
    several = shared(made, devices, of)
    weights = weights_of(made)
    for number in (1, 2, 3):
        expected = single.update(weights, round_number=number, dropout=DROPOUT)
        found = several.update(weights, round_number=number, dropout=DROPOUT)
        np.testing.assert_array_equal(found.update_sum, expected.update_sum)
        assert (found.train, found.validation) == (expected.train, expected.validation)
    for step in devices.steps:
        units = np.concatenate([share.items for share in step])
        assert sorted(units.tolist()) == list(range(len(unit_nodes(made.nodes))))


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_a_metric_is_added_up_over_devices(model: str) -> None:
    made, of = client(model), recipe(metric=METRIC)
    stage = shared(made, DevicesHere([1.0, 1.0]), of, metric=METRIC)
    weights = weights_of(made)
    found = stage.update(weights, round_number=1, dropout=DROPOUT).validation
    expected = one(made, of).update(weights, round_number=1, dropout=DROPOUT).validation
    assert found.metric_sums.any()
    assert found.metric_sums == pytest.approx(expected.metric_sums)


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_a_client_without_train_nodes_adds_nothing(model: str) -> None:
    made = client(model)
    none = np.zeros(0, np.int64)
    nodes = NodeSets(
        train=none, validation=made.nodes.validation, test=none, labels=made.nodes.labels
    )
    stage = shared(made, DevicesHere([1.0, 1.0]), recipe(), nodes)
    update = stage.update(weights_of(made), round_number=1, dropout=DROPOUT)
    assert not update.update_sum.any()
    assert update.train.count == 0
    assert update.validation.count == 120
    assert stage.evaluate(weights_of(made), "test").count == 0


@pytest.mark.parametrize("model", ["gcn", "sage", "gat"])
def test_a_later_stage_of_few_labelled_nodes_equals_one_device(model: str) -> None:
    """Numbers of nodes, of labelled ones and of stages are no longer the same, and no seed is 0."""
    made, of = client(model), recipe(2)
    few = NodeSets(
        train=made.nodes.train[::3],
        validation=made.nodes.validation[1::4],
        test=made.nodes.test[::9],
        labels=made.nodes.labels,
    )
    rows = one(made, of).embed(weights_of(made))
    inputs = replace(made.inputs, own=rows, received=rows[:0])
    alone = LayerTrainer(made.shape, 1, inputs, few, seed=7, recipe=of)
    plan = DevicePlan(
        devices=DevicesHere([1.0, 2.0]),
        client=3,
        balance="dynamic",
        objective=objective_of(make_config({})),
        dropout=DROPOUT,
        seed=7,
    )
    stage = DeviceStage(made.shape, 1, inputs, few, recipe=of, plan=plan)
    weights = weights_of(made, 1)
    expected = alone.update(weights, round_number=2, dropout=DROPOUT)
    found = stage.update(weights, round_number=2, dropout=DROPOUT)
    assert relative(found.update_sum, expected.update_sum) < 1e-9
    assert found.train.loss_sum == pytest.approx(expected.train.loss_sum, rel=1e-10)
    assert found.validation.correct == expected.validation.correct
    assert found.validation.loss_sum == pytest.approx(expected.validation.loss_sum, rel=1e-10)
    assert stage.evaluate(weights, "test").correct == alone.evaluate(weights, "test").correct


def steep(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """A sum over nodes that is 0, and whose gradient is not a number."""
    return (logits * 0).sum(dim=1).sqrt().sum()


def test_a_gradient_not_finite_is_told_though_the_loss_is_finite() -> None:
    made, name = client("gat"), f"{__name__}:{steep.__name__}"
    of = Recipe(loss=steep, local=LocalSteps())
    plan = DevicePlan(
        devices=DevicesHere([1.0, 1.0]),
        client=3,
        balance="dynamic",
        objective=objective_of(make_config({"loss": name})),
        dropout=DROPOUT,
        seed=0,
    )
    stage = DeviceStage(made.shape, 0, made.inputs, made.nodes, recipe=of, plan=plan)
    for trainer in (one(made, of), stage):
        with pytest.raises(TrainingDiverged, match="its gradient is not finite"):
            trainer.update(weights_of(made), round_number=1, dropout=DROPOUT)


# ---- the balancer --------------------------------------------------------------------------------


def test_a_slow_device_gets_less_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    made, devices = client("gat"), DevicesHere([1.0, 9.0])
    stage = shared(made, devices, recipe())
    with caplog.at_level(logging.INFO, "retexo_fl.additions.devices.training.balance_log"):
        for number in range(1, 4):
            stage.update(weights_of(made), round_number=number, dropout=DROPOUT)
    first, last = ([len(share.items) for share in devices.steps[place]] for place in (0, -1))
    assert last[0] > first[0]
    (line, *_) = caplog.messages
    assert line.startswith("balance client=3 stage=0 round=1 busy_s=")
    assert " shares=" in line


def test_short_rounds_are_measured_together(caplog: pytest.LogCaptureFixture) -> None:
    made, devices = client("gat"), DevicesHere([0.05, 0.12])
    stage = shared(made, devices, recipe())
    with caplog.at_level(logging.INFO, "retexo_fl.additions.devices.training.balance_log"):
        for number in range(1, 5):
            stage.update(weights_of(made), round_number=number, dropout=DROPOUT)
    # Two of three units on the slower device are 0.24 s a round.
    (line,) = caplog.messages
    assert " round=3 busy_s=0.1500/0.7200 " in line


def makespans(devices: DevicesHere, start: int = 0) -> list[float]:
    """Return how long each step took on the device that was done last."""
    return [
        max(seconds * len(own.items) for seconds, own in zip(devices.seconds, step, strict=True))
        for step in devices.steps[start:]
    ]


@pytest.mark.parametrize("ratio", [10, 12, 14])
def test_a_device_that_does_not_pay_gets_no_unit(ratio: int) -> None:
    made = eight_units()
    assert len(unit_nodes(made.nodes)) == 8
    devices = DevicesHere([1.0, float(ratio)])
    stage, alone = shared(made, devices, recipe()), shared(made, DevicesHere([1.0]), recipe())
    for number in (1, 2, 3):
        found = stage.update(weights_of(made), round_number=number, dropout=DROPOUT)
        expected = alone.update(weights_of(made), round_number=number, dropout=DROPOUT)
        np.testing.assert_array_equal(found.update_sum, expected.update_sum)
    # Equal parts until the speeds are known; then what the fast device takes alone.
    assert makespans(devices) == [4.0 * ratio, 8.0, 8.0]


def test_a_device_that_was_left_out_is_tried_again() -> None:
    made = eight_units()
    devices = DevicesHere([1.0, 14.0])
    stage = shared(made, devices, recipe())
    for number in (1, 2, 64, 65):
        if number == 64:
            devices.seconds[1] = 0.5
        stage.update(weights_of(made), round_number=number, dropout=DROPOUT)
    on_second = [len(step[1].items) for step in devices.steps]
    assert on_second[:3] == [4, 0, 1]
    assert on_second[3] > 4


def test_the_next_stage_begins_with_the_speeds_of_the_last() -> None:
    made = eight_units()
    devices = DevicesHere([1.0, 3.0])
    for stage in (shared(made, devices, recipe()) for _ in range(2)):
        begun = len(devices.steps)
        for number in (1, 2, 3):
            stage.update(weights_of(made), round_number=number, dropout=DROPOUT)
        stage.close()
    assert makespans(devices, 0)[0] == 12.0
    assert makespans(devices, begun) == [6.0] * 3


@pytest.mark.parametrize(("balance", "expected"), [("equal", 12.0), ("static", 6.0)])
def test_parts_that_are_not_dynamic_begin_equal_in_every_stage(
    balance: str, expected: float
) -> None:
    made = eight_units()
    devices = DevicesHere([1.0, 3.0])
    devices.speeds = [3.0, 1.0]
    stage = shared(made, devices, recipe(), balance=balance)
    for number in (1, 2, 3):
        stage.update(weights_of(made), round_number=number, dropout=DROPOUT)
    assert makespans(devices) == [12.0, expected, expected]


def test_attention_is_balanced_by_edges_and_sums_by_rows() -> None:
    attention, sums = (shared(client(m), DevicesHere([1.0]), recipe()) for m in ("gat", "sage"))
    edges = np.diff(client("gat").inputs.indptr)
    for stage, costs in ((attention, 1 + edges), (sums, np.ones(600))):
        of_units = [costs[unit.train].sum() for unit in stage.passes.units]
        np.testing.assert_array_equal(stage.passes.costs("train"), of_units)


# ---- real processes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two() -> Iterator[ClientDevices]:
    devices = ClientDevices("cpu:2", threads=1)
    yield devices
    devices.close()


@pytest.mark.parametrize("model", ["gat", "sage"])
def test_processes_find_the_bits_of_one_worker(model: str, two: ClientDevices) -> None:
    made, of = client(model, "float32"), recipe(2)
    stage, alone = shared(made, two, of), shared(made, DevicesHere([1.0]), of)
    weights = weights_of(made)
    for number in (1, 2):
        found = stage.update(weights, round_number=number, dropout=DROPOUT)
        expected = alone.update(weights, round_number=number, dropout=DROPOUT)
        np.testing.assert_array_equal(found.update_sum, expected.update_sum)
        assert (found.train, found.validation) == (expected.train, expected.validation)
    assert stage.evaluate(weights, "test") == alone.evaluate(weights, "test")
    stage.close()


def test_a_stage_whose_devices_ended_goes_on_with_new_ones(two: ClientDevices) -> None:
    made = client("gat", "float32")
    stage = shared(made, two, recipe())
    weights = weights_of(made)
    expected = stage.update(weights, round_number=1, dropout=DROPOUT)
    os.kill(two.process_ids[0], signal.SIGKILL)
    with pytest.raises(DeviceFailed, match=r"^cpu:0: its process ended by signal 9"):
        stage.update(weights, round_number=2, dropout=DROPOUT)
    again = stage.update(weights, round_number=1, dropout=DROPOUT)
    np.testing.assert_array_equal(again.update_sum, expected.update_sum)
    stage.close()


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("dtype", "most"), DTYPES)
def test_a_gpu_beside_the_cpu_finds_the_gradient_of_the_cpu(
    model: str, dtype: str, most: float
) -> None:
    made, of = client(model, dtype), recipe()
    devices = ClientDevices("cuda:0,cpu", threads=1)
    try:
        stage = shared(made, devices, of)
        expected = one(made, of).update(weights_of(made), round_number=1, dropout=DROPOUT)
        found = stage.update(weights_of(made), round_number=1, dropout=DROPOUT)
        assert relative(found.update_sum, expected.update_sum) < most
    finally:
        devices.close()
