"""Facebook100's MATLAB files: taken apart and put together again."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from scipy.sparse import csc_matrix

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.named.facebook100 import facebook100_arrays
from tests.support.data import data_dir

_COLUMNS = {"status": 0, "gender": 1, "major": 2, "minor": 3, "housing": 4}


def _mat(adjacency: Any, info: Any, **more: Any) -> bytes:
    file = io.BytesIO()
    arrays = {"A": adjacency, "local_info": info, **more}
    savemat(file, {name: a for name, a in arrays.items() if a is not None}, do_compression=False)
    return file.getvalue()


def _source(arrays: dict[str, np.ndarray], nodes: slice) -> bytes:
    """Return the MATLAB file that some nodes of a data set could have been made from."""
    first, stop = nodes.start, nodes.stop
    names = [name.split(":") for name in arrays["feature_names"]]
    columns = np.array([_COLUMNS[attribute] for attribute, _ in names])
    codes = np.array([int(code) for _, code in names])
    rows = np.repeat(np.arange(len(arrays["y"])), np.diff(arrays["x_indptr"]))
    info = np.zeros((len(arrays["y"]), 7))
    info[rows, columns[arrays["x_indices"]]] = codes[arrays["x_indices"]]
    info = info[first:stop]
    labels = arrays["y"][first:stop]
    # Unlabelled nodes are of other years, or of none.
    others = np.where(np.arange(len(labels)) % 2, 0, 2010)
    info[:, 5] = np.where(labels < 0, others, labels + 2004)
    info[:, 6] = 17
    edges = arrays["edge_index"]
    own = edges[:, (edges[0] >= first) & (edges[0] < stop)] - first
    ends = np.concatenate((own, own[::-1]), axis=1)
    size = stop - first
    return _mat(csc_matrix((np.ones(ends.shape[1]), ends), shape=(size, size)), info)


@pytest.mark.real_graphs
def test_one_university_gives_the_arrays_of_the_npz_file() -> None:
    with np.load(data_dir() / "fb100_berkeley13.npz") as file:
        expected = {array: file[array] for array in file.files}
    content = _source(expected, slice(0, len(expected["y"])))
    made = facebook100_arrays("fb100_berkeley13", {"Berkeley13.mat": content})
    assert set(made) == set(expected)
    for array in made:
        np.testing.assert_array_equal(made[array], expected[array], strict=True)


def _small(codes: list[list[int]], *edges: tuple[int, int]) -> bytes:
    size = len(codes)
    adjacency = np.zeros((size, size))
    for one, other in edges:
        adjacency[one, other] = adjacency[other, one] = 1
    return _mat(csc_matrix(adjacency), np.array(codes, dtype=np.uint16))


_ONE = _small([[1, 2, 0, 9, 0, 2004, 3], [2, 0, 0, 0, 300, 1999, 0]], (0, 1))
_TWO = _small([[2, 1, 9, 0, 0, 2009, 1], [1, 1, 9, 0, 0, 0, 1], [0, 1, 7, 0, 0, 2005, 1]], (0, 2))


def test_universities_stand_side_by_side() -> None:
    made = facebook100_arrays("mine", {"One.mat": _ONE, "Two.mat": _TWO})
    assert made["edge_index"].tolist() == [[0, 2], [1, 4]]
    assert made["y"].tolist() == [0, -1, 5, -1, 1]
    assert made["school"].tolist() == [0, 0, 1, 1, 1]
    assert made["school_names"].tolist() == ["One", "Two"]
    assert made["feature_names"].tolist() == [
        *("status:1", "status:2", "gender:1", "gender:2", "major:7", "major:9", "minor:9"),
        "housing:300",
    ]
    rows = np.split(made["x_indices"], made["x_indptr"][1:-1])
    assert [row.tolist() for row in rows] == [[0, 3, 6], [1, 7], [1, 2, 5], [0, 2, 5], [2, 4]]


_INFO = np.ones((2, 7))
_ADJACENCY = csc_matrix(np.ones((2, 2)))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "One.mat: not a MATLAB file"),
        (b"MATLAB 7.3 MAT-file" + bytes(200), "not a MATLAB file"),
        (_ONE[:-20], "not a MATLAB file"),
        (_mat(None, _INFO), "has no sparse A and no table local_info"),
        (_mat(_ADJACENCY, None), "has no sparse A and no table local_info"),
        (_mat(np.ones((2, 2)), _INFO), "has no sparse A and no table local_info"),
        (_mat(_ADJACENCY, _INFO[:, :5]), "A is (2, 2), local_info (2, 5)"),
        (_mat(_ADJACENCY, np.ones((3, 7))), "A is (2, 2), local_info (3, 7)"),
        (_mat(_ADJACENCY, -_INFO), "local_info does not hold whole numbers from 0 to 1048576"),
        (_mat(_ADJACENCY, _INFO * 1e9), "local_info does not hold whole numbers"),
        (_mat(_ADJACENCY, _INFO * np.nan), "local_info does not hold whole numbers"),
        (_mat(_ADJACENCY, np.array([["a"] * 7] * 2, dtype=object)), "local_info does not hold"),
        (_mat(_ADJACENCY, 0 * _INFO), "holds no code; expected features"),
    ],
)
def test_wrong_files_are_refused(content: bytes, expected: str) -> None:
    with pytest.raises(DatasetError) as caught:
        facebook100_arrays("mine", {"One.mat": content})
    assert expected in str(caught.value)
