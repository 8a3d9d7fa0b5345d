"""Rows and sums of rows: the weights of the plan of rows, from fewer vectors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.channels import MemoryChannel, SpoolChannel
from retexo_fl.client.api import CollectRequest, PublishRequest, Ticket, chain_digest
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.errors import PartitionError
from retexo_fl.graph import PLAN_KINDS, BoundaryPlan
from retexo_fl.ledger import TrafficLedger
from retexo_fl.methods.lazy.answers import LazyClient
from tests.integration.test_missing_peers import LosingChannel
from tests.support.cli import CommandLine
from tests.support.data import cora_dir
from tests.support.predictions import SMALL, cut, read_npz, write_small
from tests.support.runs import (
    configured,
    largest_difference,
    model_bytes,
    result_of,
    train,
    train_over,
)

SUMMING = ("gcn", "sage", "gin")
TOLERANCE = 1e-12
FEATURES, HIDDEN, FLOAT64 = 1433, 16, 8


@pytest.mark.parametrize(
    ("model", "partitioner", "clients"),
    [("gcn", "random", 7), ("sage", "metis", 2), ("gin", "louvain", 3)],
)
def test_weights_and_answers_equal_those_of_rows(
    tmp_path: Path, model: str, partitioner: str, clients: int
) -> None:
    keys: dict[str, Any] = {
        **{"dataset": "cora", "data_dir": cora_dir(), "model": model, "hidden": HIDDEN},
        **{"rounds": 4, "dropout": 0.3, "dtype": "float64", "clients": clients},
        "partitioner": partitioner,
    }
    rows = train(tmp_path / "rows", **keys)
    cover = train(tmp_path / "cover", boundary_plan="cover", **keys)
    assert largest_difference(rows, cover) < TOLERANCE
    parts = make_parts(configured(tmp_path / "unused", **keys))
    counts = {
        kind: sum(BoundaryPlan.from_partition(part, kind).num_send for part in parts)
        for kind in PLAN_KINDS
    }
    for run, kind in ((rows, "rows"), (cover, "cover")):
        vectors = counts[kind]
        result = result_of(run)
        assert result["boundary_plan"] == kind
        raw = vectors * (FEATURES + HIDDEN) * FLOAT64
        assert result["bytes"]["raw"]["boundary"] == raw
        assert result["plan"]["predicted_raw"]["total"] == result["bytes"]["raw"]["total"]
        table = result["client_table"]
        assert sum(row["boundary_vectors_out"] for row in table) == vectors
        assert sum(row["boundary_vectors_in"] for row in table) == vectors
        ledger = TrafficLedger.from_csv((run / "ledger.csv").read_text().splitlines())
        assert ledger.sum(kind="boundary", direction="in").raw == raw
    assert counts["cover"] < counts["rows"]
    assert result_of(rows)["test_accuracy"] == result_of(cover)["test_accuracy"]


@pytest.mark.parametrize(
    ("model", "partitioner", "clients"),
    [
        *(("gcn", "random", 4), ("gcn", "louvain", 2), ("sage", "metis", 3)),
        ("gin", "random", 4),
        pytest.param("sage", "one-node", 40, marks=pytest.mark.slow),
        pytest.param("gin", "metis", 3, marks=pytest.mark.slow),
    ],
)
def test_three_layers_over_any_clients_equal_rows(
    tmp_path: Path, model: str, partitioner: str, clients: int
) -> None:
    write_small(tmp_path / "small.npz")
    keys: dict[str, Any] = {
        **{**SMALL, "data_dir": tmp_path, "model": model, "layers": 3, "hidden": 16, "rounds": 3},
        **{"dtype": "float64", "clients": clients, "partitioner": partitioner, "dropout": 0.3},
    }
    whole = train(tmp_path / "whole", **{**keys, "clients": 1, "partitioner": "random"})
    rows = train(tmp_path / "rows", **keys)
    cover = train(tmp_path / "cover", boundary_plan="cover", **keys)
    assert largest_difference(rows, cover) < TOLERANCE
    assert largest_difference(whole, cover) < 1e-9


@pytest.mark.parametrize("model", ["gat", "sage-pool"])
def test_layers_that_need_rows_keep_them(
    tmp_path: Path, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_small(tmp_path / "small.npz")
    keys: dict[str, Any] = {
        **{**SMALL, "data_dir": tmp_path, "model": model},
        **{"rounds": 2, "hidden": 8, "clients": 3},
    }
    rows = train(tmp_path / "rows", **keys)
    cover = train(tmp_path / "cover", boundary_plan="cover", **keys)
    assert model_bytes(rows) == model_bytes(cover)
    assert result_of(cover)["boundary_plan"] == "rows"
    assert result_of(rows)["bytes"] == result_of(cover)["bytes"]
    said = [record.getMessage() for record in caplog.records]
    (told,) = (line for line in said if line.startswith("boundary-plan"))
    assert re.fullmatch(f"boundary-plan: model {model} .*; .* rows, not a cover", told)


@pytest.mark.parametrize("model", SUMMING)
def test_missing_peers_leave_the_same_weights(tmp_path: Path, model: str) -> None:
    write_small(tmp_path / "small.npz")
    keys: dict[str, Any] = {
        **{**SMALL, "data_dir": tmp_path},
        **{"clients": 3, "rounds": 3, "model": model, "dtype": "float64", "hidden": 16},
        **{"missing_peers": "drop", "exchange_deadline_s": 0.1},
    }
    for kind in ("rows", "cover"):
        config = configured(tmp_path / kind, boundary_plan=kind, **keys)
        train_over(config, LosingChannel(2))
        plans = [BoundaryPlan.from_partition(part, kind) for part in make_parts(config)]
        missing = sum(plan.peer(2).receive.count for plan in plans[:2])
        assert result_of(tmp_path / kind)["missing_rows"] == config.layers * missing
    assert largest_difference(tmp_path / "rows", tmp_path / "cover") < TOLERANCE


def test_a_spool_carries_the_same_bits(tmp_path: Path) -> None:
    write_small(tmp_path / "small.npz")
    keys: dict[str, Any] = {
        **{**SMALL, "data_dir": tmp_path},
        **{"clients": 4, "rounds": 2, "hidden": 8, "boundary_plan": "cover"},
    }
    memory = train(tmp_path / "memory", **keys)
    train_over(configured(tmp_path / "files", **keys), SpoolChannel(tmp_path / "spool"))
    assert model_bytes(memory) == model_bytes(tmp_path / "files")
    assert result_of(memory)["bytes"]["raw"] == result_of(tmp_path / "files")["bytes"]["raw"]


def test_two_ends_with_different_plans_refuse_each_other(tmp_path: Path) -> None:
    write_small(tmp_path / "small.npz")
    keys: dict[str, Any] = {**SMALL, "data_dir": tmp_path, "clients": 2, "model": "gcn"}
    configs = [
        configured(tmp_path / kind, boundary_plan=kind, **keys) for kind in ("rows", "cover")
    ]
    channel = MemoryChannel()
    ticket = Ticket(job="job", attempt=1, weights_digest=chain_digest(b"", None))
    clients = [
        LazyClient(part, config, job="job", channel=channel, store=MemoryStore())
        for part, config in zip(make_parts(configs[0]), configs, strict=True)
    ]
    for client in clients:
        client.publish(PublishRequest(ticket=ticket))
    for client in clients:
        with pytest.raises(PartitionError, match="client 0 and client 1 .* two boundary plans"):
            client.collect(CollectRequest(ticket=ticket))


@pytest.mark.parametrize("model", SUMMING)
def test_predictions_of_a_model_that_was_trained_with_sums(
    tmp_path: Path,
    model: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    retexo = CommandLine(capfd)
    write_small(tmp_path / "small.npz")
    keys: dict[str, Any] = {
        **{**SMALL, "data_dir": tmp_path, "model": model, "layers": 3, "hidden": 16},
        **{"rounds": 3, "dtype": "float64"},
    }
    cover = train(tmp_path / "cover", **keys, clients=3, boundary_plan="cover")
    rows = train(tmp_path / "rows", **keys, clients=3)
    many = cut(tmp_path / "many", **keys, clients=5)
    whole = cut(tmp_path / "whole", **keys, clients=1)
    found = []
    for run, parts in ((cover, many), (rows, whole)):
        retexo.done("predict", run, "--partitions", parts, "--format", "npz")
        found.append(read_npz(parts))
    assert found[0].keys == found[1].keys
    assert np.abs(found[0].probabilities - found[1].probabilities).max() < TOLERANCE


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        # Coordinates, then hidden rows that are no wider than what the layer reads.
        ({"hidden": 16, "basis_rows": "own", "basis_blocks": 8}, "cover"),
        # Dense features, then what the layer reads, which is narrower than what it makes.
        ({"hidden": 64, "basis_rows": "sums", "basis_blocks": 2}, "rows"),
        ({"hidden": 16, "basis": "none"}, "cover"),
        ({"hidden": 16, "model": "gat", "basis": "none", "warm_start": False}, "rows"),
        # How many zeros hidden rows have, which are not rounded, is not known before.
        ({"hidden": 16, "row_bits": 32, "basis_rows": "own"}, "rows"),
    ],
)
def test_auto_takes_the_plan_of_fewer_bytes(
    tmp_path: Path, keys: dict[str, Any], kind: str
) -> None:
    graph = "synthetic:nodes=200,edges=900,classes=3,features=24,signal=0.6"
    common: dict[str, Any] = {
        "dataset": graph,
        "clients": 3,
        "rounds": 2,
        "patience": 0,
        "split": "random:0.4/0.3/0.3",
    }
    common |= {"profile": "lean", "model": "gcn", "quiet": True, **keys}
    runs = {
        plan: retexo_fl.run(out=tmp_path / plan, boundary_plan=plan, **common)
        for plan in (*PLAN_KINDS, "auto")
    }
    crossed = {plan: run.result.volumes["payload"]["boundary"] for plan, run in runs.items()}
    assert runs["auto"].config.boundary_plan == runs["auto"].result.boundary_plan == kind
    assert model_bytes(tmp_path / "auto") == model_bytes(tmp_path / kind)
    assert crossed["auto"] == crossed[kind]
    if keys.get("row_bits") != 32:
        assert crossed["auto"] == min(crossed.values(), key=lambda moved: moved or 0)
    profile = runs["auto"].result.profile
    assert profile is not None
    assert ("boundary-plan cover" in profile.sentence) == (kind == "cover")


def test_a_run_goes_on_with_the_plan_that_it_began_with(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"clients": 3, "rounds": 2, "patience": 0, "hidden": 8}
    keys["quiet"] = True
    run = retexo_fl.run(out=tmp_path / "run", **keys)
    assert run.config.boundary_plan == "cover"
    longer = run.extend(rounds=1, quiet=True)
    assert (longer.config.boundary_plan, longer.result.boundary_plan) == ("cover", "cover")
