"""Weights of classes and focal loss, and what the user is warned of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cli import CommandLine
from tests.support.played_devices import play_devices
from tests.support.rare import NODES, RARE, write_rare
from tests.support.runs import (
    events_of,
    largest_difference,
    model_bytes,
    result_of,
    stop_after,
    train,
)
from tests.support.ways import way


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rare(tmp_path_factory.mktemp("rare"))


def test_balanced_weights_find_what_is_rare(tmp_path: Path, folder: Path) -> None:
    found = {}
    for weights in ("none", "balanced"):
        keys = {**RARE, "data_dir": folder, "clients": 3, "rounds": 20, "metric": "recall:1"}
        run = train(tmp_path / weights, class_weights=weights, **keys)
        found[weights] = result_of(run)["metric"]["value"]
    assert found["balanced"] > found["none"]


def test_given_weights_that_are_the_balanced_ones_train_the_same(
    tmp_path: Path, folder: Path
) -> None:
    """Of 48 train nodes four are rare: 48 / (2 * 44) and 48 / (2 * 4)."""
    keys = {**RARE, "data_dir": folder, "clients": 3, "rounds": 3}
    balanced = train(tmp_path / "balanced", class_weights="balanced", **keys)
    given = train(tmp_path / "given", class_weights=f"{48 / 88:.9f},6", **keys)
    assert largest_difference(balanced, given) < 1e-6


@pytest.mark.parametrize(
    "keys",
    [
        way({"devices": "cpu:2"}, name="devices"),
        way({"algorithm": "drop", "sampler": "full", "batch_nodes": 8}, name="algorithm"),
        way({"local_steps": 3}, name="local_steps"),
        way({"loss": "tests.unit.training.test_label_facts:smoothed"}, name="loss"),
    ],
)
def test_every_way_of_training_weighs_classes(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    play_devices(monkeypatch)
    keys = {**RARE, "data_dir": folder, "clients": 2, "rounds": 2, **keys}
    # Devices train the weights of none.
    plain = train(tmp_path / "plain", **keys | {"devices": "cpu"})
    weighted = train(tmp_path / "weighted", class_weights="balanced", **keys)
    assert largest_difference(plain, weighted) > 1e-3


def test_a_resumed_training_weighs_as_before(tmp_path: Path, folder: Path) -> None:
    keys = {**RARE, "clients": 2, "data_dir": folder, "class_weights": "balanced"}
    whole = train(tmp_path / "whole", **keys)

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(out, stop_after(3, stage=1), **keys)
    train(out, **keys, resume=out)
    assert model_bytes(out) == model_bytes(whole)


def test_what_is_absent_or_never_predicted_is_told_everywhere(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, folder: Path
) -> None:
    """One node in twelve, and weights that leave the rare class out."""
    arrays = dict(np.load(folder / "rare.npz"))
    arrays["y"] = arrays["y"] + 2 * (np.arange(NODES) == 5)
    np.savez(tmp_path / "odd.npz", **arrays)
    options = ("--dataset", "odd", "--data-dir", tmp_path, "--rounds", "3", "--learning-rate", "1")
    weights = ("--class-weights", "1,0,0", "--split", "random:0.6/0.3/0.1")
    retexo = CommandLine(capfd)
    ended = retexo("run", *options, *weights, "--out", tmp_path / "run")
    assert ended.code == 0, ended.err
    expected = [
        "no validation node is of class 2",
        "no test node is of class 2",
        "the model predicts class 0 for every test node",
    ]
    assert re.findall("^warning: (.*)$", ended.err, re.MULTILINE) == expected
    assert result_of(tmp_path / "run")["warnings"] == expected
    page = (tmp_path / "run" / "report.html").read_text()
    for sentence in expected:
        assert f"{sentence[0].upper()}{sentence[1:]}." in page
    first, *_, last = events_of(tmp_path / "run")
    assert [*first["warnings"], *last["warnings"]] == expected
    quiet = retexo("run", *options, *weights, "--quiet", "--out", tmp_path / "quiet")
    assert quiet.err.splitlines() == [f"retexo: warning: {sentence}" for sentence in expected]


def test_nothing_is_warned_of_where_all_is_well(tmp_path: Path, folder: Path) -> None:
    keys = {**RARE, "data_dir": folder, "clients": 3, "class_weights": "balanced"}
    assert "warnings" not in result_of(train(tmp_path / "run", **keys))


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ("1,2,3", "class-weights: got 3 numbers; expected 2, one for each class"),
        ("5", "class-weights: got 1 number; expected 2, one for each class"),
        *(
            (text, f"class-weights: got {text!r}; expected none, balanced, a number from 0 for eac")
            for text in ("nan,1", "-1,1", "0,0", "1,", "balance", "1;2", "inf,1")
        ),
    ],
)
def test_weights_that_are_none_are_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, folder: Path, weights: str, told: str
) -> None:
    options = ("--dataset", "rare", "--data-dir", folder, "--quiet", "--class-weights", weights)
    found = CommandLine(capfd).refused("run", *options, "--out", tmp_path / "new")
    assert found.startswith(told)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("loss", ["focal", "focal:", "focal:-1", "focal:x", "focal:10", "huber"])
def test_a_loss_that_is_none_is_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, loss: str
) -> None:
    told = CommandLine(capfd).refused("run", "--loss", loss, "--out", tmp_path / "new")
    assert told.startswith(f"loss: got {loss!r}; expected one of auto, cross-entropy, focal:GAMMA")
    assert not (tmp_path / "new").exists()
