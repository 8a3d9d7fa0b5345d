"""Trainings by other server optimizers, and with classifiers that do not start anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape, named_weights
from tests.support.each_choice import by_day
from tests.support.runs import (
    Interrupter,
    configured,
    events_of,
    model_bytes,
    result_of,
    train,
)

KEYS: dict[str, Any] = {"clients": 3, "hidden": 32, "dropout": 0.0, "model": "gcn", "rounds": 12}


def losses(run: Path, stage: int) -> list[float]:
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    return [event["loss"] for event in rounds if event["stage"] == stage]


def test_lbfgs_needs_fewer_rounds_than_adam(tmp_path: Path) -> None:
    adam = train(tmp_path / "adam", **KEYS)
    lbfgs = train(tmp_path / "lbfgs", **KEYS, optimizer="lbfgs")
    assert losses(lbfgs, 0)[-1] < 0.8 * losses(adam, 0)[-1]
    assert result_of(lbfgs)["val_accuracy"] >= result_of(adam)["val_accuracy"]


@pytest.mark.parametrize(
    "optimizer",
    by_day(["adam", "yogi", "adagrad", "momentum"], "adam", "momentum", others=pytest.mark.slow),
)
def test_steps_along_mean_changes_learn(tmp_path: Path, optimizer: str) -> None:
    keys = {**KEYS, "local_steps": 4, "server_optimizer": optimizer}
    run = train(tmp_path / "run", **keys, learning_rate=1.0 if optimizer == "momentum" else 0.03)
    assert losses(run, 0)[-1] < 0.5 * losses(run, 0)[0]


@pytest.mark.parametrize(
    "optimizer",
    [
        *({"optimizer": name} for name in ("momentum", "yogi", "lbfgs")),
        *(
            pytest.param(keys, marks=pytest.mark.slow)
            for keys in (
                {"optimizer": "sgd"},
                {"server_optimizer": "momentum", "local_steps": 2},
            )
        ),
        {"server_optimizer": "adam", "local_steps": 2},
    ],
    ids=lambda keys: " ".join(map(str, keys.values())),
)
def test_a_resumed_run_equals_the_undisturbed_one(
    tmp_path: Path, optimizer: dict[str, Any]
) -> None:
    keys = {**KEYS, **optimizer, "warm_start": True, "rounds": 6}
    whole = train(tmp_path / "whole", **keys)
    out = tmp_path / "run"
    for event in (6, 12):
        with pytest.raises(KeyboardInterrupt):
            train(out, Interrupter(event), **keys, **({"resume": out} if event == 12 else {}))
    train(out, **keys, resume=out)
    assert result_of(out)["attempts"] == 3
    assert model_bytes(out) == model_bytes(whole)
    assert losses(out, 1) == losses(whole, 1)


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_a_warm_last_stage_starts_with_what_is_known(tmp_path: Path, model: str) -> None:
    keys = {**KEYS, "model": model, "rounds": 20}
    cold, warm = train(tmp_path / "cold", **keys), train(tmp_path / "warm", **keys, warm_start=True)
    assert losses(cold, 1)[0] > 1.5
    assert losses(warm, 1)[0] < 0.6 * losses(cold, 1)[0]


def test_warm_weights_are_the_heads(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", **{**KEYS, "layers": 3, "model": "sage", "hidden": 4})
    shape = ModelShape.of(config, inputs=5, classes=2)
    schedule = Schedule(shape=shape)
    rng = np.random.default_rng(0)
    for stage in (1, 2):
        before = rng.normal(size=len(schedule.initial(stage - 1, seed=0))).astype(np.float32)
        head = named_weights(shape, stage - 1, before)
        drawn = named_weights(shape, stage, schedule.initial(stage, seed=0))
        found = named_weights(shape, stage, schedule.initial(stage, seed=0, before=before))
        if stage == 1:
            expected = {**drawn, **{name: head[name] for name in ("head.weight", "head.bias")}}
        else:
            half = head["head.weight"].T / 2
            both = np.concatenate([half, half])
            expected = {"layer.weight": both, "layer.bias": head["head.bias"]}
        assert found.keys() == expected.keys()
        for name, item in expected.items():
            np.testing.assert_array_equal(found[name], item)
