"""What `retexo run --superlink` says of the end of a run."""

from __future__ import annotations

import json
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.cli import deployed_run
from retexo_fl.cli.deployed_run import _judge, _Watch, _watch_to_end
from retexo_fl.cli.superlink import RunState
from retexo_fl.errors import EngineFailed
from retexo_fl.progress import LiveTable

_WAITING = {"event": "waiting", "stage": 0, "purpose": "train.layer", "clients": [0]}
_UNKNOWN = RunState(status="finished:failed", details="Task failed with\nunknown error.")


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        ("interrupted", None, "^the run .*stopped.*SuperLink"),
        ("interrupted", "the SuperLink is gone", "^the SuperLink is gone$"),
        ("failed", None, r"finished:failed: Task failed with unknown error\.$"),
    ],
)
def test_a_run_that_lost_its_superlink_is_told_from_a_failed_one(
    tmp_path: Path, state: str, reason: str | None, told: str
) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"state": state, "error": reason}))
    table = LiveTable(dataset="parts", model="sage", engine="deployment", quiet=True)
    with ExitStack() as stack:
        watch = _Watch(run_path=tmp_path, before=None, table=table, quiet=True, stack=stack)
        with pytest.raises(EngineFailed, match=told):
            _judge(_UNKNOWN, watch)


class _Asked:
    """Stands for a SuperLink, and counts what each question would cost a program's start."""

    def __init__(self) -> None:
        self.times = 0

    def state(self, run_id: str) -> RunState:
        del run_id
        self.times += 1
        return RunState(status="finished:completed", details="")


@pytest.mark.parametrize(
    ("is_heard_of", "log_s", "times"),
    [(True, 0, 0), (False, 0, 1), (False, 20, 0)],
    ids=["heard of", "silent", "silent, with a log that is open"],
)
def test_a_superlink_is_asked_only_once_its_run_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_heard_of: bool, log_s: int, times: int
) -> None:
    monkeypatch.setattr(deployed_run, "_ASK_AFTER_S", 1.0)
    monkeypatch.setattr(deployed_run, "_END_GRACE_S", 0.0)
    superlink: Any = _Asked()
    table = LiveTable(dataset="parts", model="sage", engine="deployment", quiet=True)
    over = threading.Event()

    status, history = tmp_path / "status.json", tmp_path / "metrics.jsonl"

    def write() -> None:
        for _ in range(30):
            if not over.wait(0.1) and is_heard_of:
                with history.open("a") as file:
                    file.write(f"{json.dumps(_WAITING)}\n")
        status.write_text(json.dumps({"state": "finished", "error": None}))

    status.write_text(json.dumps({"state": "running", "error": None}))
    with ExitStack() as stack:
        watch = _Watch(run_path=tmp_path, before=None, table=table, quiet=True, stack=stack)
        log = subprocess.Popen(["sleep", str(log_s)])
        stack.callback(log.wait)
        stack.callback(log.kill)
        (tmp_path / "run.log").touch()
        watch.follow_log(tmp_path / "run.log", log)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            _watch_to_end(superlink, "1", watch)
        finally:
            over.set()
            writer.join()
    assert superlink.times == times
