"""What `retexo plan` says of masked sums that bytes do not tell, against updates of real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import plan_facts
from retexo_fl.client.preparation import load_parts
from retexo_fl.training.stage_model import ModelShape, named_weights, num_weights
from retexo_fl.updates import PlainUpdates, UpdateKey
from tests.support.cli import CommandLine
from tests.support.data import cora_dir
from tests.support.runs import configured, train

KEYS: dict[str, Any] = {"dataset": "cora", "hidden": 64, "dropout": 0.0, "rounds": 1, "clients": 12}


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "sage"},
        {"model": "gcn", "boundary_plan": "cover"},
        pytest.param({"model": "gcn", "layers": 1, "algorithm": "drop"}, marks=pytest.mark.slow),
        pytest.param({"model": "gcn", "layers": 2, "algorithm": "drop"}, marks=pytest.mark.slow),
        pytest.param(
            {"model": "gcn", "layers": 2, "algorithm": "standard"}, marks=pytest.mark.slow
        ),
        {"model": "gcn", "layers": 3, "algorithm": "standard"},
    ],
)
def test_features_of_one_client_are_those_of_which_one_update_has_a_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    updates: dict[int, np.ndarray] = {}
    encode = PlainUpdates.encode_update

    def noted(
        self: PlainUpdates,
        update_sum: np.ndarray,
        key: UpdateKey,
        steps: bytes,
        spans: np.ndarray | None = None,
    ) -> np.ndarray:
        if key.stage == 0:
            updates[key.client] = update_sum
        return encode(self, update_sum, key, steps, spans)

    monkeypatch.setattr(PlainUpdates, "encode_update", noted)
    keys = {**KEYS, "data_dir": cora_dir(), **keys}
    train(tmp_path / "run", **keys)
    config = configured(tmp_path / "unused", **keys)
    parts = load_parts(config)
    shape = ModelShape.of_part(config, parts[0])
    contributors = np.zeros(shape.features, int)
    for update in updates.values():
        contributors += _features_of(shape, update)
    expected = int((contributors == 1).sum())
    assert len(updates) == keys["clients"]
    assert plan_facts(config, PlannedParts(parts))["features"] == {
        "all": shape.features,
        "of_one_client": expected,
    }
    assert expected > 0 or keys.get("algorithm") == "standard"


def _features_of(shape: ModelShape, update: np.ndarray) -> np.ndarray:
    """Return which features have a gradient in any of the first layer's weights."""
    weight = named_weights(shape, 0, update[: num_weights(shape, 0)])["layer.weight"]
    # sage has two rows of weights for each feature: of a node's own, and of its neighbours'.
    by_feature = weight.reshape(-1, shape.features, weight.shape[1])
    return np.asarray(by_feature.any(axis=(0, 2)))


def test_the_terminal_counts_features_of_one_client_and_warns_under_masks_of_few(
    capfd: pytest.CaptureFixture[str],
) -> None:
    command = ("plan", "--dataset", "cora", "--data-dir", cora_dir(), "--clients", "4")
    line, warning = "Features that one client alone adds to: ", "features are of one client alone"

    def shown(*options: str | Path) -> str:
        return " ".join(CommandLine(capfd).done(*options).split())

    plain = shown(*command)
    masked = shown(*command, "--secure-aggregation", "masked")
    assert line in plain
    assert "masked sums" not in plain
    assert line in masked
    assert warning in masked
    # One of the digits' 64 features: it is counted, and told where masks are to hide it.
    few = ("plan", "--clients", "5")
    assert warning not in shown(*few)
    assert warning in shown(*few, "--secure-aggregation", "masked")
    assert "signatures, if deployed" in masked


def test_a_plan_says_what_cohorts_cost_and_whom_they_may_tolerate(
    capfd: pytest.CaptureFixture[str],
) -> None:
    retexo, masked = CommandLine(capfd), ("plan", "--secure-aggregation", "masked")
    shown = retexo(*masked, "--clients", "10", "--tolerated", "2").out
    assert "2                          5    0.95    0.77    0.59    0.33" in shown
    assert "if 2 of its cohort (--tolerated) work with the server" in shown
    alone = retexo(*masked, "--clients", "3", "--tolerated", "1")
    assert alone.code == 2
    assert "3 clients; expected 4 at least (3, and 1 that may work with the server)" in alone.err
    clear = retexo("plan", "--tolerated", "1")
    assert clear.code == 2
    assert "tolerated: 1, where sums are not masked" in clear.err
