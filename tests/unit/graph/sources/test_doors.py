"""One table of forms and doors: the same graph gives the same arrays, whatever it comes in."""

from __future__ import annotations

import html
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse

import retexo_fl
from retexo_fl.client.preparation import given_graph, load_graph, make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import RetexoError
from retexo_fl.graph import Graph

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data

NODES = 12
EDGES = np.stack([np.arange(NODES), (np.arange(NODES) + 1) % NODES])
#: Exact in every type of floats.
X = (np.arange(2 * NODES).reshape(NODES, 2) % 5) / 4
Y = np.array([0, 1, 1, -1] * 3)
GAPS = np.where(Y < 0, np.nan, Y)


def _both() -> np.ndarray:
    return np.concatenate([EDGES, EDGES[::-1]], axis=1)


def _adjacency() -> sparse.csr_array:
    ends = _both()
    return sparse.csr_array((np.ones(2 * NODES), (ends[0], ends[1])), shape=(NODES, NODES))


def _tensor(array: Any) -> Any:
    """Return a tensor of what has such a type."""
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OUM" or not array.dtype.isnative:
        return array
    return torch.from_numpy(array)


def _columns(x: np.ndarray, y: Any) -> dict[str, Any]:
    label = y.reshape(-1) if isinstance(y, np.ndarray) else y
    return {"key": np.arange(NODES), "label": label, "x0": x[:, 0], "x1": x[:, 1]}


def _frames(x: np.ndarray, y: Any, kind: Any) -> tuple[Any, Any]:
    native = {
        name: a.astype(a.dtype.newbyteorder("=")) if isinstance(a, np.ndarray) else a
        for name, a in _columns(x, y).items()
    }
    if kind is pl:
        native = {name: a.tolist() if a.dtype.kind == "O" else a for name, a in native.items()}
    return kind.DataFrame(native), kind.DataFrame({"source": EDGES[0], "target": EDGES[1]})


def _networkx(x: np.ndarray, y: Any) -> nx.Graph:
    graph = nx.Graph()
    for node in range(NODES):
        graph.add_node(node, x=x[node], y=y[node])
    graph.add_edges_from(EDGES.T.tolist())
    return graph


def _file(folder: Path, x: np.ndarray, y: Any, ending: str) -> Graph:
    nodes, edges = folder / f"nodes.{ending}", folder / "edges.csv"
    frame, ends = _frames(x, y, pd)
    ends.to_csv(edges, index=False)
    if ending == "csv":
        frame.to_csv(nodes, index=False)
    elif ending == "parquet":
        frame.to_parquet(nodes, index=False)
    else:
        np.savez(nodes, **_columns(x, y))
    return load_graph(make_config({"nodes": str(nodes), "edges": str(edges)}), quiet=True)


def _npz(folder: Path, x: np.ndarray, y: Any, _: str) -> Graph:
    np.savez(folder / "small.npz", x=x, y=y, edge_index=EDGES)
    return load_graph(make_config({"dataset": "small", "data-dir": str(folder)}), quiet=True)


def _given(graph: object) -> Graph:
    return given_graph(graph, make_config({}))


#: By name what makes a graph of features and labels.
DOORS: dict[str, Callable[[Path, np.ndarray, Any], Graph]] = {
    "pyg": lambda _, x, y: _given(
        Data(x=_tensor(x), y=_tensor(y), edge_index=torch.from_numpy(_both()))
    ),
    "adj_t": lambda _, x, y: _given(
        Data(x=_tensor(x), y=_tensor(y), adj_t=torch.from_numpy(_adjacency().toarray()).to_sparse())
    ),
    "dict": lambda _, x, y: _given({"x": x, "y": y, "edge_index": EDGES}),
    "scipy": lambda _, x, y: _given((_adjacency(), x, y)),
    "networkx": lambda _, x, y: _given(_networkx(x, y)),
    "npz": lambda folder, x, y: _npz(folder, x, y, ""),
    "csv": lambda folder, x, y: _file(folder, x, y, "csv"),
    "parquet": lambda folder, x, y: _file(folder, x, y, "parquet"),
    "npz tables": lambda folder, x, y: _file(folder, x, y, "npz"),
    "pandas": lambda _, x, y: _given(_frames(x, y, pd)),
    "polars": lambda _, x, y: _given(_frames(x, y, pl)),
}
FEATURES = (
    {name: X.astype(name) for name in ("float16", "float32", "float64", ">f4", ">f8")}
    | {name: (4 * X).astype(name) for name in ("int8", "uint8", "int64", ">i2")}
    | {"bool": X > 0.5}
)
LABELS = {
    "integers": Y,
    "small": Y.astype(np.int8),
    "big-endian": Y.astype(">i4"),
    "NaN": GAPS,
    "NaN in float32": GAPS.astype(np.float32),
    "a column": GAPS[:, None],
    "None": np.array([None if label < 0 else int(label) for label in Y], dtype=object),
    "booleans": np.array([None if label < 0 else bool(label) for label in Y], dtype=object),
    "from 1": np.where(Y < 0, -1, Y + 1),
}
#: A form that has no place behind a door: a file holds no Python objects without pickle.
_ABSENT = {(door, form) for door in ("npz", "npz tables") for form in ("None", "booleans")}


def _same(found: Graph, x: np.ndarray) -> None:
    np.testing.assert_array_equal(found.features, x.astype(np.float32))
    np.testing.assert_array_equal(found.labels, Y)
    assert found.features.dtype == np.float32
    assert found.edge_list().tolist() == _given((_adjacency(), X, Y)).edge_list().tolist()
    assert found.edge_values.weights is None


@pytest.mark.parametrize("form", FEATURES)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_features_of_every_type(tmp_path: Path, door: str, form: str) -> None:
    x = FEATURES[form]
    _same(DOORS[door](tmp_path, x, Y), x)


@pytest.mark.parametrize("form", LABELS)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_labels_of_every_form(tmp_path: Path, door: str, form: str) -> None:
    if (door, form) in _ABSENT:
        return
    found = DOORS[door](tmp_path, X, LABELS[form])
    _same(found, X)
    names = ("1", "2") if form == "from 1" else ()
    assert (found.recipe.classes if found.recipe else ()) == names


@pytest.mark.parametrize("door", ["pyg", "dict", "scipy", "networkx", "npz", "npz tables"])
def test_every_door_refuses_complex_numbers_by_name(tmp_path: Path, door: str) -> None:
    for x, y in ((X + 1j, Y), (X, Y + 1j)):
        with pytest.raises(RetexoError, match=r"(x0?|y|label): .*(complex|j)"):
            DOORS[door](tmp_path, x, y)


@pytest.mark.parametrize("door", ["pyg", "dict", "scipy", "networkx"])
def test_labels_may_be_text(tmp_path: Path, door: str) -> None:
    text = np.array(["", "no", "yes"])[[2 if y == 1 else 1 if y == 0 else 0 for y in Y]]
    found = DOORS[door](tmp_path, X, text)
    np.testing.assert_array_equal(found.labels, Y)
    assert found.recipe is not None
    assert found.recipe.classes == ("no", "yes")


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
@pytest.mark.parametrize("made", ["array", "matrix"])
def test_sparse_features_of_every_format_are_those_rows(form: str, made: str) -> None:
    """As many features as nodes, so that the transpose would fit, too."""
    dense = np.triu(np.arange(NODES * NODES).reshape(NODES, NODES) % 3).astype(np.float64)
    matrix = getattr(sparse, f"{form}_{made}")(dense)
    for graph in (
        _given((_adjacency(), matrix, Y)),
        Graph.from_edges(EDGES, name="g", features=matrix, labels=Y),
    ):
        assert isinstance(graph.features, sparse.csr_array)
        np.testing.assert_array_equal(graph.features.toarray(), dense)
        assert graph.features.data.all()
    adjacency = getattr(sparse, f"{form}_{made}")(_adjacency())
    _same(_given((adjacency, X, Y)), X)


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR) tensor support")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
def test_sparse_tensors_of_every_layout_are_those_rows(layout: str) -> None:
    dense = torch.triu(torch.arange(NODES * NODES).reshape(NODES, NODES) % 3).float()
    how = {"blocksize": (2, 2)} if layout == "bsr" else {}
    made = getattr(dense, "to_sparse" if layout == "coo" else f"to_sparse_{layout}")(**how)
    graph = _given({"x": made, "y": Y, "edge_index": EDGES})
    assert isinstance(graph.features, sparse.csr_array)
    np.testing.assert_array_equal(graph.features.toarray(), dense.numpy())


def test_entries_that_stand_there_twice_are_added_and_zeros_are_none() -> None:
    rows, columns = np.array([0, 0, 1, 2]), np.array([1, 1, 0, 2])
    values = np.array([1.0, 2.0, 0.0, 4.0])
    features = sparse.coo_array((values, (rows, columns)), shape=(NODES, 3))
    found = _given((_adjacency(), features, Y)).features
    assert isinstance(found, sparse.csr_array)
    assert found.nnz == 2
    assert found.toarray()[0].tolist() == [0, 3, 0]
    assert features.nnz == 4
    adjacency = _adjacency().tolil()
    adjacency[0, 5] = adjacency[5, 0] = 3
    weights = _given((adjacency, X, Y)).edge_values.weights
    assert weights is not None
    assert sorted(weights.tolist()) == [1] * 2 * NODES + [3, 3]


@pytest.mark.parametrize("door", DOORS)
def test_links_need_no_labels(tmp_path: Path, door: str) -> None:
    config = make_config({"task": "links"})
    if door in {"csv", "parquet", "npz tables"}:
        DOORS[door](tmp_path, X, Y)
        ending = door.removesuffix(" tables")
        nodes, edges = tmp_path / f"nodes.{ending}", tmp_path / "edges.csv"
        frame, _ = _frames(X, Y, pd)
        frame = frame.drop(columns="label")
        if ending == "csv":
            frame.to_csv(nodes, index=False)
        elif ending == "parquet":
            frame.to_parquet(nodes, index=False)
        else:
            np.savez(nodes, key=np.arange(NODES), x0=X[:, 0], x1=X[:, 1])
        config = replace(config, nodes=str(nodes), edges=str(edges))
        found = load_graph(config, quiet=True)
    elif door == "npz":
        np.savez(tmp_path / "small.npz", x=X, edge_index=EDGES)
        config = replace(config, dataset="small", data_dir=str(tmp_path))
        found = load_graph(config, quiet=True)
    else:
        graphs: dict[str, Any] = {
            "pyg": Data(x=torch.from_numpy(X), edge_index=torch.from_numpy(_both())),
            "adj_t": Data(x=torch.from_numpy(X), adj_t=_adjacency()),
            "dict": {"x": X, "edge_index": EDGES},
            "scipy": (_adjacency(), X),
            "networkx": nx.convert_node_labels_to_integers(_networkx(X, ["?"] * NODES)),
            "pandas": _frames(X, Y, pd),
            "polars": _frames(X, Y, pl),
        }
        found = given_graph(graphs[door], config)
    assert found.num_classes == 1
    assert not found.labelled.any()


@pytest.mark.parametrize(
    ("masks", "counts", "said"),
    [
        ({"train": 6, "val": 3, "test": 3}, (6, 3, 3), "no split was chosen"),
        ({"train": 9, "test": 3}, (7, 2, 3), "without a val_mask one train node of five"),
        ({"train": 6}, (4, 2, 6), "without a test_mask all other labelled nodes test"),
    ],
)
@pytest.mark.parametrize("form", ["bool", "uint8", "int64", "column", "ten columns", "float32"])
def test_masks_that_a_graph_brings_are_its_split(
    caplog: pytest.LogCaptureFixture,
    form: str,
    masks: dict[str, int],
    counts: tuple[int, int, int],
    said: str,
) -> None:
    at, given = 0, {}
    labels = np.zeros(NODES, dtype=int)
    labels[::2] = 1
    for word, count in masks.items():
        mask = np.zeros(NODES, dtype=bool)
        mask[at : at + count] = True
        at += count
        if form in {"column", "ten columns"}:
            width = 1 if form == "column" else 10
            given[f"{word}_mask"] = torch.from_numpy(np.tile(mask[:, None], width))
        else:
            given[f"{word}_mask"] = torch.from_numpy(mask.astype(form))
    data = Data(x=torch.from_numpy(X), y=torch.from_numpy(labels), **given)
    data.edge_index = torch.from_numpy(_both())
    parts = make_parts(make_config({"clients": 2}), graph=data)
    found = [
        sum(int(getattr(part, f"{word}_mask").sum()) for part in parts)
        for word in ("train", "val", "test")
    ]
    assert tuple(found) == counts
    assert said in caplog.text
    assert "the graph's own masks" in caplog.text
    caplog.clear()
    drawn = make_parts(make_config({"clients": 2, "split": "random:0.5/0.25/0.25"}), graph=data)
    assert sum(int(part.train_mask.sum()) for part in drawn) == 6
    assert not caplog.text


def _masked(values: dict[str, list[Any]], ending: str, folder: Path) -> dict[str, Any]:
    """Return what a run takes of tables that have some more columns."""
    frame, ends = _frames(X, np.arange(NODES) % 2, pd)
    frame = frame.assign(**values)
    if ending in {"pandas", "polars"}:
        kind = {"pandas": pd.DataFrame, "polars": pl.DataFrame}[ending]
        return {"graph": tuple(kind(one.to_dict(orient="list")) for one in (frame, ends))}
    nodes, edges = folder / f"nodes.{ending}", folder / "edges.csv"
    ends.to_csv(edges, index=False)
    if ending == "npz":
        arrays: dict[str, Any] = {name: np.array(cells.tolist()) for name, cells in frame.items()}
        np.savez(nodes, **arrays)
    else:
        frame.to_parquet(nodes) if ending == "parquet" else frame.to_csv(nodes, index=False)
    return {"nodes": str(nodes), "edges": str(edges)}


def _cut(given: dict[str, Any], **keys: Any) -> tuple[int, ...]:
    """Return how many nodes each use has."""
    graph = given.get("graph")
    keys |= {"clients": 2, **{key: value for key, value in given.items() if key != "graph"}}
    parts = make_parts(make_config(keys), graph=graph)
    return tuple(
        sum(int(getattr(part, f"{word}_mask").sum()) for part in parts)
        for word in ("train", "val", "test")
    )


TRAIN, VALIDATION, TEST = ([i // 4 == use for i in range(NODES)] for use in range(3))
TABLES = ("csv", "parquet", "npz", "pandas", "polars")


@pytest.mark.parametrize("ending", TABLES)
@pytest.mark.parametrize("kind", [bool, int, float])
def test_columns_of_masks_are_a_table_s_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str, kind: type
) -> None:
    train, validation, test = ([kind(cell) for cell in m] for m in (TRAIN, VALIDATION, TEST))
    masks = {"train_mask": train, "val_mask": validation, "test_mask": test}
    assert _cut(_masked(masks, ending, tmp_path)) == (4, 4, 4)
    assert "the graph's own masks, 4 train, 4 validation and 4 test nodes" in caplog.text
    assert "not used" not in caplog.text
    masks = {"train_mask": train, "validation_mask": validation}
    assert _cut(_masked(masks, ending, tmp_path), split="published") == (4, 4, 4)
    assert _cut(_masked({"train_mask": train}, ending, tmp_path)) == (3, 1, 8)
    # A column of words is the split, and with another split no mask is looked at.
    words = ["test"] * 5 + ["val"] * 5 + ["train"] * 2
    assert _cut(_masked({"train_mask": train, "split": words}, ending, tmp_path)) == (2, 5, 5)
    given = _masked({"train_mask": ["odd"] * NODES}, ending, tmp_path)
    assert sum(_cut(given, split="random:0.5/0.25/0.25")) == NODES


def test_plan_result_and_report_say_that_the_masks_are_the_graph_s_own(tmp_path: Path) -> None:
    frame, ends = _frames(X, np.arange(NODES) % 2, pd)
    said = {}
    for name, masks, split in (
        ("made", {"train_mask": TRAIN, "test_mask": TEST}, "auto"),
        ("whole", {"train_mask": TRAIN, "val_mask": VALIDATION, "test_mask": TEST}, "auto"),
        ("drawn", {"train_mask": TRAIN}, "random:0.5/0.25/0.25"),
    ):
        keys: dict[str, Any] = {"clients": 2, "split": split, "rounds": 1, "hidden": 2}
        keys |= {"graph": (frame.assign(**masks), ends)}
        run = retexo_fl.run(out=tmp_path / name, quiet=True, **keys)
        profile = run.result.profile
        assert profile is not None
        assert retexo_fl.plan(**keys)["profile"]["fit"] == profile.fit
        parts = profile.fit.split("; ")
        said[name] = "; ".join(part for part in parts if part.startswith("split"))
        assert html.escape(profile.sentence) in (tmp_path / name / "report.html").read_text()
    own = "split published: the graph's own masks"
    made = f"{own} (without a val_mask one train node of five validates)"
    assert said == {"made": made, "whole": own, "drawn": ""}


def test_masks_of_tables_are_no_features_and_say_what_is_odd(tmp_path: Path) -> None:
    masks = {"train_mask": TRAIN, "val_mask": VALIDATION, "test_mask": TEST}
    given = _masked(masks, "csv", tmp_path)
    parts = make_parts(make_config({**given, "features": "auto", "clients": 2}))
    assert sum(int(part.val_mask.sum()) for part in parts) == 4
    recipe = parts[0].recipe
    assert recipe is not None
    assert [*recipe.columns] == ["x0", "x1"]
    given = _masked({"train_mask": [1, "-1", 3, "yes", *[""] * 8]}, "csv", tmp_path)
    with pytest.raises(RetexoError) as caught:
        make_parts(make_config({**given, "clients": 2}))
    told = str(caught.value).splitlines()
    expected = "train_mask: got {}; expected 0, 1, True, False or nothing"
    assert [line.split(": ", 2)[2] for line in told] == [
        expected.format(repr(cell)) for cell in ("-1", "3", "yes")
    ]


@pytest.mark.parametrize(
    ("masks", "told"),
    [
        (
            {"train_mask": [1] * NODES, "val_mask": [1] * NODES},
            "val_mask: row 0 is in another mask",
        ),
        ({"train_mask": [0] * NODES, "val_mask": [1] * NODES}, "train_mask: no node is in it"),
        ({"train_mask": [2] * NODES}, "train_mask: row 0 is 2; expected booleans, or 0 and 1"),
        ({"train_mask": [1] * 5}, r"train_mask: got shape \(5,\); expected \(12,\), or"),
        ({"val_mask": [1] * NODES}, "train_mask: missing; expected it beside val_mask"),
        ({"train_mask": [1] + [0] * 11}, "train_mask: has 1 node; expected at least two"),
    ],
)
def test_masks_that_are_none_are_refused_where_they_are_used(
    masks: dict[str, Any], told: str
) -> None:
    labels = np.arange(NODES) % 2
    graph = {"x": X, "y": labels, "edge_index": EDGES, **masks}
    with pytest.raises(RetexoError, match=told):
        make_parts(make_config({"clients": 2}), graph=graph)
    split = "random:0.5/0.25/0.25"
    assert len(make_parts(make_config({"clients": 2, "split": split}), graph=graph)) == 2


@pytest.mark.parametrize(
    "times",
    [
        np.array(["2024-01-01"] * 6 + ["2024-02-01"] * 6, dtype="datetime64[D]"),
        np.array(["2024-01-01"] * 6 + ["2024-02-01"] * 6, dtype="datetime64[ns]"),
        np.array(["2024-01-01T00:00"] * 6 + ["2024-02-01"] * 6),
    ],
)
def test_edges_have_dates_behind_every_door(tmp_path: Path, times: np.ndarray) -> None:
    keys = {"edges-before": "2024-01-15"}
    graph = _networkx(X, Y)
    for edge, time in zip(EDGES.T.tolist(), times, strict=True):
        graph.edges[edge]["time"] = pd.Timestamp(time).to_pydatetime()
    nodes, edges = _frames(X, Y, pd)
    edges["time"] = times
    edges.to_parquet(tmp_path / "edges.parquet")
    np.savez(tmp_path / "small.npz", x=X, y=Y, edge_index=EDGES, edge_time=times)
    stored = make_config({"dataset": "small", "data-dir": str(tmp_path), **keys})
    found = [load_graph(stored, quiet=True)]
    found += [
        given_graph(given, make_config(keys))
        for given in (
            {"x": X, "y": Y, "edge_index": EDGES, "edge_time": times},
            graph,
            (nodes, edges),
            (nodes, pl.from_pandas(edges)),
            (nodes, tmp_path / "edges.parquet"),
        )
    ]
    assert [graph.num_edges for graph in found] == [6] * len(found)
