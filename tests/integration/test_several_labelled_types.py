"""Typed graphs with labels on several types: one model of all, judged by type, however cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import largest_difference, model_bytes, stop_after, train
from tests.support.typed_graphs import JUDGED

TOLERANCE = 1e-9
KEYS: dict[str, Any] = {
    **JUDGED,
    **{"hidden": 8, "layers": 2, "rounds": 3, "dropout": 0.3, "dtype": "float64"},
}
BASES: dict[str, Any] = {"model": "rel-gcn", "num_bases": 2}
LEAN: dict[str, Any] = {"basis": "supervised", "basis_blocks": 2}
CUTS = ((2, "louvain"), (3, "attribute:type"), (7, "random"))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"layers": 3, "metric": "macro-f1", "class_weights": "balanced"},
        {"model": "rel-gcn", "warm_start": True},
        {**BASES, "layers": 3, "warm_start": True},
        {**BASES, **LEAN},
        {**LEAN, "candidates": "own-row", "warm_start": True, "optimizer": "lbfgs"},
        {"model": "rel-gat", "layers": 3},
        {"model": "rel-gat", **LEAN, "candidates": "own-row"},
        {"model": "pyg:SAGEConv"},
        {"algorithm": "standard"},
    ],
    ids=str,
)
def test_any_cut_trains_the_weights_of_one(tmp_path: Path, keys: dict[str, Any]) -> None:
    one = train(tmp_path / "one", **KEYS | keys, clients=1)
    for clients, partitioner in CUTS:
        out = tmp_path / f"{clients}-{partitioner.partition(':')[0]}"
        run = train(out, **KEYS | keys, clients=clients, partitioner=partitioner)
        assert largest_difference(one, run) < TOLERANCE, (clients, partitioner)


@pytest.mark.parametrize("keys", [{}, LEAN, BASES, {"model": "rel-gat"}], ids=str)
def test_masks_and_an_interruption_change_no_model(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {**KEYS, **keys, "clients": 4}
    plain = train(tmp_path / "plain", **keys)
    masked = train(tmp_path / "masked", **keys, secure_aggregation="masked")
    assert largest_difference(plain, masked) < 1e-4
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", stop_after(2, stage=1), **keys)
    train(tmp_path / "resumed", **keys, resume=tmp_path / "resumed")
    assert model_bytes(tmp_path / "resumed") == model_bytes(plain)
