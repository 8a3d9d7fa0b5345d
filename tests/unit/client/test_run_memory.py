from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retexo_fl.client import run_memory
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.run_memory import (
    GraphSize,
    budget_bytes,
    check_memory,
    memory_by_phase,
    memory_sentence,
    rows_are_on_disk,
)
from retexo_fl.config import RunConfig, make_config
from retexo_fl.errors import ConfigurationError


def configured(**keys: Any) -> RunConfig:
    return make_config({name.replace("_", "-"): value for name, value in keys.items()})


SYNTHETIC = "synthetic:nodes=40000,degree=20,features=100"
PRODUCTS = {"dataset": "synthetic:products", "clients": 8, "layers": 3, "hidden": 256}


@pytest.mark.parametrize(
    ("keys", "size", "measured_mb"),
    [
        # Nodes, boundary, directed edges, features, numbers of features, classes; measured peak.
        ({"clients": 8, "layers": 3}, (40_000, 225_810, 800_000, 100, 4_000_000, 7), 1266),
        ({"clients": 2, "layers": 3}, (40_000, 39_839, 800_000, 100, 4_000_000, 7), 815),
        ({"clients": 8, "model": "gcn"}, (40_000, 225_810, 800_000, 100, 4_000_000, 7), 1001),
        ({"clients": 4, "model": "gat"}, (20_000, 57_200, 400_000, 100, 2_000_000, 7), 527),
        (
            {"clients": 4, "algorithm": "standard"},
            (20_000, 57_200, 400_000, 100, 2_000_000, 7),
            909,
        ),
        ({"clients": 4}, (37_700, 81_733, 578_006, 128, 4_825_600, 2), 787),  # github
        ({"clients": 4}, (19_717, 28_999, 88_648, 500, 1_976_062, 3), 560),  # PubMed
        ({"clients": 2}, (2_708, 2_207, 10_556, 1433, 98_432, 7), 376),  # Cora
    ],
)
def test_estimate_is_near_what_was_measured(
    keys: dict[str, Any], size: tuple[int, ...], measured_mb: float
) -> None:
    nodes, boundary, edges, features, numbers, classes = size
    graph = GraphSize(
        nodes=nodes,
        boundary=boundary,
        edges=edges,
        features=features,
        feature_numbers=numbers,
        classes=classes,
    )
    most = max(memory_by_phase(configured(hidden=256, **keys), graph).values())
    assert 0.95 < most / (measured_mb * 1e6) < 1.3


@pytest.mark.parametrize("clients", [2, 8])
@pytest.mark.parametrize("words", ["", ",words=12"])
def test_size_of_a_synthetic_graph_is_foreseen(clients: int, words: str) -> None:
    name = f"synthetic:nodes=4000,degree=20,features=200{words}"
    config = configured(dataset=name, clients=clients)
    foreseen, found = GraphSize.foreseen(config), GraphSize.of(make_parts(config))
    assert foreseen is not None
    assert foreseen.boundary == pytest.approx(found.boundary, rel=0.05)
    # A word that was drawn twice counts once.
    assert 0 <= foreseen.feature_numbers - found.feature_numbers < 0.2 * found.feature_numbers
    for key in ("nodes", "edges", "features", "classes"):
        assert getattr(foreseen, key) == getattr(found, key)


def test_only_synthetic_graphs_are_foreseen() -> None:
    assert GraphSize.foreseen(configured()) is None
    assert GraphSize.foreseen(configured(dataset="synthetic", partitions="parts")) is None
    cut = GraphSize.foreseen(configured(dataset="synthetic", partitioner="louvain"))
    assert cut is not None
    assert cut.boundary == 0


def test_run_that_does_not_fit_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_memory, "available_bytes", lambda: 24 * 2**30)
    attention = configured(**PRODUCTS, model="gat")
    size = GraphSize.foreseen(attention)
    assert size is not None
    said = r"^memory: stage 1 .*\d\d\.\d GB; expected .*25\.8 GB .* --force$"
    with pytest.raises(ConfigurationError, match=said):
        check_memory(attention, size, tmp_path)
    check_memory(configured(**{**PRODUCTS, "clients": 1, "hidden": 16}), size, tmp_path)


def test_rows_that_do_not_fit_go_to_disk_if_there_is_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_memory, "available_bytes", lambda: 24 * 2**30)
    config = configured(**PRODUCTS)
    size = GraphSize.foreseen(config)
    assert size is not None
    assert rows_are_on_disk(config, size)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**11))
    check_memory(config, size, tmp_path / "not" / "there")
    assert not rows_are_on_disk(configured(**{**PRODUCTS, "hidden": 16}), size)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    said = rf"^disk: rows take up to 4\d\.\d GB; expected at most the 1\.0 GB .* {tmp_path}: "
    with pytest.raises(ConfigurationError, match=said):
        check_memory(config, size, tmp_path / "not" / "there")


@pytest.mark.parametrize(
    "keys",
    [
        {"task": "links", "model": "gcn"},
        {"engine": "flower"},
        {"algorithm": "standard"},
        {"algorithm": "drop", "sampler": "full"},
        {"model": "gat"},
    ],
    ids=lambda keys: " ".join(keys.values()),
)
def test_rows_stay_in_memory_where_they_are_read_again(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    monkeypatch.setattr(run_memory, "available_bytes", lambda: 2**30)
    size = GraphSize.foreseen(configured(**PRODUCTS))
    assert size is not None
    assert rows_are_on_disk(configured(**PRODUCTS), size)
    assert not rows_are_on_disk(configured(**{**PRODUCTS, **keys}), size)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [("auto", 8e9), ("3GB", 3e9), ("500MB", 5e8), ("20GB", 8e9), ("1.5GB", 1.5e9)],
)
def test_a_budget_is_no_more_than_there_is(
    monkeypatch: pytest.MonkeyPatch, budget: str, expected: float
) -> None:
    monkeypatch.setattr(run_memory, "available_bytes", lambda: 8e9)
    # Of a budget a part is left to what estimates miss.
    assert 0.75 * expected <= budget_bytes(configured(memory_budget=budget)) <= expected


def test_sentence_names_the_phase_that_takes_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_memory, "available_bytes", lambda: 8 * 10**9)
    config = configured(dataset=SYNTHETIC, clients=8, layers=3, hidden=256)
    size = GraphSize.foreseen(config)
    assert size is not None
    assert re.match(r"memory: .*1\.3 GB.* stage 2; .*8\.0 GB", memory_sentence(config, size))


def test_more_of_anything_takes_more() -> None:
    def most(**keys: Any) -> float:
        config = configured(**{"dataset": SYNTHETIC, "clients": 4, "hidden": 64, **keys})
        size = GraphSize.foreseen(config)
        assert size is not None
        return max(memory_by_phase(config, size).values())

    usual = most()
    assert most(clients=16) > usual
    assert most(hidden=128) > usual
    assert most(dtype="float64") > usual
    assert most(algorithm="standard", layers=4) > most(layers=4)
    assert most(algorithm="drop") < most(algorithm="standard")
    assert most(model="gat") > most(model="gat", heads=1)
