"""Server optimizers by name; those of PyTorch are equal to PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy
from flwr.supercore.task_identity import TaskIdentity

from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError
from retexo_fl.federation.optimizers import Partial, make_optimizer


@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.0), ("momentum", 0.9)])
def test_descent_equals_pytorchs_class(name: str, momentum: float) -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=5)
    config = make_config({"optimizer": name, "learning-rate": 0.1, "weight-decay": 0.01})
    ours = make_optimizer(config, start)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    judge = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=0.01)
    for gradient in rng.normal(size=(6, 5)):
        ours.step(gradient, 0.0, ours.weights)
        theirs.grad = torch.from_numpy(gradient.copy())
        judge.step()
    np.testing.assert_allclose(ours.weights, theirs.detach().numpy(), rtol=1e-12)


def written_out(name: str, start: np.ndarray, deltas: np.ndarray, rate: float) -> np.ndarray:
    """Return the weights after some rounds: Reddi et al., ICLR 2021, algorithm 2, line by line."""
    weights, tau, decay = start.copy(), 1e-3, 0.99
    momentum = 0.0 if name == "adagrad" else 0.9
    first, second = np.zeros_like(start), np.full_like(start, tau**2)
    for delta in deltas:
        first = momentum * first + (1 - momentum) * delta
        if name == "adagrad":
            second = second + delta**2
        elif name == "yogi":
            second = second - (1 - decay) * delta**2 * np.sign(second - delta**2)
        else:
            second = decay * second + (1 - decay) * delta**2
        weights = weights + rate * first / (np.sqrt(second) + tau)
    return weights


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_adaptive_steps_along_changes_are_those_of_the_paper(name: str) -> None:
    rng = np.random.default_rng(0)
    # Of sizes around the adaptivity, where Yogi's second moment rises and falls.
    start, deltas = rng.normal(size=50), rng.normal(size=(30, 50)) * 10.0 ** rng.uniform(-4, 0, 50)
    config = make_config({"local-steps": 5, "server-optimizer": name, "learning-rate": 0.1})
    ours = make_optimizer(config, start)
    for delta in deltas:
        ours.step(delta, 0.0, ours.weights)
    expected = written_out(name, start, deltas, 0.1)
    np.testing.assert_allclose(ours.weights, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["yogi", "adagrad"])
def test_adaptive_steps_along_gradients_go_the_other_way_and_decay_weights(name: str) -> None:
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=50), rng.normal(size=(30, 50))
    ours = make_optimizer(make_config({"optimizer": name, "weight-decay": 0.0}), start)
    decayed = make_optimizer(make_config({"optimizer": name, "weight-decay": 0.1}), start)
    for gradient in gradients:
        ours.step(gradient, 0.0, ours.weights)
        # What decay adds to the gradient is taken off beforehand.
        decayed.step(gradient - 0.1 * decayed.weights, 0.0, decayed.weights)
    expected = written_out(name, start, -gradients, 0.01)
    np.testing.assert_allclose(ours.weights, expected, rtol=1e-12)
    np.testing.assert_allclose(decayed.weights, expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["FedYogi", "FedAdagrad"])
def test_adaptive_steps_are_flowers_where_its_second_moment_begins_as_ours(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for known in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, known, 1)
    rng = np.random.default_rng(0)
    start, deltas = rng.normal(size=50), rng.normal(size=(10, 50))
    theirs = getattr(strategy, name)(eta=0.1)
    theirs.v_t = {"weights": np.full(50, 1e-6)}
    config = {"local-steps": 2, "server-optimizer": name[3:].lower(), "learning-rate": 0.1}
    ours = make_optimizer(make_config(config), start)
    for delta in deltas:
        theirs.current_arrays = {"weights": ours.weights.copy()}
        asked = Message(RecordDict(), dst_node_id=1, message_type="train")
        content = RecordDict()
        content["arrays"] = ArrayRecord({"weights": Array(ours.weights + delta)})
        content["metrics"] = MetricRecord({"num-examples": 1})
        arrays, _ = theirs.aggregate_train(1, [Message(content, reply_to=asked)])
        ours.step(delta, 0.0, ours.weights)
        np.testing.assert_allclose(ours.weights, arrays["weights"].numpy(), rtol=1e-9)


@pytest.mark.parametrize(
    "keys",
    [
        *({"optimizer": n} for n in ("adam", "sgd", "momentum", "yogi", "adagrad", "lbfgs")),
        *({"local-steps": 2, "server-optimizer": n} for n in ("mean", "momentum", "yogi")),
    ],
    ids=lambda keys: " ".join(map(str, keys.values())),
)
def test_a_restored_optimizer_goes_on_with_the_same_bits(keys: dict[str, Any]) -> None:
    config = make_config(keys)
    rng = np.random.default_rng(0)
    one = make_optimizer(config, rng.normal(size=5))
    for gradient in rng.normal(size=(3, 5)):
        one.step(gradient, 1.0, one.weights)
    other = make_optimizer(config, one.weights)
    other.load_state({key: item.copy() for key, item in one.state().items()})
    for gradient in rng.normal(size=(3, 5)):
        one.step(gradient, 0.5, one.weights)
        other.step(gradient, 0.5, other.weights)
    np.testing.assert_array_equal(one.weights, other.weights)


def test_averaged_changes_take_no_optimizer() -> None:
    averaged = make_optimizer(make_config({"local-steps": 2}), np.ones(2))
    averaged.step(np.array([1.0, -1.0]), 0.0, averaged.weights)
    np.testing.assert_array_equal(averaged.weights, [2.0, 0.0])


def test_a_step_of_one_along_the_mean_change_is_the_average() -> None:
    keys = {"local-steps": 2, "server-optimizer": "sgd", "learning-rate": 1.0}
    # Weight decay is the clients': none is added here.
    stepped = make_optimizer(make_config({**keys, "weight-decay": 0.5}), np.ones(2))
    averaged = make_optimizer(make_config({"local-steps": 2}), np.ones(2))
    for optimizer in (stepped, averaged):
        optimizer.step(np.array([0.1, -0.3]), 0.0, optimizer.weights)
    np.testing.assert_array_equal(stepped.weights, averaged.weights)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"local-steps": 2, "optimizer": "lbfgs"},
            "optimizer: lbfgs .* local-steps 2, .*; expected local-steps 1, or server-optimizer",
        ),
        (
            {"server-optimizer": "yogi"},
            "server-optimizer: yogi .* local-steps 1, .*; expected local-steps above 1, or "
            "optimizer",
        ),
        (
            {"local-steps": 2, "server-optimizer": "lbfgs"},
            "server-optimizer: got 'lbfgs'; expected one of mean, sgd, momentum, adam, yogi, "
            "adagrad",
        ),
    ],
)
def test_optimizers_belong_to_gradients_or_to_changes(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{told}$"):
        make_config(keys)


@pytest.mark.parametrize("name", ["adam", "sgd", "lbfgs", "yogi"])
def test_an_optimizer_of_some_weights_is_that_of_no_others(name: str) -> None:
    rng = np.random.default_rng(0)
    start, moved = rng.normal(size=7), np.array([1, 0, 1, 1, 0, 0, 1], bool)
    config = make_config({"optimizer": name, "learning-rate": 0.1, "weight-decay": 0.1})
    partial = Partial(start, moved, lambda weights: make_optimizer(config, weights))
    alone = make_optimizer(config, start[moved])
    for number, gradient in enumerate(rng.normal(size=(6, 7))):
        if number == 3:
            # A resume makes a new one.
            resumed = Partial(partial.weights, moved, lambda w: make_optimizer(config, w))
            resumed.load_state(partial.state())
            partial = resumed
        loss = 5.0 - number
        partial.step(gradient, loss, partial.weights.copy())
        alone.step(gradient[moved], loss, alone.weights.copy())
        np.testing.assert_array_equal(partial.weights[moved], alone.weights)
        np.testing.assert_array_equal(partial.weights[~moved], start[~moved])


def test_an_optimizer_of_some_weights_goes_on_from_what_took_their_place() -> None:
    config = make_config({"optimizer": "sgd", "learning-rate": 1.0, "weight-decay": 0.0})
    moved = np.array([True, False, True])
    partial = Partial(np.zeros(3), moved, lambda weights: make_optimizer(config, weights))
    np.copyto(partial.weights, np.array([5.0, 0.0, 7.0]))
    partial.step(np.ones(3), 1.0, partial.weights.copy())
    np.testing.assert_array_equal(partial.weights, [4.0, 0.0, 6.0])
