"""MUSAE's tables: taken apart and put together again, and refused where they contradict."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.errors import DatasetError
from retexo_fl.graph import load_dataset
from retexo_fl.graph.sources.named.musae import facebook_arrays, github_arrays, lastfm_arrays
from tests.support.data import data_dir

_EDGES = b"id_1,id_2\n0,1\n2,1\n1,2\n2,2\n"
_FEATURES = b'{"0": [3, 0], "2": [], "1": [3, 3]}'
_FACEBOOK = (
    b'id,facebook_id,page_name,page_type\n1,7,"Caf\xe9, ""A""",tvshow\n0,8,B,company\n2,9,,tvshow\n'
)
_GITHUB = b"id,name,ml_target\n0,a,0\n1,b,1\n2,c,0\n"


def _table(*columns: tuple[str, list[object]]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([name for name, _ in columns])
    writer.writerows(zip(*(values for _, values in columns), strict=True))
    return file.getvalue().encode()


def _source(name: str) -> tuple[dict[str, np.ndarray], dict[str, bytes]]:
    """Return the arrays of a data set, and the tables that it could have been made from."""
    with np.load(data_dir() / f"{name}.npz") as file:
        arrays = {array: file[array] for array in file.files}
    ends = arrays["edge_index"][
        :, np.random.default_rng(0).permutation(len(arrays["edge_index"].T))
    ]
    nodes = list(range(len(arrays["y"])))
    labels = arrays["y"].tolist()
    columns = np.split(arrays["raw_x_indices"], arrays["raw_x_indptr"][1:-1])
    target = (
        [("id", nodes), ("name", [f"n{node}" for node in nodes]), ("ml_target", labels)]
        if name == "github"
        else [("id", nodes), ("page_type", [arrays["class_names"][label] for label in labels])]
    )
    return arrays, {
        "edges.csv": _table(("id_1", [*ends[0], 5]), ("id_2", [*ends[1], 5])),
        "features.json": json.dumps(
            {str(node): row[::-1].tolist() for node, row in enumerate(columns)}
        ).encode(),
        "target.csv": _table(*target),
    }


def _archive(files: dict[str, bytes]) -> dict[str, bytes]:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"git_web_ml/musae_git_{name}", content)
    return {"git_web_ml.zip": file.getvalue()}


def _compare(made: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Compare with a file whose ``x`` is a reduction of the features, kept as ``raw_x_*``."""
    for array in ("edge_index", "y", "class_names"):
        np.testing.assert_array_equal(made[array], expected[array], strict=True)
    for part in ("indptr", "indices", "data", "shape"):
        np.testing.assert_array_equal(made[f"x_{part}"], expected[f"raw_x_{part}"], strict=True)


@pytest.mark.real_graphs
def test_github_gives_the_arrays_of_the_npz_file() -> None:
    expected, files = _source("github")
    _compare(github_arrays("github", _archive(files)), expected)


@pytest.mark.real_graphs
def test_facebook_gives_the_arrays_of_the_npz_file() -> None:
    expected, files = _source("facebook_page_page")
    _compare(facebook_arrays("facebook_page_page", files), expected)


def test_rows_are_put_in_the_order_of_their_numbers() -> None:
    made = facebook_arrays(
        "mine", {"edges.csv": _EDGES, "features.json": _FEATURES, "target.csv": _FACEBOOK}
    )
    assert made["edge_index"].tolist() == [[0, 1], [1, 2]]
    assert made["y"].tolist() == [0, 1, 1]
    assert made["class_names"].tolist() == ["company", "tvshow"]
    assert made["x_indptr"].tolist() == [0, 2, 3, 3]
    assert made["x_indices"].tolist() == [0, 3, 3]
    assert made["x_shape"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("edges.csv", b"id_1,id_2\n0,3\n", "edges.csv: row 1: id_2 is 3; expected 0 to 2"),
        ("edges.csv", b"id_1,id_2\n0,-1\n", "edges.csv: row 1 has no number in id_2"),
        ("edges.csv", b"id_1,id_2\n0\n", "edges.csv: row 1 has no number in id_2"),
        ("edges.csv", b"a,b\n0,1\n", "edges.csv: has no column id_1"),
        ("edges.csv", b"", "edges.csv: has no column id_1"),
        ("edges.csv", b"id_1,id_2\n" + b"9" * 30 + b",1\n", "row 1 has no number in id_1"),
        ("target.csv", b"id,ml_target\n0,0\n2,0\n", "target.csv: id does not number"),
        ("target.csv", b"id,ml_target\n0,0\n0,0\n", "target.csv: id does not number"),
        ("target.csv", b"id,ml_target\n", "target.csv: id does not number"),
        ("target.csv", b"id,ml_target\n0,7\n", "ml_target is '7'; expected 0 or 1"),
        ("target.csv", b'id,ml_target\n0,"' + b"x" * 200_000, "target.csv: is damaged ("),
        ("features.json", b'{"0": [1], "1": [1]}', "features.json: node 2 has no list of columns"),
        ("features.json", b'{"0": [1.5], "1": [], "2": []}', "node 0 has no list of columns"),
        ("features.json", b'{"0": [-1], "1": [], "2": []}', "node 0 has no list of columns"),
        ("features.json", b'{"0": [9999999], "1": [], "2": []}', "node 0 has no list of columns"),
        ("features.json", b"[]", "features.json: node 0 has no list of columns"),
        ("features.json", b'{"0": ', "features.json: is damaged ("),
        ("features.json", b"[" * 100_000, "features.json: is damaged ("),
        ("features.json", b"\xff\xfe\x00", "features.json: is damaged ("),
    ],
)
def test_wrong_tables_are_named(file: str, content: bytes, expected: str) -> None:
    files = {"edges.csv": _EDGES, "features.json": _FEATURES, "target.csv": _GITHUB, file: content}
    with pytest.raises(DatasetError) as caught:
        github_arrays("mine", _archive(files))
    assert expected in str(caught.value)


def test_archives_that_are_damaged_or_others_are_refused() -> None:
    whole = _archive({"edges.csv": _EDGES, "features.json": _FEATURES, "target.csv": _GITHUB})
    content = whole["git_web_ml.zip"]
    middle = len(content) // 4
    for damaged in (b"", content[:-40], content[:middle] + b"!!!!" + content[middle + 4 :]):
        with pytest.raises(DatasetError, match=r"mine: git_web_ml\.zip: damaged, or another"):
            github_arrays("mine", {"git_web_ml.zip": damaged})
    with pytest.raises(DatasetError, match="damaged, or another archive .*musae_git_target"):
        github_arrays("mine", _archive({"edges.csv": _EDGES, "features.json": _FEATURES}))


def test_members_that_unpack_to_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retexo_fl.graph.sources.named.musae._MOST_MEMBER_BYTES", 1000)
    with pytest.raises(DatasetError, match="is larger than 1000 bytes"):
        github_arrays("mine", _archive({"edges.csv": b"0" * 1001}))


_LASTFM = {
    "edges.csv": b"node_1,node_2\n0,1\n2,1\n1,2\n2,2\n",
    "features.json": _FEATURES,
    "target.csv": b"id,target\n1,17\n0,3\n2,17\n",
}


def _lastfm(**changed: bytes) -> dict[str, bytes]:
    """Return the archive as SNAP has it, with its misspelt folder."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lasftm_asia/README.txt", "about")
        for name, content in {**_LASTFM, **changed}.items():
            archive.writestr(f"lasftm_asia/lastfm_asia_{name}", content)
    return {"lastfm_asia.zip": file.getvalue()}


def test_lastfm_is_read_from_its_archive() -> None:
    made = lastfm_arrays("lastfm_asia", _lastfm())
    assert made["edge_index"].tolist() == [[0, 1], [1, 2]]
    assert made["y"].tolist() == [3, 17, 17]
    assert made["class_names"].tolist() == [str(number) for number in range(18)]
    assert made["x_indptr"].tolist() == [0, 2, 3, 3]
    assert made["x_indices"].tolist() == [0, 3, 3]
    assert made["x_shape"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"edges.csv": b"id_1,id_2\n0,1\n"}, "edges.csv: has no column node_1"),
        ({"edges.csv": b"node_1,node_2\n0,3\n"}, "node_2 is 3; expected 0 to 2"),
        ({"target.csv": b"id,target\n0,18\n1,0\n2,0\n"}, "target is '18'; expected 0 to 17"),
        ({"target.csv": b"id,target\n0,Japan\n1,0\n2,0\n"}, "target is 'Japan'"),
        ({"features.json": b"[]"}, "node 0 has no list of columns"),
    ],
)
def test_lastfm_that_contradicts_itself_is_refused(changed: dict[str, bytes], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        lastfm_arrays("lastfm_asia", _lastfm(**changed))


def test_lastfm_by_hand_is_a_data_set_by_name(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="lastfm_asia.zip"):
        load_dataset("lastfm_asia", data_dir=tmp_path)
    (tmp_path / "lastfm_asia").mkdir()
    content = _lastfm(**{"target.csv": b"id,target\n1,1\n0,0\n2,1\n"})["lastfm_asia.zip"]
    (tmp_path / "lastfm_asia" / "lastfm_asia.zip").write_bytes(content)
    graph = load_dataset("lastfm_asia", data_dir=tmp_path)
    assert (graph.num_nodes, graph.labels.tolist()) == (3, [0, 1, 1])
    assert (tmp_path / "lastfm_asia.npz").is_file()


def test_another_archive_is_not_taken_for_lastfm() -> None:
    with pytest.raises(DatasetError, match="lastfm_asia.zip: damaged, or another archive"):
        lastfm_arrays("lastfm_asia", {"lastfm_asia.zip": _archive(_LASTFM)["git_web_ml.zip"]})
