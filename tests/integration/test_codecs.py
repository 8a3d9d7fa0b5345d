"""How vectors and updates are written decides bytes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.data import cora_dir
from tests.support.runs import ledger_of, model_bytes, train

FEATURES, HIDDEN, FLOAT64 = 1433, 24, 8


@pytest.mark.parametrize("plan", ["rows", "cover"])
def test_dense_payload_is_raw_and_trains_the_same_bits(tmp_path: Path, plan: str) -> None:
    moved, models, updates = {}, {}, {}
    for codec in ("dense", "lossless"):
        run = train(
            tmp_path / codec,
            dataset="cora",
            data_dir=cora_dir(),
            clients=3,
            model="gcn",
            layers=3,
            hidden=HIDDEN,
            rounds=2,
            dtype="float64",
            boundary_plan=plan,
            codec=codec,
        )
        moved[codec], models[codec] = ledger_of(run).sum(kind="boundary"), model_bytes(run)
        updates[codec] = ledger_of(run).sum(kind="updates_up")
    assert models["dense"] == models["lossless"]
    vectors, rest = divmod(moved["dense"].raw, FLOAT64 * (FEATURES + 2 * HIDDEN))
    assert (vectors > 0, rest) == (True, 0)
    assert moved["dense"].payload == moved["dense"].raw == moved["lossless"].raw
    assert moved["lossless"].payload < moved["lossless"].raw / 5
    # Of the first layer's rows, some are of words that none of a client's train nodes has.
    assert updates["dense"].payload == updates["dense"].raw == updates["lossless"].raw
    assert updates["lossless"].payload < 0.96 * updates["lossless"].raw
