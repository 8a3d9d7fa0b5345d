"""Edges up to a point in time, in every form in which a graph comes."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

from retexo_fl.api.values import values_of
from retexo_fl.config import make_config, parse_value
from retexo_fl.config.file import read_config_file
from retexo_fl.dates import Moment
from retexo_fl.errors import ConfigurationError, DatasetError, TableError
from retexo_fl.graph import EdgeRules, Graph, from_networkx, from_pyg, load_dataset
from retexo_fl.graph.sources.from_arrays import from_arrays
from retexo_fl.graph.sources.npz_graph import read_npz_graph
from retexo_fl.graph.sources.reading import Reading
from retexo_fl.graph.sources.table_graph import read_table_graph
from retexo_fl.graph.sources.tables import read_boundary_table
from tests.unit.graph.sources.test_from_pyg import small_data

DATES = ("2024-01-31", "2024-02-01", "2024-02-01T00:00:01", "2023-12-31T23:00:00-05:00")


def rules(before: str, **more: Any) -> EdgeRules:
    return EdgeRules(before=Moment.of(before), **more)


def edges_of(graph: Graph) -> set[tuple[int, int]]:
    return {(one, other) for one, other in graph.edge_list().T.tolist()}


def write_tables(folder: Path, times: tuple[str, ...]) -> tuple[Path, Path]:
    """Write a path of five nodes whose edges came at some times."""
    nodes, edges = folder / "nodes.csv", folder / "edges.csv"
    nodes.write_text("key,label,x0\n" + "".join(f"{n},{n % 2},{n}\n" for n in range(5)))
    rows = "".join(f"{at},{at + 1},{time}\n" for at, time in enumerate(times))
    edges.write_text(f"source,target,time\n{rows}")
    return nodes, edges


def test_edges_of_tables_are_cut_by_date(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tables = write_tables(tmp_path, DATES)
    assert edges_of(read_table_graph(*tables, reading=Reading(rules=rules("2024-02-01")))) == {
        (0, 1),
        (3, 4),
    }
    assert caplog.messages == [f"{tables[1]}: edges not before 2024-02-01 left out: 2"]
    later = read_table_graph(*tables, reading=Reading(rules=rules("2024-02-01T00:00:01")))
    assert edges_of(later) == {(0, 1), (1, 2), (3, 4)}


def test_edges_of_tables_are_cut_by_number(tmp_path: Path) -> None:
    tables = write_tables(tmp_path, ("1", "2.5", "-3", "10"))
    assert edges_of(read_table_graph(*tables, reading=Reading(rules=rules("2.5")))) == {
        (0, 1),
        (2, 3),
    }


def test_lines_are_named_as_they_stand_in_the_file(tmp_path: Path) -> None:
    nodes, edges = write_tables(tmp_path, ("9", "1", "2"))
    edges.write_text(edges.read_text() + "1,2,3\n")
    with pytest.raises(
        TableError, match="edges.csv: line 5: the edge of '1' and '2' is already in l"
    ):
        read_table_graph(nodes, edges, reading=Reading(rules=rules("5")))


@pytest.mark.parametrize(
    ("before", "times", "told"),
    [
        (
            "2024-01-01",
            ("2023-01-01", "5"),
            r"line 3: time: got '5'; expected a date such as 2024-03-01, as edg",
        ),
        ("7", ("2", "2023-01-01"), r"line 3: time: got '2023-01-01'; expected a number, as edges-"),
        ("7", ("", "5"), r"line 2: time: got ''; expected a number"),
        ("7", ("nan", "5"), r"line 2: time: got 'nan'; expected a number"),
    ],
)
def test_times_of_another_kind_are_refused(
    tmp_path: Path, before: str, times: tuple[str, ...], told: str
) -> None:
    with pytest.raises(TableError, match=told):
        read_table_graph(*write_tables(tmp_path, times), reading=Reading(rules=rules(before)))


def test_a_table_without_times_is_refused(tmp_path: Path) -> None:
    nodes, edges = write_tables(tmp_path, DATES)
    edges.write_text(edges.read_text().replace("time", "when"))
    with pytest.raises(TableError, match="edges.csv: column 'time' is missing"):
        read_table_graph(nodes, edges, reading=Reading(rules=rules("2024-02-01")))


def test_edges_to_peers_are_cut_too(tmp_path: Path) -> None:
    path = tmp_path / "boundary.csv"
    path.write_text("own,foreign,peer,time,weight\na,x,south,1,4\na,y,south,2,5\nb,x,south,0,6\n")
    table = read_boundary_table(path, rules=rules("2"))
    assert table.own.tolist() == [b"a", b"b"]
    assert table.values.weights is not None
    assert table.values.weights.tolist() == [4, 6]
    assert table.place(1) == "line 4"


def test_arrays_and_objects_are_cut_too(tmp_path: Path) -> None:
    times = np.array([5.0, 1.0, 7.0, 2.0, 3.0])
    early = {(1, 2), (0, 3), (1, 4)}
    data = small_data(
        edge_index=torch.tensor([[0, 1, 2, 3, 1], [1, 2, 3, 0, 4]]),
        edge_time=torch.from_numpy(times),
    )
    assert edges_of(from_pyg(data, rules=rules("5"))) == early
    with pytest.raises(
        DatasetError, match="pyg: edge_time: missing; expected it with edges-before"
    ):
        from_pyg(small_data(), rules=rules("5"))
    np.savez(
        tmp_path / "g.npz",
        edge_index=data.edge_index.numpy(),
        edge_time=times,
        x=data.x.numpy(),
        y=data.y.numpy(),
    )
    assert edges_of(read_npz_graph(tmp_path / "g.npz", reading=Reading(rules=rules("5")))) == early
    graph = nx.Graph()
    graph.add_nodes_from((n, {"x": [1.0], "y": n % 2}) for n in range(6))
    for (one, other), time in zip(data.edge_index.T.tolist(), times.tolist(), strict=True):
        graph.add_edge(one, other, time=time)
    assert edges_of(from_networkx(graph, rules=rules("5"))) == early


@pytest.mark.parametrize("name", ["digits", "synthetic:nodes=200"])
def test_edges_that_are_ready_have_no_times(name: str) -> None:
    with pytest.raises(DatasetError, match=f"'{name}': edges have no times; expected them with e"):
        load_dataset(name, data_dir=None, reading=Reading(rules=rules("5")))


def test_what_is_no_time_is_refused() -> None:
    for text in ("2024-13-01", "yesterday", "nan", "", "1_000"):
        with pytest.raises(ConfigurationError, match="edges-before: got .*; expected a number, or"):
            Moment.of(text)


#: The fifth of March, as tables have it; each is a bound, too.
_FIFTH = (
    *("2024-03-05", "2024/03/05", "05.03.2024", "5.3.2024 00:00", "2024-03-05T00:00:00Z"),
    *("20240305T0000", "2024-W10-2", "2024-03-05 01:00+01:00"),
)


@pytest.mark.parametrize("cell", _FIFTH)
@pytest.mark.parametrize("bound", [*_FIFTH, "29/02/2024", "05/03/2024 "])
def test_a_bound_is_read_as_cells_are(tmp_path: Path, cell: str, bound: str) -> None:
    """A cell of the same day is not before it, whatever form either has; one of a day before is."""
    if bound.endswith("/2024 "):
        with pytest.raises(ConfigurationError, match="expected a number, or a date .*may be two"):
            rules(bound)
        return
    tables = write_tables(tmp_path, (cell, "2024-02-28T23:59:59", "2024-01-01"))
    found = edges_of(read_table_graph(*tables, reading=Reading(rules=rules(bound))))
    assert found == {(1, 2), (2, 3)}


@pytest.mark.parametrize("door", ["table", "dict"])
@pytest.mark.parametrize(
    ("times", "early"),
    [
        (("03/01/2024", "13/02/2024", "05/03/2024", "01/03/2024"), {(0, 1), (1, 2), (3, 4)}),
        (("03/01/2024", "02/13/2024", "03/05/2024", "01/03/2024"), {(0, 1), (1, 2), (3, 4)}),
        (("2024-01-03", "03/04/2024", "02/01/2024", "04/04/2024"), "03/04/2024.*no cell of the c"),
        (("13/01/2024", "01/13/2024", "02/02/2024", "02/02/2024"), "01/13/2024.*expected a date s"),
    ],
)
def test_day_and_month_are_told_by_the_whole_column(
    tmp_path: Path, door: str, times: tuple[str, ...], early: Any
) -> None:
    def read() -> Graph:
        reading = Reading(rules=rules("05.03.2024"))
        if door == "table":
            return read_table_graph(*write_tables(tmp_path, times), reading=reading)
        ends = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
        given = {"x": np.ones((5, 1)), "y": [0, 1, 0, 1, 0], "edge_index": ends}
        return from_arrays({**given, "edge_time": list(times)}, name="d", reading=reading)

    if isinstance(early, set):
        assert edges_of(read()) == early
    else:
        with pytest.raises((TableError, DatasetError), match=early):
            read()


def test_a_bound_is_text_a_number_or_a_date_behind_every_door(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("edges-before = 2024-03-05\n")
    given = (
        read_config_file(tmp_path / "c.toml"),
        values_of({"edges_before": date(2024, 3, 5)}),
        values_of({"edges_before": np.datetime64("2024-03-05")}),
        values_of({"edges_before": pd.Timestamp("2024-03-05")}),
        {"edges-before": parse_value("edges-before", "05.03.2024")},
    )
    bounds = [Moment.of(make_config(values).edges_before) for values in given]
    assert {(bound.value, bound.is_date) for bound in bounds} == {(1709596800.0, True)}
    numbers = [{"edges-before": value} for value in (5, 5.0, "5", "05e0")]
    assert {Moment.of(make_config(values).edges_before).value for values in numbers} == {5.0}
    for wrong in ("03/01/2024", "yesterday", True, "nan"):
        with pytest.raises(ConfigurationError, match="edges-before: got .*expected .*a number, or"):
            make_config({"edges-before": wrong})
