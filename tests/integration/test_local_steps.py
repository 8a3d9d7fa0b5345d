"""Federated averaging of a layer, and trainings with a loss and a metric of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from retexo_fl.errors import PluginError
from retexo_fl.training.metrics import Metric
from tests.support.runs import events_of, largest_difference, result_of, train

KEYS: dict[str, Any] = {"clients": 4, "hidden": 16, "rounds": 6}


def smoothed(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=0.2)


def same_as_built_in(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels, reduction="sum")


def averaged(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits, labels)


class WorstRecall(Metric):
    """Share found of the class that is found least."""

    def sums(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        classes = logits.shape[1]
        found = torch.bincount(labels[logits.argmax(1) == labels], minlength=classes)
        return torch.cat([found, torch.bincount(labels, minlength=classes)])

    def value(self, totals: np.ndarray) -> float:
        found, there = np.split(totals, 2)
        return float((found / there).min())


METRIC = f"{__name__}:WorstRecall"


def test_local_steps_reach_in_few_rounds_what_takes_many(tmp_path: Path) -> None:
    one = train(tmp_path / "one", **KEYS)
    many = train(tmp_path / "many", local_steps=8, **KEYS)
    assert result_of(many)["val_accuracy"] > result_of(one)["val_accuracy"] + 0.1
    assert result_of(many)["bytes"]["raw"] == result_of(one)["bytes"]["raw"]
    losses = [event["loss"] for event in events_of(many) if event["event"] == "round"]
    assert losses[5] < losses[0] / 2


def test_one_client_with_local_sgd_equals_its_steps_in_a_row(tmp_path: Path) -> None:
    """Averaging one client's change is taking its steps; without dropout two rounds are one."""
    keys = {"clients": 1, "hidden": 8, "layers": 1, "dropout": 0.0, "dtype": "float64"}
    local = {"local_optimizer": "sgd", "local_learning_rate": 0.1}
    short = train(tmp_path / "short", rounds=4, local_steps=2, **local, **keys)
    long = train(tmp_path / "long", rounds=2, local_steps=4, **local, **keys)
    assert result_of(short)["stages"][0]["best_round"] == 4
    assert result_of(long)["stages"][0]["best_round"] == 2
    assert largest_difference(short, long) < 1e-12


def test_a_loss_of_ones_own_is_trained_on(tmp_path: Path) -> None:
    keys = {**KEYS, "dtype": "float64"}
    built_in = train(tmp_path / "built-in", **keys)
    same = train(tmp_path / "same", loss=f"{__name__}:same_as_built_in", **keys)
    assert largest_difference(built_in, same) < 1e-9
    other = train(tmp_path / "other", loss=f"{__name__}:smoothed", **keys)
    assert largest_difference(built_in, other) > 1e-3
    alone = train(tmp_path / "alone", loss=f"{__name__}:smoothed", **{**keys, "clients": 1})
    assert largest_difference(alone, other) < 1e-9


def test_a_loss_that_is_a_mean_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="client 0: loss averaged: .* expected a sum over nodes"):
        train(tmp_path / "run", loss=f"{__name__}:averaged", **KEYS)


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_a_metric_of_ones_own_selects_the_weights(tmp_path: Path, model: str) -> None:
    keys = {**KEYS, "rounds": 12, "layers": 1, "model": model, "dtype": "float64", "metric": METRIC}
    keys |= {"split": "random-unstratified:0.2/0.1/0.7"}
    run = train(tmp_path / "run", **keys)
    values = {e["round"]: e["val_metric"] for e in events_of(run) if e["event"] == "round"}
    stage = result_of(run)["stages"][0]
    assert len(values) == 12
    assert stage["metric"] == {"name": METRIC, "value": max(values.values())}
    assert values[stage["best_round"]] == max(values.values())
    assert 0 < result_of(run)["metric"]["value"] < result_of(run)["test_accuracy"]
    alone = train(tmp_path / "alone", **{**keys, "clients": 1})
    assert result_of(alone)["metric"] == result_of(run)["metric"]
