"""Bad graphs and parts: one line, exit code 2, nothing written; and odd ones that are right."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli import TINY, CommandLine, path_graph, write_graph
from tests.support.runs import ledger_of, model_bytes, result_of

HALVES = ("--split", "random:0.4/0.3/0.3")
SMALL = ("--data-dir", "data", "--dataset", "small", "--clients", "2", *HALVES, *TINY)


# ---- data sets ----------------------------------------------------------------------------------


def test_unknown_data_set_names_the_near_ones_and_the_place(
    retexo: CommandLine, tmp_path: Path
) -> None:
    told = retexo.refused("run", "--dataset", "digit")
    assert re.match(r"dataset: 'digit' .*'digits'\?.*: digits, synthetic, cora, ", told)
    assert re.search(r"\(data-dir .*\)$", told)
    write_graph(tmp_path / "data")
    told = retexo.refused("run", "--dataset", "smal", "--data-dir", "data")
    assert re.match(r"dataset: 'smal' .*'small'\?.*: digits, synthetic, small, ", told)
    assert re.search(r"\(.*NAME\.npz in data\)$", told)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../small", "data-dir: cannot be given with the path '../small' as dataset"),
        ("small.npz", "data-dir: cannot be given with the path 'small.npz' as dataset"),
        ("", "dataset: '' is unknown"),
        ("..", "dataset: '..' is unknown"),
    ],
)
def test_a_data_set_in_a_folder_is_a_name(
    retexo: CommandLine, tmp_path: Path, name: str, expected: str
) -> None:
    write_graph(tmp_path)
    (tmp_path / "data").mkdir()
    told = retexo.refused("run", "--data-dir", "data", "--dataset", name, "--out", "new")
    assert told.startswith(expected)
    assert not Path("new").exists()


def test_data_set_names_may_be_too_long(retexo: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    told = retexo.refused("run", "--data-dir", "data", "--dataset", "x" * 5000, "--out", "new")
    assert re.match(r"dataset: 'x+' .* in data \(File name too long\)$", told)
    assert not Path("new").exists()


def test_data_dir_that_is_no_folder(retexo: CommandLine) -> None:
    for command in (("datasets",), ("run", "--dataset", "cora"), ("plan", "--dataset", "cora")):
        told = retexo.refused(*command, "--data-dir", "nowhere")
        assert re.match(r"data-dir: .*nowhere.*; expected .*\.npz", told)


def wide(values: np.ndarray, count: int) -> np.ndarray:
    return np.pad(values, ((0, 0), (0, count)))


BAD_GRAPHS: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "label_too_small": (
        {"y": np.array([0, 1, -2, *[0] * 9], dtype=np.int16)},
        r"y: row 2 .*-2; expected -1 .*to 1",
    ),
    "labels_of_complex_numbers": (
        {"y": np.zeros(12, dtype=complex)},
        "y: .*complex128.*; expected numbers",
    ),
    "no_labels": ({"y": np.full(12, -1, dtype=np.int16)}, "y: no .*label"),
    "too_few_labels": (
        {"y": np.zeros(11, dtype=np.int16)},
        r"x: .*\(12, 3\); expected \(11, F\)",
    ),
    "nan": (
        {"x": np.where(np.arange(36).reshape(12, 3) == 14, np.nan, 1).astype(np.float32)},
        "x: row 4 .*NaN.*; expected finite",
    ),
    "infinity": (
        {"x": np.full((12, 3), np.inf, dtype=np.float32)},
        "x: row 0 .*infinity",
    ),
    "complex_features": ({"x": np.ones((12, 3)) * 1j}, "x: .*complex128.*; expected numbers"),
    "no_feature_columns": (
        {"x": np.ones((12, 0), dtype=np.float32)},
        r"x: .*\(12, 0\); expected \(N, F\)",
    ),
    "no_edges": (
        {"edge_index": np.zeros((2, 0), dtype=np.int32)},
        "edge_index: .*no edges; expected at least one",
    ),
    "directed": (
        {"edge_index": np.array([[0, 1, 1], [1, 2, 0]], dtype=np.int32)},
        r"edge_index: column 1 is \(1, 2\) without its other direction.*a directed graph; exp",
    ),
    "edge_twice": (
        {"edge_index": np.array([[0, 0], [1, 1]], dtype=np.int32)},
        r"edge_index: columns 0 and 1 are both \(0, 1\); expected each edge once",
    ),
    "self_loop": (
        {"edge_index": np.array([[0, 3], [1, 3]], dtype=np.int32)},
        r"edge_index: column 1 .*\(3, 3\).*self loop; expected none",
    ),
    "edge_to_nowhere": (
        {"edge_index": np.array([[0], [12]], dtype=np.int32)},
        r"edge_index: column 0 .*\(0, 12\); expected .*0\.\.11",
    ),
    "edges_of_another_shape": (
        {"edge_index": np.zeros((3, 2), dtype=np.int32)},
        r"edge_index: .*\(3, 2\); expected \(2, any\)",
    ),
    "objects": ({"y": np.array([None] * 12)}, "y: .*Python objects; expected"),
}


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_bad_graphs_are_refused_by_array_and_row(
    retexo: CommandLine, tmp_path: Path, name: str
) -> None:
    arrays, expected = BAD_GRAPHS[name]
    write_graph(tmp_path / "data", **arrays)
    told = retexo.refused("run", *SMALL, "--out", "new")
    assert re.match(rf"data/small\.npz: {expected}", told)
    assert not Path("new").exists()


def test_damaged_data_set_files_are_refused(retexo: CommandLine, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "data") / "small.npz"
    whole = path.read_bytes()
    for damaged in (b"", b"no zip", whole[: len(whole) // 2], whole[:-30]):
        path.write_bytes(damaged)
        told = retexo.refused("run", *SMALL, "--out", "new")
        assert re.match(r"data/small\.npz: .*\.npz file.*damaged", told)
    path.write_bytes(whole.replace(b"edge_index", b"edge_indix"))
    told = retexo.refused("run", *SMALL, "--out", "new")
    assert re.match(r"data/small\.npz: edge_index: missing; .*edge_indix, x, y", told)
    assert not Path("new").exists()


def test_data_set_with_a_flipped_bit_is_refused(retexo: CommandLine, tmp_path: Path) -> None:
    path = write_graph(tmp_path / "data") / "small.npz"
    content = bytearray(path.read_bytes())
    content[content.index(b"\x93NUMPY") + 140] ^= 1
    path.write_bytes(content)
    told = retexo.refused("run", *SMALL, "--out", "new")
    assert told.startswith("data/small.npz: edge_index: damaged (Bad CRC-32")


def test_splits_that_the_graph_has_not(retexo: CommandLine, tmp_path: Path) -> None:
    write_graph(tmp_path / "data")
    told = retexo.refused("run", *SMALL, "--split", "published", "--out", "new")
    assert re.match("split: .*'small'.* no published split; expected random:", told)
    told = retexo.refused("run", *SMALL, "--split", "random:0.01/0.5/0.49", "--out", "new")
    assert re.match("split: .*no train node.*12 labelled.*'small'", told)
    assert not Path("new").exists()


# ---- clients and partitioners -------------------------------------------------------------------


def test_more_clients_than_nodes(retexo: CommandLine, tmp_path: Path) -> None:
    write_graph(tmp_path / "data")
    told = retexo.refused("run", *SMALL, "--clients", "13", "--out", "new")
    assert re.match("clients: got 13; expected 1 to 12, .*'small'", told)
    assert not Path("new").exists()


def test_one_node_needs_as_many_clients_as_nodes(retexo: CommandLine, tmp_path: Path) -> None:
    write_graph(tmp_path / "data")
    one_node = ("--partitioner", "one-node", "--out", "new")
    told = retexo.refused("run", *SMALL, *one_node)
    assert re.match("clients: got 2; expected 12 .*'one-node'", told)
    assert not Path("new").exists()
    retexo.done("run", *SMALL, *one_node, "--clients", "12")
    assert len(result_of(Path("new"))["client_table"]) == 12


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, r"cut\.txt: .*\(No such file or directory\)"),
        (b"0\n1\nx\n", r"cut\.txt: line 3 .*'x'; expected .*0 to 1"),
        (b"0\n2\n", r"cut\.txt: line 2 .*'2'; expected .*0 to 1"),
        (b"0\n-1\n", r"cut\.txt: line 2 .*'-1'; expected .*0 to 1"),
        (b"0\n\n1\n", r"cut\.txt: line 2 .*''; expected .*0 to 1"),
        (b"0\n1\n", r"cut\.txt: got 2 lines; expected 12"),
        (b"0\n\xff\n", r"cut\.txt: .*text.*; expected one client per line"),
        (b"0\n" * 12, r"partitioner 'file:cut\.txt': no nodes .*clients 1 of 2"),
        (b"9" * 5000, r"cut\.txt: line 1 .*'99999"),
    ],
)
def test_bad_assignment_files_are_refused_by_line(
    retexo: CommandLine, tmp_path: Path, content: bytes | None, expected: str
) -> None:
    write_graph(tmp_path / "data")
    if content is not None:
        Path("cut.txt").write_bytes(content)
    told = retexo.refused("run", *SMALL, "--partitioner", "file:cut.txt", "--out", "new")
    assert re.match(expected, told)
    assert len(told) < 200
    assert not Path("new").exists()


# ---- odd graphs that are right ------------------------------------------------------------------


def test_client_without_train_nodes_exchanges_and_counts_zero(
    retexo: CommandLine, tmp_path: Path
) -> None:
    first_half = np.arange(12) < 6
    masks = {
        "train_mask": first_half & (np.arange(12) < 3),
        "val_mask": first_half & (np.arange(12) >= 3),
        "test_mask": ~first_half,
    }
    write_graph(tmp_path / "data", **masks)
    Path("cut.txt").write_text("0\n" * 6 + "1\n" * 6)
    cut = ("--partitioner", "file:cut.txt", "--split", "published")
    retexo.done("run", *SMALL, *cut, "--out", "run")
    rows = result_of(Path("run"))["client_table"]
    assert [(row["train"], row["val"], row["test"]) for row in rows] == [(3, 3, 0), (0, 0, 6)]
    assert [row["boundary_vectors_out"] for row in rows] == [1, 1]
    for client, row in enumerate(rows):
        sent = ledger_of(Path("run")).sum(kind="boundary", client=client, direction="out")
        assert row["boundary_payload_out"] == sent.payload > 0


def test_isolated_nodes_train_and_are_counted(retexo: CommandLine, tmp_path: Path) -> None:
    only_two = np.array([[0], [1]], dtype=np.int32)
    write_graph(tmp_path / "data", edge_index=only_two)
    for model in ("gcn", "sage", "gat", "gin", "sage-pool"):
        retexo.done("run", *SMALL, "--model", model, "--out", model)
        rows = result_of(Path(model))["client_table"]
        assert sum(row["nodes"] for row in rows) == 12
        assert sum(row["train"] + row["val"] + row["test"] for row in rows) == 12


def test_unlabelled_nodes_are_left_out_of_every_set(retexo: CommandLine, tmp_path: Path) -> None:
    labels = path_graph()["y"]
    labels[[0, 5]] = -1
    write_graph(tmp_path / "data", y=labels)
    retexo.done("run", *SMALL, "--out", "run")
    rows = result_of(Path("run"))["client_table"]
    assert sum(row["nodes"] for row in rows) == 12
    assert sum(row["train"] + row["val"] + row["test"] for row in rows) == 10


# ---- parts on disk ------------------------------------------------------------------------------


@pytest.fixture
def parts(retexo: CommandLine, tmp_path: Path) -> Path:
    write_graph(tmp_path / "data")
    return make_parts(retexo, "parts")


def make_parts(retexo: CommandLine, out: str, *more: str) -> Path:
    graph = ("--data-dir", "data", "--dataset", "small", "--clients", "3", *HALVES)
    retexo.done("partition", "make", *graph, *more, "--out", out)
    return Path(out)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def alter(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


FILES = ("features", "indices", "indptr", "labels", "node_keys", "boundary_keys", "test_mask")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("damage", "expected"),
    [(Path.unlink, "missing; expected"), (truncate, "bytes; expected"), (alter, "altered; exp")],
)
def test_damaged_parts_are_refused_by_file(
    retexo: CommandLine, parts: Path, name: str, damage: Callable[[Path], None], expected: str
) -> None:
    path = parts / "part-1" / f"{name}.npy"
    damage(path)
    commands: list[tuple[str | Path, ...]] = [
        ("run", "--partitions", parts, *TINY, "--out", "new"),
        ("plan", "--partitions", parts),
        ("partition", "check", *sorted(parts.glob("part-*"))),
    ]
    for command in commands:
        told = retexo.refused(*command)
        assert told.startswith(f"{path}: ")
        assert expected in told
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (Path.unlink, "missing; expected .*retexo partition"),
        (lambda path: path.write_bytes(path.read_bytes()[:-5]), "not JSON"),
        (lambda path: path.write_text("[]"), ".*list; expected an object"),
        (lambda path: path.write_text("[" * 60_000), "not JSON"),
        (lambda path: path.write_text(" " * 100_000), "more than 65536 bytes; expected"),
        (lambda path: edit(path, version=99), "version: .*99; expected 1"),
        (lambda path: edit(path, version="1"), "version: .*'1'; expected 1"),
        (lambda path: edit(path, client="0"), "client: .*'0'; expected a whole number"),
        (lambda path: edit(path, arrays={}), "arrays: "),
        (lambda path: edit(path, colour="red"), "keys: 'colour' .*unknown"),
        (lambda path: path.write_bytes(b"\xff" * 10), "not JSON"),
    ],
)
def test_damaged_manifests_are_refused(
    retexo: CommandLine, parts: Path, damage: Callable[[Path], None], expected: str
) -> None:
    path = parts / "part-0" / "manifest.json"
    damage(path)
    told = retexo.refused("run", "--partitions", parts, *TINY, "--out", "new")
    assert re.match(f"{path}: {expected}", told)
    assert len(told) < 400
    assert retexo.refused("partition", "check", *sorted(parts.glob("part-*"))) == told
    assert not Path("new").exists()


def test_parts_of_two_partitionings_are_refused(retexo: CommandLine, parts: Path) -> None:
    other = make_parts(retexo, "other", "--seed", "1")
    shutil.rmtree(parts / "part-2")
    shutil.copytree(other / "part-2", parts / "part-2")
    told = retexo.refused("run", "--partitions", parts, *TINY, "--out", "new")
    assert re.match("parts/part-2 .*partitioning .*parts/part-0.*; expected", told)
    assert retexo.refused("partition", "check", *sorted(parts.glob("part-*"))) == told
    assert not Path("new").exists()


def test_misplaced_and_missing_parts_are_refused(retexo: CommandLine, parts: Path) -> None:
    run = ("run", "--partitions", parts, *TINY, "--out", "new")
    (parts / "part-2").rename("away")
    assert retexo.refused(*run).startswith("parts: holds 2 parts of 3; expected")
    shutil.copytree(parts / "part-0", parts / "part-2")
    assert re.match("parts/part-2 .*client 0; expected .*part-0", retexo.refused(*run))
    shutil.rmtree(parts / "part-1")
    assert re.match("parts: part-1 .*missing.*part-2; expected", retexo.refused(*run))
    shutil.rmtree(parts)
    assert re.match("parts: .*part-0; expected .*retexo partition", retexo.refused(*run))
    assert not Path("new").exists()


def test_clients_must_be_as_many_as_parts(retexo: CommandLine, parts: Path) -> None:
    told = retexo.refused("run", "--partitions", parts, "--clients", "2", "--out", "new")
    assert re.match("clients: got 2; expected 3, .* parts$", told)


def test_parts_without_train_nodes_are_refused(retexo: CommandLine, tmp_path: Path) -> None:
    masks = {"train_mask": np.zeros(12, dtype=bool), "val_mask": np.arange(12) < 6}
    write_graph(tmp_path / "data", **masks, test_mask=np.arange(12) >= 6)
    data = ("--data-dir", "data", "--dataset", "small", "--clients", "2")
    told = retexo.refused("partition", "make", *data, "--split", "published", "--out", "parts")
    assert re.match("small: train_mask: no node is in it; expected at least one, or another", told)
    assert not Path("parts").exists()
    told = retexo.refused("run", *data, *TINY, "--out", "new")
    assert re.match("small: train_mask: no node is in it; expected at least one, or another", told)
    assert not Path("new").exists()


def test_partition_make_writes_beside_nothing(retexo: CommandLine, parts: Path) -> None:
    before = sorted(parts.rglob("*"))
    told = retexo.refused("partition", "make", "--out", parts)
    assert re.match("parts: exists; expected a new or empty", told)
    assert sorted(parts.rglob("*")) == before
    Path("file").write_text("mine")
    told = retexo.refused("partition", "make", "--out", "file/parts")
    assert re.match(r"file/parts: .*\(Not a directory\)", told)
    told = retexo.refused("partition", "make", "--out", "x" * 300)
    assert told.endswith("(File name too long)")
    assert sorted(path.name for path in Path().iterdir()) == ["data", "file", "parts"]


def test_parts_train_as_the_graph_they_were_cut_from(retexo: CommandLine, parts: Path) -> None:
    retexo.done("run", "--partitions", parts, *TINY, "--out", "from-parts")
    retexo.done("run", *SMALL, "--clients", "3", "--out", "from-graph")
    assert model_bytes(Path("from-parts")) == model_bytes(Path("from-graph"))
    assert "3 parts agree" in retexo.done("partition", "check", *sorted(parts.glob("part-*")))
