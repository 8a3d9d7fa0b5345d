from __future__ import annotations

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.workers.flat_module import FlatModule
from retexo_fl.errors import ConfigurationError


def small_model(dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 2, dtype=dtype), torch.nn.Linear(2, 1, bias=False, dtype=dtype)
    )
    next(model.parameters()).data.copy_(torch.arange(6).reshape(2, 3))
    return model


def test_weights_are_all_trained_parameters_in_model_order() -> None:
    model = small_model()
    model[0].bias.requires_grad_(False)  # type: ignore[index]
    flat = FlatModule(model)
    assert flat.size == 8
    assert flat.weights()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(flat.weights()[6:], model[1].weight.detach()[0])  # type: ignore[index]


def test_weights_are_a_copy() -> None:
    flat = FlatModule(torch.nn.Linear(2, 1, bias=False))
    before = flat.weights()
    kept = before.copy()
    flat.load(torch.ones(2))
    np.testing.assert_array_equal(before, kept)
    assert flat.weights().tolist() == [1, 1]


def test_loaded_weights_are_those_that_are_read() -> None:
    flat = FlatModule(small_model())
    flat.load(torch.arange(10.0, dtype=torch.float64))
    np.testing.assert_array_equal(flat.weights(), np.arange(10.0))


def test_parameter_absent_from_the_loss_has_a_zero_gradient() -> None:
    model = small_model()
    flat = FlatModule(model)
    model[0](torch.ones(1, 3, dtype=torch.float64)).sum().backward()  # type: ignore[index]
    assert flat.gradients().tolist() == [1] * 8 + [0, 0]
    flat.clear_gradients()
    assert flat.gradients().tolist() == [0] * 10


def test_sparse_gradient_is_written_out() -> None:
    model = torch.nn.Embedding(3, 2, sparse=True)
    model(torch.tensor([1, 1])).sum().backward()
    assert FlatModule(model).gradients().tolist() == [0, 0, 2, 2, 0, 0]


def test_gradients_are_set_where_an_optimiser_reads_them() -> None:
    model = small_model()
    FlatModule(model).set_gradients(np.arange(10.0))
    grads = [parameter.grad for parameter in model.parameters()]
    assert [grad.tolist() for grad in grads if grad is not None] == [
        [[0, 1, 2], [3, 4, 5]],
        [6, 7],
        [[8, 9]],
    ]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (torch.nn.ReLU(), "are none"),
        (torch.nn.Linear(2, 2, dtype=torch.bfloat16), "are torch.bfloat16"),
        (
            torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, dtype=torch.float64)),
            "are torch.float32, torch.float64",
        ),
    ],
)
def test_parameters_that_are_not_one_vector_are_named(model: torch.nn.Module, found: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{found}; expected all float32 or all float64"):
        FlatModule(model)


def test_layer_that_computes_over_a_batch_is_named() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(ConfigurationError, match="model: 1 is BatchNorm1d, whose result depends"):
        FlatModule(model)
