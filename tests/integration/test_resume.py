"""Going on after an interruption, in one process; kills of real processes are in tests/system."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.agent.preparation import load_parts, make_parts
from retexo_fl.errors import (
    CheckpointError,
    ConfigurationError,
    PartitionError,
    RunDirectoryError,
)
from retexo_fl.federation.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from retexo_fl.federation.run_directory import check_resumable
from retexo_fl.graph import write_partitions
from retexo_fl.ledger import TrafficLedger
from retexo_fl.simulation.inline_engine import run_inline
from tests.support.runs import configured, events_of, model_bytes, result_of, train

KEYS: dict[str, Any] = {"rounds": 8, "clients": 3, "hidden": 16, "layers": 3, "model": "gcn"}


class Interrupter:
    """Presses Ctrl-C at an event."""

    def __init__(self, event: int) -> None:
        self.left = event

    def __call__(self, event: Mapping[str, Any]) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def interrupted(out: Path, event: int, **keys: Any) -> Path:
    with pytest.raises(KeyboardInterrupt):
        train(out, Interrupter(event), **keys)
    assert json.loads((out / "status.json").read_text())["state"] == "interrupted"
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole") / "run", **KEYS)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted in its second stage; to be copied."""
    return interrupted(tmp_path_factory.mktemp("half") / "run", 16, **KEYS)


# start, exchange, 8 rounds, stage_end: event 11 is the end of stage 0, event 12 the next exchange.
@pytest.mark.parametrize("event", [4, 9, 10, 11, 12, 13, 20, 30])
def test_resumed_run_equals_the_undisturbed_one(tmp_path: Path, whole: Path, event: int) -> None:
    out = interrupted(tmp_path / "run", event, **KEYS)
    train(out, **KEYS, resume=out)
    assert model_bytes(out) == model_bytes(whole)
    for key in ("test_accuracy", "val_accuracy", "stages", "missing_rows"):
        assert result_of(out)[key] == result_of(whole)[key]
    rounds = [(e["stage"], e["round"]) for e in events_of(out) if e["event"] == "round"]
    assert rounds == [(stage, number) for stage in range(3) for number in range(1, 9)]


def test_resume_counts_repeated_bytes_for_its_own_attempt(tmp_path: Path, whole: Path) -> None:
    out = interrupted(tmp_path / "run", 16, **KEYS)  # in stage 1
    train(out, **KEYS, resume=out)
    ledger = TrafficLedger.from_csv((out / "ledger.csv").read_text().splitlines())
    undisturbed = TrafficLedger.from_csv((whole / "ledger.csv").read_text().splitlines())
    boundary = [ledger.sum(kind="boundary", attempt=attempt).raw for attempt in (1, 2)]
    once = [undisturbed.sum(kind="boundary", layer=layer).raw for layer in range(3)]
    assert boundary == [once[0] + once[1], sum(once)]
    assert result_of(out)["attempts"] == 2
    updates = ledger.sum(kind="updates_up")
    assert updates.raw == undisturbed.sum(kind="updates_up").raw


def test_resume_with_patience_stops_where_the_undisturbed_run_did(tmp_path: Path) -> None:
    keys = {**KEYS, "rounds": 60, "patience": 3, "layers": 2, "learning_rate": 0.05}
    run = train(tmp_path / "whole", **keys)
    stages = result_of(run)["stages"]
    assert all(stage["rounds"] < 60 for stage in stages)
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    for stage in stages:
        # w(r) is judged in round r + 1, so the stage ends with three vain candidates and w(R),
        # which is judged like any other.
        judged = [e for e in rounds if e["stage"] == stage["layer"]][-2]
        assert judged["round"] - judged["best_round"] == 3
    out = interrupted(tmp_path / "broken", 7, **keys)
    train(out, **keys, resume=out)
    assert result_of(out)["stages"] == stages
    assert model_bytes(out) == model_bytes(run)


def test_checkpoints_may_be_rarer(tmp_path: Path, whole: Path) -> None:
    keys = {**KEYS, "checkpoint_every": 5}
    out = interrupted(tmp_path / "run", 10, **keys)
    train(out, **keys, resume=out)
    assert model_bytes(out) == model_bytes(whole)


def test_resume_refuses_another_configuration(tmp_path: Path) -> None:
    out = interrupted(tmp_path / "run", 6, **KEYS)
    with pytest.raises(ConfigurationError, match="hidden: 32, but the run in .* has 16"):
        train(out, **{**KEYS, "hidden": 32}, resume=out)


def test_resume_refuses_layers_of_another_training(tmp_path: Path, whole: Path) -> None:
    out = interrupted(tmp_path / "run", 16, **KEYS)
    other = train(tmp_path / "other", **{**KEYS, "seed": 5})
    layer = "model/layer-0.safetensors"
    (out / layer).write_bytes((other / layer).read_bytes())
    with pytest.raises(CheckpointError, match="not those of the checkpoint"):
        train(out, **KEYS, resume=out)


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("job", None),  # absent
        ("attempt", "two"),
        ("ledger", "attempt,kind\n1,boundary\n"),
        ("missing", [1]),
        ("absences", {"one": 1}),
        ("train_s", None),
        ("outcomes", [{"stage": 0}]),
        ("best_score", {"count": 1}),
        ("absent", 3),
        ("seconds", "long"),
        ("metrics_bytes", []),
    ],
)
def test_resume_names_a_checkpoint_that_no_run_wrote(
    tmp_path: Path, half: Path, fact: str, value: object
) -> None:
    out = shutil.copytree(half, tmp_path / "run")
    path = out / "checkpoint.safetensors"
    read = read_checkpoint(path)
    facts = {**read.facts, fact: value}
    if value is None:
        del facts[fact]
    write_checkpoint(path, Checkpoint(facts=facts, tensors=read.tensors))
    with pytest.raises(CheckpointError, match="checkpoint.*: damaged"):
        train(out, **KEYS, resume=out)


def test_resume_names_a_history_that_is_gone(tmp_path: Path, half: Path) -> None:
    out = shutil.copytree(half, tmp_path / "run")
    (out / "metrics.jsonl").unlink()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: cannot be cut"):
        train(out, **KEYS, resume=out)


def test_run_without_a_finished_round_cannot_be_resumed(tmp_path: Path) -> None:
    out = interrupted(tmp_path / "run", 2, **KEYS)
    with pytest.raises(RunDirectoryError, match="has no checkpoint yet"):
        check_resumable(out)


def test_finished_run_cannot_be_resumed(whole: Path) -> None:
    with pytest.raises(RunDirectoryError, match="has finished"):
        check_resumable(whole)


def test_resume_on_another_partitioning_is_refused(tmp_path: Path) -> None:
    parts, others = tmp_path / "parts", tmp_path / "others"
    for seed, folder in enumerate((parts, others)):
        write_partitions(make_parts(configured(tmp_path / "x", clients=3, seed=seed)), folder)
    out = tmp_path / "run"
    config = configured(out, **KEYS, partitions=parts)
    with pytest.raises(KeyboardInterrupt):
        run_inline(config, load_parts(config), [Interrupter(6)])
    moved = configured(out, **KEYS, partitions=others, resume=out)
    with pytest.raises(PartitionError, match="are of partitioning .* began with"):
        run_inline(moved, load_parts(moved))


def test_run_is_resumed_by_one_process_at_a_time(tmp_path: Path, whole: Path) -> None:
    out = interrupted(tmp_path / "run", 12, **KEYS)

    def resume_too(event: Mapping[str, Any]) -> None:
        if event["event"] == "start":
            with pytest.raises(RunDirectoryError, match="another process is at work"):
                train(out, **KEYS, resume=out)

    config = configured(out, **KEYS, resume=out)
    run_inline(config, make_parts(config), [resume_too])
    assert model_bytes(out) == model_bytes(whole)


def test_resume_clears_what_a_killed_process_left(tmp_path: Path) -> None:
    out = interrupted(tmp_path / "run", 12, **KEYS)
    left = out / "model" / "layer-1.safetensors.4711.part"
    left.write_bytes(b"half")
    train(out, **KEYS, resume=out)
    assert not left.exists()
