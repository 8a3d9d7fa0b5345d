"""Types of nodes without labels, whose weights the labels of other nodes train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.channels import BlockKey, MemoryChannel
from retexo_fl.client.part import without_peers
from retexo_fl.client.preparation import make_parts
from retexo_fl.simulation.inline_engine import run_inline
from retexo_fl.training import candidates
from tests.support.runs import configured, largest_difference, result_of, train_over
from tests.support.typed_graphs import BANK, chain


class LosingAll(MemoryChannel):
    """Takes vectors, and delivers none."""

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        return sum(len(frame) for frame in frames)


KEYS: dict[str, Any] = {
    **{"model": "rel-sage", "split": "random:0.5/0.2/0.3", "hidden": 8, "clients": 3},
    **{"partitioner": "random", "quiet": True},
}


def accuracy(out: Path, graph: dict[str, Any], **keys: Any) -> float:
    found = retexo_fl.run(graph=graph, out=out, **{**KEYS, **keys}).result.test_accuracy
    assert found is not None
    return found


def test_what_is_two_edges_away_is_learned_by_weights_that_are_taught(tmp_path: Path) -> None:
    graph = chain()
    keys: dict[str, Any] = {"profile": "retexo", "rounds": 100}
    drawn = accuracy(tmp_path / "drawn", graph, **keys)
    taught = accuracy(tmp_path / "taught", graph, **keys, unlabelled_types="trained")
    assert drawn < 0.65
    assert taught > 0.72
    for name, weights in (("drawn", "as drawn"), ("taught", "trained")):
        types = {one["name"]: one["weights"] for one in result_of(tmp_path / name)["types"]}
        assert types == {"person": "trained", "item": weights, "maker": "none"}


def test_lean_training_sees_features_two_edges_away(tmp_path: Path) -> None:
    assert accuracy(tmp_path / "lean", chain()) > 0.72
    assert accuracy(tmp_path / "masked", chain(), secure_aggregation="masked") > 0.72


def test_one_shot_training_sees_features_two_edges_away(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"profile": "one-shot"}
    assert accuracy(tmp_path / "two", chain(), **keys) > 0.78
    masked = accuracy(tmp_path / "masked", chain(), **keys, secure_aggregation="masked")
    assert masked > 0.78
    assert accuracy(tmp_path / "one", chain(), **keys, layers=1) < 0.65


def test_types_as_drawn_are_tried_where_labels_may_have_come_to_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("_LEAST_GAP", "_LEAST_GAP_OF_NOISE"):
        monkeypatch.setattr(candidates, bound, -1.0)
    graph = chain(ids=True)
    keys: dict[str, Any] = {"profile": "retexo", "rounds": 30, "unlabelled_types": "trained"}
    for wanted, names in (
        ("drawn-types", ["", "types as drawn"]),
        ("own-row", ["", "no own rows"]),
    ):
        accuracy(tmp_path / wanted, graph, **keys, candidates=wanted)
        last = result_of(tmp_path / wanted)["stages"][-1]
        assert [one["name"] for one in last["tried"]] == names
        best = max(last["tried"], key=lambda one: one["val_accuracy"])
        assert last.get("candidate", "") == best["name"]


def test_peers_that_are_lost_teach_nothing(tmp_path: Path) -> None:
    """Losing all vectors trains as if no edge led to another client."""
    keys: dict[str, Any] = {
        **BANK,
        **{"clients": 2, "rounds": 3, "hidden": 8, "dtype": "float64", "missing_peers": "drop"},
        "unlabelled_types": "trained",
    }
    train_over(configured(tmp_path / "lost", exchange_deadline_s=0.1, **keys), LosingAll())
    config = configured(tmp_path / "kept", **keys)
    run_inline(config, [without_peers(part) for part in make_parts(config)])
    assert largest_difference(tmp_path / "lost", tmp_path / "kept") < 1e-12
