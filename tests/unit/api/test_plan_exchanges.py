"""What is planned of an exchange is what its ledger holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retexo_fl.api.plan_exchanges import PlannedParts, is_exact, stage_payloads
from retexo_fl.client.preparation import make_parts
from retexo_fl.training.stage_model import ModelShape
from tests.support.runs import configured, ledger_of, train


@pytest.mark.parametrize(
    ("keys", "exact"),
    [
        # What is 0 takes a bit, and which values are depends on what was trained.
        ({"row_bits": 8}, (False, False, False)),
        ({"row_bits": 2, "model": "gcn", "boundary_plan": "cover"}, (False, False, False)),
        ({"row_bits": 8, "codec": "fixed"}, (False, False, False)),
        ({"row_bits": 8, "codec": "fixed", "model": "gcn"}, (False, False, False)),
        ({"codec": "dense", "dtype": "float64"}, (True, True, True)),
    ],
)
def test_vectors_of_each_stage_take_what_was_planned(
    tmp_path: Path, keys: dict[str, Any], exact: tuple[bool, ...]
) -> None:
    keys = {"clients": 3, "hidden": 16, "layers": 3, "rounds": 1, **keys}
    config = configured(tmp_path / "run", **keys)
    planned = PlannedParts(make_parts(config))
    shape = ModelShape.of_part(config, planned.parts[0])
    assert tuple(is_exact(config, shape, stage) for stage in range(3)) == exact
    moved = ledger_of(train(tmp_path / "run", **keys)).sum
    for stage in range(3):
        payloads = stage_payloads(config, shape, planned, stage)
        for client in range(3):
            place: dict[str, Any] = {"kind": "boundary", "layer": stage, "client": client}
            sent = sum(size for (sender, _), size in payloads.items() if sender == client)
            came = sum(size for (_, receiver), size in payloads.items() if receiver == client)
            out, into = (moved(**place, direction=way).payload for way in ("out", "in"))
            assert 0 < out <= sent
            assert 0 < into <= came
            assert config.row_codec.startswith("levels") or (out, into) == (sent, came)
