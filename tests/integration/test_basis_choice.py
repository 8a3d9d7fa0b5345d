"""Validation nodes choose of which rows a basis is: own rows, or sums over neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from retexo_fl.client.client import GraphClient
from retexo_fl.client.preparation import load_parts
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.graph import write_partitions
from tests.support.cli import CommandLine
from tests.support.predictions import summary_of
from tests.support.runs import (
    Interrupter,
    configured,
    events_of,
    largest_difference,
    ledger_of,
    model_bytes,
    result_of,
    train,
)

FEATURES, CLASSES = 24, 3
KEYS: Final[dict[str, Any]] = {
    **{"clients": 3, "hidden": 8, "rounds": 4, "model": "sage", "codec": "dense"},
    **{"basis": "supervised", "basis_rows": "choose", "basis_blocks": 4},
    "split": "random-unstratified:0.4/0.3/0.3",
}
#: By name of a graph, the rows that say more of its labels.
GRAPHS: Final = {"apart": "own", "alike": "sums"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write two graphs: neighbours that say nothing, and such of the same class; nodes noisier."""
    for name, noise in (("apart", 1.0), ("alike", 3.0)):
        draw = np.random.default_rng(0)
        labels = draw.integers(0, CLASSES, 300)
        alike = labels[:, None] == labels
        likely = np.full((300, 300), 0.03) if name == "apart" else np.where(alike, 0.06, 0.002)
        rows = np.zeros((300, FEATURES))
        rows[np.arange(300), labels] = 2.0
        rows += noise * draw.normal(size=rows.shape)
        np.savez(
            tmp_path / f"{name}.npz",
            edge_index=np.array(np.nonzero(np.triu(draw.random((300, 300)) < likely, k=1))),
            x=rows.astype(np.float32),
            y=labels.astype(np.int16),
        )
    return tmp_path


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("model", ["gcn", "sage", "gin"])
@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.each_choice
def test_the_rest_is_as_if_the_chosen_rows_had_been_asked_for(
    folder: Path, name: str, model: str, bits: int
) -> None:
    keys = {**KEYS, "dataset": name, "data_dir": folder, "model": model, "basis_bits": bits}
    run = train(folder / "run", **keys)
    chosen = result_of(run)["basis_rows"]
    if (model, name) != ("gcn", "apart"):  # GCN reads no own row, so that little is left to choose
        assert chosen["rows"] == GRAPHS[name]
    assert (chosen["own"] < 0.99 * chosen["sums"]) == (chosen["rows"] == "own")
    asked = train(folder / "asked", **{**keys, "basis_rows": chosen["rows"]})
    assert "basis_rows" not in result_of(asked)
    files, others = model_bytes(run), model_bytes(asked)
    assert files["basis.safetensors"] == others["basis.safetensors"]
    if chosen["rows"] == "sums":
        assert files == others


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("task", ["classes", "regression"])
@pytest.mark.each_choice
def test_neither_choice_nor_basis_depends_on_the_parts(folder: Path, name: str, task: str) -> None:
    keys = {**KEYS, "dataset": name, "data_dir": folder, "dtype": "float64"}
    if task == "regression":
        content = dict(np.load(folder / f"{name}.npz"))
        np.savez(folder / f"{name}.npz", **content | {"y": content["y"] * 1000.0})
        keys |= {"task": task}
    one, many = (train(folder / str(n), **{**keys, "clients": n}) for n in (1, 5))
    whole, parted = (result_of(run)["basis_rows"] for run in (one, many))
    assert whole["rows"] == parted["rows"]
    assert whole["rows"] == GRAPHS[name] or task == "regression"
    for kind in ("own", "sums"):
        assert parted[kind] == pytest.approx(whole[kind], rel=1e-9)
    assert largest_difference(one, many) < 1e-6


@pytest.mark.parametrize("name", GRAPHS)
def test_masked_sums_choose_alike(folder: Path, name: str) -> None:
    keys = {**KEYS, "dataset": name, "data_dir": folder, "clients": 4}
    plain = train(folder / "plain", **keys)
    masked = train(folder / "masked", **keys, secure_aggregation="masked")
    ours, theirs = (result_of(run)["basis_rows"] for run in (masked, plain))
    assert ours["rows"] == theirs["rows"] == GRAPHS[name]
    for kind in ("own", "sums"):
        assert ours[kind] == pytest.approx(theirs[kind], rel=1e-4)


@pytest.mark.parametrize("event", [2, 3, 4, 9])
def test_a_resumed_run_keeps_what_was_chosen(folder: Path, event: int) -> None:
    keys = {**KEYS, "dataset": "apart", "data_dir": folder, "checkpoint_every": 1}
    whole, out = train(folder / "whole", **keys), folder / "run"
    with pytest.raises(KeyboardInterrupt):
        train(out, Interrupter(event), **keys)
    if (out / "checkpoint.safetensors").exists():
        train(out, **keys, resume=out)
        assert model_bytes(out) == model_bytes(whole)
        assert result_of(out)["basis_rows"] == result_of(whole)["basis_rows"]
        assert [e["event"] for e in events_of(out)].count("basis_chosen") == 1
    else:
        assert event < 4


def test_its_bytes_are_those_of_the_question_and_of_the_other_blocks(folder: Path) -> None:
    keys = {**KEYS, "dataset": "alike", "data_dir": folder}
    run = train(folder / "run", **keys)
    sums = train(folder / "sums", **{**keys, "basis_rows": "sums"})
    ours, others = (ledger_of(found) for found in (run, sums))
    # Of three blocks 9 coordinates, of which GraphSAGE reads 18 numbers beside a one.
    products = 19 * 20 // 2 + 19 * CLASSES
    asked = {
        kind: ours.sum(kind=kind, purpose="choice").raw for kind in ("updates_up", "weights_down")
    }
    assert asked["updates_up"] == 3 * 4 * 2 * (2 * products + 1)
    assert asked["weights_down"] == 3 * 4 * 2 * FEATURES * (1 + 9)
    more = {
        kind: ours.sum(kind=kind, purpose="basis").raw - others.sum(kind=kind, purpose="basis").raw
        for kind in asked
    }
    # The mean and three blocks once more, of which two go down.
    assert more["updates_up"] == 3 * 4 * FEATURES * (1 + 3 * CLASSES)
    assert more["weights_down"] == 3 * 4 * FEATURES * (3 + 2 * CLASSES)
    for purpose in ("exchange", "train", "evaluate"):
        assert ours.sum(purpose=purpose) == others.sum(purpose=purpose)


def test_clients_with_few_validation_nodes_leave_them_out(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As agents do; a sum over masked clients is of all."""
    keys = {**KEYS, "dataset": "apart", "data_dir": folder}
    masked = {**keys, "secure_aggregation": "masked"}
    whole = result_of(train(folder / "whole", **masked))["basis_rows"]
    monkeypatch.setattr(GraphClient, "least_validation", 1_000)
    run = train(folder / "run", **keys)
    assert result_of(run)["basis_rows"] == {"rows": "sums"}
    retexo = CommandLine(capfd)
    retexo.done("report", run)
    line = "basis-rows sums: no client has enough validation nodes to choose by"
    assert line in (run / "report.html").read_text()
    assert result_of(train(folder / "masked", **masked))["basis_rows"] == whole


def test_it_says_what_was_chosen_and_predicts_by_it(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = {**KEYS, "dataset": "apart", "data_dir": folder}
    retexo, parts = CommandLine(capfd), folder / "parts"
    write_partitions(load_parts(configured(folder / "x", **keys)), parts)
    options = [
        text for name, value in keys.items() for text in (f"--{name.replace('_', '-')}", str(value))
    ]
    line = "basis-rows own, by validation nodes: squared error"
    assert line in retexo("run", *options, "--out", folder / "run").err
    run = folder / "run"
    assert line in (run / "report.html").read_text()
    assert read_trained_model(run).basis is not None
    retexo.done("predict", run, "--partitions", parts, "--quiet")
    test = summary_of(parts)["labelled"]["test"]
    assert test["right"] / test["nodes"] == result_of(run)["test_accuracy"]
