"""How vectors are written decides bytes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from retexo_fl.ledger import TrafficLedger, Volume
from tests.support.data import cora_dir
from tests.support.runs import model_bytes, train

FEATURES, HIDDEN, FLOAT64 = 1433, 24, 8


@pytest.mark.parametrize("plan", ["rows", "cover"])
def test_dense_payload_is_raw_and_trains_the_same_bits(tmp_path: Path, plan: str) -> None:
    moved, models = {}, {}
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
        moved[codec], models[codec] = boundary_of(run), model_bytes(run)
    assert models["dense"] == models["lossless"]
    vectors, rest = divmod(moved["dense"].raw, FLOAT64 * (FEATURES + 2 * HIDDEN))
    assert (vectors > 0, rest) == (True, 0)
    assert moved["dense"].payload == moved["dense"].raw == moved["lossless"].raw
    assert moved["lossless"].payload < moved["lossless"].raw / 5


def boundary_of(run: Path) -> Volume:
    with (run / "ledger.csv").open() as lines:
        return TrafficLedger.from_csv(lines).sum(kind="boundary")
