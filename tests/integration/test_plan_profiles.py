"""What `retexo plan` says of profiles, against what runs move."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import profile_facts_of
from retexo_fl.client.preparation import make_parts
from retexo_fl.config.profiles import LAZY_PROFILES
from tests.support.cli import CommandLine
from tests.support.runs import configured, result_of, train
from tests.support.typed_graphs import BANK
from tests.support.ways import profile_keys

KEYS: dict[str, Any] = {"clients": 3, "hidden": 32, "model": "gcn", "rounds": 5, "patience": 0}
LEAN: dict[str, Any] = profile_keys("lean")
PLAIN: dict[str, Any] = {"basis_bits": 32, "row_bits": 32, "update_bits": 32, "weight_bits": 32}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"model": "sage", "codec": "dense"},
        {**LEAN, **KEYS},
        {**LEAN, **KEYS, "basis": "none"},
        {**LEAN, **KEYS, "basis_rows": "sums", "basis_blocks": 2},
        {**LEAN, **KEYS, "basis_blocks": 2, **PLAIN, "dtype": "float64"},
        {**LEAN, **KEYS, **BANK},
        {**LEAN, **KEYS, **BANK, "basis_rows": "far"},
        {**KEYS, **BANK, "unlabelled_types": "refined", "layers": 3},
        {
            **LEAN,
            **KEYS,
            **BANK,
            **{"dataset": "tests.support.typed_graphs:chain", "candidates": "none"},
        },
    ],
)
def test_no_run_moves_more_than_its_profile(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {**KEYS, **keys}
    config = configured(tmp_path / "config", **keys)
    planned = profile_facts_of(config, PlannedParts(make_parts(config)))
    run = train(tmp_path / "run", **keys)
    payload = result_of(run)["bytes"]["payload"]
    moved = payload["total"] - payload["control"]
    # Frames and heads are not planned; few bits are coded shorter still, most of all zeros.
    assert 0.4 * planned["payload_at_most"] < moved < 1.01 * planned["payload_at_most"]
    with (run / "ledger.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "control"]
    asked = Counter({"hello": 1})
    for row in rows:
        if row["client"] == "0" and row["direction"] == "in" and row["purpose"] != "exchange":
            asked[row["purpose"]] += int(row["messages"])
    if config.weight_bits < 32:
        # In a process clients cannot wait for each other, so that all send their vectors first.
        del asked["publish"]
        # But where types are taught: what layer 0 reads crosses after its rows, and before rounds.
        asked["publish"] = 2 * ("dataset" in keys) + ("chain" in keys.get("dataset", ""))
        asked["publish"] += "far" in keys.values()
    assert planned["messages"] == asked.total()


def test_profiles_stand_beside_each_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    retexo = CommandLine(capfd)
    facts = json.loads(retexo.done("plan", "--json"))["profiles"]
    assert tuple(facts) == LAZY_PROFILES
    # Of both with what the stages may be tried as.
    assert facts["lean"]["payload_at_most"] < 0.3 * facts["retexo"]["payload_at_most"]
    shown = retexo.done("plan")
    assert "payload, at most" in shown
    # Options win over profiles; those that contradict one leave it out.
    other = ("--codec", "dense", "--model", "gcn")
    facts = json.loads(retexo.done("plan", *other, "--json"))["profiles"]
    assert facts["lean"] is None
    assert facts["retexo"]["rounds"] == 120
    facts = json.loads(retexo.done("plan", "--local-steps", "3", "--json"))["profiles"]
    assert facts["lean"]["payload_at_most"] < 0.3 * facts["retexo"]["payload_at_most"]
    assert "profiles" not in json.loads(retexo.done("plan", "--algorithm", "drop", "--json"))
