"""Which files are tables at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables.opening import open_table


def _refused(path: Path) -> str:
    with pytest.raises(TableError) as caught:
        open_table(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("name", ["t.csv", "t.CSV", "t.tsv", "t.Csv"])
def test_the_ending_decides_in_any_case(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a\tb" if "tsv" in name else "a,b")
    assert open_table(tmp_path / name).names == ("a", "b")


@pytest.mark.parametrize("name", ["table", "t.doc", "t.xlsx", "t.csv.bz2", "csv", "t.npz.gz"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a,b")
    assert _refused(tmp_path / name).startswith("unknown kind of table; expected a name that ends")


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
def test_what_is_no_file_with_content_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"t.{ending}"
    assert _refused(path) == "cannot be read (No such file or directory)"
    path.symlink_to(path)
    assert _refused(path) == "cannot be read (Too many levels of symbolic links)"
    path.unlink()
    path.mkdir()
    assert _refused(path) == "is a folder; expected a file"
    path.rmdir()
    path.touch()
    assert _refused(path) == "is empty; expected a table"
    path.unlink()
    os.mkfifo(path)
    assert _refused(path) == "is not a regular file; expected a table on disk"
