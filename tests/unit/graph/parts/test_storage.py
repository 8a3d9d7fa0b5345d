"""Partitions on disk: round trips, and every kind of damage."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.sparse import csr_array

from retexo_fl.errors import PartitionError
from retexo_fl.graph import (
    GraphPartition,
    cut_graph,
    find_partitions,
    open_partition,
    write_partition,
    write_partitions,
)
from retexo_fl.graph.neighbours import EdgeValues
from tests.unit.graph.graphs import SMALL_SPLIT, CutCase, cut_cases, small_graph, small_parts
from tests.unit.graph.test_npy import npy_bytes


def assert_same(found: GraphPartition, expected: GraphPartition) -> None:
    """Compare every field, dtypes included."""
    for field in fields(GraphPartition):
        one, two = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(two, csr_array):
            assert isinstance(one, csr_array)
            np.testing.assert_array_equal(one.toarray(), two.toarray())
            assert one.dtype == two.dtype
        elif isinstance(two, EdgeValues):
            assert one.named().keys() == two.named().keys()
            for name, array in two.named().items():
                np.testing.assert_array_equal(one.named()[name], array)
                assert one.named()[name].dtype == array.dtype == np.float32
        else:
            np.testing.assert_array_equal(one, two)
            assert getattr(one, "dtype", None) == getattr(two, "dtype", None)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("verify", [False, True])
def test_storage_returns_what_was_written(tmp_path: Path, sparse: bool, verify: bool) -> None:
    parts = small_parts(sparse=sparse)
    write_partitions(parts, tmp_path / "out")
    folders = find_partitions(tmp_path / "out")
    assert [folder.name for folder in folders] == ["part-0", "part-1"]
    for folder, part in zip(folders, parts, strict=True):
        assert_same(open_partition(folder, verify=verify), part)


@given(cut_cases())
@settings(max_examples=20, deadline=None)
def test_storage_returns_any_partition(
    tmp_path_factory: pytest.TempPathFactory, case: CutCase
) -> None:
    out = tmp_path_factory.mktemp("parts")
    parts = cut_graph(case.graph, case.assignment, case.split)
    write_partitions(parts, out)
    for folder, part in zip(find_partitions(out), parts, strict=True):
        assert_same(open_partition(folder), part)


def test_find_partitions_sorts_by_client(tmp_path: Path) -> None:
    for client in (10, 2, 0, 1):
        (tmp_path / "out" / f"part-{client}").mkdir(parents=True)
    (tmp_path / "out" / "part-notes").mkdir()
    names = [path.name for path in find_partitions(tmp_path / "out")]
    assert names == ["part-0", "part-1", "part-2", "part-10"]
    with pytest.raises(PartitionError, match="no folder part-0"):
        find_partitions(tmp_path)


def test_write_partition_stores_one_part(tmp_path: Path) -> None:
    part = small_parts()[1]
    write_partition(part, tmp_path / "deep" / "mine")
    assert_same(open_partition(tmp_path / "deep" / "mine"), part)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["mine"]


def test_large_arrays_are_mapped_from_their_files(tmp_path: Path) -> None:
    features = np.ones((6, 50_000), dtype=np.float32)
    graph = small_graph(features=features)
    split = graph.published_split
    assert split is not None
    write_partitions(cut_graph(graph, np.zeros(6, dtype=int), split), tmp_path / "out")
    found = open_partition(tmp_path / "out" / "part-0")
    assert isinstance(found.features, np.ndarray)
    assert isinstance(found.features.base, np.memmap)
    assert not found.features.flags.writeable
    assert not found.labels.flags.writeable


def test_write_partitions_refuses_a_taken_folder(tmp_path: Path) -> None:
    parts = small_parts()
    for name in ("file", "folder"):
        taken = tmp_path / name
        if name == "file":
            taken.write_text("mine")
        else:
            (taken / "inner").mkdir(parents=True)
        with pytest.raises(PartitionError, match=f"{name}: exists; expected a new or empty"):
            write_partitions(parts, taken)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_write_partitions_takes_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_partitions(small_parts(), tmp_path / "out")
    assert len(find_partitions(tmp_path / "out")) == 2


def test_write_partitions_leaves_nothing_on_a_full_disk(tmp_path: Path) -> None:
    features = np.ones((6, 5000), dtype=np.float32)
    graph = small_graph(features=features)
    split = graph.published_split
    assert split is not None
    parts = cut_graph(graph, np.zeros(6, dtype=int), split)
    # No file may grow beyond 10 kB, which fails as a full disk does: in the middle of a write.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(PartitionError, match="out: could not be written"):
            write_partitions(parts, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_write_partitions_names_a_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PartitionError, match="file/out: c"):
        write_partitions(small_parts(), tmp_path / "file" / "out")
    with pytest.raises(PartitionError, match="cannot be read"):
        write_partitions(small_parts(), tmp_path / ("n" * 300))


def test_write_partition_leaves_no_parents_that_it_made(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(PartitionError, match="deep/part-0: could not be written"):
            write_partition(small_parts()[0], tmp_path / "there" / "very" / "deep" / "part-0")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
    write_partition(small_parts()[0], tmp_path / "there" / "very" / "deep" / "part-0")
    assert len(find_partitions(tmp_path / "there" / "very" / "deep")) == 1


def test_write_partitions_puts_other_files_beside_them(tmp_path: Path) -> None:
    write_partitions(small_parts(), tmp_path / "out", beside={"note.txt": "süd\n"})
    assert (tmp_path / "out" / "note.txt").read_text(encoding="utf-8") == "süd\n"
    assert len(find_partitions(tmp_path / "out")) == 2


def test_stored_keys_are_as_wide_as_the_longest_of_their_array(tmp_path: Path) -> None:
    """What a client stores must not depend on the keys of others."""
    keys = np.array([b"d", b"a", b"c" * 9, b"b", b"ab", b"z"])
    parts = cut_graph(small_graph(node_keys=keys), np.array([0, 0, 1, 1, 1, 0]), SMALL_SPLIT)
    write_partitions(parts, tmp_path / "out")
    one, other = (open_partition(path) for path in find_partitions(tmp_path / "out"))
    assert [one.node_keys.dtype, one.boundary_keys.dtype] == ["S1", "S9"]
    assert [other.node_keys.dtype, other.boundary_keys.dtype] == ["S9", "S1"]


# ---- damage -----------------------------------------------------------------------------------

_ARRAYS = (
    "node_keys indptr indices boundary_keys boundary_owners node_hashes boundary_hashes labels "
    "train_mask val_mask test_mask"
)
_SPARSE_ARRAYS = "features_indptr features_indices features_data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a stored partition with sparse features."""
    write_partitions(small_parts(sparse=True), tmp_path / "out")
    return tmp_path / "out" / "part-1"


def _refused(folder: Path, *, verify: bool = True) -> str:
    with pytest.raises(PartitionError) as caught:
        open_partition(folder, verify=verify)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", [*_ARRAYS.split(), *_SPARSE_ARRAYS.split()])
def test_open_partition_refuses_damage_to_any_array(folder: Path, name: str) -> None:
    path = folder / f"{name}.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert f"{name}.npy: altered; expected SHA-256" in _refused(folder)
    path.write_bytes(content[:-1])
    size = f"{name}.npy: {len(content) - 1} bytes; expected {len(content)}"
    assert size in _refused(folder)
    assert size in _refused(folder, verify=False)
    path.unlink()
    assert f"{name}.npy: missing; expected {len(content)} bytes" in _refused(folder)
    path.symlink_to(path)
    assert f"{name}.npy: cannot be read" in _refused(folder)


def test_open_partition_refuses_a_header_that_lies(folder: Path) -> None:
    path = folder / "labels.npy"
    lie = npy_bytes(np.zeros(3, dtype=np.int64), claimed="(1250000000,)")
    path.write_bytes(lie)
    _edit(folder, "arrays", "labels", "bytes", value=len(lie))
    assert "labels.npy: " in _refused(folder, verify=False)


def test_open_partition_refuses_a_header_unlike_the_manifest(folder: Path) -> None:
    np.save(folder / "labels.npy", np.zeros(3, dtype=np.uint64))
    assert "labels.npy: got <u8 of shape (3,); expected <i8" in _refused(folder, verify=False)


def _edit(folder: Path, *keys: str, value: object) -> None:
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    if value is None:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("keys", "value", "sentence"),
    [
        (["version"], 4, "version: got 4; expected 1 to 3"),
        (["version"], 3, "version: got 3 with these arrays; expected 1"),
        (["version"], 2, "version: got 2 with these arrays; expected 1"),
        (["version"], None, "version: got None; expected 1 to 3"),
        (["client"], None, "keys: 'client' is missing"),
        (["more"], 1, "keys: 'more' is unknown"),
        (["client"], 2, "client: got 2; expected 0 to 1"),
        (["client"], -1, "client: got -1; expected a whole number"),
        (["client"], True, "client: got True; expected a whole number"),
        (["num_classes"], 1.5, "num_classes: got 1.5; expected a whole number"),
        (["num_classes"], 0, "num_classes: got 0; expected at least 1"),
        (["partitioning"], 7, "partitioning: got 7; expected text"),
        (["partitioning"], "Z" * 64, "expected 64 hex digits"),
        (["arrays"], [], "arrays: got list; expected an object"),
        (["arrays", "labels"], None, "arrays: 'labels' is missing"),
        (["arrays", "labels"], 3, "arrays.labels: got int; expected an object"),
        (["arrays", "labels", "bytes"], None, "arrays.labels: 'bytes' is missing"),
        (["arrays", "labels", "shape"], 3, "arrays.labels.shape: got 3; expected a list"),
        (["arrays", "labels", "shape"], [3, 1], "arrays.labels.shape: got [3, 1]; expected 1-d"),
        (["arrays", "labels", "shape"], [4], "arrays.labels.shape: got [4]; expected 3"),
        (["arrays", "labels", "shape"], [10**30], "arrays.labels.shape: got 1000"),
        (["arrays", "indptr", "shape"], [3], "arrays.indptr.shape: got [3]; expected 4"),
        (["arrays", "labels", "dtype"], "<i4", "arrays.labels.dtype: got '<i4'; expected <i8"),
        (["arrays", "node_keys", "dtype"], "|O", "got '|O'; expected |S and a width"),
        (["arrays", "labels", "sha256"], "0", "arrays.labels.sha256: got '0'; expected 64"),
        (["arrays", "../labels"], {}, "arrays.../labels: 'bytes' is missing"),
        (["num_features"], 1, "features_indices: row 0 has column 1"),
    ],
)
def test_open_partition_refuses_a_manifest(
    folder: Path, keys: list[str], value: object, sentence: str
) -> None:
    _edit(folder, *keys, value=value)
    assert sentence in _refused(folder)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "manifest.json: not JSON"),
        (b"\xff\xfe\x00", "manifest.json: not JSON"),
        (b"[" * 50_000, "manifest.json: not JSON"),
        (b"[]", "manifest.json: got list; expected an object"),
        (b" " * 70_000, "manifest.json: more than 65536 bytes"),
    ],
)
def test_open_partition_refuses_odd_json(folder: Path, content: bytes, sentence: str) -> None:
    (folder / "manifest.json").write_bytes(content)
    assert sentence in _refused(folder)


def test_open_partition_names_an_absent_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    assert "manifest.json: missing; expected a folder made by" in _refused(folder)
    (folder / "manifest.json").mkdir()
    assert "manifest.json: cannot be read" in _refused(folder)


def test_open_partition_refuses_an_array_of_another_name(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    content["arrays"]["extra"] = content["arrays"]["labels"]
    (folder / "manifest.json").write_text(json.dumps(content))
    assert "arrays: 'extra' is unknown" in _refused(folder)


def test_open_partition_checks_contents_that_fit_their_checksums(tmp_path: Path) -> None:
    part = small_parts()[0]
    values: dict[str, Any] = {field.name: getattr(part, field.name) for field in fields(part)}
    values["features"] = np.full((3, 2), np.nan, dtype=np.float32)
    write_partition(GraphPartition(**values), tmp_path / "part")
    assert "part: features: row 0 holds NaN or infinity" in _refused(tmp_path / "part")


def _halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [_halve, Path.unlink, lambda path: path.write_bytes(b"")])
def test_open_partition_refuses_a_folder_that_was_copied_in_part(
    folder: Path, damage: Callable[[Path], object]
) -> None:
    for path in sorted(folder.iterdir()):
        copy = folder.with_name("copy")
        shutil.copytree(folder, copy)
        damage(copy / path.name)
        assert path.name in _refused(copy)
        shutil.rmtree(copy)


def test_parts_are_for_their_owner_alone(tmp_path: Path) -> None:
    parts = small_parts()
    before = os.umask(0)
    try:
        write_partitions(parts, tmp_path / "parts", beside={"note.txt": "x"})
        write_partition(parts[0], tmp_path / "alone")
    finally:
        os.umask(before)
    for top in (tmp_path / "parts", tmp_path / "alone"):
        found = [top, *top.rglob("*")]
        assert len(found) > 10
        for path in found:
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
