"""Node tables: the same nodes from every format, and every cell that is no cell of its column."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables import NodeTable, read_node_table
from tests.support.tables import FORMATS, export_whole, sparse_text, write_table
from tests.unit.graph.graphs import SMALL_KEYS, SMALL_LABELS, SMALL_SPLIT, small_graph

HEAD = "key,label,split,x0,x1"
GOOD = ["a,0,train,1,2", "b,,,3,4", "c,1,val,5,6"]


def _nodes(tmp_path: Path, *lines: str, **arguments: Any) -> NodeTable:
    path = tmp_path / "nodes.csv"
    path.write_text("\n".join(lines))
    return read_node_table(path, **arguments)


def _refused(tmp_path: Path, *lines: str, **arguments: Any) -> str:
    with pytest.raises(TableError) as caught:
        _nodes(tmp_path, *lines, **arguments)
    for problem in caught.value.problems:
        assert problem.startswith(f"{tmp_path}/nodes.csv: ")
        assert "\n" not in problem
    return caught.value.problems[0].removeprefix(f"{tmp_path}/nodes.csv: ")


def test_read_node_table_returns_what_the_lines_say(tmp_path: Path) -> None:
    nodes = _nodes(tmp_path, HEAD, *GOOD)
    assert nodes.keys.tolist() == [b"a", b"b", b"c"]
    assert nodes.labels.tolist() == [0, -1, 1]
    assert nodes.labels.dtype == np.int64
    assert isinstance(nodes.features, np.ndarray)
    assert nodes.features.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert nodes.features.dtype == np.float32
    assert nodes.features.flags.c_contiguous
    assert nodes.split is not None
    assert nodes.split.train.tolist() == [True, False, False]
    assert nodes.split.val.tolist() == [False, False, True]
    assert nodes.split.test.tolist() == [False, False, False]
    assert [nodes.place(row) for row in range(3)] == ["line 2", "line 3", "line 4"]
    assert nodes.attributes == {}


def test_a_node_without_a_label_leaves_the_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = _nodes(tmp_path, HEAD, "a,0,train,1,2", "b,,train,3,4", "c,-1,test,5,6", "d,1,val,7,8")
    assert nodes.split is not None
    assert nodes.split.train.tolist() == [True, False, False, False]
    assert not nodes.split.test.any()
    assert f"{nodes.source}: split: 2 nodes without a label left out" in caplog.messages


def test_split_and_order_of_columns_are_free(tmp_path: Path) -> None:
    nodes = _nodes(tmp_path, "x1,note,label,x0,key", "2,hello,0,1,a", "4,,1,3,b")
    assert isinstance(nodes.features, np.ndarray)
    assert nodes.features.tolist() == [[1, 2], [3, 4]]
    assert nodes.split is None


def test_attributes_are_read_on_request(tmp_path: Path) -> None:
    lines = ["key,label,ward,xray,x0", "a,0,north,yes,1", "b,1,süd,,2"]
    nodes = _nodes(tmp_path, *lines, attributes=("ward", "xray", "label"))
    assert {name: column.tolist() for name, column in nodes.attributes.items()} == {
        "ward": ["north", "süd"],
        "xray": ["yes", ""],
        "label": ["0", "1"],
    }
    assert nodes.features.shape == (2, 1)
    told = _refused(tmp_path, *lines, attributes=("clinic",))
    assert told.startswith("column 'clinic' is missing; ")
    assert told.endswith(" 'key', 'label', 'ward', 'xray', 'x0'")


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_all_formats_hold_the_same_nodes(
    tmp_path: Path, fmt: str, sparse: bool, dense: bool
) -> None:
    values = np.array([[0.1, 0], [-3.25, 1e-40], [0, 0], [1 / 3, 3e38], [0, -1], [7, 0]])
    features = values.astype(np.float32)
    graph = small_graph(features=csr_array(features) if sparse else features)
    ward = np.array(["n", "", "süd", "n", "x", "y"])
    files = export_whole(graph, tmp_path, fmt, dense=dense, attributes={"ward": ward})
    nodes = read_node_table(files.nodes, num_features=2, attributes=("ward",))
    order = np.argsort(nodes.keys)
    expected = np.argsort(SMALL_KEYS)
    np.testing.assert_array_equal(nodes.keys[order], SMALL_KEYS[expected])
    np.testing.assert_array_equal(nodes.labels[order], SMALL_LABELS[expected])
    np.testing.assert_array_equal(nodes.attributes["ward"][order], ward[expected])
    assert nodes.split is not None
    for name, mask in SMALL_SPLIT.named().items():
        np.testing.assert_array_equal(nodes.split.named()[name][order], mask[expected])
    assert isinstance(nodes.features, csr_array) == (sparse and not dense)
    found = nodes.features if isinstance(nodes.features, np.ndarray) else nodes.features.toarray()
    np.testing.assert_array_equal(found[order], features[expected])
    assert nodes.source == str(files.nodes)


@pytest.mark.parametrize("fmt", ["csv", "parquet", "npz"])
def test_whole_numbers_become_decimal_keys(tmp_path: Path, fmt: str) -> None:
    columns = {"key": np.array([10, 9, -1]), "label": np.array([0, 1, -1])}
    path = write_table(tmp_path / f"n.{fmt}", {**columns, "x0": np.ones(3)})
    nodes = read_node_table(path)
    assert nodes.keys.tolist() == [b"10", b"9", b"-1"]
    assert nodes.keys.dtype == "S2"
    assert nodes.labels.tolist() == [0, 1, -1]


def test_text_keys_are_taken_as_they_stand(tmp_path: Path) -> None:
    nodes = _nodes(tmp_path, "key,label,x0", "007,0,1", "7,0,1", " 7,0,1", "Ü,0,1")
    assert nodes.keys.tolist() == [b"007", b"7", b" 7", "Ü".encode()]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["x10", "x9", "x8", "x7", "x6", "x5", "x4", "x3", "x2", "x1", "x0"], range(10, -1, -1)),
        (["x2", "x1"], [1, 0]),
        (["x_1", "x_0"], [1, 0]),
        (["x_weight", "x_age", "x2"], [2, 1, 0]),
    ],
)
def test_features_are_in_the_order_of_their_names(
    tmp_path: Path, names: list[str], expected: list[int]
) -> None:
    cells = [str(place) for place in range(len(names))]
    nodes = _nodes(tmp_path, ",".join(["key", *names, "label"]), ",".join(["a", *cells, "0"]))
    assert isinstance(nodes.features, np.ndarray)
    assert nodes.features.tolist() == [list(expected)]


def test_labels_may_have_a_point_as_gaps_give_them_one(tmp_path: Path) -> None:
    lines = ["a,3.0,1", "b,,1", "c,-1,1", "d,-1.0,1", "e,+2,1", "f,0.,1"]
    assert _nodes(tmp_path, "key,label,x0", *lines).labels.tolist() == [3, -1, -1, -1, 2, 0]


@pytest.mark.parametrize("cell", ["1.5", "x", "-2", "1e3", "1_0", " ", "nan", "٣", "9" * 30])
def test_labels_that_are_refused(tmp_path: Path, cell: str) -> None:
    told = _refused(tmp_path, "key,label,x0", "a,0,1", f"b,{cell},1", "c,zzz,1")
    expected = "expected a class: .*whole number from 0, or nothing.*"
    assert re.fullmatch(f"line 3: label: got {re.escape(repr(cell))}; {expected}", told)


def test_a_cell_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("\n".join([HEAD, ",x,train,1,2", ",0,test,1,2", "a,0,val,1,2", "a,1,,1,2"]))
    with pytest.raises(TableError) as caught:
        read_node_table(path)
    told = [
        problem.removeprefix(f"{path}: ").partition(";")[0] for problem in caught.value.problems
    ]
    # Keys that are empty do not repeat each other.
    assert told == [
        "line 2: key: is empty",
        "line 2: label: got 'x'",
        "line 3: key: is empty",
        "line 5: key: 'a' is already in line 4",
    ]


@pytest.mark.parametrize("cell", ["", "one", "1,5", "1_0", "٣", "1 2", "0x1"])
def test_features_that_are_no_numbers(tmp_path: Path, cell: str) -> None:
    told = _refused(tmp_path, HEAD, *GOOD, f'd,0,test,1,"{cell}"', "e,0,,1,x")
    assert told == f"line 5: x1: got {cell!r}; expected a finite number"


@pytest.mark.parametrize("cell", ["nan", "inf", "-Infinity", "1e39", "-1e400"])
def test_features_that_are_not_finite(tmp_path: Path, cell: str) -> None:
    told = _refused(tmp_path, HEAD, *GOOD, f"d,0,test,1,{cell}")
    assert told == f"line 5: x1: got {cell!r}; expected a finite float32 number"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["label,x0", "0,1"], "column 'key' is missing; .*'label', 'x0'$"),
        (["key,x0", "a,1"], "column 'label' is missing; .*'key', 'x0'$"),
        (["key,label,age", "a,1,3"], "no column of features; expected x0, x1, .* features none$"),
        (["key, label,x0"], "column 'label' is missing; .*'key', ' label', 'x0'$"),
        ([HEAD], "has no rows; expected at least one node"),
        (["key,label,x,x0", "a,1,,1"], "got both x and x0; expected one"),
        (["key,label,x0,x2", "a,1,1,1"], "column x1 .* x2; expected .*without gaps"),
        (["key,label,x0,x00", "a,1,1,1"], None),
        (["key,label,x1,x_1", "a,1,1,1"], "column x2 .* x_1; expected .*without gaps"),
        (["key,label,x2,x3", "a,1,1,1"], "column x1 .* x2; expected .*without gaps"),
        ([HEAD, *GOOD, "a,0,,1,1"], "line 5: key: 'a' .*line 2; expected unique keys$"),
        ([HEAD, *GOOD, ",0,,1,1"], "line 5: key: is empty; expected .*key"),
        ([HEAD, *GOOD, "x\0,0,,1,1"], "line 5 holds a NUL character; expected text without any"),
        (
            [HEAD, *GOOD, "k" * 1025 + ",0,,1,1"],
            "line 5: key: .*1025 bytes; expected at most 1024$",
        ),
        ([HEAD, *GOOD, "d,0,Train,1,1"], "line 5: split: got 'Train'; expected train, val, test"),
    ],
)
def test_node_tables_that_are_refused(tmp_path: Path, lines: list[str], told: str | None) -> None:
    if told is None:
        assert _nodes(tmp_path, *lines).features.shape == (1, 2)
    else:
        assert re.match(told, _refused(tmp_path, *lines))


def test_width_of_features_is_checked(tmp_path: Path) -> None:
    assert _nodes(tmp_path, HEAD, *GOOD, num_features=2).features.shape == (3, 2)
    told = _refused(tmp_path, HEAD, *GOOD, num_features=3)
    assert told == "got 2 columns of features, x0 to x1; expected 3"
    told = _refused(tmp_path, "key,label,x0", "a,0,1", num_features=3)
    assert told == "x0: got 1 feature; expected 3"


def test_sparse_text_needs_the_width(tmp_path: Path) -> None:
    lines = ["key,label,x", "a,0,3:1 0:-0.5", "b,1,", "c,0, 2:0  "]
    assert re.match("x: sparse text .*; expected .*num_features$", _refused(tmp_path, *lines))
    features = _nodes(tmp_path, *lines, num_features=4).features
    assert isinstance(features, csr_array)
    assert features.toarray().tolist() == [[-0.5, 0, 0, 1], [0] * 4, [0] * 4]
    assert features.indices.tolist() == [0, 3, 2]
    assert features.data.dtype == np.float32


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("5:1", "has index 5; expected 0 to 4"),
        ("-1:1", "has index -1; expected 0 to 4"),
        ("1:2 1:3", "has index 1 twice; expected it once"),
        ("1:inf", "index 1 is inf; expected a finite float32 number"),
        ("1:1e39", "index 1 is 1e+39; expected a finite float32 number"),
        ("1", "got '1'; expected items INDEX:VALUE"),
        ("0.5 0.25", "got '0.5'; expected items"),
        ("1:2:3", "got '1:2:3'; expected items"),
        ("1:2,3:4", "got '1:2,3:4'; expected items"),
        ("1:", "got '1:'; expected items"),
        (":1", "got ':1'; expected items"),
        ("1:1_0", "got '1:1_0'; expected items"),
        ("1_0:1", "got '1_0:1'; expected items"),
        ("٣:1", "got '٣:1'; expected items"),
        ("9" * 20 + ":1", "got '99999999999999999999:1'; expected items"),
    ],
)
def test_sparse_text_that_is_refused(tmp_path: Path, cell: str, told: str) -> None:
    lines = ["key,label,x", "a,0,3:1 0:-0.5", "b,1,", f'c,0,"2:1 {cell}"', "d,0,"]
    assert _refused(tmp_path, *lines, num_features=5).startswith(f"line 4: x: {told}")


@given(
    st.lists(
        st.dictionaries(st.integers(0, 9), st.floats(width=32, allow_nan=False)), min_size=1
    ).filter(lambda rows: all(np.isfinite(value) for row in rows for value in row.values()))
)
@settings(max_examples=50)
def test_sparse_text_returns_any_matrix(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[int, float]]
) -> None:
    dense = np.zeros((len(rows), 10), dtype=np.float32)
    for place, row in enumerate(rows):
        dense[place, list(row)] = list(row.values())
    matrix = csr_array(dense)
    columns = {"key": np.arange(len(rows)), "label": np.zeros(len(rows), dtype=int)}
    path = tmp_path_factory.mktemp("sparse") / "n.csv"
    write_table(path, {**columns, "x": sparse_text(matrix)})
    found = read_node_table(path, num_features=10).features
    assert isinstance(found, csr_array)
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(found, part), getattr(matrix, part))


@pytest.mark.parametrize("fmt", ["csv", "parquet", "npz"])
def test_node_tables_of_many_rows_are_joined_in_order(tmp_path: Path, fmt: str) -> None:
    count = 20_000
    values = np.random.default_rng(0).standard_normal((count, 3)).astype(np.float32)
    columns: dict[str, Any] = {
        "key": np.array([f"n{row}" for row in range(count)]),
        "label": np.arange(count) % 5 - 1,
    }
    columns |= {f"x{at}": values[:, at] for at in range(3)}
    nodes = read_node_table(write_table(tmp_path / f"n.{fmt}", columns), num_features=3)
    assert [key.decode() for key in nodes.keys.tolist()] == columns["key"].tolist()
    np.testing.assert_array_equal(nodes.labels, columns["label"])
    np.testing.assert_array_equal(nodes.features, values)
