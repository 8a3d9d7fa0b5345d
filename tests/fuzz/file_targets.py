"""Files: arrays, tables, parts, and what a run and an agent leave on disk."""

from __future__ import annotations

import gzip
import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from retexo_fl.client.store import FolderStore
from retexo_fl.errors import PartitionError
from retexo_fl.federation.checkpoints import (
    CHECKPOINT_VERSION,
    Checkpoint,
    LedgerFile,
    Piece,
    checksum,
    metadata_of,
    read_checkpoint,
    write_checkpoint,
)
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.layer_files import LayerFacts, read_layer_file, write_layer_file
from retexo_fl.graph import open_partition, write_partition
from retexo_fl.graph.npy import open_npy
from retexo_fl.graph.partitioners.assignment_file import read_assignment
from retexo_fl.graph.sources.named.pickled import read_pickled
from retexo_fl.graph.sources.npz_graph import describe_npz_graph, read_npz_graph
from retexo_fl.graph.sources.tables.edges import read_edge_table
from retexo_fl.graph.sources.tables.nodes import read_node_table
from retexo_fl.ledger import TrafficLedger
from retexo_fl.report.page import write_report
from tests.fuzz.mutation import with_odd_value
from tests.fuzz.target import Target
from tests.fuzz.text_targets import of_file
from tests.support.python2_pickles import pickled_array, pickled_graph
from tests.unit.graph.graphs import small_parts
from tests.unit.graph.sources.test_npz_graph import write_npz
from tests.unit.report.runs import Recipe, ledger, write_run

_DIGEST = b"d" * 32


def file_targets(folder: Path) -> list[Target]:
    """Return the parsers of files.

    Args:
        folder: New; of the files that are read.
    """
    return [
        *_array_targets(folder),
        *_table_targets(folder),
        *_part_targets(folder),
        *_run_targets(folder),
    ]


def _one_of(
    folder: Path, read: Callable[[Path], object]
) -> tuple[list[bytes], Callable[[bytes], object]]:
    """Return inputs that are a file's number and content, and what reads a folder with that file.

    Each input is read with the other files as they were first.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = [path.read_bytes() for path in paths]

    def read_input(data: bytes) -> object:
        number = data[0] % len(paths) if data else 0
        try:
            paths[number].write_bytes(data[1:])
            return read(folder)
        finally:
            paths[number].write_bytes(contents[number])

    return [bytes([number]) + content for number, content in enumerate(contents)], read_input


# ---- arrays -------------------------------------------------------------------------------------


def _npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def _unpacked(data: bytes) -> bytes:
    """Return a zip archive anew, so that what is damaged lies in its members, checksums and all."""
    members = data.split(b"PK\x05\x06", 1)
    file = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
            for name in old.namelist():
                info = old.getinfo(name)
                begin = data.index(b"\x93NUMPY", info.header_offset)
                new.writestr(name, data[begin : begin + info.file_size])
    except (zipfile.BadZipFile, ValueError, LookupError, NotImplementedError, OverflowError):
        return members[0]
    return file.getvalue()


def _array_targets(folder: Path) -> list[Target]:
    arrays = [np.arange(6.0), np.zeros((3, 2), np.float32), np.array([b"ab", b"c"])]
    graphs = []
    sparse: dict[str, Any] = {
        "x": None,
        "x_indptr": np.array([0, 2, 2, 3, 3]),
        "x_indices": np.array([2, 0, 1]),
        "x_data": np.ones(3, dtype=np.float32),
        "x_shape": np.array([4, 3]),
    }
    for changes in ({}, sparse):
        write_npz(folder / "seed.npz", **changes)
        graphs.append((folder / "seed.npz").read_bytes())
        with np.load(folder / "seed.npz") as loaded:
            np.savez(folder / "stored.npz", **loaded)
        graphs.append((folder / "stored.npz").read_bytes())

    def read_graph(path: Path) -> None:
        describe_npz_graph(path)
        read_npz_graph(path)

    graph = pickled_graph({0: [1, 2], 1: [0], 2: [0]})
    return [
        Target(
            name="npy",
            group="arrays",
            seeds=[_npy(array) for array in arrays],
            read=of_file(folder / "a.npy", lambda path: open_npy(path, error=PartitionError)),
            words=[b"'<f8'", b"'|O'", b"'|V0'", b"True", b"(1,)*99", b"'<U9'", b"[('a','<f4')]"],
            cases=20_000,
        ),
        Target(
            name="npz-graph",
            group="arrays",
            seeds=graphs,
            read=of_file(folder / "g.npz", read_graph),
            repaired=_unpacked,
            cases=5_000,
        ),
        Target(
            name="pickle",
            group="arrays",
            seeds=[graph, pickled_array(np.arange(12).reshape(3, 4))],
            read=lambda data: read_pickled(data, where="graph"),
            cases=100_000,
        ),
        Target(
            name="assignment",
            group="arrays",
            seeds=[b"0\n1\n1\n0\n"],
            read=of_file(
                folder / "clients.txt", lambda path: read_assignment(path, num_nodes=4, clients=2)
            ),
            cases=10_000,
        ),
    ]


# ---- tables -------------------------------------------------------------------------------------

_NODES = b'key,label,split,x0,x1\na,0,train,1,2.5\n"b ""q""",1,val,0,-1e-3\nc,,,3,4\n'
_SPARSE_NODES = b"key,label,x\na,0,3:1 17:0.5\nb,1,\nc,-1,0:2\n"
_EDGES = b"source,target\na,b\nb,c\n"


def _parquet(columns: dict[str, list[Any]]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def _zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("nodes.csv"), content)
    return file.getvalue()


def _table_targets(folder: Path) -> list[Target]:
    def nodes(path: Path) -> object:
        return read_node_table(path, infer_features=True)

    def target(name: str, seeds: Sequence[bytes], read: Any, cases: int) -> Target:
        path = folder / f"table.{name.split('-', 1)[1]}"
        words = [b"3:1", b"2147483647:1", b"nan", b"1e39", b'"']
        return Target(
            name=name,
            group="tables",
            seeds=seeds,
            read=of_file(path, read),
            words=words,
            cases=cases,
        )

    arrays = io.BytesIO()
    np.savez(arrays, key=np.array(["a", "b"]), label=np.array([0, 1]), x=np.ones((2, 2)))
    rows: dict[str, list[Any]] = {
        "key": ["a", "b", "c"],
        "label": [0, 1, None],
        "x": [[1.0, 2.0]] * 3,
    }
    return [
        target("nodes-csv", [_NODES, _SPARSE_NODES], nodes, 30_000),
        target("nodes-csv.gz", [gzip.compress(_NODES, mtime=0)], nodes, 20_000),
        target("nodes-csv.zip", [_zipped(_NODES)], nodes, 30_000),
        target("nodes-npz", [arrays.getvalue()], nodes, 10_000),
        target("nodes-parquet", [_parquet(rows)], nodes, 10_000),
        target("edges-csv", [_EDGES], read_edge_table, 20_000),
    ]


# ---- parts --------------------------------------------------------------------------------------


def _part_targets(folder: Path) -> list[Target]:
    made = []
    for sparse in (False, True):
        path = folder / f"part-sparse-{sparse}"
        write_partition(small_parts(sparse=sparse)[0], path)
        seeds, read = _one_of(path, lambda place: open_partition(place, verify=False))
        verified = _one_of(path, open_partition)
        name = "sparse-part" if sparse else "part"
        made += [
            Target(
                name=name,
                group="parts",
                seeds=seeds,
                made=_odd_lines(path),
                read=read,
                cases=1_600,
            ),
            Target(
                name=f"{name}-verified",
                group="parts",
                seeds=verified[0],
                read=verified[1],
                cases=1_600,
            ),
        ]
    return made


# ---- runs ---------------------------------------------------------------------------------------


def _checkpoint_facts() -> dict[str, Any]:
    score = {"count": 10, "correct": 7, "loss_sum": 1.5, "metric": None}
    return {
        "job": "job-0123",
        "attempt": 1,
        "partitioning": "p",
        "stage": 1,
        "round": 3,
        "loss": 0.5,
        "best_round": 2,
        "best_score": score,
        "weights_digest": "00" * 32,
        "outcomes": [],
        "missing": {"0": 2},
        "absences": {"1": 1},
        "absent": [1],
        "exchange_s": 0.5,
        "train_s": 1.5,
    }


def _with_checksum(key: str | None) -> Callable[[bytes], bytes]:
    """Return what has the checksum of a file of tensors fit its facts and its tensors."""

    def repaired(data: bytes) -> bytes:
        try:
            tensors, metadata = load(data), dict(metadata_of(data))
            stored = metadata if key is None else json.loads(metadata[key])
            stored["crc32"] = checksum(stored["facts"], tensors)
            if key is not None:
                metadata = {key: json.dumps(stored)}
            return save(tensors, metadata=metadata)
        except Exception:  # Not one that could be repaired.
            return data

    return repaired


def _odd_facts(
    tensors: dict[str, np.ndarray], facts: dict[str, Any], key: str | None
) -> Callable[[random.Random], bytes]:
    """Return what makes files of tensors that are whole, with facts that are odd."""

    def made(rng: random.Random) -> bytes:
        text = json.dumps(with_odd_value(rng, facts))
        said = {"facts": text, "crc32": checksum(text, tensors)}
        return save(tensors, metadata=said if key is None else {key: json.dumps(said)})

    return made


def _odd_lines(folder: Path) -> Callable[[random.Random], bytes]:
    """Return what makes inputs of :func:`_one_of`: one line of a JSON file with an odd value."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    texts = {
        number: [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines()
        for number, path in enumerate(paths)
        if path.suffix in {".json", ".jsonl"}
    }

    def made(rng: random.Random) -> bytes:
        number = list(texts)[int(rng.random() * len(texts))]
        lines = list(texts[number])
        at = int(rng.random() * len(lines))
        lines[at] = json.dumps(with_odd_value(rng, json.loads(lines[at])))
        return bytes([number]) + "\n".join([*lines, ""]).encode()

    return made


def _read_state(path: Path) -> None:
    state = JobState.resume(read_checkpoint(path), TrafficLedger())
    for stage in (0, 1):
        state.is_restored(stage)
        state.stage_state(stage)


def _read_account(path: Path) -> None:
    content = path.read_bytes()
    piece = Piece(number=1, begin=0, content=content, crc32=zlib.crc32(content))
    LedgerFile(path.parent).read(piece.facts).totals()


def _run_targets(folder: Path) -> list[Target]:
    tensors = {"weights": np.arange(4.0), "best": np.ones(4), "adam.step": np.array(3.0)}
    checkpoint, layer = folder / "checkpoint.safetensors", folder / "layer.safetensors"
    write_checkpoint(checkpoint, Checkpoint(facts=_checkpoint_facts(), tensors=tensors))
    write_layer_file(layer, LayerFacts(stage=0, features=7, classes=3), tensors)
    run = write_run(folder / "run", Recipe(rounds=3, clients=2))
    report = _one_of(run, write_report)
    store = FolderStore(folder / "store")
    store.book.begin("job", 3, client=0)
    store.book.enter("train.layer", (3, 0, 1, 0), _DIGEST, b"steps", client=0)
    store.put_rows(1, _DIGEST, np.ones((3, 2)))
    store.close_exchange(1, _DIGEST, (2, 5))

    def read_store(place: Path) -> None:
        kept = FolderStore(place)
        kept.book.read()
        kept.missing_peers(1, _DIGEST)
        kept.rows(1, _DIGEST)

    stored = _one_of(folder / "store", read_store)
    words = [b'"stage"', b'"missing"', b'"absences"', b'"best_score"', b'"crc32"', b'"F8_E4M3"']
    return [
        Target(
            name="checkpoint",
            group="runs",
            seeds=[checkpoint.read_bytes()],
            made=_odd_facts(tensors, {"version": CHECKPOINT_VERSION, **_checkpoint_facts()}, None),
            read=of_file(checkpoint, _read_state),
            repaired=_with_checksum(None),
            words=words,
            cases=13_300,
        ),
        Target(
            name="account",
            group="runs",
            seeds=[ledger(Recipe(stages=1, rounds=2)).to_csv().encode()],
            read=of_file(folder / "checkpoint-ledger-1.csv", _read_account),
            cases=6_600,
        ),
        Target(
            name="layer",
            group="runs",
            seeds=[layer.read_bytes()],
            made=_odd_facts(
                tensors, {"version": 1, "stage": 0, "features": 7, "classes": 3}, "retexo"
            ),
            read=of_file(layer, read_layer_file),
            repaired=_with_checksum("retexo"),
            words=words,
            cases=13_300,
        ),
        Target(
            name="report",
            group="runs",
            seeds=report[0],
            made=_odd_lines(run),
            read=report[1],
            cases=600,
        ),
        Target(name="store", group="runs", seeds=stored[0], read=stored[1], cases=6_600),
    ]
