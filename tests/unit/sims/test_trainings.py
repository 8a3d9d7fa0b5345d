from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

from sims.kept import Kept
from sims.origin import code_state, commit
from sims.trained import Trained
from sims.trainings import Keys, train_all
from tests.support.measured_volume import MeasuredVolume
from tests.support.runs import train

pytestmark = pytest.mark.slow

GRAPH = "synthetic:nodes=60,features=8,degree=4"
KEYS: Keys = {"dataset": GRAPH, "clients": 2, "rounds": 2, "hidden": 8, "model": "gcn"}


class Counted:
    """Trains nothing, and counts how often it was asked."""

    __name__ = "counted"

    def __init__(self) -> None:
        self.asked: list[Keys] = []

    def __call__(self, keys: Keys) -> Trained:
        self.asked.append(keys)
        return Trained(result={"test_accuracy": 0.5}, moved=[], history=[])


def test_each_training_is_done_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = Counted()
    monkeypatch.setattr("sims.kept.commit", lambda: "abc")
    cases = {"one": KEYS, "same": {**KEYS, "seed": 0}, "other": {**KEYS, "seed": 1}}
    first = train_all(Kept(tmp_path), cases, how)
    assert len(how.asked) == 2
    assert list(first) == ["one", "same", "other"]
    monkeypatch.setattr("sims.kept.commit", lambda: "def")
    again = Kept(tmp_path)
    assert train_all(again, cases, how) == first
    assert len(how.asked) == 2
    assert again.commits == "abc"


def test_the_way_of_training_decides_and_the_folder_does_not(
    tmp_path: Path,
) -> None:
    how, other = Counted(), Counted()
    other.__name__ = "otherwise"
    train_all(Kept(tmp_path), {0: {**KEYS, "data-dir": "here"}}, how)
    train_all(Kept(tmp_path), {0: {**KEYS, "data-dir": "there"}}, how)
    train_all(Kept(tmp_path), {0: KEYS}, other)
    assert (len(how.asked), len(other.asked)) == (1, 1)


def test_another_state_of_the_code_or_graph_file_trains_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how, data = Counted(), tmp_path / "data"
    data.mkdir()
    (data / "mine.npz").write_bytes(b"one")
    keys = {**KEYS, "dataset": "mine", "data-dir": str(data)}
    kept = tmp_path / "kept"
    for _ in range(2):
        train_all(Kept(kept), {0: keys}, how)
    assert len(how.asked) == 1
    (data / "mine.npz").write_bytes(b"another")
    train_all(Kept(kept), {0: keys}, how)
    assert len(how.asked) == 2
    monkeypatch.setattr("sims.kept.code_state", lambda: "another commit")
    train_all(Kept(kept), {0: keys}, how)
    assert len(how.asked) == 3
    other = {**keys, "weight-decay": 0.25}
    train_all(Kept(kept), {0: other}, how)
    assert len(how.asked) == 4


def test_the_state_of_the_code_is_its_commit_and_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *named, *words], check=True)

    def state() -> tuple[str, str]:
        commit.cache_clear()
        code_state.cache_clear()
        return commit(), code_state()

    monkeypatch.setattr("sims.origin._REPOSITORY", tmp_path)
    code, result = tmp_path / "sims" / "recipe.py", tmp_path / "sims" / "results" / "one.json"
    result.parent.mkdir(parents=True)
    code.write_text("a = 1\n")
    try:
        assert state()[0] == "unknown"
        git("init", "-q")
        result.write_text("{}")
        git("add", "-A")
        git("commit", "-q", "-m", "first")
        clean = state()
        assert len(clean[0]) == 12
        result.write_text("{1}")
        assert state() == clean
        code.write_text("a = 2\n")
        dirty = state()
        assert dirty[0] == f"{clean[0]}-dirty"
        code.write_text("a = 3\n")
        assert state()[0] == dirty[0]
        assert len({clean[1], dirty[1], state()[1]}) == 3
    finally:
        commit.cache_clear()
        code_state.cache_clear()


def test_a_training_of_another_process_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = Counted()
    train_all(Kept(tmp_path), {0: KEYS}, how)
    kept = next(tmp_path.glob("*.json"))
    content = kept.read_bytes()
    kept.unlink()
    with kept.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # What the other process does while this one waits.
        monkeypatch.setattr("sims.kept.time.sleep", lambda _: kept.write_bytes(content))
        found = train_all(Kept(tmp_path), {0: KEYS}, how)
    assert found[0].accuracy == 0.5
    assert len(how.asked) == 1


def test_kept_training_counts_what_its_run_directory_counts(tmp_path: Path) -> None:
    trained = train_all(Kept(tmp_path / "kept"), {0: KEYS})[0]
    run = train(tmp_path / "run", dataset=GRAPH, clients=2, rounds=2, hidden=8, model="gcn")
    volume = MeasuredVolume.of(run)
    assert trained.boundary("raw") == volume.boundary_training > 0
    assert trained.at_clients("raw") == volume.paper
    assert trained.vectors * (8 + 8) * 4 == volume.boundary_training
    assert [event["round"] for event in trained.history] == [1, 2, 1, 2]
    assert 0 <= trained.accuracy <= 1
