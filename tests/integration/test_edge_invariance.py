"""Weighted edges: many partitions train the weights of one, whatever the algorithm and the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.runs import largest_difference, result_of, train
from tests.support.valued_graphs import VALUED, write_valued

TOLERANCE = 1e-9
KEYS: dict[str, Any] = {
    **VALUED,
    **{"hidden": 12, "heads": 3, "layers": 2, "rounds": 4, "dropout": 0.3, "dtype": "float64"},
}
MODELS = ("gcn", "sage", "gat", "gin")


@pytest.mark.parametrize("model", MODELS)
def test_weighted_edges_do_not_depend_on_the_partition(tmp_path: Path, model: str) -> None:
    keys = {**KEYS, "data_dir": write_valued(tmp_path), "model": model}
    whole = train(tmp_path / "whole", clients=1, **keys)
    central = train(tmp_path / "central", clients=1, algorithm="central", **keys)
    for plan in ("rows", "cover"):
        for partitioner, clients in (("random", 3), ("louvain", 2), ("one-node", 48)):
            out = tmp_path / f"{plan}-{partitioner}"
            parts = {"clients": clients, "partitioner": partitioner, "boundary_plan": plan}
            run = train(out, **parts, **keys)
            assert largest_difference(whole, run) < TOLERANCE, parts
        out = tmp_path / f"{plan}-standard"
        run = train(out, clients=3, algorithm="standard", boundary_plan=plan, **keys)
        assert largest_difference(central, run) < TOLERANCE
    write_valued(tmp_path, weighted=False)
    unweighted = train(tmp_path / "unweighted", clients=1, **keys)
    assert largest_difference(whole, unweighted) > 1e-3


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sampler", ["full", "neighbour", "shadow", "gns"])
def test_samplers_with_all_neighbours_train_the_weights_of_none(
    tmp_path: Path, model: str, sampler: str
) -> None:
    keys = {
        **KEYS,
        **{"data_dir": write_valued(tmp_path), "model": model, "algorithm": "central"},
        **{"clients": 1, "layers": 2, "cache_share": 1.0},
    }
    whole = train(tmp_path / "whole", **keys)
    # All train nodes in one mini-batch, and more neighbours than there are.
    hops = "48/48/48" if sampler == "shadow" else "48/48"
    run = train(tmp_path / "run", sampler=sampler, fanouts=hops, batch_nodes=48, **keys)
    assert largest_difference(whole, run) < (1e-4 if sampler == "gns" else 1e-7), sampler


@pytest.mark.parametrize("model", MODELS)
def test_sampled_boundaries_train_the_same_on_any_run(tmp_path: Path, model: str) -> None:
    keys = {**KEYS, "data_dir": write_valued(tmp_path), "model": model, "clients": 3}
    every = train(tmp_path / "every", algorithm="bns", boundary_rate=1.0, **keys)
    standard = train(tmp_path / "standard", algorithm="standard", **keys)
    assert largest_difference(every, standard) == 0
    fewer = train(tmp_path / "fewer", algorithm="bns", boundary_rate=0.2, **keys)
    assert result_of(fewer)["test_accuracy"] >= 0


@pytest.mark.parametrize("model", ["sage", "gat"])
def test_devices_train_the_weights_of_one(tmp_path: Path, model: str) -> None:
    keys = {**KEYS, "data_dir": write_valued(tmp_path), "model": model, "clients": 2}
    one = train(tmp_path / "one", **keys)
    devices = train(tmp_path / "devices", devices="cpu:2", **keys)
    assert largest_difference(one, devices) < TOLERANCE


def test_weights_of_one_are_no_weights(tmp_path: Path) -> None:
    keys = {**KEYS, "model": "gcn", "clients": 3}
    plain = train(tmp_path / "a", data_dir=write_valued(tmp_path, weighted=False), **keys)
    with np.load(tmp_path / "valued.npz") as arrays:
        ones = dict(arrays) | {"edge_weight": np.ones(arrays["edge_index"].shape[1])}
    np.savez(tmp_path / "valued.npz", **ones)
    assert largest_difference(plain, train(tmp_path / "b", data_dir=tmp_path, **keys)) < 1e-12
