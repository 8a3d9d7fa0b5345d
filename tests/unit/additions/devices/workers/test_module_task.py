from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.workers.flat_module import FlatModule
from retexo_fl.additions.devices.workers.module_task import (
    Loss,
    ModuleSettings,
    ModuleTask,
    make_module_task,
)
from retexo_fl.additions.devices.workers.pool import OpenTask, WorkerPool
from retexo_fl.additions.devices.workers.task import Share
from retexo_fl.device_names import parse_devices
from retexo_fl.errors import ConfigurationError
from tests.support.device_tasks import (
    Counting,
    Perceptron,
    TableBatch,
    random_table,
    summed_cross_entropy,
    summed_loss_of_batch,
    summed_loss_only,
)

COUNT, WIDTH, CLASSES = 40, 6, 3
DTYPES = {torch.float32: 1e-5, torch.float64: 1e-10}
ITEMS = np.random.default_rng(2).permutation(COUNT)[:24]
CPU = torch.device("cpu")


def settings_of(model: torch.nn.Module, loss: Loss = summed_loss_only) -> ModuleSettings:
    dtype = FlatModule(model).dtype
    table = random_table(COUNT, WIDTH, CLASSES, dtype)
    return ModuleSettings(model=model, source=table, loss=loss, seed=0)


def perceptron(dtype: torch.dtype) -> Perceptron:
    torch.manual_seed(0)
    return Perceptron(WIDTH, 8, CLASSES, dtype)


def cut(bounds: Sequence[int], *, epoch: int = 3, batch: int = 2) -> list[Share]:
    return [
        Share(epoch=epoch, batch=batch, items=piece.astype(np.int64))
        for piece in np.split(ITEMS, bounds)
    ]


@pytest.fixture(scope="module", params=list(DTYPES), ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


@pytest.fixture(scope="module")
def gpu_pool() -> Iterator[WorkerPool]:
    with WorkerPool(parse_devices("cuda:0,cpu:1").settle(), threads=1, timeout_s=60.0) as pool:
        yield pool


@pytest.fixture(scope="module")
def task(process_pool: WorkerPool, dtype: torch.dtype) -> Iterator[OpenTask]:
    with opened(process_pool, dtype) as task:
        yield task


@pytest.fixture(scope="module")
def gpu_task(gpu_pool: WorkerPool, dtype: torch.dtype) -> Iterator[OpenTask]:
    with opened(gpu_pool, dtype) as task:
        yield task


@contextmanager
def opened(pool: WorkerPool, dtype: torch.dtype) -> Iterator[OpenTask]:
    settings = settings_of(perceptron(dtype), summed_loss_of_batch)
    size, flat = FlatModule(settings.model).size, FlatModule(settings.model).weights()
    task = pool.open(make_module_task, {}, settings, num_weights=size, dtype=flat.dtype)
    yield task
    task.close()


@pytest.mark.parametrize(
    "bounds", [(24, 24), (0, 24), (0, 0), (8, 16), (1, 2), (23, 23), (11, 11)], ids=str
)
def test_gradient_of_any_split_is_that_of_one_device(
    task: OpenTask, dtype: torch.dtype, bounds: tuple[int, int]
) -> None:
    demand_gradient_of_one_device(task, dtype, bounds)


@pytest.mark.gpu
@pytest.mark.parametrize("bounds", [(0,), (11,), (24,)], ids=str)
def test_gradient_of_a_gpu_and_a_cpu_is_that_of_one_device(
    gpu_task: OpenTask, dtype: torch.dtype, bounds: tuple[int]
) -> None:
    demand_gradient_of_one_device(gpu_task, dtype, bounds)


def demand_gradient_of_one_device(
    task: OpenTask, dtype: torch.dtype, bounds: Sequence[int]
) -> None:
    model = perceptron(dtype)
    shares = cut(bounds)
    found = task.step(FlatModule(model).weights(), shares)
    batch = random_table(COUNT, WIDTH, CLASSES, dtype).prepare(ITEMS, epoch=3, batch=2, device=CPU)
    loss = summed_loss_of_batch(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    expected = FlatModule(model).gradients().numpy()
    assert found.gradient_sum is not None
    error = np.linalg.norm(found.gradient_sum - expected) / np.linalg.norm(expected)
    assert error < DTYPES[dtype]
    assert found.numbers["loss_sum"] == pytest.approx(loss.item(), rel=10 * DTYPES[dtype])
    assert found.numbers["count"] == len(ITEMS)


def test_dropout_drops_and_is_keyed_by_epoch_and_batch(task: OpenTask, dtype: torch.dtype) -> None:
    weights = FlatModule(perceptron(dtype)).weights()
    losses = {
        task.step(weights, cut((8, 16), epoch=epoch, batch=batch)).numbers["loss_sum"]
        for epoch in (0, 1)
        for batch in (0, 1)
    }
    assert len(losses) == 4


def sums_at_once(task: ModuleTask, weights: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    (share,) = cut(())
    found = task.sums(torch.from_numpy(weights), task.prepare(share))
    assert found.gradient_sum is not None
    return found.gradient_sum.numpy(), dict(found.numbers)


def test_users_module_is_neither_changed_nor_given_gradients() -> None:
    model = torch.nn.Linear(WIDTH, CLASSES)
    before = copy.deepcopy(model.state_dict())
    sums_at_once(ModuleTask(CPU, settings_of(model)), np.ones(WIDTH * CLASSES + 3, np.float32))
    assert model.weight.grad is None
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())


def test_gradient_of_the_share_before_is_forgotten() -> None:
    task = ModuleTask(CPU, settings_of(perceptron(torch.float64), summed_loss_of_batch))
    weights = FlatModule(perceptron(torch.float64)).weights()
    first, second = sums_at_once(task, weights)[0], sums_at_once(task, weights)[0]
    np.testing.assert_array_equal(first, second)


def test_module_is_in_training_mode_even_if_the_users_is_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.Dropout(0.5)).eval()
    task = ModuleTask(CPU, settings_of(model, _count_of_zeros))
    assert sums_at_once(task, FlatModule(model).weights())[1]["zeros"] > 0
    assert not model.training


def test_modules_draws_are_keyed_and_leave_the_process_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.Dropout(0.5))
    weights, state = FlatModule(model).weights(), torch.get_rng_state()
    drawn = [sums_at_once(ModuleTask(CPU, settings_of(model)), weights)[0] for _ in range(2)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert torch.equal(torch.get_rng_state(), state)
    task = ModuleTask(CPU, settings_of(model))
    (other,) = cut((), batch=9)
    found = task.sums(torch.from_numpy(weights), task.prepare(other)).gradient_sum
    assert found is not None
    assert not np.array_equal(found.numpy(), drawn[0])


def test_numbers_of_the_loss_are_told_with_it() -> None:
    model = torch.nn.Linear(WIDTH, CLASSES)
    task = ModuleTask(CPU, settings_of(model, summed_cross_entropy))
    _, numbers = sums_at_once(task, FlatModule(model).weights())
    assert numbers.keys() == {"loss_sum", "count", "correct"}
    assert 0 <= numbers["correct"] <= numbers["count"] == len(ITEMS)


def test_number_with_a_name_that_is_taken_is_named() -> None:
    model = torch.nn.Linear(WIDTH, CLASSES)
    task = ModuleTask(CPU, settings_of(model, lambda model, batch: (torch.zeros(()), {"count": 1})))
    with pytest.raises(ConfigurationError, match="loss: .* count; expected another name"):
        sums_at_once(task, FlatModule(model).weights())


def test_buffer_that_changes_while_training_is_named() -> None:
    model = Counting(WIDTH, CLASSES)
    task = ModuleTask(CPU, settings_of(model))
    with pytest.raises(ConfigurationError, match="model: .*buffer seen .*; expected"):
        sums_at_once(task, FlatModule(model).weights())


def _count_of_zeros(
    model: torch.nn.Module, batch: TableBatch
) -> tuple[torch.Tensor, dict[str, float]]:
    found = model(batch.rows)
    return found.sum(), {"zeros": float((found == 0).sum())}
