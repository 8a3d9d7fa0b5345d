"""Public data sets at the command line: by hand, from a mirror that errs, and interrupted."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.cli import PROGRAM, TINY, CommandLine, environment
from tests.support.web import stalled, status, web_server


@pytest.fixture(name="retexo")
def _retexo(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return CommandLine(capfd)


def _write_source(folder: Path) -> None:
    """Write a file of gnn-benchmark with two classes, of the name that Coauthor Physics has."""
    folder.mkdir(parents=True)
    nodes = 40
    ring = (np.arange(nodes) + 1) % nodes
    np.savez(
        folder / "ms_academic_phy.npz",
        adj_data=np.ones(nodes, dtype=np.float32),
        adj_indices=ring.astype(np.int32),
        adj_indptr=np.arange(nodes + 1, dtype=np.int32),
        adj_shape=np.array([nodes, nodes]),
        attr_data=np.ones(nodes, dtype=np.float32),
        attr_indices=(np.arange(nodes) % 2).astype(np.int32),
        attr_indptr=np.arange(nodes + 1, dtype=np.int32),
        attr_shape=np.array([nodes, 2]),
        labels=np.arange(nodes) % 2,
    )


def test_a_source_by_hand_is_named_then_trained_on(retexo: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    command = ("run", "--dataset", "coauthor_physics", "--data-dir", "data", *TINY, "--out", "new")
    told = retexo.refused(*command)
    assert told.startswith("dataset: 'coauthor_physics' ")
    source = "ms_academic_phy.npz from https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
    for needed in ("no SHA-256", source, "DIR/coauthor_physics", "--data-dir DIR"):
        assert needed in told
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    _write_source(tmp_path / "data" / "coauthor_physics")
    assert "test accuracy" in retexo.done(*command)
    listed = retexo.done("datasets", "--data-dir", "data")
    assert "  coauthor_physics           40          40         2        2" in listed


def test_datasets_says_where_each_is(retexo: CommandLine) -> None:
    lines = retexo.done("datasets").splitlines()
    places = [line.strip() for line in lines if line.strip() and not line.startswith("  ")]
    assert places[1:5] == ["built in", "synthetic", "download", "by hand"]
    assert lines.index("download".ljust(len(lines[0]))) < lines.index(
        next(line for line in lines if line.startswith("  cora "))
    )


@pytest.mark.parametrize("engine", ["inline", "flower"])
def test_a_mirror_that_errs_is_refused_and_nothing_is_written(
    retexo: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    with web_server() as server:
        monkeypatch.setenv("RETEXO_DATASETS_URL", server.url)
        told = retexo.refused(
            *("run", "--dataset", "pubmed", "--engine", engine, "--quiet", "--out", "new")
        )
        assert told.startswith("dataset: 'pubmed' ")
        assert f"{server.url}/pubmed/ind.pubmed.tx: " in told
        assert re.search(r"404 Not Found; expected .*; .*pubmed\.npz", told)
        server.serve("/pubmed/ind.pubmed.tx", b"altered")
        ended = retexo("run", "--dataset", "pubmed", "--out", "new")
    assert ended.code == 2
    head, error = ended.err.splitlines()
    assert head == "pubmed: downloading 7 files from 127.0.0.1"
    assert "got 7 bytes with SHA-256 " in error
    assert "; expected 4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d" in error
    assert list(tmp_path.iterdir()) == []


def test_a_stop_ends_a_download_with_nothing_left(tmp_path: Path) -> None:
    until = threading.Event()
    with web_server() as server:
        server.serve("/cora/ind.cora.tx", stalled(b"some bytes", until))
        server.serve("/", status(404))
        process = subprocess.Popen(
            [*PROGRAM, "run", "--dataset", "cora", "--out", "new"],
            cwd=tmp_path,
            env=environment()
            | {"RETEXO_DATASETS_URL": server.url, "XDG_CACHE_HOME": str(tmp_path / "cache")},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + 60
            while not server.asked and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=20)
        finally:
            process.kill()
            until.set()
    assert process.returncode == 130
    head, end = told.splitlines()
    assert head == "cora: downloading 7 files from 127.0.0.1"
    assert end == "retexo: interrupted"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
