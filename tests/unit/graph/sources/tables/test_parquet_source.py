"""Parquet tables: the types that columns may have, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables import NodeTable, read_edge_table, read_node_table

GOOD: dict[str, Any] = {
    "key": pa.array(["a", "b", "c"]),
    "label": pa.array([0, None, 1]),
    "x": pa.array([[1, 2], [3, 4], [5, 6]]),
}


def _read(tmp_path: Path, **changes: Any) -> NodeTable:
    arrays = {name: array for name, array in {**GOOD, **changes}.items() if array is not None}
    path = tmp_path / "n.parquet"
    parquet.write_table(pa.table(arrays), path, row_group_size=max(2, len(arrays["label"]) // 3))
    return read_node_table(path, num_features=2)


def _refused(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(TableError) as caught:
        _read(tmp_path, **changes)
    assert not any("\n" in problem for problem in caught.value.problems)
    return caught.value.problems[0].removeprefix(f"{tmp_path}/n.parquet: ")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"key": GOOD["key"].cast(pa.large_string())},
        {"key": GOOD["key"].cast(pa.binary())},
        {"key": GOOD["key"].dictionary_encode()},
        {"label": pa.array([0, -1, 1], pa.int8())},
        {"label": pa.array([0.0, None, 1.0])},
        {"label": pa.array(["0", None, "1"])},
        {"x": GOOD["x"].cast(pa.list_(pa.float64()))},
        {"x": GOOD["x"].cast(pa.large_list(pa.float32()))},
        {"x": GOOD["x"].cast(pa.list_(pa.int16(), 2))},
        {"x": None, "x0": pa.array([1.0, 3, 5]), "x1": pa.array([2, 4, 6], pa.uint32())},
    ],
)
def test_parquet_columns_may_be_of_many_types(tmp_path: Path, changes: dict[str, Any]) -> None:
    nodes = _read(tmp_path, **changes)
    assert nodes.keys.tolist() == [b"a", b"b", b"c"]
    assert nodes.labels.tolist() == [0, -1, 1]
    assert isinstance(nodes.features, np.ndarray)
    assert nodes.features.dtype == np.float32
    assert nodes.features.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert nodes.place(2) == "row 2"


def test_parquet_text_may_be_absent(tmp_path: Path) -> None:
    nodes = _read(tmp_path, split=pa.array(["train", None, "val"]))
    assert nodes.split is not None
    assert nodes.split.train.tolist() == [True, False, False]
    sparse = _read(tmp_path, x=pa.array(["0:1", None, "1:2 0:3"])).features
    assert not isinstance(sparse, np.ndarray)
    assert sparse.toarray().tolist() == [[1, 0], [0, 0], [3, 2]]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"key": None}, "column 'key' is missing; the file has 'label', 'x'"),
        ({"key": pa.array(["a", None, "c"])}, "row 1: key: is empty; expected the key of a node"),
        ({"key": pa.array([1, 2, None])}, "row 2: key: is empty; expected the key of a node"),
        ({"key": pa.array([1.0, 2.0, 3.0])}, "key: got float64; expected text or whole numbers"),
        ({"key": pa.array([None, 2.0, 3.0])}, "key: got float; expected text or whole numbers"),
        (
            {"key": pa.array([1, 2, 3], pa.time32("s"))},
            "key: got time32[ms]; expected text, numbers",
        ),
        ({"key": pa.array(["a", "b", "a"])}, "row 2: key: 'a' is already in row 0; expected"),
        ({"label": pa.array([0, 1, 1.5])}, "row 2: label: got 1.5; expected a class"),
        ({"label": GOOD["x"]}, "label: got int64 of shape (3, 2); expected a"),
        (
            {"x": pa.array([[1, 2], [3], [5, 6]])},
            "row 1: x: got 1 value; expected 2 as in the row",
        ),
        (
            {"x": pa.array([[1, 2], [3, 4], [5]])},
            "row 2: x: got 1 value; expected 2 as in the row",
        ),
        ({"x": pa.array([[1], [3], [5]])}, "x: got 1 feature; expected 2"),
        ({"x": pa.array([[1, 2], [3, None], [5, 6]])}, "row 1: x: value 1 is missing"),
        ({"x": pa.array([[1, 2], None, [5, 6]])}, "row 1: x: is empty"),
        ({"x": pa.array([[1, 2], [3, 4.0], [5, np.nan]])}, "row 2: x: value 1 is nan; expected a"),
        ({"x": pa.array([["1", "2"]] * 3)}, "x: got list<"),
        ({"x": pa.array([[[1], [2]]] * 3)}, "x: got list<"),
        ({"x": pa.array([1.0, 2.0, 3.0])}, "x: got float64; expected lists of numbers, or text; a"),
        ({"x": pa.array([1.0, None, 3.0])}, "row 1: x: got ''; expected a finite number"),
        ({"x": pa.array([[], [], []], pa.list_(pa.int8()))}, "x: got 0 features; expected 2"),
        ({"x": None, "x0": pa.array([1, None, 2]), "x1": pa.array([1, 1, 1])}, "row 1: x0: got ''"),
        ({"x": None, "x0": GOOD["x"], "x1": pa.array([1, 1, 1])}, "x0: got int64 of shape (3, 2)"),
        ({"x": pa.array([b"0:1"] * 3)}, "row 0: x: got '0:1'; expected a finite number"),
        (
            {"x": None, "x0": pa.array([b"1"] * 3), "x1": pa.array([1, 1, 1])},
            "row 0: x0: got '1'; expected a finite number",
        ),
        ({"split": pa.array([1, 2, 3])}, "row 0: split: got 1; expected train, val, test or noth"),
    ],
)
def test_parquet_columns_that_are_refused(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    assert _refused(tmp_path, **changes).startswith(told)


def test_parquet_rows_of_later_batches_have_the_same_width(tmp_path: Path) -> None:
    count = 40_000
    keys, labels = pa.array(range(count)), pa.array([0] * count)
    rows = [[1, 2]] * (count // 2) + [[3]] * (count // 2)
    with pytest.raises(TableError, match="x: got 1 value; expected 2 as in the rows before"):
        _read(tmp_path, key=keys, label=labels, x=pa.array(rows))
    batch = 2**14
    with pytest.raises(TableError, match="x: rows with 1 and with 2 values; expected the same"):
        _read(
            tmp_path, key=keys, label=labels, x=pa.array([[1, 2]] * batch + [[3]] * (count - batch))
        )


def test_parquet_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    _read(tmp_path, key=pa.array(["aaaa", "bbbb", "cccc"]))
    path = tmp_path / "n.parquet"
    path.write_bytes(path.read_bytes().replace(b"bbbb", b"b\xff\xffb"))
    with pytest.raises(TableError, match="n.parquet: not a Parquet file, or damaged"):
        read_node_table(path)


def test_parquet_that_is_damaged(tmp_path: Path) -> None:
    _read(tmp_path)
    path = tmp_path / "n.parquet"
    whole = path.read_bytes()
    for damaged in (b"PAR1", whole[: len(whole) // 2], whole[:-1], whole[:60] + whole[-300:]):
        path.write_bytes(damaged)
        with pytest.raises(TableError, match="n.parquet: not a Parquet file, or damaged") as caught:
            read_node_table(path)
        assert "\n" not in str(caught.value)


def test_parquet_names_are_unique(tmp_path: Path) -> None:
    path = tmp_path / "n.parquet"
    columns = [GOOD["key"], GOOD["key"]]
    parquet.write_table(pa.Table.from_arrays(columns, names=["source", "source"]), path)
    with pytest.raises(TableError, match="column 'source' .*twice; expected .*once"):
        read_edge_table(path)


def test_parquet_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _read(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(TableError, match=r"pip install pyarrow") as caught:
        read_node_table(tmp_path / "n.parquet")
    assert "\n" not in str(caught.value)
