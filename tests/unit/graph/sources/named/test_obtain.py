"""Public data sets on their first use: from a mirror, by hand, or not at all; nothing half done."""

from __future__ import annotations

import hashlib
import re
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.downloads.remote_file import Limits, RemoteFile
from retexo_fl.errors import DatasetError
from retexo_fl.graph import Graph, load_dataset
from retexo_fl.graph.sources.named.obtain import cache_folder, obtain
from retexo_fl.graph.sources.named.table import NAMED, NamedDataset
from tests.support.data import planetoid_dir
from tests.support.planetoid_files import planetoid_files
from tests.support.web import WebServer, closed_port, part_of, stalled, status, web_server

_QUICK = Limits(connect_s=60.0, silence_s=60.0, total_s=200.0, pause_s=0.0)


@cache
def _files() -> dict[str, bytes]:
    return planetoid_files(planetoid_dir() / "cora.npz")


def _pinned(contents: dict[str, bytes]) -> NamedDataset:
    """Return Cora, pinned to the files that tests can serve."""
    files = tuple(
        RemoteFile(
            name=name,
            url=f"https://elsewhere.invalid/{name}",
            sha256=hashlib.sha256(content).hexdigest(),
        )
        for name, content in contents.items()
    )
    return replace(NAMED["cora"], files=files)


@pytest.fixture(name="cora")
def _cora() -> NamedDataset:
    return _pinned(_files())


@pytest.fixture(name="mirror")
def _mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """Serve Cora's files, and keep what is got below ``tmp_path / "cache"``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with web_server() as server:
        for name, content in _files().items():
            server.serve(f"/data/cora/{name}", content)
        monkeypatch.setenv("RETEXO_DATASETS_URL", f"{server.url}/data/")
        yield server


def _same(graph: Graph, other: Graph) -> None:
    assert graph.name == other.name
    assert graph.num_classes == other.num_classes
    for array in (
        "node_keys",
        "indptr",
        "indices",
        "labels",
        "train_mask",
        "val_mask",
        "test_mask",
    ):
        np.testing.assert_array_equal(getattr(graph, array), getattr(other, array), strict=True)
    assert (graph.features != other.features).nnz == 0


def _left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ---- what is got ---------------------------------------------------------------------------------


def test_a_download_is_the_graph_of_the_npz_file_and_is_kept(
    mirror: WebServer, cora: NamedDataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = load_dataset("cora", data_dir=None, named={"cora": cora})
    _same(graph, load_dataset("cora", data_dir=planetoid_dir()))
    assert _left(tmp_path) == ["cache/retexo-fl/cora.npz"]
    assert mirror.asked == [f"/data/cora/{name}" for name in _files()]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "cora: downloading 7 files from 127.0.0.1",
        "  530 kB, SHA-256 as expected",
    ]
    again = load_dataset("cora", data_dir=None, named={"cora": cora})
    _same(again, graph)
    assert len(mirror.asked) == 7


def test_a_given_folder_keeps_the_download(
    mirror: WebServer, cora: NamedDataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    load_dataset("cora", data_dir=folder, quiet=True, named={"cora": cora})
    assert _left(tmp_path) == ["data/cora.npz"]
    assert capfd.readouterr() == ("", "")
    asked = len(mirror.asked)
    load_dataset("cora", data_dir=folder, named={"cora": cora})
    assert len(mirror.asked) == asked


def test_equal_files_give_equal_bytes(
    mirror: WebServer, cora: NamedDataset, tmp_path: Path
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        obtain(cora, data_dir=folder, quiet=True)
    first, second = ((folder / "cora.npz").read_bytes() for folder in folders)
    assert first == second


def test_what_the_cache_folder_has_is_not_downloaded_again(
    mirror: WebServer, cora: NamedDataset, tmp_path: Path
) -> None:
    kept = obtain(cora, data_dir=None, quiet=True)
    (tmp_path / "data").mkdir()
    assert obtain(cora, data_dir=tmp_path / "data") == kept
    assert len(mirror.asked) == 7


# ---- what goes wrong leaves nothing ------------------------------------------------------------


def _break_altered(server: WebServer, path: str, content: bytes) -> None:
    server.serve(path, content[:-1] + b"!")


def _break_truncated(server: WebServer, path: str, content: bytes) -> None:
    server.serve(path, part_of(content[:-1], len(content)))


def _break_short(server: WebServer, path: str, content: bytes) -> None:
    server.serve(path, content[:-1])


def _break_long(server: WebServer, path: str, content: bytes) -> None:
    server.serve(path, content + b"!" * 2**25)


def _break_absent(server: WebServer, path: str, content: bytes) -> None:
    server.serve(path, status(404))


def _break_loop(server: WebServer, path: str, content: bytes) -> None:
    server.serve(path, status(302, Location=path))


@pytest.mark.parametrize(
    ("break_file", "expected"),
    [
        (_break_altered, r"got \d+ bytes with SHA-256 [0-9a-f]{64}; expected [0-9a-f]{64}; "),
        (_break_truncated, r"broke off after \d+ bytes"),
        (_break_short, r"got \d+ bytes with SHA-256 "),
        (_break_long, r"is larger than 33554432 bytes"),
        (_break_absent, r"answers 404 Not Found"),
        (_break_loop, r"is redirected more than 5 times"),
    ],
)
def test_a_broken_download_is_refused_and_leaves_nothing(
    mirror: WebServer,
    cora: NamedDataset,
    tmp_path: Path,
    break_file: Callable[[WebServer, str, bytes], None],
    expected: str,
) -> None:
    break_file(mirror, "/data/cora/ind.cora.graph", _files()["ind.cora.graph"])
    with pytest.raises(DatasetError, match=expected) as caught:
        obtain(cora, data_dir=None, limits=_QUICK)
    told = str(caught.value)
    assert told.startswith(
        f"dataset: 'cora' cannot be downloaded: {mirror.url}/data/cora/ind.cora.graph: "
    )
    assert re.search("; .*cora.npz.* folder cora .*--data-dir DIR$", told)
    assert "\n" not in told
    assert _left(tmp_path) == []


def test_a_stall_leaves_nothing(mirror: WebServer, cora: NamedDataset, tmp_path: Path) -> None:
    until = threading.Event()
    mirror.serve("/data/cora/ind.cora.ty", stalled(b"some", until))
    try:
        with pytest.raises(DatasetError, match=r"no answer within 0\.2 s"):
            obtain(cora, data_dir=None, limits=replace(_QUICK, silence_s=0.2))
    finally:
        until.set()
    assert _left(tmp_path) == []


def test_no_network_leaves_nothing(
    cora: NamedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("RETEXO_DATASETS_URL", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(DatasetError, match=r"cannot be reached .*Connection refused"):
        obtain(cora, data_dir=None, limits=_QUICK)
    assert _left(tmp_path) == []


def test_pinned_files_that_hold_something_else_leave_nothing(
    mirror: WebServer, tmp_path: Path
) -> None:
    contents = {**_files(), "ind.cora.graph": b"cos\nsystem\n(S'touch executed'\ntR."}
    mirror.serve("/data/cora/ind.cora.graph", contents["ind.cora.graph"])
    with pytest.raises(DatasetError, match=r"ind\.cora\.graph: .* names 'os\.system'"):
        obtain(_pinned(contents), data_dir=None, quiet=True)
    assert _left(tmp_path) == []


@contextmanager
def _files_up_to(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_nothing(mirror: WebServer, cora: NamedDataset, tmp_path: Path) -> None:
    with _files_up_to(50_000), pytest.raises(DatasetError) as caught:
        obtain(cora, data_dir=None, quiet=True)
    path = tmp_path / "cache" / "retexo-fl" / "cora.npz"
    told = str(caught.value)
    assert told.startswith(f"dataset: {path} cannot be written (File too large); ")
    assert "--data-dir DIR" in told
    assert _left(tmp_path) == []


def test_a_cache_that_is_a_file_is_told(
    mirror: WebServer, cora: NamedDataset, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(DatasetError, match=r"cora\.npz cannot be written \("):
        obtain(cora, data_dir=None, quiet=True)
    assert _left(tmp_path) == ["cache"]


def test_a_stop_while_bytes_come_leaves_nothing(
    mirror: WebServer, cora: NamedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("retexo_fl.downloads.bar.FileBar.__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        obtain(cora, data_dir=None, quiet=True)
    assert _left(tmp_path) == []


# ---- by hand ---------------------------------------------------------------------------------


def _write_by_hand(folder: Path, contents: dict[str, bytes]) -> None:
    (folder / "cora").mkdir(parents=True)
    for name, content in contents.items():
        (folder / "cora" / name).write_bytes(content)


def test_source_files_by_hand_need_no_network(
    cora: NamedDataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _write_by_hand(tmp_path, _files())
    graph = load_dataset("cora", data_dir=tmp_path, named={"cora": cora})
    _same(graph, load_dataset("cora", data_dir=planetoid_dir()))
    assert (tmp_path / "cora.npz").is_file()
    assert capfd.readouterr().err == ""


def test_source_files_by_hand_are_checked_too(cora: NamedDataset, tmp_path: Path) -> None:
    _write_by_hand(tmp_path, {**_files(), "ind.cora.graph": b"other"})
    path = tmp_path / "cora" / "ind.cora.graph"
    digest = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(
        DatasetError, match=rf"{path} has SHA-256 {digest}; expected [0-9a-f]{{64}}"
    ):
        obtain(cora, data_dir=tmp_path)
    path.unlink()
    with pytest.raises(DatasetError) as caught:
        obtain(cora, data_dir=tmp_path)
    told = str(caught.value)
    assert told.startswith(f"dataset: {path} cannot be read (No such file or directory); ")
    assert "https://elsewhere.invalid/ind.cora.graph" in told
    assert not (tmp_path / "cora.npz").exists()


def test_a_folder_of_that_name_with_other_things_is_passed_over(
    mirror: WebServer, cora: NamedDataset, tmp_path: Path
) -> None:
    (tmp_path / "data" / "cora" / "raw").mkdir(parents=True)
    obtain(cora, data_dir=tmp_path / "data", quiet=True)
    assert len(mirror.asked) == 7


def test_a_source_without_a_digest_is_not_downloaded(
    mirror: WebServer, cora: NamedDataset, tmp_path: Path
) -> None:
    unknown = replace(cora, files=(*cora.files[1:], replace(cora.files[0], sha256=None)))
    with pytest.raises(DatasetError) as caught:
        obtain(unknown, data_dir=None)
    told = str(caught.value)
    assert re.match("dataset: 'cora' is not downloaded, .*SHA-256", told)
    assert re.search("https://elsewhere.invalid .*DIR/cora .*--data-dir DIR", told)
    assert mirror.asked == []
    _write_by_hand(tmp_path, _files())
    assert obtain(unknown, data_dir=tmp_path) == tmp_path / "cora.npz"


# ---- where ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["ftp://host", "nonsense", "http://", "file:///tmp", "http://[", "https://a\nb"]
)
def test_a_mirror_that_is_no_address_is_refused(
    cora: NamedDataset, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("RETEXO_DATASETS_URL", url)
    with pytest.raises(DatasetError) as caught:
        obtain(cora, data_dir=None, quiet=True, limits=_QUICK)
    assert str(caught.value) == (
        f"RETEXO_DATASETS_URL: got {url!r}; expected http[s]://HOST[/PATH]"
    )


def test_the_cache_folder_follows_the_xdg_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/retexo-fl")
    for passed_over in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", passed_over)
        assert cache_folder() == tmp_path / ".cache" / "retexo-fl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache" / "retexo-fl"
