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

from retexo_fl.graph import open_partition
from tests.support.cli import CommandLine
from tests.support.commands import ROOT
from tests.support.runs import model_bytes

GUIDE = ROOT / "docs" / "graphs-in-time.md"
ACCOUNTS = 240
TRAIN, VALIDATION, TEST = "2024-03-01", "2024-04-01", "2024-05-01"


@pytest.fixture
def retexo(retexo: CommandLine) -> CommandLine:
    write_bank()
    return retexo


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
    text = GUIDE.read_text(encoding="utf-8").partition("## Train before")[2]
    block, *_ = re.findall(r"^```sh\n(.*?)^```$", text.partition("\n##")[0], re.DOTALL | re.M)
    return [shlex.split(line)[1:] for line in block.splitlines()]


def three_cuts_of_the_guide() -> list[str]:
    (line,) = re.findall(r"^retexo (run .*--edges-before \S+/.*)$", GUIDE.read_text(), re.M)
    return shlex.split(line)


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


GRAPH = ("--nodes", "accounts.csv", "--edges", "transfers.csv", "--merge-edges", "sum")
PUBLISHED = ("--split", "published", "--metric", "average-precision", "--dtype", "float64")
THREE = f"{TRAIN}/{VALIDATION}/{TEST}"


def rounds_of(run: str) -> list[tuple[int, int, float]]:
    lines = map(json.loads, Path(run, "metrics.jsonl").read_text().splitlines())
    return [(e["stage"], e["round"], e["loss"]) for e in lines if e["event"] == "round"]


@pytest.mark.parametrize(
    "method", [("--profile", "retexo", "--rounds", "6"), ("--profile", "lean")]
)
def test_three_cuts_train_on_the_past_and_choose_and_judge_by_later_edges(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture, method: tuple[str, ...]
) -> None:
    how = (*GRAPH, *PUBLISHED, *method, "--clients", "3")
    retexo.done("run", *how, "--edges-before", THREE, "--out", "three", "--quiet")
    told = [line for line in caplog.messages if line.startswith("edges-before: ")]
    assert [line.split()[1] for line in told] == ["train", "validation", "test"]
    crossing = [int(re.search(r"rows of (\d+) boundary", line)[1]) for line in told]  # type: ignore[index]
    lines = map(json.loads, Path("three/metrics.jsonl").read_text().splitlines())
    assert {e["vectors"] for e in lines if e["event"] == "exchange"} == {sum(crossing)}
    assert three_cuts_of_the_guide()[:-4] == [
        "run",
        *GRAPH,
        *PUBLISHED[:2],
        "--edges-before",
        THREE,
    ]
    # What is trained is what the early edges alone train; the round is chosen by later ones.
    retexo.done("run", *how, "--edges-before", TRAIN, "--out", "early", "--quiet")
    both = [[each for each in rounds_of(run) if each[0] == 0] for run in ("three", "early")]
    shared = min(map(len, both))
    assert shared >= 6
    assert both[0][:shared] == both[1][:shared]
    result = json.loads(Path("three/result.json").read_text())
    assert f"the edges before {TRAIN}, {VALIDATION}, {TEST}" in result["profile"]["fit"]
    for use, day in (("validation", VALIDATION), ("test", TEST)):
        retexo.done("predict", "three", *GRAPH, "--edges-before", day, "--out", day, "--quiet")
        metric = json.loads(Path(day, "predictions.json").read_text())["metric"]
        found = result if use == "test" else result["stages"][-1]
        # Rows of lean training are rounded on their way, and one client sends none.
        wide = 1e-9 if method[1] == "retexo" else 0.02
        assert found["metric"]["value"] == pytest.approx(metric[use], abs=wide)


def test_three_cuts_of_any_division_train_one_model(retexo: CommandLine) -> None:
    how = (*GRAPH, *PUBLISHED, "--profile", "retexo", "--rounds", "4", "--edges-before", THREE)
    tested = []
    for clients in ("1", "4"):
        retexo.done("run", *how, "--clients", clients, "--out", clients, "--quiet")
        tested.append(rounds_of(clients))
    assert [loss for *_, loss in tested[0]] == pytest.approx([loss for *_, loss in tested[1]], 1e-9)
    # Parts hold them, so that a deployment trains so.
    retexo.done(
        *("partition", "make", *how[:8], "--edges-before", THREE, "--clients", "4"),
        *("--out", "parts"),
    )
    of_run = ("--partitions", "parts", *how[8:-2], "--metric", "average-precision")
    retexo.done("run", *of_run, "--out", "of-parts", "--quiet")
    assert model_bytes(Path("of-parts")) == model_bytes(Path("4"))
    keys = np.concatenate([np.load(path) for path in Path("parts").glob("*/node_keys.npy")])
    assert {key.partition(b" before ")[2].decode() for key in keys} == {TRAIN, VALIDATION, TEST}


def test_nodes_of_three_cuts_are_read_once(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    retexo.done(
        "partition", "make", *GRAPH, "--features", "none", "--edges-before", THREE, "--out", "o"
    )
    told = [line for line in caplog.messages if line.startswith("accounts.csv: columns not used")]
    assert len(told) == 1


def test_owners_make_their_parts_of_three_cuts_themselves(retexo: CommandLine) -> None:
    how = (*GRAPH, *PUBLISHED[:2], "--edges-before", THREE, "--clients", "2")
    retexo.done("partition", "make", *how, "--out", "made")
    made = [open_partition(Path("made", f"part-{client}")) for client in range(2)]
    with Path("accounts.csv").open(newline="") as file:
        head, *accounts = csv.reader(file)
    with Path("transfers.csv").open(newline="") as file:
        _, *transfers = csv.reader(file)
    owner = {key.decode().partition(" ")[0]: part.client for part in made for key in part.node_keys}
    Path("peers.toml").write_text(
        f'partitioning = "{"a" * 64}"\nclasses = 2\nfeatures = 3\nclients = ["b0", "b1"]\n'
    )
    for client in range(2):
        write(Path("own.csv"), head, [row for row in accounts if owner[row[0]] == client])
        inner = [row for row in transfers if owner[row[0]] == owner[row[1]] == client]
        write(Path("in.csv"), ["source", "target", "time"], inner)
        cut = [
            [*(row[:2] if owner[row[0]] == client else row[1::-1]), f"b{1 - client}", row[2]]
            for row in transfers
            if owner[row[0]] != owner[row[1]]
        ]
        write(Path("out.csv"), ["own", "foreign", "peer", "time"], cut)
        retexo.done(
            *("partition", "local", "--name", f"b{client}", "--peers", "peers.toml"),
            *("--nodes", "own.csv", "--edges", "in.csv", "--boundary", "out.csv"),
            *("--merge-edges", "sum", "--edges-before", THREE, "--out", "local"),
        )
        found, expected = open_partition(Path("local", f"part-{client}")), made[client]
        assert found.node_keys.tolist() == expected.node_keys.tolist()
        assert found.boundary_keys.tolist() == expected.boundary_keys.tolist()
        assert found.indices.tolist() == expected.indices.tolist()
        assert found.test_mask.tolist() == expected.test_mask.tolist()
        assert found.degrees.tolist() == expected.degrees.tolist()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ((f"{TRAIN}/{VALIDATION}",), "edges-before: got .*expected a number.*or three that ascend"),
        ((f"{TEST}/{VALIDATION}/{TRAIN}",), "edges-before: got .*or three that ascend"),
        ((f"{TRAIN}/2/3",), "edges-before: got .*or three that ascend"),
        ((THREE, "--task", "links"), "edges-before: .* does not go with task links"),
    ],
)
def test_other_cuts_are_refused(retexo: CommandLine, given: tuple[str, ...], problem: str) -> None:
    told = retexo.refused("run", *GRAPH, "--out", "o", "--edges-before", *given)
    assert re.search(problem, told)
    assert not Path("o").exists()
