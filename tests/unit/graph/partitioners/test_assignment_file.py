"""Assignments from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from retexo_fl.errors import PartitionError
from retexo_fl.graph import assign_nodes
from tests.unit.graph.graphs import small_graph


def _assign(path: Path) -> list[int]:
    found = assign_nodes(small_graph(), partitioner=f"file:{path}", clients=2, seed=0)
    assert found.dtype == np.int32
    return [int(client) for client in found]


def test_text_file_gives_one_client_per_line(tmp_path: Path) -> None:
    path = tmp_path / "clients.txt"
    path.write_text("0\n1\n 1 \n0\n0\n1")
    assert _assign(path) == [0, 1, 1, 0, 0, 1]


def test_npy_file_gives_one_client_per_row(tmp_path: Path) -> None:
    path = tmp_path / "clients.npy"
    np.save(path, np.array([0, 1, 1, 0, 0, 1], dtype=np.uint8))
    assert _assign(path) == [0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("0\n1\n2\n0\n0\n0\n", "line 3 is '2'; expected a client from 0 to 1"),
        ("0\n1\n\n0\n0\n0\n", "line 3 is ''; expected a client from 0 to 1"),
        ("0\n-1\n0\n0\n0\n0\n", "line 2 is '-1'"),
        ("0\n1.0\n0\n0\n0\n0\n", "line 2 is '1.0'"),
        ("0\n1\n0\n", "got 3 lines; expected 6, one for each node"),
        ("0\n1\n\u00b2\n", "not a text file"),
        ("0\n0\n0\n0\n0\n0\n", "no nodes for clients 1 of 2"),
    ],
)
def test_text_file_is_refused_by_line(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "clients.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(PartitionError) as caught:
        _assign(path)
    assert str(path) in str(caught.value)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (np.array([0, 1, 2, 0, 0, 0]), "row 2 is 2; expected a client from 0 to 1"),
        (np.array([0, 1, 0]), "got int64 of shape (3,); expected integers of shape (6,)"),
        (np.zeros(6), "got float64 of shape (6,)"),
    ],
)
def test_npy_file_is_refused_by_row(tmp_path: Path, values: np.ndarray, sentence: str) -> None:
    path = tmp_path / "clients.npy"
    np.save(path, values)
    with pytest.raises(PartitionError) as caught:
        _assign(path)
    assert f"{path}: {sentence}" in str(caught.value)


@pytest.mark.parametrize("name", ["absent.txt", "absent.npy"])
def test_absent_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(PartitionError, match=f"{name}: cannot be read"):
        _assign(tmp_path / name)
