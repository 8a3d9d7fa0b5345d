"""What crosses before a stage against what its receiver computes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from retexo_fl.client.stage_rows import (
    layer_inputs,
    summed_rows,
    with_coordinates,
    with_layer_outputs,
)
from retexo_fl.config import make_config
from retexo_fl.layers.aggregate import AggregatedInput
from retexo_fl.layers.base import StageInput, dense_rows
from retexo_fl.layers.named import layer_class
from retexo_fl.training.basis import Basis
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.stage_model import ModelShape, StageModel, initial_weights

RNG = np.random.default_rng(5)
NODES, FEATURES = 9, 4
NONE = np.zeros(0, np.int64)


def stage_input() -> StageInput:
    """Return a ring of nodes without peers."""
    around = np.arange(NODES)
    return StageInput(
        own=torch.from_numpy(RNG.normal(size=(NODES, FEATURES))),
        received=torch.zeros(0, FEATURES, dtype=torch.float64),
        indptr=2 * np.arange(NODES + 1),
        indices=np.stack([(around - 1) % NODES, (around + 1) % NODES], axis=1).reshape(-1),
        neighbours=np.full(NODES, 2),
        degrees=RNG.integers(2, 400, NODES),
        own_hashes=np.arange(NODES, dtype=np.uint64),
        slot_hashes=np.zeros(0, np.uint64),
    )


def shape_of(model: str, **keys: object) -> ModelShape:
    config = make_config({"model": model, "hidden": 16, "row-bits": 8, "dtype": "float64", **keys})
    return ModelShape.of(config, inputs=FEATURES, classes=3)


@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_a_peer_computes_what_the_owner_would_have_sent(model: str) -> None:
    shape, inputs = shape_of(model), stage_input()
    assert shape.crosses_as_inputs(1)
    weights = initial_weights(shape, 0, seed=3)
    nodes = NodeSets(train=NONE, validation=NONE, test=NONE, labels=np.zeros(NODES, np.int64))
    rows = LayerTrainer(shape, 0, inputs, nodes, seed=3).embed(weights)
    crossing = layer_inputs(shape, 0, inputs)
    assert crossing.shape == (NODES, shape.exchange_width(1))
    sent = torch.from_numpy(crossing)
    crossed = replace(inputs, own=sent, received=sent, slot_hashes=inputs.own_hashes)
    made = with_layer_outputs(shape, 1, weights, crossed)
    torch.testing.assert_close(made.own, rows, rtol=1e-12, atol=1e-12)
    factors = layer_class(model).message_scale(inputs.degrees)
    scaled = rows if factors is None else rows * torch.from_numpy(factors)[:, None]
    torch.testing.assert_close(made.received, scaled, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("told", [-1e30, 1e30])
def test_a_factor_of_a_peer_is_finite(told: float) -> None:
    shape, inputs = shape_of("gcn", dtype="float32"), stage_input()
    rows = torch.zeros(NODES, shape.exchange_width(1))
    lied = rows.clone()
    lied[:, -1] = told
    crossed = replace(inputs, own=rows, received=lied, slot_hashes=inputs.own_hashes)
    made = with_layer_outputs(shape, 1, initial_weights(shape, 0, seed=3), crossed)
    assert isinstance(made.received, torch.Tensor)
    assert torch.isfinite(made.received).all()


@pytest.mark.parametrize(
    ("model", "keys", "widths"),
    [
        ("gcn", {}, (4, 5, 16)),
        ("sage", {}, (4, 8, 16)),
        ("gin", {}, (4, 8, 16)),
        ("gat", {}, (4, 2, 2)),
        ("gcn", {"hidden": 5}, (4, 5, 5)),
        ("gcn", {"row-bits": 32}, (4, 16, 16)),
        ("gcn", {"boundary-plan": "cover"}, (4, 16, 16)),
    ],
)
def test_what_crosses_is_the_narrower(
    model: str, keys: dict[str, object], widths: tuple[int, ...]
) -> None:
    shape = shape_of(model, layers=3, **keys)
    assert tuple(shape.exchange_width(stage) for stage in range(3)) == widths


@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
def test_a_layer_reads_the_coordinates_of_its_sums(model: str) -> None:
    shape = shape_of(model, **{"basis": "supervised", "basis-rows": "sums"})
    basis = Basis(mean=RNG.normal(size=FEATURES), directions=RNG.normal(size=(FEATURES, FEATURES)))
    inputs = stage_input()
    prepared = StageModel(shape, 0).layer.prepare(with_coordinates(basis, inputs))
    assert isinstance(prepared, AggregatedInput)
    read = dense_rows(prepared.rows, torch.float64).numpy()
    sums = summed_rows(shape, inputs)
    np.testing.assert_allclose(read[:, -FEATURES:], basis.coordinates(sums), rtol=1e-12)
    if model != "gcn":
        own = np.asarray(inputs.own)
        np.testing.assert_allclose(read[:, :FEATURES], basis.coordinates(own), rtol=1e-12)


@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_some_nodes_are_those_of_all_to_the_bit(model: str, weighted: bool) -> None:
    shape = shape_of(model, **{"basis": "supervised", "basis-rows": "sums"})
    inputs = stage_input()
    if weighted:
        inputs = replace(inputs, edge_weights=RNG.uniform(0.5, 2, size=len(inputs.indices)))
    some = np.arange(0, inputs.num_nodes, 2)
    found = inputs.into(some)
    assert len(found.indices) < len(inputs.indices)
    np.testing.assert_array_equal(
        summed_rows(shape, found)[some], summed_rows(shape, inputs)[some], strict=True
    )
