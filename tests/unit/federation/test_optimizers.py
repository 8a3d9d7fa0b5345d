"""Server optimizers by name; those of PyTorch are equal to PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError
from retexo_fl.federation.optimizers import make_optimizer


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


@pytest.mark.parametrize("name", ["adam", "sgd", "momentum", "lbfgs"])
def test_a_restored_optimizer_goes_on_with_the_same_bits(name: str) -> None:
    config = make_config({"optimizer": name})
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
    with pytest.raises(ConfigurationError, match="optimizer: lbfgs .* local-steps 2.*expected"):
        make_config({"local-steps": 2, "optimizer": "lbfgs"})
