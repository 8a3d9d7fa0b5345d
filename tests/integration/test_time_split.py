"""Train on the edges before one day, judge and predict on those before later ones; the guide's
commands.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from tests.support.cli import CommandLine
from tests.support.commands import ROOT
from tests.support.runs import model_bytes

GUIDE = ROOT / "docs" / "your-own-graph.md"
ACCOUNTS = 240
TRAIN, VALIDATION, TEST = "2024-03-01", "2024-04-01", "2024-05-01"


@pytest.fixture
def retexo(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    write_bank()
    return CommandLine(capfd)


def write_bank() -> None:
    """Write accounts, which come in three months, and transfers, each after both its accounts."""
    rng = np.random.default_rng(0)
    opened = np.sort(rng.choice([2, 3, 4], ACCOUNTS, p=[0.6, 0.2, 0.2]))
    fraud = rng.random(ACCOUNTS) < 0.3
    rows = [
        [f"a{at}", int(fraud[at]), {2: "train", 3: "val", 4: "test"}[opened[at]], *x.round(3)]
        for at, x in enumerate(rng.normal(size=(ACCOUNTS, 3)) + fraud[:, None] * 0.4)
    ]
    write(Path("accounts.csv"), ["key", "label", "split", "x0", "x1", "x2"], rows)
    transfers: list[Sequence[object]] = []
    while len(transfers) < 900:
        one, other = rng.choice(ACCOUNTS, 2, replace=False)
        if fraud[one] == fraud[other] or rng.random() < 0.2:
            month = max(opened[one], opened[other])
            transfers.append([f"a{one}", f"a{other}", f"2024-{month:02}-{rng.integers(1, 29):02}"])
    write(Path("transfers.csv"), ["source", "target", "time"], transfers)


def write(path: Path, head: list[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def keep_before(day: str, path: Path) -> int:
    """Write the transfers before a day, without their days; return how many are later."""
    with Path("transfers.csv").open(newline="") as file:
        _, *rows = csv.reader(file)
    kept = [row[:2] for row in rows if row[2] < day]
    write(path, ["source", "target"], kept)
    return len(rows) - len(kept)


def commands_of_the_guide() -> list[list[str]]:
    text = GUIDE.read_text(encoding="utf-8").partition("## Cuts in time")[2]
    block, _ = re.findall(r"^```sh\n(.*?)^```$", text.partition("\n##")[0], re.DOTALL | re.M)
    return [shlex.split(line)[1:] for line in block.splitlines()]


def average_precision(predictions: Path, use: str) -> float:
    with Path("accounts.csv").open(newline="") as file:
        labels = {
            row["key"]: int(row["label"]) for row in csv.DictReader(file) if row["split"] == use
        }
    with predictions.open(newline="") as file:
        found = {row["key"]: float(row["p1"]) for row in csv.DictReader(file)}
    return float(average_precision_score(list(labels.values()), [found[key] for key in labels]))


def test_the_guide_trains_on_the_past_and_judges_each_month_by_its_own_edges(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    run, validate, test = commands_of_the_guide()
    assert [each[each.index("--edges-before") + 1] for each in (run, validate, test)] == [
        *(TRAIN, VALIDATION, TEST)
    ]
    retexo.done(*run, "--rounds", "15", "--quiet")
    late = keep_before(TRAIN, Path("early.csv"))
    assert caplog.messages[0] == f"transfers.csv: edges not before {TRAIN} left out: {late}"
    assert not any("not used: 'split'" in message for message in caplog.messages)
    early = [{"transfers.csv": "early.csv", "runs/march": "runs/early"}.get(w, w) for w in run]
    cut = early.index("--edges-before")
    retexo.done(*early[:cut], *early[cut + 2 :], "--rounds", "15", "--quiet")
    # What came later has no part in the training.
    assert model_bytes(Path("runs/march")) == model_bytes(Path("runs/early"))
    scores = {}
    for use, name, command in (("validation", "val", validate), ("test", "test", test)):
        told = retexo.done(*command, "--quiet")
        folder = Path(command[command.index("--out") + 1])
        metric = json.loads((folder / "predictions.json").read_text())["metric"]
        assert metric["name"] == "average-precision"
        assert f"{use} average-precision {metric[use]:.4f} of " in told
        # Scores are counted in bins, 1/128 wide.
        exact = average_precision(folder / "predictions-0.csv", name)
        assert metric[use] == pytest.approx(exact, abs=0.02)
        scores[use] = metric[use]
    # By the edges of the training alone, the same nodes have no neighbours.
    retexo.done(*({"april": "blind", TEST: TRAIN}.get(word, word) for word in test), "--quiet")
    assert average_precision(Path("blind/predictions-0.csv"), "test") < scores["test"] - 0.05
    # A run's cut is of the run: without one of its own, a prediction reads all edges.
    cut = test.index("--edges-before")
    retexo.done(*(*test[:cut], *test[cut + 2 : -1], "uncut"), "--quiet")
    uncut, april = (Path(name) / "predictions-0.csv" for name in ("uncut", "april"))
    assert uncut.read_bytes() == april.read_bytes()


def test_a_cut_leaves_what_a_table_without_later_edges_leaves(retexo: CommandLine) -> None:
    graph = ("--nodes", "accounts.csv", "--clients", "3", "--split", "published")
    keep_before(VALIDATION, Path("early.csv"))
    retexo.done(
        *("partition", "make", *graph, "--edges", "transfers.csv", "--merge-edges", "sum"),
        *("--edges-before", VALIDATION, "--out", "cut"),
    )
    retexo.done(
        *("partition", "make", *graph, "--edges", "early.csv", "--merge-edges", "sum"),
        *("--out", "early"),
    )
    files = sorted(path.relative_to("cut") for path in Path("cut").rglob("*.npy"))
    assert len(files) > 20
    for file in files:
        assert (Path("cut") / file).read_bytes() == (Path("early") / file).read_bytes()
