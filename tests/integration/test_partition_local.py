"""Parts that clients make from their own tables: the same bytes, the same training; bad tables."""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.graph import find_partitions, open_partition
from retexo_fl.graph.parts.peers import read_peers
from tests.support.cli import TINY, CommandLine, write_graph
from tests.support.data import cora_dir
from tests.support.runs import model_bytes, result_of
from tests.support.tables import TableFiles, export_part
from tests.unit.graph.test_npy import npy_bytes

SMALL = ("--data-dir", "data", "--dataset", "small", "--clients", "3")
HALVES = ("--split", "random:0.4/0.3/0.3")
PEERS = ("--peers", "cut/peers.toml")
NAMES = ("client-0", "client-1", "client-2")


def assert_same_files(one: Path, other: Path) -> None:
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    assert "manifest.json" in names
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def make_all(
    retexo: CommandLine,
    folder: str,
    fmt: str,
    *,
    dense: bool = False,
    peers: str = "cut/peers.toml",
) -> None:
    """Export what each client of ``cut`` has, and let each make its part in ``folder``."""
    names = read_peers(Path(peers)).clients
    for client, cut in enumerate(find_partitions(Path("cut"))):
        place = Path(f"tables-{fmt}-{dense}") / cut.name
        files = export_part(open_partition(cut), place, fmt, clients=names, dense=dense)
        given = (*files.options(), "--peers", peers, "--name", names[client], "--out", folder)
        told = retexo.done("partition", "local", *given)
        assert told.startswith(f"part {client} of {len(names)}: ")


# ---- real graphs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partitioner", "fmt", "dense"),
    [
        *(("random", "csv", False), ("metis", "csv", True)),
        *(("metis", "parquet", False), ("random", "npz", False)),
    ],
)
def test_local_parts_of_cora_are_the_cut_ones_byte_for_byte(
    retexo: CommandLine, partitioner: str, fmt: str, dense: bool
) -> None:
    graph = ("--dataset", "cora", "--data-dir", cora_dir(with_masks=True), "--split", "published")
    cut = ("--clients", "5", "--partitioner", partitioner, "--out", "cut")
    retexo.done("partition", "make", *graph, *cut)
    make_all(retexo, "local", fmt, dense=dense)
    parts = find_partitions(Path("cut"))
    assert len(parts) == 5
    for part in parts:
        assert (part / "features_data.npy").is_file()
        assert_same_files(part, Path("local") / part.name)
    assert "5 parts agree: 2,708 nodes and 5,278 edges" in retexo.done(
        "partition", "check", *find_partitions(Path("local"))
    )


def test_training_of_local_parts_is_that_of_cut_parts(retexo: CommandLine) -> None:
    graph = ("--dataset", "cora", "--data-dir", cora_dir())
    retexo.done("partition", "make", *graph, "--clients", "5", "--out", "cut")
    make_all(retexo, "local", "csv")
    for parts in ("cut", "local"):
        retexo.done("run", "--partitions", parts, *TINY, "--out", f"of-{parts}")
    assert model_bytes(Path("of-local")) == model_bytes(Path("of-cut"))
    one, other = (result_of(Path(run)) for run in ("of-local", "of-cut"))
    assert one["test_accuracy"] == other["test_accuracy"]


# ---- small graphs -------------------------------------------------------------------------------


@pytest.fixture
def files(retexo: CommandLine, tmp_path: Path) -> TableFiles:
    """Cut a path of 12 nodes in three, and return the tables of the first client.

    It owns 0, 1, 2 and 3; the second owns 4 to 7.
    """
    write_graph(tmp_path / "data")
    Path("cut.txt").write_text("0\n" * 4 + "1\n" * 4 + "2\n" * 4)
    cut = ("--partitioner", "file:cut.txt", "--out", "cut")
    retexo.done("partition", "make", *SMALL, *HALVES, *cut)
    Path("nodes.csv").write_text(
        "key,label,split,x0,x1,x2\n0,0,train,1,0,0\n1,1,val,0,1,1\n2,0,test,1,0,2\n3,1,,0,1,3\n"
    )
    Path("edges.csv").write_text("source,target\n1,0\n1,2\n3,2\n")
    Path("boundary.csv").write_text("own,foreign,peer\n3,4,client-1\n")
    return TableFiles(
        nodes=Path("nodes.csv"), edges=Path("edges.csv"), boundary=Path("boundary.csv")
    )


def _refused(retexo: CommandLine, files: TableFiles, *more: str, name: str = "client-0") -> str:
    """Return the sentence of a refused command, which must leave nothing."""
    before = sorted(Path().rglob("*"))
    options = (*files.options(), *PEERS, "--name", name, "--out", "new", *more)
    told = retexo.refused("partition", "local", *options)
    assert sorted(Path().rglob("*")) == before
    return told


def test_made_part_is_told_in_one_line_and_never_overwritten(
    retexo: CommandLine, files: TableFiles
) -> None:
    options = (*files.options(), *PEERS, "--name", "client-0", "--out", "new")
    assert retexo.done("partition", "local", *options) == (
        "part 0 of 3: 4 inner nodes, 1 boundary node of 1 peer, 3 inner edges and 1 to peers in "
        "new/part-0\n"
    )
    assert [path.name for path in Path("new").iterdir()] == ["part-0"]
    manifest = Path("new/part-0/manifest.json").read_bytes()
    told = retexo.refused("partition", "local", *options)
    assert re.fullmatch(
        "new/part-0: exists; expected .*empty folder, or --overwrite to replace parts", told
    )
    assert Path("new/part-0/manifest.json").read_bytes() == manifest


def test_peers_that_only_have_a_name_make_parts_that_agree(
    retexo: CommandLine, tmp_path: Path, files: TableFiles
) -> None:
    Path("peers.toml").write_text(
        'partitioning = "trial 7"\nclasses = 2\nfeatures = 3\nclients = ["north", "süd", "west"]\n'
    )
    make_all(retexo, "local", "csv", peers="peers.toml")
    parts = find_partitions(Path("local"))
    assert "3 parts agree: 12 nodes and 11 edges" in retexo.done("partition", "check", *parts)
    retexo.done("run", "--partitions", "local", *TINY, "--out", "run")
    assert [row["nodes"] for row in result_of(Path("run"))["client_table"]] == [4, 4, 4]


def test_parts_of_single_nodes_need_no_table_of_edges(retexo: CommandLine, tmp_path: Path) -> None:
    write_graph(tmp_path / "data")
    cut = ("--clients", "12", "--partitioner", "one-node", *HALVES, "--out", "cut")
    retexo.done("partition", "make", *SMALL[:4], *cut)
    for client, part in enumerate(find_partitions(Path("cut"))):
        files = export_part(open_partition(part), Path("t") / part.name, "npz")
        given = ("--nodes", files.nodes, "--boundary", str(files.boundary), *PEERS)
        name = f"client-{client}"
        retexo.done("partition", "local", *given, "--name", name, "--out", "local")
        assert_same_files(part, Path("local") / part.name)


def test_columns_of_masks_are_the_split_of_a_part(retexo: CommandLine, files: TableFiles) -> None:
    head, rows = "key,label,train_mask,val_mask,{}x0,x1,x2\n", "0,0,1,,{}1,0,0\n1,1,,1,{}0,1,1\n"
    rows += "2,0,0,0,{}1,0,2\n3,1,True,False,{}1,0,3\n"
    files.nodes.write_text(head.format("") + rows.replace("{}", ""))
    assert "column 'test_mask' is missing" in _refused(retexo, files)
    files.nodes.write_text(head.format("test_mask,") + rows.format("0,", "0,", "1,", ","))
    options = (*files.options(), *PEERS, "--name", "client-0")
    retexo.done("partition", "local", *options, "--out", "one")
    split = open_partition(Path("one") / "part-0").split
    assert [mask.tolist() for mask in (split.train, split.val, split.test)] == [
        [True, False, False, True],
        [False, True, False, False],
        [False, False, True, False],
    ]


def test_split_by_key_is_drawn_by_each_client(retexo: CommandLine, files: TableFiles) -> None:
    files.nodes.write_text("key,label,x0,x1,x2\n0,0,1,0,0\n1,1,0,1,1\n2,0,1,0,2\n3,1,0,1,3\n")
    told = _refused(retexo, files)
    assert re.fullmatch("nodes.csv: .*'split' .*; expected .*--split by-key:TRAIN/VAL/TEST.*", told)
    options = (*files.options(), *PEERS, "--name", "client-0", "--split", "by-key:0.4/0.3/0.3")
    masks = set()
    for out, seed in (("one", "0"), ("two", "0"), *((f"s{seed}", str(seed)) for seed in range(6))):
        retexo.done("partition", "local", *options, "--seed", seed, "--out", out)
        part = open_partition(Path(out) / "part-0")
        masks.add((seed, *part.split.train.tolist(), *part.split.val.tolist()))
    assert len(masks) == 6
    assert len({mask[1:] for mask in masks}) > 1
    told = _refused(retexo, files, "--split", "random:0.4/0.3/0.3")
    assert told == "split: got 'random:0.4/0.3/0.3'; expected by-key:TRAIN/VAL/TEST"


# ---- bad tables ---------------------------------------------------------------------------------

#: Which table, what is in it, what it is replaced by, a pattern of the message.
BAD_CSV: dict[str, tuple[str, str, str, str]] = {
    "no_key": ("nodes", "key,", "id,", "column 'key' is missing; .*'id', 'label', "),
    "no_label": ("nodes", "label", "y", "column 'label' is missing; .*'key', 'y', "),
    "no_features": ("nodes", "x0,x1,x2", "a,b,c", "no column of features; expected x0, x1, "),
    "duplicate_key": ("nodes", "3,1,,", "1,1,,", "line 5: key: '1' .*line 3; expected unique"),
    "label_too_large": ("nodes", "3,1,", "3,2,", "line 5: label: got 2; expected 0 to 1"),
    "label_of_text": ("nodes", "3,1,", "3,b,", "line 5: label: got 'b'; expected a class"),
    "unknown_use": ("nodes", "train", "fit", "line 2: split: got 'fit'; expected train, val"),
    "no_number": ("nodes", "1,0,2", "1,o,2", "line 4: x1: got 'o'; expected a finite number"),
    "nan": ("nodes", "1,0,2", "1,nan,2", "line 4: x1: got 'nan'; expected a finite"),
    "infinity": ("nodes", "1,0,2", "1,1e99,2", "line 4: x1: got '1e99'; expected a finite"),
    "missing_cell": ("nodes", "1,0,2", "1,0", "line 4: got 5 fields; expected 6"),
    "too_narrow": (
        *("nodes", "x0,x1,x2", "x0,x1,a2"),
        "got 2 columns .*x0 to x1; expected 3",
    ),
    "no_rows": (
        "nodes",
        "\n0,0,train,1,0,0\n1,1,val,0,1,1\n2,0,test,1,0,2\n3,1,,0,1,3",
        "",
        "has no",
    ),
    "no_source": ("edges", "source", "from", "column 'source' is missing; .*'from', "),
    "unknown_end": ("edges", "3,2", "3,4", "line 4: target: '4' .*nodes.csv; expected"),
    "self_loop": ("edges", "3,2", "3,3", "line 4: '3' .*; expected no self loop"),
    "edge_twice": ("edges", "3,2", "1,2", "line 4: .*'1' and '2' .*line 3; expected"),
    "both_ways": ("edges", "3,2", "2,1", "line 4: .*'1' and '2' .*line 3, the other way round; .*"),
    "no_peer_column": ("boundary", "peer", "to", "column 'peer' is missing; .*'own', "),
    "unknown_own": ("boundary", "3,4", "9,4", "line 2: own: '9' .*nodes.csv; expected"),
    "inner_foreign": ("boundary", "3,4", "3,2", "line 2: foreign: '2' .*nodes.csv; expected"),
    "unknown_peer": (
        *("boundary", "client-1", "client-7"),
        "line 2: peer: 'client-7' .*; expected .*cut/peers.toml",
    ),
    "itself": ("boundary", "client-1", "client-0", "line 2: peer: 'client-0' .*itself; expected"),
    "two_peers": (
        *("boundary", "3,4,client-1", "3,4,client-1\n2,4,client-2"),
        "line 3: foreign: '4' .*'client-2' .*'client-1' .*line 2; expected one owner",
    ),
    "boundary_twice": (
        *("boundary", "3,4,client-1", "3,4,client-1\n\n3,4,client-1"),
        "line 4: .*'3' and '4' .*line 2; expected .*once",
    ),
    "open_quote": ("boundary", "3,4", '"3,4', r"line 2: damaged \(unexpected end of data\)"),
}


@pytest.mark.parametrize("name", BAD_CSV)
def test_bad_tables_are_refused_by_line(retexo: CommandLine, files: TableFiles, name: str) -> None:
    table, old, new, expected = BAD_CSV[name]
    path = Path(f"{table}.csv")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert re.match(f"{table}.csv: {expected}", _refused(retexo, files))


def _lying_npz(path: Path) -> None:
    path.unlink()
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("own", "foreign", "peer", "key", "label", "x", "source", "target"):
            lie = npy_bytes(np.zeros(3, dtype=np.int64), claimed="(1250000000,)")
            archive.writestr(f"{name}.npy", lie)


def _halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _looped(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


#: What becomes of a table's file, and what is said.
BAD_FILES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "empty": ("csv", lambda path: path.write_bytes(b""), "is empty; expected a table"),
    "blank": ("csv", lambda path: path.write_bytes(b"\n\n"), "is empty; expected a first line tha"),
    "not_utf_8": ("csv", lambda path: path.write_bytes(b"key\n\xff"), "line 2 is not UTF-8; exp"),
    "half_utf_16": ("csv", lambda path: path.write_bytes(b"\xff\xfek"), "is not all utf-16 ("),
    "wide": ("csv", lambda path: path.write_text("key", "utf-16-le"), "line 1 holds a NUL charac"),
    "absent": ("csv", Path.unlink, "cannot be read (No such file or directory)"),
    "folder": ("csv", _folder, "is a folder; expected a file"),
    "loop": ("csv", _looped, "cannot be read (Too many levels of symbolic links)"),
    "pipe": ("csv", _pipe, "is not a regular file; expected a table on disk"),
    "half_gzip": ("csv.gz", _halved, "cannot be read, or damaged (Compressed file ended before"),
    "half_zip": ("csv.zip", _halved, "cannot be read, or damaged (File is not a zip file)"),
    "half_npz": ("npz", _halved, "not a .npz file, or damaged (File is not a zip file)"),
    "lying_npz": ("npz", _lying_npz, ": "),
    "half_parquet": ("parquet", _halved, "not a Parquet file, or damaged ("),
    "no_parquet": ("parquet", lambda path: path.write_bytes(b"PAR1"), "not a Parquet file, or da"),
}


@pytest.mark.parametrize("table", ["nodes", "edges", "boundary"])
@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused(
    retexo: CommandLine, files: TableFiles, name: str, table: str
) -> None:
    fmt, damage, expected = BAD_FILES[name]
    good = export_part(open_partition(Path("cut/part-0")), Path("tables"), fmt)
    path = Path("tables") / f"{table}.{fmt}"
    damage(path)
    told = _refused(retexo, good)
    assert told.startswith(f"{path}: ")
    assert expected in told
    if name == "lying_npz":
        assert "bytes; expected 100000000" in told


def test_tables_of_unknown_kinds_are_refused(retexo: CommandLine, files: TableFiles) -> None:
    sheet = files.nodes.rename("nodes.xlsx")
    told = _refused(retexo, TableFiles(nodes=sheet, edges=files.edges))
    assert told.startswith("nodes.xlsx: unknown kind of table; expected a name that ends in .csv, ")


def test_parquet_without_its_package_says_what_to_install(
    retexo: CommandLine, files: TableFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = export_part(open_partition(Path("cut/part-0")), Path("tables"), "parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    told = _refused(retexo, good)
    assert told.startswith("tables/nodes.parquet: ")
    assert "pyarrow" in told
    assert told.endswith("pip install pyarrow")


def test_bad_peers_files_are_refused(retexo: CommandLine, files: TableFiles) -> None:
    told = _refused(retexo, files, name="client-9")
    assert re.match("name: 'client-9' .*3 clients .*cut/peers.toml; did you mean", told)
    for key, value, expected in (
        ("features = 3", "features = 4", "nodes.csv: got 3 columns .*x0 to x2; expected 4"),
        ("classes = 2", "classes = 0", "cut/peers.toml: classes: got 0; expected .*from 1 "),
        ("classes = 2", "", "cut/peers.toml: classes: missing; expected .*classes"),
        ("classes = 2", "classes = [", r"cut/peers.toml: not a TOML file \("),
    ):
        path = Path("cut/peers.toml")
        good = path.read_text()
        assert key in good
        path.write_text(good.replace(key, value))
        assert re.match(expected, _refused(retexo, files))
        path.write_text(good)
    path.write_text(good.replace("classes = 2", "classes = 1"))
    given = (*files.options(), *PEERS, "--name", "client-0", "--out", "new")
    expected = "nodes.csv: line {}: label: got 1; expected 0 to 0, the classes of cut/peers.toml"
    assert retexo.problems("partition", "local", *given) == [
        expected.format(line) for line in (3, 5)
    ]
    Path("cut/peers.toml").unlink()
    assert _refused(retexo, files).startswith("cut/peers.toml: cannot be read (No such file or d")


@pytest.mark.parametrize("missing", ["--nodes", "--peers", "--name", "--out"])
def test_options_that_must_be_given(retexo: CommandLine, missing: str) -> None:
    given = {"--nodes": "n.csv", "--peers": "p.toml", "--name": "a", "--out": "new"}
    rest = [item for pair in given.items() if pair[0] != missing for item in pair]
    told = retexo.refused("partition", "local", *rest)
    assert told.startswith(f"{missing}: missing; expected ")
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("option", ["nodes", "edges", "boundary"])
def test_of_several_tables_none_is_left_out_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], option: str
) -> None:
    peers = tmp_path / "peers.toml"
    peers.write_text('partitioning = "p"\nclasses = 2\nfeatures = 1\nclients = ["a"]\n')
    error = CommandLine(capfd).refused(
        *("partition", "local", "--peers", peers, "--name", "a", "--out", tmp_path / "parts"),
        *(() if option == "nodes" else ("--nodes", "a.csv")),
        *(f"--{option}", "one.csv", f"--{option}", "two.csv"),
    )
    assert error.startswith(f"{option}: got 2 tables; expected one")
