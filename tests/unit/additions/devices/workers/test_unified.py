from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.workers.flat_module import FlatModule
from retexo_fl.additions.devices.workers.module_task import Loss
from retexo_fl.additions.devices.workers.unified import Unified
from retexo_fl.errors import ConfigurationError, DeviceFailed
from tests.support.device_tasks import (
    Counting,
    Perceptron,
    loss_that_ends_the_process,
    random_table,
    summed_cross_entropy,
    summed_loss_of_batch,
    summed_loss_only,
)
from tests.support.simulated_devices import skewed_workloads

pytestmark = pytest.mark.usefixtures("forked_workers")

COUNT, WIDTH, CLASSES = 45, 6, 3
#: Gradients of one device, those of two, and what computed these.
OneAndTwo = tuple[list[np.ndarray], list[np.ndarray], Unified]
ITEMS = np.arange(0, COUNT, dtype=np.int64)[::-1]
TIMEOUT_S = 300.0


def unified_of(
    model: torch.nn.Module, loss: Loss = summed_cross_entropy, **settings: Any
) -> Unified:
    table = random_table(COUNT, WIDTH, CLASSES, FlatModule(model).dtype)
    given = {"items": ITEMS, "devices": "cpu", "batch_size": 16, "timeout_s": TIMEOUT_S}
    return Unified(model, table, loss, **{**given, **settings})


def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, CLASSES, dtype=torch.float64)


def perceptron() -> Perceptron:
    torch.manual_seed(0)
    return Perceptron(WIDTH, 8, CLASSES, torch.float64)


def gradients(model: torch.nn.Module) -> np.ndarray:
    return FlatModule(model).gradients().numpy()


def trained(devices: str, **settings: Any) -> tuple[list[np.ndarray], Unified]:
    """Return the gradient of each step of two epochs, and what computed them."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    with unified_of(model, summed_loss_of_batch, devices=devices, **settings) as unified:
        for epoch in range(2):
            for _ in unified.epoch(epoch):
                found.append(gradients(model).copy())
                optimizer.step()
    return found, unified


@pytest.fixture(scope="module")
def one_and_two() -> OneAndTwo:
    """Train on one device and on two, with mini-batches of which some have only one item."""
    alone, _ = trained("cpu", batch_size=11)
    workloads = skewed_workloads(COUNT, seed=0)
    settings = {"batch_size": 11, "workloads": workloads, "speeds": [1, 3], "threads": 1}
    together, unified = trained("cpu:2", **settings)
    return alone, together, unified


def test_training_on_two_devices_is_that_on_one(
    one_and_two: OneAndTwo,
) -> None:
    alone, together, _ = one_and_two
    assert len(alone) == len(together) == 10
    for one, other in zip(alone, together, strict=True):
        assert np.linalg.norm(one - other) <= 1e-10 * np.linalg.norm(one)
    assert not np.allclose(alone[0], alone[-1])


@pytest.mark.system
def test_epochs_on_two_devices_are_timed_and_decided_about(
    one_and_two: OneAndTwo,
) -> None:
    unified = one_and_two[2]
    assert unified.settled.names == ("cpu:0", "cpu:1")
    assert [times.epoch for times in unified.timings] == [0, 1]
    assert [decision.epoch for decision in unified.decisions] == [0, 1]
    for times, decision in zip(unified.timings, unified.decisions, strict=True):
        assert decision.seconds == tuple(worker.busy_s for worker in times.workers)
        assert sum(decision.work) == pytest.approx(skewed_workloads(COUNT, seed=0).sum())
        assert times.steps_s >= max(worker.busy_s for worker in times.workers)


# ---- what holds on any devices ------------------------------------------------------------------


def test_gradient_is_the_mean_over_the_mini_batch() -> None:
    model = linear()
    reference = copy.deepcopy(model)
    table = random_table(COUNT, WIDTH, CLASSES, torch.float64)
    with unified_of(model, batch_size=COUNT) as unified:
        (step,) = unified.epoch(0)
    logits = reference(table.rows)
    loss = torch.nn.functional.cross_entropy(logits, table.labels)
    loss.backward()  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(gradients(model), gradients(reference), rtol=1e-12)
    assert step.loss == pytest.approx(loss.item())
    assert step.numbers == {"correct": float((logits.argmax(dim=1) == table.labels).sum())}


def test_every_item_is_in_one_mini_batch_of_an_epoch() -> None:
    with unified_of(linear()) as unified:
        steps = list(unified.epoch(0))
    assert [(step.batch, step.count) for step in steps] == [(0, 16), (1, 16), (2, 13)]


def test_loss_alone_has_no_further_numbers() -> None:
    with unified_of(linear(), summed_loss_only) as unified:
        assert all(step.numbers == {} for step in unified.epoch(0))


def test_weights_of_the_moment_are_computed_at() -> None:
    model = linear()
    with unified_of(model, batch_size=COUNT) as unified:
        (first,) = unified.epoch(0)
        with torch.no_grad():
            model.weight.zero_()
            model.bias.zero_()
        (second,) = unified.epoch(0)
    assert first.loss != pytest.approx(second.loss)
    assert second.loss == pytest.approx(np.log(CLASSES))


def test_frozen_parameters_have_no_gradient() -> None:
    model = perceptron()
    with unified_of(model, summed_loss_of_batch) as unified:
        list(unified.epoch(0))
    assert model.frozen.grad is None
    assert model.without_part.grad is not None
    assert model.without_part.grad.tolist() == [0, 0]


def test_epoch_that_is_left_teaches_nothing_and_the_next_goes_on() -> None:
    with unified_of(linear()) as unified:
        assert next(iter(unified.epoch(0))).batch == 0
        assert unified.timings == []
        assert unified.decisions == []
        assert len(list(unified.epoch(1))) == 3
        assert [times.epoch for times in unified.timings] == [1]


def test_what_was_chosen_is_told() -> None:
    told: list[str] = []
    unified = unified_of(linear(), devices="cuda:7", tell=told.append)
    (sentence,) = told
    assert sentence.startswith("devices: cuda:7 is not there (")
    assert sentence.endswith("); training on cpu")
    assert unified.settled.names == ("cpu:0",)


def test_second_close_does_nothing_and_a_later_epoch_begins_anew() -> None:
    unified = unified_of(linear())
    with unified:
        list(unified.epoch(0))
    unified.close()
    assert len(list(unified.epoch(1))) == 3
    unified.close()


def test_changing_buffer_is_a_named_failure() -> None:
    with (
        unified_of(Counting(WIDTH, CLASSES)) as unified,
        pytest.raises(ConfigurationError, match="its buffer seen changes"),
    ):
        list(unified.epoch(0))


def test_device_that_ends_in_mid_training_is_named() -> None:
    with unified_of(linear(), loss_that_ends_the_process, devices="cpu:1", threads=1) as unified:
        assert len(list(unified.epoch(0))) == 3
        with pytest.raises(DeviceFailed, match="^cpu:0: its process ended with code 5"):
            list(unified.epoch(1))
        with pytest.raises(DeviceFailed, match="^the devices of this task were closed"):
            list(unified.epoch(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected at least 1"),
        ({"items": np.zeros((2, 2), np.int64)}, r"items are int64 of shape \(2, 2\); expected"),
        ({"items": np.zeros(0, np.int64)}, r"items are int64 of shape \(0,\); expected"),
        ({"items": np.ones(3)}, r"items are float64 of shape \(3,\); expected whole numbers"),
        ({"workloads": np.ones(3)}, r"workloads are float64 of shape \(3,\); .* each of 45 items"),
        ({"workloads": np.full(COUNT, -1.0)}, "expected a number for each of 45 items, none below"),
        ({"workloads": np.full(COUNT, np.nan)}, "expected a number for each of 45 items"),
        ({"devices": "gpu"}, "devices is 'gpu'; expected auto"),
        ({"balance": "fair"}, "balance is 'fair'; expected dynamic, static, equal"),
        ({"speeds": [1, 2]}, "expected 1 positive number, one"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_argument_out_of_its_range_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        unified_of(linear(), **settings)


def test_model_that_computes_over_a_batch_is_named() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4), torch.nn.BatchNorm1d(4))
    with pytest.raises(ConfigurationError, match="1 is BatchNorm1d"):
        Unified(model, random_table(4, WIDTH, 3, torch.float32), summed_loss_only, items=ITEMS)
