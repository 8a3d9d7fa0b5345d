"""Rolling evaluation: each cut is the separate runs and predictions that it stands for."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

import retexo_fl
from retexo_fl.errors import ConfigurationError
from tests.integration.test_time_split import write_bank
from tests.support.cli import CommandLine
from tests.support.runs import model_bytes

GRAPH = ("--nodes", "accounts.csv", "--edges", "transfers.csv", "--merge-edges", "sum")
HOW = ("--split", "random:0.5/0.2/0.3", "--clients", "2", "--metric", "average-precision")
BRIEF = ("--profile", "retexo", "--rounds", "4", "--hidden", "8")


@pytest.fixture
def retexo(retexo: CommandLine) -> CommandLine:
    write_bank()
    return retexo


@pytest.mark.usefixtures("forked_runs")
def test_each_month_is_a_run_with_its_edges_and_a_prediction_with_those_of_the_next(
    retexo: CommandLine,
) -> None:
    # The bank's transfers are of February to April.
    told = retexo.done("run", *GRAPH, *HOW, *BRIEF, "--cuts", "monthly", "--out", "months")
    with Path("months/cuts.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["trained_before"], row["judged_before"]) for row in rows] == [
        *(("2024-03-01", "2024-04-01"), ("2024-04-01", "2024-05-01"))
    ]
    for row in rows:
        before, until = row["trained_before"], row["judged_before"]
        retexo.done("run", *GRAPH, *HOW, *BRIEF, "--edges-before", before, "--out", before)
        assert model_bytes(Path(before)) == model_bytes(Path(row["run"]))
        # Both are split by the seed, whatever the edges are.
        retexo.done(
            *("partition", "make", *GRAPH, *HOW[:4], "--edges-before", until),
            *("--out", f"parts-{until}"),
        )
        retexo.done("predict", before, "--partitions", f"parts-{until}", "--out", f"p-{until}")
        judged = json.loads(Path(f"p-{until}/predictions.json").read_text())
        assert float(row["test"]) == judged["metric"]["test"]
        assert int(row["test_nodes"]) == judged["labelled"]["test"]["nodes"] == 72
        assert int(row["judging_bytes"]) == judged["bytes"]["payload"]["total"]
        assert judged["bytes"]["payload"]["boundary"] > 0
        assert f"{float(row['test']):.4f}" in told
    # Later edges are what judges.
    assert any(row["test"] != row["test_by_trained"] for row in rows)
    # Called again it trains nothing.
    stamps = {path: path.stat().st_mtime_ns for path in Path("months").glob("*/model/*")}
    again = retexo.done("run", *GRAPH, *HOW, *BRIEF, "--cuts", "monthly", "--out", "months")
    assert again == told
    assert stamps
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}


@pytest.mark.usefixtures("forked_runs")
def test_by_time_nodes_of_the_past_train_and_those_of_the_next_period_test(
    retexo: CommandLine, tmp_path: Path
) -> None:
    del retexo
    nodes = pd.read_csv("accounts.csv").drop(columns="split")
    nodes["came"] = pd.to_datetime("2024-02-01") + pd.to_timedelta(nodes.index % 90, unit="D")
    edges = pd.read_csv("transfers.csv")
    rows = retexo_fl.rolling(
        ["2024-03-01", "2024-04-01", "2024-05-01"],
        out=tmp_path / "out",
        nodes=nodes,
        edges=edges,
        merge_edges="sum",
        split="time",
        node_time_column="came",
        clients=2,
        profile="retexo",
        rounds=2,
        hidden=8,
        quiet=True,
    )
    (row,) = rows
    assert (row.trained_before, row.judged_before) == ("2024-04-01", "2024-05-01")
    assert not row.failure
    april = ((nodes["came"] >= "2024-04-01") & (nodes["came"] < "2024-05-01")).sum()
    assert row.cells()["test_nodes"] == april
    result = row.run.result
    assert result is not None
    march = (nodes["came"].dt.month == 3).sum()
    assert sum(client.val for client in result.client_table) == march
    assert sum(client.train for client in result.client_table) == len(nodes) - march - april


@pytest.mark.parametrize(
    ("cuts", "told"),
    [
        ("hourly", "got 'hourly'; expected daily, weekly, monthly, quarterly, yearly, or points"),
        ("2024-05-01,2024-04-01", "2024-04-01 is after 2024-05-01"),
        ("3,2024-04-01", "numbers and dates; expected one of the two"),
        ("2024-05-01", "is 1 point in time; expected 2 to 400"),
        ("2024-05-01,", "got ''; expected daily"),
    ],
)
def test_cuts_that_are_none_end_in_one_line(retexo: CommandLine, cuts: str, told: str) -> None:
    error = retexo.refused("run", *GRAPH, *HOW, "--cuts", cuts, "--out", "never")
    assert error.startswith("cuts: ")
    assert told in error
    assert not Path("never").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "out: missing"),
        (("--out", "o", "--edges-before", "2024-03-01"), "edges-before: cannot be given with cuts"),
        (("--out", "o", "--task", "links"), "cuts: the task tests edges"),
        (("--out", "o", "--superlink", "h:1", "--insecure"), "cuts: cannot be given with"),
    ],
)
def test_what_does_not_go_with_cuts_is_refused(
    retexo: CommandLine, options: tuple[str, ...], told: str
) -> None:
    assert told in retexo.refused("run", *GRAPH, "--cuts", "monthly", *options)
    assert not Path("o").exists()


def test_a_period_needs_a_table_of_dates(retexo: CommandLine) -> None:
    Path("transfers.csv").write_text("source,target,time\na0,a1,2024-01-01\na1,a2,soon\n")
    error = retexo.refused("run", *GRAPH, "--cuts", "monthly", "--out", "o")
    assert "transfers.csv: time: row 1: got 'soon'; expected a date such as" in error
    with pytest.raises(ConfigurationError, match="monthly needs a table of edges"):
        retexo_fl.rolling("monthly", out="o")
