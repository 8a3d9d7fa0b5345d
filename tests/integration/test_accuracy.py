"""Accuracies of whole trainings, against published ones; minutes to an hour, so marked slow."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev

import pytest

from tests.support.data import data_dir
from tests.support.runs import result_of, train

pytestmark = [pytest.mark.slow, pytest.mark.real_graphs, pytest.mark.timeout(3600)]

#: RETEXO, Table 2 (mean of 10 runs).
TABLE_2 = {
    ("cora", "gcn"): 0.828,
    ("cora", "sage"): 0.825,
    ("cora", "gat"): 0.818,
    ("pubmed", "gcn"): 0.850,
    ("pubmed", "sage"): 0.861,
    ("pubmed", "gat"): 0.830,
    ("citeseer", "gcn"): 0.739,
    ("citeseer", "sage"): 0.766,
    ("citeseer", "gat"): 0.738,
}
#: What a mean over five seeds may fall short of the table. Citeseer is reported only: the splits
#: of the authors' code overlap there.
ALLOWED = {"gcn": 0.0, "sage": 0.0, "gat": 0.010}
#: Layers that RETEXO does not have: what they reach under the same settings, less a point.
REACHED = {
    ("cora", "gin"): 0.839,
    ("cora", "sage-pool"): 0.835,
    ("pubmed", "gin"): 0.854,
    ("pubmed", "sage-pool"): 0.865,
    ("citeseer", "gin"): 0.715,
    ("citeseer", "sage-pool"): 0.709,
}


@pytest.mark.parametrize(("dataset", "model"), TABLE_2)
def test_accuracy_reaches_retexo_table_2(tmp_path: Path, dataset: str, model: str) -> None:
    scores = _table_2_scores(tmp_path, dataset, model)
    _tell(f"table 2 {dataset} {model} (published {TABLE_2[dataset, model]})", scores)
    if dataset != "citeseer":
        assert mean(scores) >= TABLE_2[dataset, model] - ALLOWED[model]


@pytest.mark.parametrize(("dataset", "model"), REACHED)
def test_accuracy_of_other_layers_under_the_settings_of_table_2(
    tmp_path: Path, dataset: str, model: str
) -> None:
    scores = _table_2_scores(tmp_path, dataset, model)
    _tell(f"settings of table 2, {dataset} {model}", scores)
    assert mean(scores) >= REACHED[dataset, model]


@pytest.mark.parametrize("partitioner", ["random", "metis", "louvain"])
def test_accuracy_under_the_protocol_of_openfgl(tmp_path: Path, partitioner: str) -> None:
    scores = [
        _accuracy(
            tmp_path / str(seed),
            dataset="cora",
            model="gcn",
            clients=10,
            partitioner=partitioner,
            split="per-client-class:0.2/0.4/0.4",
            hidden=64,
            rounds=100,
            learning_rate=0.01,
            dropout=0.5,
            weight_decay=5e-3,
            seed=seed,
        )
        for seed in range(3)
    ]
    _tell(f"OpenFGL protocol, cora, gcn, 10 clients, {partitioner}", scores)
    assert mean(scores) >= 0.84


def _table_2_scores(folder: Path, dataset: str, model: str) -> list[float]:
    return [
        _accuracy(
            folder / str(seed),
            dataset=dataset,
            model=model,
            clients=2,
            partitioner="random",
            split="random:0.2/0.1/0.7",
            hidden=256,
            rounds=100,
            learning_rate=0.003,
            dropout=0.3,
            weight_decay=5e-4,
            seed=seed,
        )
        for seed in range(5)
    ]


def _accuracy(out: Path, **keys: object) -> float:
    run = train(out, data_dir=data_dir(), **keys)
    return float(result_of(run)["test_accuracy"])


def _tell(name: str, scores: list[float]) -> None:
    listed = " ".join(f"{score:.4f}" for score in scores)
    print(f"\n{name}: mean {mean(scores):.4f} sd {stdev(scores):.4f} of {listed}")  # noqa: T201
