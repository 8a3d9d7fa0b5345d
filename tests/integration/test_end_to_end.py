"""Training end to end over many parts, and what it says that it moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retexo_fl.errors import ConfigurationError
from retexo_fl.simulation.inline_engine import run_inline
from tests.support.cli import CommandLine
from tests.support.data import cora_dir
from tests.support.predictions import SMALL, write_small
from tests.support.runs import (
    configured,
    largest_difference,
    ledger_of,
    result_of,
    train,
)

TOLERANCE = 1e-9
KEYS: dict[str, Any] = {
    "dataset": "cora",
    "hidden": 16,
    "heads": 4,
    "rounds": 4,
    "dropout": 0.3,
    "dtype": "float64",
}


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_clients_without_train_nodes_take_part(tmp_path: Path, model: str) -> None:
    write_small(tmp_path / "small.npz")
    keys = {**KEYS, **SMALL, "data_dir": tmp_path, "model": model, "layers": 3, "rounds": 2}
    central = train(tmp_path / "central", algorithm="central", clients=1, **keys)
    run = train(tmp_path / "run", algorithm="standard", clients=12, **keys)
    assert any(row["train"] == 0 for row in result_of(run)["client_table"])
    assert largest_difference(central, run) < TOLERANCE
    weights = 8 * sum(_parameters(run))
    assert ledger_of(run).sum(kind="updates_up").raw == 12 * 2 * weights


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_sampling_every_boundary_node_is_standard_training(tmp_path: Path, model: str) -> None:
    keys = {**KEYS, "data_dir": cora_dir(), "model": model, "clients": 3}
    standard = train(tmp_path / "standard", algorithm="standard", **keys)
    sampled = train(tmp_path / "bns", algorithm="bns", boundary_rate=1.0, **keys)
    assert largest_difference(standard, sampled) == 0
    fewer = train(tmp_path / "fewer", algorithm="bns", boundary_rate=0.1, **keys)
    assert largest_difference(standard, fewer) > 1e-4


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_scaling_reaches_training(tmp_path: Path, model: str) -> None:
    keys = {**KEYS, "data_dir": cora_dir(), "model": model, "algorithm": "bns", "clients": 3}
    scaled = train(tmp_path / "scaled", **keys)
    unscaled = train(tmp_path / "unscaled", boundary_scaling="none", **keys)
    assert largest_difference(scaled, unscaled) > 1e-4


def test_recomputed_activations_give_the_same_bits(tmp_path: Path) -> None:
    keys = {**KEYS, "data_dir": cora_dir(), "layers": 3, "clients": 3, "algorithm": "standard"}
    kept = train(tmp_path / "kept", **keys)
    recomputed = train(tmp_path / "recomputed", activations="recompute", **keys)
    assert largest_difference(kept, recomputed) == 0


def test_the_cover_plan_trains_the_weights_of_rows(tmp_path: Path) -> None:
    keys = {**KEYS, "data_dir": cora_dir(), "clients": 4, "algorithm": "standard"}
    rows = train(tmp_path / "rows", **keys)
    cover = train(tmp_path / "cover", boundary_plan="cover", **keys)
    assert largest_difference(rows, cover) < 1e-12


def test_dropping_edges_moves_nothing_between_clients(tmp_path: Path) -> None:
    keys = {**KEYS, "data_dir": cora_dir(), "algorithm": "drop"}
    one = train(tmp_path / "one", clients=1, **keys)
    central = train(tmp_path / "central", **{**keys, "clients": 1, "algorithm": "central"})
    assert largest_difference(one, central) == 0
    many = train(tmp_path / "many", clients=5, local_steps=3, **keys)
    assert largest_difference(one, many) > 1e-3
    assert result_of(many)["bytes"]["raw"]["boundary"] == 0


@pytest.mark.parametrize("layers", [1, 3])
def test_traffic_of_standard_training_equals_its_closed_form(tmp_path: Path, layers: int) -> None:
    rounds, hidden, clients = 4, 16, 3
    run = train(
        tmp_path / "run",
        **{**KEYS, "data_dir": cora_dir(), "layers": layers, "dtype": "float32"},
        algorithm="standard",
        clients=clients,
        codec="dense",
    )
    ledger, result = ledger_of(run), result_of(run)
    vectors = sum(row["boundary_vectors_out"] for row in result["client_table"])
    states = hidden * (layers - 1)
    for measure in ("raw", "payload"):
        features = getattr(ledger.sum(kind="boundary", purpose="exchange"), measure)
        assert features == 4 * vectors * 1433
        trained = getattr(ledger.sum(kind="boundary", purpose="train"), measure)
        assert trained == 4 * vectors * 2 * rounds * states
        evaluated = getattr(ledger.sum(kind="boundary", purpose="evaluate"), measure)
        assert evaluated == 4 * vectors * (rounds + 2) * states
    sent = ledger.sum(kind="boundary", direction="out")
    assert sent.raw == ledger.sum(kind="boundary", direction="in").raw
    weights = sum(size for size in _parameters(run))
    assert ledger.sum(kind="updates_up").raw == 4 * clients * rounds * weights
    down = ledger.sum(kind="weights_down", purpose="train").raw
    assert down == 4 * clients * rounds * weights


def test_traffic_of_sampled_training_counts_the_sample(tmp_path: Path) -> None:
    rounds, hidden = 4, 16
    run = train(
        tmp_path / "run",
        **{**KEYS, "data_dir": cora_dir(), "dtype": "float32"},
        algorithm="bns",
        clients=2,
        codec="dense",
    )
    out = [row["boundary_vectors_out"] for row in result_of(run)["client_table"]]
    sampled = sum(vectors // 10 for vectors in out)
    trained = ledger_of(run).sum(kind="boundary", purpose="train").raw
    assert trained == rounds * sampled * (8 + 2 * 4 * hidden)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"algorithm": "central", "clients": 3}, "clients"),
        ({"algorithm": "standard", "local_steps": 2}, "local-steps"),
        ({"algorithm": "standard", "aggregator": "median"}, "aggregator"),
        ({"algorithm": "bns", "missing_peers": "drop"}, "missing-peers"),
        ({"algorithm": "bns", "boundary_plan": "cover"}, "boundary-plan"),
        ({"algorithm": "standard", "engine": "flower"}, "engine"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], keys: dict[str, object], named: str
) -> None:
    config = configured(tmp_path / "run", **keys)
    with pytest.raises(ConfigurationError, match=f"^{named}: .*algorithm {keys['algorithm']}"):
        run_inline(config, [])
    options = [f"--{key.replace('_', '-')}={value}" for key, value in keys.items()]
    assert f"{named}: " in CommandLine(capfd).refused("run", *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def _parameters(run: Path) -> list[int]:
    from safetensors.numpy import load_file

    return [
        tensor.size
        for path in sorted((run / "model").glob("*.safetensors"))
        for tensor in load_file(path).values()
    ]
