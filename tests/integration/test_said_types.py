"""Graphs of one source that says of its nodes and edges what they are: tables, arrays, NetworkX."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.errors import DatasetError
from retexo_fl.graph import Graph, from_networkx, from_pyg
from retexo_fl.graph.sources.from_arrays import from_arrays
from retexo_fl.graph.sources.reading import Reading
from tests.support.cli import CommandLine
from tests.support.runs import largest_difference, model_bytes
from tests.support.typed_graphs import (
    BANK,
    bank,
    bank_arrays,
    bank_networkx,
    write_bank,
    write_one_bank,
)

SHORT = ("--model", "rel-sage", "--split", BANK["split"], "--rounds", "2", "--dtype", "float64")
RETEXO = ("--profile", "retexo", "--candidates", "none")
TYPES = Reading(types="type")


def by_keys(graph: Graph, *, keeps: bool = True) -> dict[str, Any]:
    """Return all that a graph says, however its nodes are ordered and called."""
    order = np.argsort(graph.node_keys) if keeps else np.arange(graph.num_nodes)
    place = np.argsort(order)
    rows = np.repeat(np.arange(graph.num_nodes), graph.degrees)
    weights = graph.edge_values.weights
    assert weights is not None
    some = np.lexsort((place[graph.indices], place[rows]))
    features = graph.features
    return {
        "relations": graph.relations,
        "features": (features if isinstance(features, np.ndarray) else features.toarray())[order],
        "labels": graph.labels[order],
        "ends": np.stack((place[rows], place[graph.indices]))[:, some],
        "weights": weights[some],
    }


def assert_alike(one: Graph, other: Graph, *, keeps: bool = True) -> None:
    found, expected = by_keys(one, keeps=keeps), by_keys(other, keeps=keeps)
    assert found["relations"] == expected["relations"]
    for name in ("features", "labels", "ends", "weights"):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_one_table_of_each_trains_as_several_do(retexo: CommandLine) -> None:
    retexo.done("run", *write_bank(Path()), *SHORT, *RETEXO, "--clients", "1", "--out", "several")
    told = retexo("run", *write_one_bank(Path()), *SHORT, *RETEXO, "--clients", "1", "--out", "one")
    assert told.code == 0, told.err
    # The split draws by the order of nodes, so that a run by itself is compared with its cuts.
    retexo.done("run", *write_one_bank(Path()), *SHORT, *RETEXO, "--clients", "3", "--out", "cut")
    assert largest_difference(Path("one"), Path("cut")) < 1e-9
    by_type = ("--partitioner", "attribute:type", "--out", "types")
    retexo.done("run", *write_one_bank(Path()), *SHORT, *RETEXO, *by_type)
    assert largest_difference(Path("one"), Path("types")) < 1e-9
    retexo.done("predict", "one", *write_one_bank(Path()), "--out", "predicted")
    retexo.done("predict", "several", *write_one_bank(Path()), "--out", "of-several")


def test_one_table_is_the_graph_of_several(tmp_path: Path) -> None:
    from retexo_fl.graph.sources.typed_tables import read_typed_tables

    several, one = write_bank(tmp_path), write_one_bank(tmp_path)
    graphs = [
        read_typed_tables(
            [Path(path) for key, path in zip(given[::2], given[1::2], strict=True) if "nod" in key],
            [Path(path) for key, path in zip(given[::2], given[1::2], strict=True) if "edg" in key],
            reading=TYPES,
        )
        for given in (several, one)
    ]
    assert_alike(graphs[1], graphs[0])
    # Nodes stand as they stood in the table.
    head = Path(one[1]).read_text().splitlines()[1:6]
    keys = [key.split(b"/")[1].decode() for key in graphs[1].node_keys[:5].tolist()]
    assert keys == [line.split(",")[0] for line in head]


def test_arrays_that_say_types_are_the_graph_of_their_stores(tmp_path: Path) -> None:
    expected = from_pyg(bank())
    assert_alike(from_arrays(bank_arrays(), reading=TYPES), expected, keeps=False)
    texts = bank_arrays()
    for key in ("node_type", "edge_type"):
        names = texts.pop(f"{key}_names")
        texts[key] = (names if names.ndim == 1 else names[:, 1])[texts[key]]
    assert_alike(from_arrays(texts, reading=TYPES), expected, keeps=False)
    np.savez(tmp_path / "bank.npz", **bank_arrays())  # type: ignore[arg-type]
    run = retexo_fl.run(
        dataset="bank",
        data_dir=tmp_path,
        out=tmp_path / "npz",
        model="rel-sage",
        split=BANK["split"],
        rounds=2,
    )
    other = retexo_fl.run(graph=bank_arrays(), out=tmp_path / "run", **_keys())
    assert model_bytes(run.path) == model_bytes(other.path)


def _keys() -> dict[str, Any]:
    return {"model": "rel-sage", "split": BANK["split"], "rounds": 2}


def test_homogeneous_data_of_pyg_keep_their_types() -> None:
    torch = pytest.importorskip("torch")
    hetero = pytest.importorskip("torch_geometric.data").HeteroData()
    made = bank()
    rng = np.random.default_rng(0)
    for kind, store in made["nodes"].items():
        count = len(store["x"]) if "x" in store else store["num_nodes"]
        hetero[kind].x = torch.from_numpy(rng.normal(size=(count, 4)).astype(np.float32))
        hetero[kind].y = torch.full((count,), -1)
    hetero["customer"].y = torch.from_numpy(made["nodes"]["customer"]["y"])
    for relation, store in made["edges"].items():
        ends = store["edge_index"] if isinstance(store, dict) else store
        hetero[relation].edge_index = torch.from_numpy(ends)
    graph = from_pyg(hetero.to_homogeneous(), types=True)
    for kind in ("device", "shop"):
        del hetero[kind].y
    assert_alike(graph, from_pyg(hetero), keeps=False)


def test_networkx_says_types_by_an_attribute(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("networkx")
    graph = bank_networkx()
    found = from_networkx(graph, types="type")
    from retexo_fl.graph.sources.typed_tables import read_typed_tables

    tables = [Path(path) for path in write_bank(Path())[1::2]]
    assert_alike(found, read_typed_tables(tables[:3], tables[3:]))
    retexo_fl.run(graph=graph, out="run", **_keys())
    wrong = pytest.raises(DatasetError, match="x: node 'd0' has 3 values; expected 5")
    with caplog.at_level(logging.WARNING), wrong:
        retexo_fl.run(graph=graph, out="sage", **{**_keys(), "model": "sage"})
    told = "attribute type of nodes and edges not used (type-column type, or a model such as rel-"
    assert told in caplog.text


def test_a_column_of_types_is_used_by_what_is_chosen(
    retexo: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    tables = write_one_bank(Path())
    # As parts, whatever model will train on them.
    cut = ("--split", BANK["split"], "--clients", "2")
    retexo.done("partition", "make", *tables, *cut, "--type-column", "type", "--out", "parts")
    assert "[[types]]" in Path("parts/peers.toml").read_text() or "types = [" in (
        Path("parts/peers.toml").read_text()
    )
    retexo.done("run", "--partitions", "parts", "--model", "rel-sage", "--rounds", "1")
    told = retexo.refused("partition", "make", *tables, *cut, "--type-column", "k", "--out", "no")
    assert told.startswith("type-column: neither all-nodes.csv nor all-edges.csv has a column 'k'")
    nodes = Path("all-nodes.csv")
    rows = [line.split(",")[:3] for line in nodes.read_text().splitlines()]
    cells = [[*row, "1" if at else "x0"] for at, row in enumerate(rows)]
    nodes.write_text("\n".join(map(",".join, cells)))
    with caplog.at_level(logging.WARNING):
        retexo.done("run", *tables, *cut, "--model", "sage", "--rounds", "1", "--out", "sage")
    assert "'type' (--type-column type, or a model such as rel-sage, uses it)" in caplog.text


BAD: dict[str, tuple[str, str, str, str]] = {
    "no_type": ("nodes", "c0,customer,", "c0,,", "line 2: type: is empty; expected the type of"),
    "no_relation": ("edges", ",owns,", ",,", "line 2: type: is empty; expected the name of a rel"),
    "half_a_column": ("nodes", "d0,device,,", "d0,device,,,", ""),
    "unknown_key": ("edges", "\nc", "\nz", "line 2: source: 'z"),
    "second_labels": ("nodes", "d0,device,,", "d0,device,1,", "labels: those of customer are "),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_by_line(retexo: CommandLine, name: str) -> None:
    tables = write_one_bank(Path())
    table, old, new, told = BAD[name]
    path = Path(f"all-{table}.csv")
    text = path.read_text()
    assert old in text
    if name == "half_a_column":
        line = next(one for one in text.splitlines() if one.startswith(old))
        cells = line.split(",")
        text = text.replace(line, ",".join([*cells[:4], "", *cells[5:]]))
        at = text.splitlines().index(",".join([*cells[:4], "", *cells[5:]])) + 1
        told = f"all-nodes.csv: line {at}: x1: is empty; expected a number, as other nodes of type "
    path.write_text(text.replace(old, new, 1) if told and name != "half_a_column" else text)
    problem = retexo.refused("run", *tables, *SHORT, "--out", "run")
    assert told in problem
    assert not Path("run").exists()


def _change(key: str, value: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = bank_arrays()
    if value is None:
        del arrays[key]
    else:
        arrays[key] = value
    return arrays


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("node_type", np.zeros(3, int), "rows; expected 3"),
        ("node_type", np.full(67, 3), "node_type: row 0 is 3; expected 0 to 2, as node_type_names"),
        ("node_type", np.zeros(67), "node_type: got float64 of shape"),
        ("edge_type", np.zeros(4, int), "edge_type: got shape (4,); expected (173)"),
        ("edge_type", None, "relation device to shop"),
        ("x/branch", np.ones((2, 2)), "x/branch: is of no type; expected one of customer, device"),
        ("x", np.ones((67, 2)), "x: found together with x/customer; expected one of the two"),
        ("x/device", np.ones((3, 2)), "type device: has 3 features and 15 "),
        ("train_mask", np.ones(67, bool), "train_mask: has nodes of type device; expected nodes "),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(key: str, value: Any, told: str) -> None:
    if told.startswith("relation"):
        graph = from_arrays(_change(key, value), reading=TYPES)
        assert graph.relations is not None
        assert told == f"relation {graph.relations.called(3)}"
        return
    with pytest.raises(DatasetError, match=re.escape(told)):
        from_arrays(_change(key, value), reading=TYPES)


def test_networkx_that_says_a_type_of_some_is_refused() -> None:
    pytest.importorskip("networkx")
    graph = bank_networkx()
    del graph.nodes["d3"]["type"]
    with pytest.raises(DatasetError, match="type: node 'd3' has none; expected one for each"):
        from_networkx(graph, types="type")
    graph.nodes["d3"]["type"] = 2.5
    with pytest.raises(DatasetError, match="type: node 'd3' has 2.5; expected text or a whole"):
        from_networkx(graph, types="type")
