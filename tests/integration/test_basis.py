"""Trainings on coordinates of a supervised subspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError
from retexo_fl.graph import write_partitions
from tests.support.cli import CommandLine
from tests.support.data import cora_dir
from tests.support.predictions import summary_of
from tests.support.runs import (
    Interrupter,
    configured,
    ledger_of,
    model_bytes,
    result_of,
    train,
)

KEYS: dict[str, Any] = {
    "clients": 3,
    "hidden": 16,
    "rounds": 4,
    "basis": "supervised",
    "basis_blocks": 2,
}


def test_peers_get_coordinates_and_no_features(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **KEYS, dataset="cora", data_dir=cora_dir(), codec="dense")
    features = train(
        tmp_path / "features", **{**KEYS, "basis": "none"}, dataset="cora", data_dir=cora_dir()
    )
    vectors = sum(
        p.num_boundary
        for p in make_parts(configured(tmp_path / "x", **KEYS, dataset="cora", data_dir=cora_dir()))
    )
    sent = ledger_of(run).sum(kind="boundary", layer=0, direction="out")
    assert sent.raw == vectors * 14 * 4
    assert ledger_of(features).sum(kind="boundary", layer=0, direction="out").raw == (
        vectors * 1433 * 4
    )


def test_bytes_of_the_basis_are_those_of_its_blocks(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **KEYS)
    # Digits: 64 features, 10 classes; the mean, then two blocks, the first of which goes down.
    up, down = (
        ledger_of(run).sum(kind=kind, purpose="basis").raw
        for kind in ("updates_up", "weights_down")
    )
    assert up == 3 * 4 * (64 + 2 * 64 * 10)
    assert down == 3 * 4 * (64 + (64 + 64 * 10))


def test_features_cross_once_before_a_basis_of_sums(tmp_path: Path) -> None:
    cora = {**KEYS, "dataset": "cora", "data_dir": cora_dir()}
    sums = train(tmp_path / "sums", **cora, basis_rows="sums")
    none = train(tmp_path / "none", **{**cora, "basis": "none"})
    for kind in ("boundary", "control"):
        first, other = (
            ledger_of(run).sum(kind=kind, purpose="exchange", layer=0, direction="out")
            for run in (sums, none)
        )
        assert first == other


@pytest.mark.parametrize("model", ["gat", "sage-pool"])
def test_layers_without_fixed_sums_have_no_basis_of_them(tmp_path: Path, model: str) -> None:
    for rows in ("sums", "choose"):
        with pytest.raises(
            ConfigurationError, match=f"basis-rows: {rows} .* {model}.*expected own"
        ):
            train(tmp_path / "run", **KEYS, basis_rows=rows, model=model)
        assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("model", ["sage", "gcn", "gat"])
def test_rows_two_edges_away_are_of_types(tmp_path: Path, model: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=f"basis-rows: far does not go with model {model}, which reads no types; expected own",
    ):
        train(tmp_path / "run", model=model, basis="supervised", basis_rows="far")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rows", ["own", "sums"])
@pytest.mark.parametrize("event", [2, 4, 9])
@pytest.mark.each_choice
def test_a_resumed_run_equals_the_undisturbed_one(tmp_path: Path, event: int, rows: str) -> None:
    keys = {**KEYS, "basis_rows": rows}
    whole = train(tmp_path / "whole", **keys)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(out, Interrupter(event), **keys, checkpoint_every=1)
    if (out / "checkpoint.safetensors").exists():
        train(out, **keys, resume=out)
        assert model_bytes(out) == model_bytes(whole)
    else:
        assert event == 2


@pytest.mark.parametrize("more", [{}, {"basis_rows": "sums"}, {"row_bits": 8, "hidden": 32}])
def test_a_trained_model_predicts_what_it_was_tested_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], more: dict[str, Any]
) -> None:
    retexo = CommandLine(capfd)
    parts = tmp_path / "parts"
    write_partitions(make_parts(make_config({"clients": 3})), parts)
    keys = {**KEYS, "rounds": 20, "optimizer": "lbfgs", "dropout": 0.0, **more}
    run = train(tmp_path / "run", **keys)
    retexo.done("predict", run, "--partitions", parts, "--quiet")
    test = summary_of(parts)["labelled"]["test"]
    assert test["right"] / test["nodes"] == result_of(run)["test_accuracy"] > 0.9
    (run / "model" / "basis.safetensors").unlink()
    again = ("predict", run, "--partitions", parts, "--quiet", "--overwrite")
    assert "basis.safetensors: cannot be read" in retexo.refused(*again)


@pytest.mark.parametrize("algorithm", ["standard", "bns", "drop"])
def test_other_algorithms_have_no_basis(algorithm: str) -> None:
    with pytest.raises(ConfigurationError, match=f"basis: .*{algorithm}.*expected none"):
        make_config({"basis": "supervised", "algorithm": algorithm})
