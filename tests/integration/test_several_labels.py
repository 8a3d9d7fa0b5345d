"""Several labels of a node, each with gaps of its own: one is chosen, or a sweep learns each."""

from __future__ import annotations

import csv
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from tests.support.cli import TINY, CommandLine
from tests.support.commands import ROOT

NODES = 120
LABELS = ("fraud", "dormant")


@pytest.fixture
def bank(retexo: CommandLine) -> dict[str, Any]:
    """Write accounts and transfers; return the same as arrays."""
    del retexo
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, (NODES, 2))
    x = (rng.normal(size=(NODES, 2)) + y).round(3)
    y[rng.random((NODES, 2)) < 0.25] = -1
    split = rng.choice(["train", "val", "test"], NODES, p=[0.5, 0.25, 0.25])
    rows = [
        [f"a{at}", *("" if label < 0 else "ny"[label] for label in y[at]), split[at], *x[at]]
        for at in range(NODES)
    ]
    write(Path("accounts.csv"), ["key", *LABELS, "split", "age", "balance"], rows)
    edges = np.array([(at, (at + step) % NODES) for at in range(NODES) for step in (1, 5)])
    write(Path("transfers.csv"), ["source", "target"], [[f"a{a}", f"a{b}"] for a, b in edges])
    masks = {f"{use}_mask": split == use for use in ("train", "val", "test")}
    return {"x": x, "edge_index": edges.T, "y": y, "y_names": [*LABELS], **masks}


def write(path: Path, head: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_learns_each_label_and_none_is_a_feature_of_another(
    retexo: CommandLine, bank: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The guide's command."""
    text = (ROOT / "docs" / "your-own-graph.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^retexo (sweep .*--label-column .*)$", text, re.M)
    ended = retexo(*shlex.split(line), "--clients", "2", *TINY[:4])
    assert ended.code == 0, ended.err
    assert "features: fraud, dormant are labels here, and features of no run" in ended.err
    assert "label-column" in ended.out
    assert "drop-columns" not in ended.out
    rows = rows_of(Path("runs/labels/sweep.csv"))
    assert [row["label-column"] for row in rows] == [*LABELS]
    assert {row["drop-columns"] for row in rows} == {"fraud,dormant"}
    for row, label in zip(rows, LABELS, strict=True):
        assert float(row["test"]) > 0
        recipe = tomllib.loads((Path(row["run"]) / "recipe.toml").read_text())
        assert [one["column"] for one in recipe["numbers"]] == ["age", "balance"]
        assert "categories" not in recipe
        assert recipe["label-column"] == label
    # Each alone, by the recipe that leaves the other out.
    for row, label in zip(rows, LABELS, strict=True):
        other = LABELS[1 - LABELS.index(label)]
        told = retexo(
            *("run", "--nodes", "accounts.csv", "--edges", "transfers.csv", "--features", "auto"),
            *("--label-column", label, "--drop-columns", other, "--clients", "2", *TINY[:4]),
            *("--metric", "average-precision", "--out", f"runs/{label}"),
        )
        assert told.code == 0, told.err
        lacking = int((bank["y"][:, LABELS.index(label)] < 0).sum())
        assert f"accounts.csv: split: {lacking} nodes without a label left out" in caplog.messages
        found = retexo_fl.Run.open(f"runs/{label}").result
        assert found is not None
        assert found.metric is not None
        tables = ("--nodes", "accounts.csv", "--edges", "transfers.csv", "--out", f"of-{label}")
        assert "labelled test nodes" in retexo.done("predict", f"runs/{label}", *tables)
        assert f"{found.metric.value}" == row["test"]


def test_a_sweep_over_a_graph_learns_each_column(bank: dict[str, Any]) -> None:
    rows = retexo_fl.sweep(
        graph=bank,
        label_column=[*LABELS],
        out="runs/python",
        clients=2,
        rounds=2,
        hidden=8,
        quiet=True,
    )
    assert [row.error for row in rows] == ["", ""]
    parts = [retexo_fl.open_parts(folder) for folder in sorted(Path("runs/python/parts").iterdir())]
    assert len(parts) == 2
    known = {sum(int((part.labels >= 0).sum()) for part in cut) for cut in parts}
    assert known == {*(bank["y"] >= 0).sum(axis=0).tolist()}
    for cut in parts:
        uses = [part.train_mask | part.val_mask | part.test_mask for part in cut]
        assert all((part.labels[use] >= 0).all() for part, use in zip(cut, uses, strict=True))
    # A model is judged by the label that it learned.
    run = retexo_fl.Run.open(rows[1].path)
    predictions = run.predict(bank, label_column="dormant", out="predicted", quiet=True)
    assert predictions.summary["labelled"]["test"]["nodes"] == int(
        ((bank["y"][:, 1] >= 0) & bank["test_mask"]).sum()
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--label-column", "fraud"), "label-column: got 'fraud', but data set 'digits' has its"),
        (("--drop-columns", "age"), "drop-columns: 'age' does not go with features ''; expected"),
        (
            (
                *("--nodes", "accounts.csv", "--edges", "transfers.csv", "--features", "auto"),
                *("--label-column", "fraud", "--drop-columns", "height"),
            ),
            "accounts.csv: column 'height' is missing; the file has 'key', 'fraud', 'dormant', ",
        ),
        (
            (
                *("--nodes", "accounts.csv", "--nodes", "shops.csv", "--edges", "transfers.csv"),
                *("--features", "auto", "--label-column", "fraud", "--drop-columns", "height"),
                *("--model", "rel-sage"),
            ),
            "drop-columns: 'height' is a column of no type; there is: key, fraud, dormant, split, ",
        ),
    ],
)
@pytest.mark.usefixtures("bank")
def test_columns_that_are_not_there_are_refused(
    retexo: CommandLine, options: tuple[str, ...], told: str
) -> None:
    write(Path("shops.csv"), ["key", "size"], [["s0", 1], ["s1", 2]])
    assert retexo.refused("run", *options, *TINY, "--out", "new").startswith(told)
    assert not Path("new").exists()
