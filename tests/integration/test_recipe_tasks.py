"""Feature recipes of tables whose labels are numbers, or several for each node."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.graph import open_partition
from retexo_fl.graph.recipes import read_recipe
from tests.support.cli import CommandLine

NODES = 40
TABLES = ("--nodes", "n.csv", "--edges", "e.csv")
NAMED = ("--key-column", "id", "--label-column", "risk")
TASKS = {"regression": ("risk",), "multi-label": ("risk_0", "risk_1")}
RUN = ("--clients", "2", "--rounds", "2", "--hidden", "4", "--split", "random:0.5/0.2/0.3")


@pytest.fixture
def retexo(retexo: CommandLine) -> CommandLine:
    pairs = [(f"a{node}", f"a{(node + step) % NODES}") for node in range(NODES) for step in (1, 9)]
    with Path("e.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("source", "target"), *pairs])
    return retexo


def _write_nodes(
    *labels: str, words: tuple[str, ...] = (), path: str = "n.csv", split: bool = False
) -> None:
    draws = random.Random(3)
    head = ("id", *labels, "age", "land", *(("split",) if split else ()))
    rows = []
    for node in range(NODES):
        flags = [draws.choice(words or ("0", "1", "")) for _ in labels]
        numbers = [f"{1990 + draws.gauss(0, 9):.3f}" for _ in labels]
        row = (f"a{node}", *(numbers if labels == ("risk",) and not words else flags))
        row += (draws.choice(("", "12.5", "40")), draws.choice(("AT", "DE")))
        use = ("train", "val", "test")[node % 3] if any(row[1 : 1 + len(labels)]) else ""
        rows.append((*row, use) if split else row)
    with Path(path).open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


@pytest.mark.parametrize("task", TASKS)
def test_a_recipe_leaves_labels_out_and_predicts_new_tables(retexo: CommandLine, task: str) -> None:
    labels = TASKS[task]
    _write_nodes(*labels)
    retexo.done("run", *TABLES, *NAMED, "--features", "auto", "--task", task, *RUN, "--out", "run")
    recipe = read_recipe(Path("run/recipe.toml"))
    assert (sorted(recipe.columns), recipe.classes) == (["age", "land"], ())
    with Path("n.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    blank = [[row[0], *("" for _ in labels), *row[1 + len(labels) :]] for row in rows]
    with Path("new.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *blank])
    retexo.done("predict", "run", "--nodes", "new.csv", "--edges", "e.csv", "--out", "new")
    with Path("new/predictions-0.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert {row["key"] for row in found} == {row[0] for row in rows}
    if task == "regression":
        assert set(found[0]) == {"key", "value"}
        assert all(1900 < float(row["value"]) < 2100 for row in found)
    else:
        assert set(found[0]) == {"key", "label0", "label1", "p0", "p1"}
        assert {row["label1"] for row in found} <= {"0", "1"}


@pytest.mark.parametrize("task", TASKS)
def test_a_part_from_a_clients_tables_equals_the_cut_one(retexo: CommandLine, task: str) -> None:
    _write_nodes(*TASKS[task], split=True)
    retexo.done("features", "fit", "n.csv", *NAMED, "--out", "recipe.toml")
    cut = ("--clients", "1", "--split", "published", "--task", task, "--features", "recipe.toml")
    retexo.done("partition", "make", *TABLES, *cut, "--out", "cut")
    agreed = ("--peers", "cut/peers.toml", "--name", "client-0")
    retexo.done("partition", "local", *TABLES, *agreed, "--features", "recipe.toml", "--out", "own")
    one, other = open_partition(Path("cut/part-0")), open_partition(Path("own/part-0"))
    assert one.task == other.task == task
    assert one.recipe_digest == other.recipe_digest != ""
    for name in ("labels", "features", "train_mask", "indices"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    told = Path("cut/peers.toml").read_text()
    assert f'task = "{task}"' in told
    assert f'recipe = "{one.recipe_digest}"' in told


def test_labels_that_are_texts_are_refused_by_other_tasks(retexo: CommandLine) -> None:
    _write_nodes("risk", words=("low", "high"))
    for task in ("regression", "multi-label"):
        told = retexo.refused(
            "run", *TABLES, *NAMED, "--features", "auto", "--task", task, *RUN, "--out", "run"
        )
        assert f"task: {task} does not go with recipe " in told
        assert "'risk' are texts; expected classes" in told
    assert not Path("run").exists()


def test_a_label_that_is_a_feature_too_is_refused(retexo: CommandLine) -> None:
    _write_nodes("risk", "risk_0", "risk_1")
    told = retexo.refused(
        "run", *TABLES, *NAMED, "--features", "auto", "--task", "multi-label", *RUN, "--out", "run"
    )
    assert "'risk_0' is a feature of recipe" in told


@pytest.mark.parametrize("task", TASKS)
def test_all_cells_that_are_no_label_are_reported_once(retexo: CommandLine, task: str) -> None:
    _write_nodes(*TASKS[task], split=True)
    lines = Path("n.csv").read_text().splitlines()
    for line in (3, 7):
        cells = lines[line].split(",")
        lines[line] = ",".join((cells[0], "x", *cells[2:-1], "train"))
    Path("n.csv").write_text("\n".join(lines) + "\n")
    fit = ("--features", "recipe.toml", "--task", task)
    _write_nodes(*TASKS[task], path="good.csv")
    retexo.done("features", "fit", "good.csv", *NAMED, "--out", "recipe.toml")
    told = retexo.problems("partition", "make", *TABLES, *fit, *RUN[:2], "--out", "cut")
    assert [line.partition(": ")[2].partition(":")[0] for line in told] == ["line 4", "line 8"]


@pytest.mark.parametrize("task", TASKS)
def test_a_solved_layer_is_of_classes_alone(retexo: CommandLine, task: str) -> None:
    _write_nodes(*TASKS[task])
    told = retexo.refused(
        *("run", *TABLES, *NAMED, "--features", "auto", "--task", task),
        *("--profile", "one-shot", "--clients", "2", "--out", "run"),
    )
    assert f"solver: ridge does not go with task '{task}'" in told
