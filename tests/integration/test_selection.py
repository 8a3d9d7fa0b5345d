"""The layers that a run leaves are those of the rounds that validated best, and no others.

Here the best round of every stage is before its last, and no two rounds validate alike, so that
neither the last weights nor a neighbouring round's can pass for the best.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.client.part import node_sets
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.stage_rows import stage_input
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.graph import BoundaryPlan
from retexo_fl.run_log.result import StageResult
from retexo_fl.training.layer_trainer import LayerTrainer
from retexo_fl.training.tally import Tally
from tests.support.cli import CommandLine
from tests.support.runs import events_of, model_bytes, model_weights, result_of, stop_after, train

#: Learns fast and then too much: validation rises, falls and swings.
KEYS: dict[str, Any] = {
    "dataset": "synthetic:nodes=300,edges=900,classes=4,features=12,homophily=0.5",
    "clients": 3,
    "hidden": 8,
    "rounds": 12,
    "seed": 2,
    "learning_rate": 0.1,
    "dtype": "float64",
    "split": "random-unstratified:0.2/0.1/0.7",
}


@pytest.fixture(scope="module", params=["lazy", "standard"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(request.param) / "run"
    train(out, **KEYS, algorithm=request.param)
    stages = result_of(out)["stages"]
    # So that a run of fewer rounds, up to a later stage's best, has selected the same before it.
    assert [s["best_round"] for s in stages] == sorted(s["best_round"] for s in stages)
    for stage in stages:
        losses = [e["val_loss"] for e in rounds_of(out, stage["layer"])]
        assert stage["best_round"] < stage["rounds"] == len(losses) == len({*losses})
    return out


def rounds_of(run: Path, stage: int) -> list[dict[str, Any]]:
    return [e for e in events_of(run) if e["event"] == "round" and e["stage"] == stage]


def test_saved_layers_reproduce_each_validation_and_the_test(run: Path) -> None:
    """Judged anew, on one client that owns the whole graph."""
    stages = result_of(run)["stages"]
    found = list(judged(run))
    for stage, (validation, _) in zip(stages, found, strict=True):
        assert validation.correct / validation.count == stage["val_accuracy"]
        known = rounds_of(run, stage["layer"])[stage["best_round"] - 1]
        assert known["round"] == stage["best_round"]
        assert known["val_accuracy"] == stage["val_accuracy"]
        loss = validation.loss_sum / validation.count
        assert loss == pytest.approx(known["val_loss"], rel=1e-9)
        assert loss == pytest.approx(stage["val_loss"], rel=1e-9)
    test = found[-1][1]
    assert test.correct / test.count == result_of(run)["test_accuracy"]


def test_kept_weights_are_those_of_a_run_ended_at_the_best_round(tmp_path: Path, run: Path) -> None:
    algorithm = read_trained_model(run).config.algorithm
    found = model_weights(run)
    for stage in result_of(run)["stages"]:
        keys = {**KEYS, "algorithm": algorithm, "rounds": stage["best_round"]}
        stopped = train(tmp_path / f"{stage['layer']}", **keys)
        assert result_of(stopped)["stages"][stage["layer"]]["best_round"] == stage["best_round"]
        layer = f"layer-{stage['layer']}/"
        kept = {name: t for name, t in model_weights(stopped).items() if name.startswith(layer)}
        assert kept
        for name, tensor in kept.items():
            np.testing.assert_array_equal(tensor, found[name], err_msg=name)


def test_a_run_that_is_resumed_after_its_best_round_keeps_it(tmp_path: Path, run: Path) -> None:
    keys = {**KEYS, "algorithm": read_trained_model(run).config.algorithm}
    stages = result_of(run)["stages"]

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(out, stop_after(stages[0]["best_round"] + 1), **keys)
    train(out, **keys, resume=out)
    assert result_of(out)["stages"] == stages
    assert model_bytes(out) == model_bytes(run)


def judged(run: Path) -> Iterator[tuple[Tally, Tally]]:
    """Validate and test the saved layers of a run over its graph, uncut, stage by stage."""
    model = read_trained_model(run)
    (part,) = make_parts(replace(model.config, clients=1))
    plan = BoundaryPlan.from_partition(part)
    rows = part.features.astype(model.shape.dtype)
    for stage, weights in enumerate(model.weights):
        inputs = stage_input(part, plan, rows, rows[:0], ())
        trainer = LayerTrainer(model.shape, stage, inputs, node_sets(part), seed=0)
        if model.shape.heads_between or stage == model.shape.layers - 1:
            yield trainer.evaluate(weights, "validation"), trainer.evaluate(weights, "test")
        if stage < model.shape.layers - 1:
            rows = trainer.embed(weights).numpy()


#: A second layer that has seen so few rounds is worse than none.
SHORT: dict[str, Any] = {
    "dataset": "synthetic:nodes=200,edges=600,classes=4,features=12",
    "clients": 2,
    "hidden": 8,
    "profile": "retexo",
    "quiet": True,
}


@pytest.mark.parametrize("metric", ["accuracy", "log-loss"])
def test_a_model_that_is_worse_than_an_earlier_stages_says_so_and_what_helps(
    metric: str, tmp_path: Path
) -> None:
    keys = {**SHORT, "metric": metric}
    run = retexo_fl.run(**keys, rounds=3 if metric == "log-loss" else 2, out=tmp_path / "run")

    def value(stage: StageResult) -> float:
        found = stage.metric.value if stage.metric else stage.val_accuracy
        assert found is not None
        return found if metric == "accuracy" else -found

    first, last = map(value, run.result.stages)
    (said,) = (line for line in run.result.warnings if "worse" in line)
    assert first > last
    assert "than that of stage 0" in said
    assert said[:1].upper() + said[1:] in html.unescape(run.report().read_text("utf-8"))
    assert "more rounds" in said
    longer = retexo_fl.run(**keys, rounds=40, out=tmp_path / "long")
    assert value(longer.result.stages[-1]) > first
    assert not any("worse" in line for line in longer.result.warnings)


def test_the_terminal_shows_that_a_model_is_worse(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = [f"--{key}={value}" for key, value in SHORT.items() if key != "quiet"]
    ended = CommandLine(capfd)("run", *options, "--rounds=2", "--out", tmp_path / "run")
    assert ended.code == 0
    assert "warning: the finished model is worse on validation nodes" in ended.err
