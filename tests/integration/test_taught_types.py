"""Types of nodes without labels, whose weights the labels of other nodes train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.channels import BlockKey, MemoryChannel
from retexo_fl.client.part import without_peers
from retexo_fl.client.preparation import make_parts
from retexo_fl.simulation.inline_engine import run_inline
from retexo_fl.training import candidates
from tests.support.runs import configured, largest_difference, result_of, train_over
from tests.support.typed_graphs import BANK

PEOPLE, ITEMS, MAKERS, WIDTH = 300, 200, 120, 40


def chain(*, ids: bool = False) -> dict[str, Any]:
    """Return people who like what one column of its makers says; of makers 40 are known, or names.

    What makers are is two edges away, so that only rows of items can bring it.
    """
    rng = np.random.default_rng(7)
    makers = rng.normal(size=(MAKERS, WIDTH)).astype(np.float32)
    made_by = rng.integers(0, MAKERS, ITEMS)
    liked = rng.integers(0, ITEMS, (PEOPLE, 3))
    labels = (makers[made_by[liked], 0].mean(axis=1) > 0).astype(int)
    x = np.eye(MAKERS, dtype=np.float32) if ids else makers
    pairs = np.stack((np.repeat(np.arange(PEOPLE), 3), liked.ravel()))
    return {
        "nodes": {
            "person": {"num_nodes": PEOPLE, "y": labels},
            "item": {"num_nodes": ITEMS},
            "maker": {"x": x},
        },
        "edges": {
            ("person", "likes", "item"): np.unique(pairs, axis=1),
            ("item", "by", "maker"): np.stack((np.arange(ITEMS), made_by)),
        },
    }


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
