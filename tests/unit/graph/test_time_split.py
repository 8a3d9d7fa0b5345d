"""Splits by when nodes came: bounds, forms of time, what is refused, and the same at every door."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError, DatasetError
from retexo_fl.graph import Graph
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.time_split import split_by_time, time_cuts
from tests.support.cli import CommandLine

NODES = 40
FIRST = date(2024, 1, 1)
#: Node n came on day n; cuts at days 10, 20, 30.
DAYS = [FIRST + timedelta(days=day) for day in range(NODES)]
SPLIT = "time:2024-01-11/2024-01-21/2024-01-31"


def uses(times: list[str], split: str = SPLIT, labels: np.ndarray | None = None) -> str:
    """Return a letter for each node."""
    found = split_by_time(
        np.array(times),
        np.zeros(len(times), dtype=np.int64) if labels is None else labels,
        split=split,
        source="g",
        column="time",
    )
    letters = np.full(len(times), "-")
    for letter, mask in zip("tve", found.named().values(), strict=True):
        assert (letters[mask] == "-").all()
        letters[mask] = letter
    return "".join(letters)


def test_a_node_is_used_by_the_period_in_which_it_came_a_cut_belongs_to_the_later() -> None:
    texts = [day.isoformat() for day in DAYS]
    assert uses(texts) == "t" * 10 + "v" * 10 + "e" * 10 + "-" * 10
    assert uses(texts, SPLIT.rpartition("/")[0]) == "t" * 10 + "v" * 10 + "e" * 20
    unlabelled = np.where(np.arange(NODES) % 2, 0, -1)
    assert uses(texts, labels=unlabelled) == "-t" * 5 + "-v" * 5 + "-e" * 5 + "-" * 10
    assert uses(["9", "10", "19.5", "20", "1e3"], "time:10/20") == "tvvee"


def test_days_and_months_are_told_apart_by_all_nodes_together() -> None:
    # 13/01 says that the day is first, so 02/01 is the second of January.
    assert uses(["02/01/2024", "13/01/2024", "25/01/2024"]) == "tve"
    with pytest.raises(DatasetError, match=r"^g: time: node 0: got '02/01/2024', of which no cell"):
        uses(["02/01/2024", "03/01/2024"])


@pytest.mark.parametrize(
    ("split", "told"),
    [
        ("time", "got 'time'; expected time:VAL/TEST or time:VAL/TEST/END"),
        ("time:1", "got 'time:1'; expected time:VAL/TEST"),
        ("time:1/2/3/4", "expected time:VAL/TEST"),
        ("time:2/1", "1 is after 2; expected ascending points in time"),
        ("time:1/1", "1 is after 1"),
        ("time:1/2024-01-01", "numbers and dates; expected one of the two"),
        ("time:1/soon", "got 'soon'; expected a number, or a date"),
    ],
)
def test_cuts_that_are_none_or_out_of_order_are_refused_in_one_line(split: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        time_cuts(split)
    assert str(caught.value).startswith("split: ")
    assert told in str(caught.value)


def test_a_node_without_a_time_is_named() -> None:
    with pytest.raises(DatasetError, match=r"^g: time: node 1: got 'soon'; expected a date"):
        uses(["2024-01-01", "soon"])
    with pytest.raises(DatasetError, match=r"node 0: got '2024-01-01'; expected a number"):
        uses(["2024-01-01"], "time:1/2")


def _graph(times: Any) -> Graph:
    ring = np.arange(NODES)
    return Graph.from_edges(
        np.stack((ring, np.roll(ring, 1))),
        name="ring",
        features=np.ones((NODES, 1), dtype=np.float32),
        labels=ring % 2,
        attributes={"came": times},
    )


def _masks(parts: list[GraphPartition]) -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    for part in parts:
        for letter, mask in zip(
            "tve", (part.train_mask, part.val_mask, part.test_mask), strict=True
        ):
            found |= dict.fromkeys(part.node_keys[mask].tolist(), letter)
    return found


def test_tables_parts_of_clients_and_arrays_split_alike(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [f"n{n},{n % 2},1.0,{day.isoformat()}" for n, day in enumerate(DAYS)]
    nodes, edges = tmp_path / "nodes.csv", tmp_path / "edges.csv"
    nodes.write_text("\n".join(["key,label,x0,came", *rows, ""]))
    edges.write_text(
        "\n".join(["source,target", *(f"n{n},n{(n + 1) % NODES}" for n in range(NODES)), ""])
    )
    base = {"clients": 3, "split": SPLIT}
    tables = {"nodes": str(nodes), "edges": str(edges), "node-time-column": "came"}
    whole = _masks(make_parts(make_config({**base, **tables}), quiet=True))
    assert whole == {
        f"n{n}".encode(): letter for n, letter in enumerate("t" * 10 + "v" * 10 + "e" * 10)
    }
    peers = tmp_path / "peers.toml"
    peers.write_text('partitioning = "p"\nclasses = 2\nfeatures = 1\nclients = ["a"]\n')
    CommandLine(capfd).done(
        *("partition", "local", "--nodes", nodes, "--edges", edges, "--peers", peers),
        *("--name", "a", "--split", SPLIT, "--node-time-column", "came", "--out", tmp_path / "p"),
    )
    from retexo_fl.client.preparation import open_parts

    assert _masks(open_parts(tmp_path / "p")) == whole


@pytest.mark.parametrize(
    "times",
    [
        np.array(DAYS, dtype="datetime64[D]"),
        np.array(DAYS, dtype=object),
        [day.isoformat() for day in DAYS],
    ],
)
def test_dates_of_arrays_are_what_they_are_in_text(times: object) -> None:
    from retexo_fl.graph.splits import make_split

    found = make_split(
        _graph(times), np.zeros(NODES, dtype=int), split=SPLIT, seed=0, time_column="came"
    )
    assert [int(mask.sum()) for mask in found.named().values()] == [10, 10, 10]


def test_a_split_without_a_use_and_a_graph_without_times_are_refused() -> None:
    from retexo_fl.graph.splits import make_split

    graph, nobody = _graph(np.arange(NODES)), np.zeros(NODES, dtype=int)
    with pytest.raises(ConfigurationError, match="leaves no test nodes of the 40 labelled ones"):
        make_split(graph, nobody, split="time:10/50", seed=0, time_column="came")
    with pytest.raises(DatasetError, match="has no attribute 'time' of nodes; there is: came"):
        make_split(graph, nobody, split="time:10/20", seed=0)
