"""Text tables: what is read, where rows stand, and how much of a file is ever in memory."""

from __future__ import annotations

import csv
import gzip
import re
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables.csv_source import CsvSource

MEBIBYTE = 2**20


def _text(tmp_path: Path, content: str | bytes, name: str = "t.csv") -> CsvSource:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return CsvSource(path)


def _column(source: CsvSource, name: str) -> list[str]:
    return [str(cell) for batch in source.batches([name]) for cell in batch[name]]


def _refused(tmp_path: Path, content: str | bytes, name: str = "t.csv") -> str:
    with pytest.raises(TableError) as caught:
        for _ in _text(tmp_path, content, name).batches(["a", "b"]):
            pass
    told = str(caught.value)
    assert told.startswith(f"{tmp_path / name}: ")
    assert "\n" not in told
    return told.removeprefix(f"{tmp_path / name}: ")


def test_csv_columns_are_found_by_name(tmp_path: Path) -> None:
    source = _text(tmp_path, 'a,b,c\n1,2,3\n"x, y","say ""z""",\n')
    assert source.names == ("a", "b", "c")
    (batch,) = source.batches(["c", "b"])
    assert batch == {"c": ["3", ""], "b": ["2", 'say "z"']}


def test_csv_of_many_rows_comes_in_batches(tmp_path: Path) -> None:
    rows = [f"{row},{row % 7}" for row in range(10_000)]
    source = _text(tmp_path, "\n".join(["a,b", *rows]))
    assert _column(source, "a") == [str(row) for row in range(10_000)]
    assert _column(source, "b") == [str(row % 7) for row in range(10_000)]
    assert max(len(batch["a"]) for batch in source.batches(["a"])) < 5_000
    assert source.place(9_999) == "line 10001"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_lines_may_end_in_three_ways(tmp_path: Path, end: str) -> None:
    source = _text(tmp_path, end.join(["a,b", "", "1,2", "", "", "3,4"]))
    assert _column(source, "a") == ["1", "3"]
    assert [source.place(row) for row in range(2)] == ["line 3", "line 6"]


def test_csv_cells_in_quotes_go_over_lines(tmp_path: Path) -> None:
    source = _text(tmp_path, 'a,b\n"one\ntwo",2\n3,"4\n\n"\n5,6\n')
    assert _column(source, "a") == ["one\ntwo", "3", "5"]
    assert [source.place(row) for row in range(3)] == ["line 2", "line 4", "line 7"]


def test_csv_of_a_spreadsheet_begins_with_a_mark(tmp_path: Path) -> None:
    assert _text(tmp_path, "\ufeffa,b\n1,2\n").names == ("a", "b")


def test_tab_separated_and_compressed_tables(tmp_path: Path) -> None:
    assert _column(_text(tmp_path, "a\tb\n1,5\t2\n", "t.tsv"), "a") == ["1,5"]
    packed = gzip.compress(b"a\tb\n3\t4\n")
    assert _column(_text(tmp_path, packed, "t.tsv.gz"), "b") == ["4"]
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.mkdir("folder")
        archive.writestr("folder/t.csv", "a,b\n5,6\n")
    assert _column(CsvSource(tmp_path / "t.csv.zip"), "b") == ["6"]


def test_csv_cells_may_be_longer_than_python_s_own_limit(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    long = "7" * (before + 1)
    assert _column(_text(tmp_path, f"a,b\n{long},1\n"), "a") == [long]
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is empty; expected a first line"),
        ("\n\n\n", "is empty; expected a first line"),
        ("a,b,a\n", "column 'a' .*twice; expected .*once"),
        ("a,b\n1,2\n\n3\n", "line 4: got 1 field; expected 2"),
        ("a,b\n1,2,3\n", "line 2: got 3 fields; expected 2"),
        ('a,b\n1,2\n"3,4\n5,6\n', r"line 4: damaged \(unexpected end of data\); expected"),
        ('a,b\n"1"2,3\n', r"line 2: damaged \(.*\); expected"),
        (b"a,b\n1,2\n3,\xff\n", "line 3 is not UTF-8; expected text"),
        ("a,b\n1,2\n".encode("utf-16")[:-1], "is not all utf-16 .*truncated.*; expected --encod"),
        ("a,b\n1,2\n".encode("utf-16-le"), "line 1 holds a NUL .*; expected --encoding utf-16-le"),
        ("a,b\n1,ä\n".encode("utf-16-be"), "line 2 .* --encoding utf-16-be"),
        ("a,b\n1,2\n3,4\0\n", "line 3 holds a NUL character; expected text without any"),
        (b"a,b\n1,2\n" + b"\0" * 512, "line 3 holds a NUL character; expected text without any"),
    ],
)
def test_csv_that_is_refused_names_the_line(
    tmp_path: Path, content: str | bytes, told: str
) -> None:
    assert re.match(told, _refused(tmp_path, content))


def test_csv_lines_are_bounded(tmp_path: Path) -> None:
    told = _refused(tmp_path, "a,b\n" + "1" * (5 * MEBIBYTE) + ",2\n")
    assert re.fullmatch("line 2 .* 4194304 characters; expected .*shorter lines", told)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a" * (128 * MEBIBYTE), "line 1 has more than 4194304 characters"),
        (
            b'"' + (b"a" * 63 + b"\n") * (MEBIBYTE // 4),
            "damaged (field larger than field limit (4194304))",
        ),
        (b"a,b\n" + b"\n" * 10**6, None),
    ],
)
def test_csv_that_unpacks_to_much_takes_little_memory(
    tmp_path: Path, content: bytes, told: str | None
) -> None:
    packed = gzip.compress(content, 1)
    tracemalloc.start()
    try:
        if told is None:
            assert _column(_text(tmp_path, packed, "t.csv.gz"), "a") == []
        else:
            assert told in _refused(tmp_path, packed, "t.csv.gz")
        assert tracemalloc.get_traced_memory()[1] < 48 * MEBIBYTE
    finally:
        tracemalloc.stop()


def test_csv_archives_that_are_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b"a,b\n" + b"1,2\n" * 1000)
    assert "cannot be read, or damaged" in _refused(tmp_path, packed[:-9], "t.csv.gz")
    assert "cannot be read, or damaged" in _refused(tmp_path, b"a,b\n", "t.csv.gz")
    assert "cannot be read, or damaged" in _refused(tmp_path, b"a,b\n", "t.csv.zip")
    assert "line 3 is not UTF-8" in _refused(tmp_path, gzip.compress(b"a,b\n\n\xff"), "t.csv.gz")
    path = tmp_path / "t.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one.csv", "a,b\n")
    whole = path.read_bytes()
    flag = whole.index(b"PK\x01\x02") + 8
    assert "is encrypted" in _refused(
        tmp_path, whole[:flag] + b"\x01" + whole[flag + 1 :], "t.csv.zip"
    )
    odd_name = whole[:flag] + b"\x00\x08" + whole[flag + 2 :].replace(b"one", b"o\xffe")
    assert "not a ZIP archive, or damaged" in _refused(tmp_path, odd_name, "t.csv.zip")
    path.write_bytes(whole)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("two.csv", "a,b\n")
    assert "holds 2 files; expected one" in _refused(tmp_path, path.read_bytes(), "t.csv.zip")
