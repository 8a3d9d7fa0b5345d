from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from retexo_fl.layers.sage import SageLayer
from retexo_fl.training.stage_model import (
    FlatParameters,
    ModelShape,
    StageModel,
    flat_weights,
    initial_weights,
    model_in_turn,
    named_weights,
)

SHAPE = ModelShape(model="sage", layers=3, inputs=11, hidden=8, heads=2, classes=4, dtype="float64")


def test_input_widths_are_features_then_states() -> None:
    assert [SHAPE.input_width(stage) for stage in range(3)] == [11, 8, 8]
    gat = replace(SHAPE, model="gat")
    assert [gat.input_width(stage) for stage in range(3)] == [11, 4, 4]


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin", "sage-pool"])
def test_only_the_last_stage_has_no_head(model: str) -> None:
    shape = replace(SHAPE, model=model)
    for stage in range(3):
        names = {name.split(".")[0] for name, _ in StageModel(shape, stage).named_parameters()}
        assert names == ({"layer"} if stage == 2 else {"layer", "norm", "head"})


@pytest.mark.parametrize("model", ["gcn", "sage", "gat", "gin", "sage-pool"])
def test_named_weights_invert_flat_weights(model: str) -> None:
    shape = replace(SHAPE, model=model)
    for stage in range(3):
        flat = np.random.default_rng(stage).normal(size=len(initial_weights(shape, stage, seed=0)))
        named = named_weights(shape, stage, flat)
        np.testing.assert_array_equal(flat_weights(shape, stage, named), flat)


def test_initial_weights_depend_on_seed_and_stage_only() -> None:
    torch.manual_seed(1)
    one = initial_weights(SHAPE, 1, seed=5)
    torch.manual_seed(2)
    np.testing.assert_array_equal(one, initial_weights(SHAPE, 1, seed=5))
    assert not np.array_equal(one, initial_weights(SHAPE, 1, seed=6))
    assert not np.array_equal(one, initial_weights(replace(SHAPE, inputs=8), 0, seed=5))


def test_flat_parameters_share_memory_with_the_module() -> None:
    module = torch.nn.Linear(2, 1).double()
    flat = FlatParameters(module)
    values = np.array([1.0, 2.0, 3.0])
    values.flags.writeable = False
    flat.bind(values)
    result = module(torch.tensor([[10.0, 100.0]], dtype=torch.float64))
    assert result.item() == 213.0
    assert module.weight.data_ptr() == values.__array_interface__["data"][0]
    flat.release()
    assert sum(parameter.numel() for parameter in module.parameters()) == 0
    assert flat.size == 3


def test_classify_of_a_hidden_stage_reads_what_embed_passes_on() -> None:
    class Identity(torch.nn.Module):
        def forward(self, batch: object, dropout: object) -> object:
            return batch

    model = StageModel(SHAPE, 0)
    model.reset_parameters(seed=0, stage=0)
    model.layer = Identity()  # type: ignore[assignment]
    rows = torch.randn(5, 8, dtype=torch.float64)
    normal = (rows - rows.mean(1, keepdim=True)) / (
        rows.var(1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    torch.testing.assert_close(model.embed(rows), normal.clamp(min=0))
    torch.testing.assert_close(
        model.classify(rows, None), normal.clamp(min=0) @ model.head.weight.T + model.head.bias
    )


def test_clients_of_a_thread_compute_with_one_model_of_their_shape() -> None:
    model = model_in_turn(SHAPE, 0)
    assert model_in_turn(SHAPE, 0) is model
    assert model_in_turn(SHAPE, 1) is not model
    assert model_in_turn(replace(SHAPE, hidden=16), 0) is not model
    with ThreadPoolExecutor(1) as other:
        assert other.submit(model_in_turn, SHAPE, 0).result() is not model
    assert not any(parameter.numel() for parameter in model.parameters())
    sizes = [parameter.shape for parameter in StageModel(SHAPE, 0).parameters()]
    assert list(model.flat.shapes) == sizes


def test_a_layer_that_may_keep_what_it_prepares_is_of_one_client() -> None:
    gat = replace(SHAPE, model="gat")
    assert model_in_turn(gat, 0) is not model_in_turn(gat, 0)


def test_another_layer_of_the_same_name_has_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(SHAPE, model="tests_layers:Named")
    classes = [type("Named", (SageLayer,), {}) for _ in range(2)]
    made = []
    for layer in classes:
        monkeypatch.setattr("retexo_fl.training.stage_model.layer_class", lambda _, of=layer: of)
        made.append(model_in_turn(shape, 0))
    assert [type(model.layer) for model in made] == classes
