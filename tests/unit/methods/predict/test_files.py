from __future__ import annotations

import csv
import importlib.util
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from retexo_fl.errors import (
    CheckpointError,
    ConfigurationError,
    LocalProtocolError,
    PartitionError,
)
from retexo_fl.methods.predict import files
from retexo_fl.methods.predict.files import (
    FORMS,
    SPREADSHEET_CSV,
    Predictions,
    check_folder,
    check_form,
    check_keys,
    check_written,
    predictions_name,
    write_predictions,
)

KEYS = np.array(["plain", 'q"uo,te', "two\nlines", "cr\rhere", " blank ", "zoé", "1"], dtype=object)


def predictions(dtype: str = "float32", rows: int = len(KEYS), classes: int = 3) -> Predictions:
    rng = np.random.default_rng(0)
    values = rng.random((rows, classes)).astype(dtype)
    values[0, :2] = 1e-40, 0.0
    names = [KEYS[row].encode() if row < len(KEYS) else b"%d" % row for row in range(rows)]
    return Predictions(keys=np.array(names), answers=values.argmax(axis=1), probabilities=values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_csv_reads_back_to_the_same_bits(tmp_path: Path, dtype: str) -> None:
    given = predictions(dtype)
    write_predictions(tmp_path, 4, given, "csv")
    with (tmp_path / "predictions-4.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["key", "class", "p0", "p1", "p2"]
    assert [row[0] for row in rows] == KEYS.tolist()
    assert [int(row[1]) for row in rows] == given.answers.tolist()
    read = np.array([[float(text) for text in row[2:]] for row in rows]).astype(dtype)
    np.testing.assert_array_equal(read, given.probabilities)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 10, 11, 25])
def test_files_do_not_depend_on_how_rows_are_grouped_or_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, rows: int
) -> None:
    monkeypatch.setattr(files, "_ROWS_AT_ONCE", 10)
    given = predictions(rows=rows)
    contents = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        write_predictions(folder, 0, given, form)
        (path,) = folder.iterdir()
        contents.append(path.read_bytes())
        monkeypatch.setattr("time.time", lambda: 2e9)
    assert contents[0] == contents[1]
    if form == "csv":
        assert len(list(csv.reader(contents[0].decode().splitlines(keepends=True)))) == rows + 1
    if form == "parquet":
        assert parquet.read_table(tmp_path / "one" / "predictions-0.parquet").num_rows == rows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parquet_and_npz_keep_the_arithmetic(tmp_path: Path, dtype: str) -> None:
    given = predictions(dtype)
    assert given.probabilities is not None
    write_predictions(tmp_path, 0, given, "parquet")
    table = parquet.read_table(tmp_path / predictions_name(0, "parquet"))
    assert table["key"].to_pylist() == KEYS.tolist()
    for column in range(3):
        found = table[f"p{column}"].to_numpy()
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, given.probabilities[:, column])
    write_predictions(tmp_path, 0, given, "npz")
    with np.load(tmp_path / predictions_name(0, "npz"), allow_pickle=False) as arrays:
        assert set(arrays) == {"key", "class", "probability"}
        np.testing.assert_array_equal(arrays["key"], given.keys)
        np.testing.assert_array_equal(arrays["class"], given.answers)
        np.testing.assert_array_equal(arrays["probability"], given.probabilities)


def test_check_keys_names_the_row_that_is_no_text() -> None:
    keys = np.array([b"a", "é".encode(), b"\xc3"])
    check_keys(keys, "npz", source="part-0")
    check_keys(keys[:2], "csv", source="part-0")
    for form in ("csv", "parquet"):
        with pytest.raises(PartitionError, match="^part-0: node_keys: row 2 is not UTF-8;"):
            check_keys(keys, form, source="part-0")


def test_check_form_names_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in FORMS:
        check_form(form)
    with pytest.raises(ConfigurationError, match="format: got 'CSV'; expected .*csv, parquet, npz"):
        check_form("CSV")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install pyarrow"):
        check_form("parquet")


def test_write_refuses_what_cannot_be_written_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match="^format .*'xls'; expected .*csv"):
        check_written(predictions(), "xls", client=0)
    with pytest.raises(CheckpointError, match="/gone: predictions could not be written"):
        check_folder(tmp_path / "gone")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))  # as a disk that is full
    try:
        with pytest.raises(CheckpointError, match="could not be written"):
            write_predictions(tmp_path, 0, predictions(rows=2000), "csv")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert list(tmp_path.iterdir()) == []


def test_csv_for_spreadsheets_marks_keys_that_would_be_formulas(tmp_path: Path) -> None:
    keys = [
        "=1+1",
        "+1",
        "-1",
        "@x",
        " =1",
        "\t=1",
        "\rx",
        "a=1",
        "'q",
        "12",
        '=HYPERLINK("x","y")',
    ]
    given = predictions(rows=len(keys))
    given = replace(given, keys=np.array([key.encode() for key in keys]))
    for form in (SPREADSHEET_CSV, "csv"):
        write_predictions(tmp_path, 0, given, form)
        with (tmp_path / "predictions-0.csv").open(encoding="utf-8", newline="") as file:
            _, *rows = csv.reader(file)
        marked = [f"'{key}" for key in keys[:7]] + keys[7:10] + [f"'{keys[10]}"]
        assert [row[0] for row in rows] == (marked if form == SPREADSHEET_CSV else keys)


@pytest.mark.parametrize("form", [*FORMS, SPREADSHEET_CSV])
def test_classes_are_written_by_name(tmp_path: Path, form: str) -> None:
    names = ("=no", "may,be", "yes")
    given = replace(predictions(), names=names)
    write_predictions(tmp_path, 0, given, form)
    path = tmp_path / predictions_name(0, form)
    expected = [names[c] for c in given.answers]
    if form == "npz":
        with np.load(path) as arrays:
            assert arrays["class_name"][arrays["class"]].tolist() == expected
        return
    if form == "parquet":
        table = parquet.read_table(path)
        assert table.column_names == ["key", "class", *(f"p_{name}" for name in names)]
        assert table["class"].to_pylist() == expected
        return
    with path.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head == ["key", "class", *(f"p_{name}" for name in names)]
    mark = "'" if form == SPREADSHEET_CSV else ""
    assert [row[1] for row in rows] == [f"{mark if n[0] == '=' else ''}{n}" for n in expected]


def in_file(folder: Path, given: files.Table) -> list[list[str]]:
    write_predictions(folder, 0, given, "csv")
    with (folder / "predictions-0.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ([b"0", b"1", b"10", b"-3", b"2"], [3, 0, 1, 4, 2]),
        # Texts that are no numbers as a person writes them, or too long for one.
        ([b"1", b"10", b"007", b"2"], [0, 1, 2, 3]),
        ([b"1", b"10", b"b", b"2"], [0, 1, 2, 3]),
        ([b"1", b"10", b"99999999999999999999", b"2"], [0, 1, 2, 3]),
        ([], []),
    ],
)
def test_whole_numbers_ascend_in_a_file(
    tmp_path: Path, keys: list[bytes], order: list[int]
) -> None:
    rows = len(keys)
    shares = np.eye(5)[:rows]
    given = Predictions(
        keys=np.array(keys, dtype="S20"), answers=np.arange(rows), probabilities=shares
    )
    assert [(row[0].encode(), int(row[1])) for row in in_file(tmp_path, given)] == [
        (keys[row], row) for row in order
    ]
    (tmp_path / "numbers").mkdir()
    numbers = replace(given, probabilities=None)
    assert [int(row[1]) for row in in_file(tmp_path / "numbers", numbers)] == order


def test_whole_numbers_ascend_within_their_type(tmp_path: Path) -> None:
    given = Predictions(
        keys=np.array([b"10", b"9", b"x", b"1"]),
        answers=np.arange(4),
        types=np.array([b"paper", b"paper", b"author", b"author"]),
    )
    assert [row[2] for row in in_file(tmp_path, given)] == ["1", "0", "2", "3"]


def test_links_of_a_node_stay_together_in_their_order(tmp_path: Path) -> None:
    given = files.LinkPredictions(
        keys=np.array([b"10", b"10", b"2", b"2"]),
        others=np.array([b"4", b"3", b"8", b"1"]),
        shares=np.array([0.9, 0.5, 0.8, 0.7]),
    )
    assert [row[:2] for row in in_file(tmp_path, given)] == [
        ["2", "8"],
        ["2", "1"],
        ["10", "4"],
        ["10", "3"],
    ]
