"""What commands wrote is replaced by the same kind of thing, where asked, and by nothing else."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.errors import InputError, Interrupted, RetexoError
from retexo_fl.file_lock import lock_run, locked_folder
from retexo_fl.files import write_whole
from retexo_fl.graph import open_partition, write_partition
from retexo_fl.replacing import (
    Kind,
    Replacement,
    check_new_file,
    check_replaceable,
    in_the_making,
    is_taken,
)
from tests.support.cli import CommandLine
from tests.support.commands import ROOT
from tests.support.edge_lists import cut_edges, with_cut_edges
from tests.support.runs import model_bytes

KEYS: dict[str, Any] = {"clients": 2, "hidden": 4, "rounds": 2, "quiet": True}
OPTIONS = ("--clients", "2", "--hidden", "4", "--rounds", "2", "--quiet")


@pytest.fixture
def retexo(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, parts, a part and a sweep of it."""
    folder = tmp_path_factory.mktemp("made")
    retexo_fl.run(out=folder / "run", **KEYS)
    retexo_fl.partition(clients=2, out=folder / "parts")
    shutil.copytree(folder / "parts" / "part-0", folder / "part")
    shutil.copytree(folder / "run", folder / "sweep" / "run-0123456789")
    (folder / "sweep" / "sweep.csv").write_text("seed,state,error,run\n")
    return folder


@pytest.fixture
def there(made: Path, tmp_path: Path) -> Path:
    """Return such a folder of this test's own."""
    return Path(shutil.copytree(made, tmp_path / "there"))


def content(folder: Path) -> dict[str, object]:
    """Return all that is in a folder, and when it was written."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def run_again(out: Path, **keys: Any) -> object:
    return retexo_fl.run(out=out, overwrite=True, **{**KEYS, "seed": 1, **keys})


def cut_again(out: Path, **keys: Any) -> object:
    return retexo_fl.partition(out=out, clients=3, overwrite=True, **keys)


def sweep_again(out: Path, **keys: Any) -> object:
    return retexo_fl.sweep(out=out, hidden=[4], overwrite=True, quiet=True, **keys)


AGAIN: dict[str, Callable[..., object]] = {
    "run": run_again,
    "parts": cut_again,
    "sweep": sweep_again,
}


def test_a_run_takes_the_place_of_another_to_the_bits_of_a_new_one(there: Path) -> None:
    run_again(there / "run")
    retexo_fl.run(out=there / "new", **{**KEYS, "seed": 1})
    assert model_bytes(there / "run") == model_bytes(there / "new")
    assert {path.name for path in (there / "run").iterdir()} == {
        path.name for path in (there / "new").iterdir()
    }
    assert not [*there.glob(".*")]
    # What is said of a run does not say how its directory came to be.
    assert (there / "run/config.toml").read_bytes() == (there / "new/config.toml").read_bytes()


def test_without_it_the_error_names_it(there: Path, retexo: CommandLine) -> None:
    before = content(there)
    assert "replace that run with --overwrite" in retexo.refused("run", "--out", there / "run")
    assert "or --overwrite" in retexo.refused("partition", "make", "--out", there / "parts")
    with pytest.raises(InputError, match="replace that run with overwrite=True"):
        retexo_fl.run(out=there / "run", **KEYS)
    with pytest.raises(InputError, match="or overwrite=True to replace parts"):
        retexo_fl.partition(out=there / "parts")
    assert content(there) == before


def test_parts_are_replaced_with_predictions_of_them(there: Path) -> None:
    retexo_fl.Run.open(there / "run").predict(there / "parts", quiet=True)
    cut_again(there / "parts")
    names = {path.name for path in (there / "parts").iterdir()}
    assert names == {"part-0", "part-1", "part-2", "peers.toml"}
    assert len(retexo_fl.open_parts(there / "parts")) == 3


FOREIGN: dict[str, Callable[[Path], object]] = {
    "notes.txt": lambda folder: (folder / "notes.txt").write_text("mine"),
    ".hidden": lambda folder: (folder / ".hidden").touch(),
    "empty": lambda folder: (folder / "empty").mkdir(),
    "deep/in/it.csv": lambda folder: write_whole(folder / "deep/in/it.csv", [b"mine"]),
    "link": lambda folder: (folder / "link").symlink_to(folder.parent),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("kind", AGAIN)
def test_what_is_not_ours_is_named_and_stays(there: Path, kind: str, name: str) -> None:
    FOREIGN[name](there / kind)
    before = content(there)
    with pytest.raises(InputError, match=f"holds {re.escape(name)}, which is no file of"):
        AGAIN[kind](there / kind)
    assert content(there) == before


@pytest.mark.parametrize(
    ("kind", "other"), [(one, other) for one in AGAIN for other in AGAIN if one != other]
)
def test_one_kind_does_not_replace_another(there: Path, kind: str, other: str) -> None:
    before = content(there)
    with pytest.raises(InputError, match=r"is not replaced; expected another directory"):
        AGAIN[kind](there / other)
    assert content(there) == before


def test_a_folder_with_a_file_of_keys_is_no_run(tmp_path: Path, retexo: CommandLine) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.toml").write_text("rounds = 2\n")
    before = content(tmp_path)
    told = retexo.refused("run", *OPTIONS, "--overwrite", "--out", tmp_path / "mine")
    assert told.endswith("mine is not a run, and is not replaced; expected another directory")
    told = retexo.refused(
        "run", *OPTIONS, "--overwrite", "--out", tmp_path / "mine" / "config.toml"
    )
    assert "is no folder" in told
    assert content(tmp_path) == before


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_one_that_is_under_way_is_refused(there: Path, kind: str) -> None:
    (config,) = (there / kind).rglob("config.toml")
    before = content(there)
    # Known before the graph is looked at.
    for keys in ({}, {"nodes": "nope.csv", "edges": "nope.csv"}):
        with lock_run(config), pytest.raises(InputError, match="out: another process is using the"):
            AGAIN[kind](there / kind, **keys)
    assert content(there) == before


def test_parts_that_are_predicted_into_are_refused(there: Path) -> None:
    before = content(there)
    with locked_folder(there / "parts"), pytest.raises(InputError, match="another process is at"):
        cut_again(there / "parts", nodes="nope.csv", edges="nope.csv")
    assert content(there) == before


def end_at(event: str, number: int = 1) -> Callable[[object], None]:
    """Return what is called with events, and ends the training at one of a kind."""
    seen = 0

    def look(found: object) -> None:
        nonlocal seen
        seen += type(found).__name__ == event
        if seen == number:
            raise KeyboardInterrupt

    return look


def test_until_the_new_run_has_begun_the_old_one_stays(there: Path) -> None:
    before = content(there)
    with pytest.raises(RetexoError, match="nope"):
        run_again(there / "run", nodes="nope.csv", edges="nope.csv")
    with pytest.raises(InputError, match="layers"):
        run_again(there / "run", layers=0)
    for event in ("Started", "ExchangeClosed"):
        with pytest.raises(Interrupted, match=f"run that was in {there}/run before is there as"):
            run_again(there / "run", callbacks=[end_at(event)])
    assert content(there) == before


def test_a_new_run_that_ends_early_is_there_and_goes_on(there: Path) -> None:
    with pytest.raises(Interrupted, match=r"go on with: .*resume\(\)"):
        run_again(there / "run", callbacks=[end_at("RoundClosed", 2)])
    assert not [*there.glob(".*")]
    retexo_fl.Run.open(there / "run").resume(quiet=True)
    retexo_fl.run(out=there / "new", **{**KEYS, "seed": 1})
    assert model_bytes(there / "run") == model_bytes(there / "new")


def test_parts_that_do_not_go_together_leave_the_old_run(there: Path) -> None:
    part = open_partition(there / "parts/part-1")
    write_partition(
        with_cut_edges(part, cut_edges(part)[:-1]), there / "parts/part-1", overwrite=True
    )
    before = content(there)
    for solver in ("rounds", "ridge"):
        with pytest.raises(InputError, match="client 0 .* edges to client 1"):
            retexo_fl.run(
                out=there / "run",
                partitions=there / "parts",
                overwrite=True,
                quiet=True,
                rounds=2,
                solver=solver,
            )
    assert content(there) == before


#: Dies as by a power cut, once the new run has been made beside the old one.
DYING = """
import os, sys, retexo_fl
retexo_fl.run(clients=2, hidden=4, rounds=2, seed=1, quiet=True, out=sys.argv[1], overwrite=True,
    callbacks=[lambda event: os._exit(9)])
"""


@pytest.mark.system
def test_a_process_that_dies_leaves_the_old_run_and_the_next_one_clears_up(there: Path) -> None:
    before = content(there / "run")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DYING, str(there / "run")]
    assert subprocess.run(command, env=environment, check=False, timeout=500).returncode == 9
    assert content(there / "run") == before
    (left,) = there.glob(".run.*.part")
    run_again(there / "run")
    assert not left.exists()
    assert (there / "run/config.toml").read_text().count("seed = 1") == 1


class _Library:
    """The C library where the file system refuses to exchange two names."""

    def __init__(self, number: int) -> None:
        self._number = number

    def renameat2(self, *_: object) -> int:
        ctypes.set_errno(self._number)
        return -1


@pytest.mark.parametrize("library", [object(), _Library(errno.EINVAL)])
def test_where_names_cannot_be_exchanged_two_steps_do(
    there: Path, monkeypatch: pytest.MonkeyPatch, library: object
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    cut_again(there / "parts")
    assert len(retexo_fl.open_parts(there / "parts")) == 3
    assert not [*there.glob(".*")]


THING = Kind(name="a thing", files=re.compile("a|sub/"), is_one=lambda _: True, hold=locked_folder)


@pytest.fixture
def thing(tmp_path: Path) -> Path:
    """Return a folder whose name means something to a pattern."""
    (tmp_path / "p+/sub").mkdir(parents=True)
    (tmp_path / "p+/a").write_text("old")
    return tmp_path / "p+"


def test_what_is_replaced_is_held_until_it_is_let_go(thing: Path) -> None:
    beside = [thing.with_name(name) for name in (".pp.1.part", ".p+.1.part~")]
    for folder in beside:
        folder.mkdir()
    replacement = Replacement(thing, THING, mode=0o700)
    assert replacement.new.stat().st_mode & 0o777 == 0o700
    assert in_the_making(thing) == replacement.new
    with pytest.raises(InputError, match="another process"):
        Replacement(thing, THING)
    (replacement.new / "a").write_text("new")
    replacement.swap()
    assert (replacement.new / "a").read_text() == "old"
    replacement.close()
    assert (thing / "a").read_text() == "new"
    assert {*thing.parent.iterdir()} == {thing, *beside}
    # Where nothing can be made beside it, it is let go at once.
    thing.with_name(f".p+.{os.getpid()}.part").touch()
    with pytest.raises(FileExistsError) as caught:
        Replacement(thing, THING)
    with locked_folder(thing):
        # As long as whoever handles it has its frames, nothing is let go by itself.
        assert caught.value.filename is not None


@pytest.mark.parametrize("library", [object(), _Library(errno.EACCES)])
def test_an_exchange_that_fails_changes_nothing(
    thing: Path, monkeypatch: pytest.MonkeyPatch, library: object
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    replacement = Replacement(thing, THING)
    if isinstance(library, _Library):
        with pytest.raises(PermissionError):
            replacement.swap()
        assert replacement.new.is_dir()
    replacement.new.rmdir()
    with pytest.raises(OSError, match=re.escape(str(thing))):
        replacement.swap()
    replacement.close()
    with locked_folder(thing):
        assert (thing / "a").read_text() == "old"
    assert [*replacement.place.parent.iterdir()] == [thing]


def test_links_are_none_of_ours_though_they_lead_nowhere(thing: Path) -> None:
    (thing / "a").rename(thing.with_name("elsewhere"))
    (thing / "a").symlink_to(thing.with_name("elsewhere"))
    with pytest.raises(InputError, match="holds a, which is no file of a thing"):
        check_replaceable(thing, THING)
    thing.with_name("elsewhere").unlink()
    assert is_taken(thing / "a")
    with pytest.raises(InputError, match="a exists; expected a new file"):
        check_new_file(thing / "a", overwrite=False, read=Path.read_bytes, what="a thing")


def test_a_run_goes_on_or_is_replaced_not_both(there: Path, retexo: CommandLine) -> None:
    before = content(there)
    told = retexo.refused("run", "--resume", there / "run", "--overwrite")
    assert told.startswith("overwrite: cannot be given with --resume")
    with pytest.raises(InputError, match=r"cannot be given with resume\(\)"):
        run_again(there / "run", resume=str(there / "run"))
    assert retexo.refused("run", *OPTIONS, "--overwrite").startswith("overwrite: expected --out")
    assert content(there) == before


def test_a_part_of_a_client_and_its_summary_are_replaced(
    tmp_path: Path, retexo: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("peers.toml").write_text(
        'partitioning = "one"\nclasses = 2\nfeatures = 1\nclients = ["a", "b"]\n'
    )
    Path("nodes.csv").write_text("key,label,split,x0\np,0,train,1\nq,1,val,2\nr,0,test,3\n")
    Path("edges.csv").write_text("source,target\np,q\n")
    local = ["partition", "local", "--nodes", "nodes.csv", "--edges", "edges.csv"]
    local += ["--peers", "peers.toml", "--name", "a", "--out", "parts"]
    summarise = ["features", "summarise", "nodes.csv", "--columns", "x0", "--out", "a.json"]
    fit = ["features", "fit", "a.json", "--out", "recipe.toml"]
    for command in (local, summarise, fit):
        retexo.done(*command)
        assert "--overwrite" in retexo.refused(*command)
    Path("nodes.csv").write_text("key,label,split,x0\np,0,train,1\nq,1,val,2\ns,1,test,4\n")
    for command in (local, summarise, fit):
        retexo.done(*command, "--overwrite")
    part = open_partition(Path("parts/part-0"))
    assert b"s" in [key.rstrip(b"\0") for key in part.node_keys.tolist()]
    Path("a.json").write_text('{"of": "somebody else"}')
    Path("recipe.toml").write_text("mine = 1\n")
    Path("parts/part-0/notes.txt").touch()
    before = content(tmp_path)
    assert "notes.txt" in retexo.refused(*local, "--overwrite")
    assert "is not a summary, and is not replaced" in retexo.refused(*summarise, "--overwrite")
    assert "is not a recipe, and is not replaced" in retexo.refused(*fit, "--overwrite")
    assert content(tmp_path) == before
