"""The graphs of ``sims goals`` tell no label by their inputs; its scores are those of the runs."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from retexo_fl.graph.sources.npz_graph import read_npz_graph
from sims.catalogue import Setting
from sims.goal_graphs import ATTRIBUTES, SOURCE, YEARS, write_bank, write_derived_graphs
from sims.goal_scores import R2, RMSE, SCORES, mean_alone, split_by_known, train_scored
from sims.trainings import Keys
from tests.support.goals import GOALS, goal_arrays, write_goals

pytestmark = pytest.mark.slow

CODES = ("gender:1", "gender:2", "status:1", "status:2", "major:7", "minor:7", "housing:3")
#: By node, the codes of its profile and its year from 2004.
PROFILES = (
    (("gender:2", "status:1", "major:7"), 5),
    (("gender:1", "status:2", "housing:3", "minor:7"), 0),
    (("major:7",), -1),
    (("status:1", "gender:1"), 3),
)


def _write_source(folder: Path) -> Setting:
    profile = sparse.csr_matrix(
        [[code in codes for code in CODES] for codes, _ in PROFILES], dtype=np.float32
    )
    np.savez(
        folder / f"{SOURCE}.npz",
        edge_index=np.array([[0, 1], [1, 2]], np.int32),
        y=np.array([year for _, year in PROFILES], np.int16),
        feature_names=np.array(CODES),
        x_indptr=profile.indptr,
        x_indices=profile.indices,
        x_data=profile.data,
        x_shape=np.array(profile.shape),
    )
    return Setting(data_dir=folder)


def test_derived_graphs_have_labels_that_no_input_tells(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    write_derived_graphs(_write_source(tmp_path), made)
    attributes, years = (read_npz_graph(made / f"{name}.npz") for name in (ATTRIBUTES, YEARS))
    assert attributes.labels.tolist() == [[1, 1, 1, 0], [0, 0, 0, 1], [-1, -1, -1, 0], [0, 1, 1, 0]]
    assert sparse.csr_matrix(attributes.features).toarray().tolist() == [
        [1, 0],
        [0, 1],
        [1, 0],
        [0, 0],
    ]
    np.testing.assert_array_equal(years.labels, [2009, 2004, np.nan, 2007])
    assert years.features.shape == (4, len(CODES))


@pytest.mark.parametrize("metric", ["roc-auc", "average-precision"])
def test_both_rankings_of_one_training_are_those_of_a_run_by_each(metric: str) -> None:
    keys: Keys = {"dataset": "synthetic:nodes=300,edges=900,classes=2", "clients": 3, "rounds": 1}
    scored = train_scored({**keys, "metric": "roc-auc"}).result
    alone = train_scored({**keys, "metric": metric}).result
    assert scored[SCORES][metric] == alone["metric"]["value"]
    assert len(scored[SCORES]) == 2


def test_scores_of_labels_and_numbers(tmp_path: Path) -> None:
    keys: Keys = {**GOALS, "data-dir": str(write_goals(tmp_path)), "clients": 2, "rounds": 1}
    task: Keys = {"dataset": "multi-label", "task": "multi-label"}
    scores = train_scored({**keys, **task, "metric": "roc-auc"}).result[SCORES]
    alone = train_scored({**keys, **task, "metric": "macro-f1"}).result
    assert scores["macro-f1"] == pytest.approx(alone["metric"]["value"])
    task = {"dataset": "regression", "task": "regression"}
    assert set(train_scored({**keys, **task}).result[SCORES]) == {RMSE, R2}
    mean = mean_alone({**keys, **task})
    numbers = goal_arrays()[2]
    assert mean[RMSE] == pytest.approx(np.nanstd(numbers), rel=0.4)
    assert -0.5 < mean[R2] <= 0


def test_few_labels_are_split_and_all_others_test(tmp_path: Path) -> None:
    size = ("--accounts", "400", "--transfers", "800")
    write_bank(tmp_path / "bank", *size)
    write_bank(tmp_path / "few", *size, "--labelled", "0.2")
    whole, few = (tmp_path / name / "accounts.csv" for name in ("bank", "few"))
    split_by_known(whole, few)
    with whole.open(newline="") as one, few.open(newline="") as other:
        rows, known = list(csv.DictReader(one)), list(csv.DictReader(other))
    assert all(row["fraud"] for row in rows)
    assert [row["split"] == "test" for row in rows] == [not row["fraud"] for row in known]
    counts = Counter(row["split"] for row in rows)
    assert counts["train"] > counts["val"] > 0.3 * (400 - counts["test"])
