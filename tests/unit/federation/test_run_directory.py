from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.config import RunConfig
from retexo_fl.errors import RunDirectoryError
from retexo_fl.federation.checkpoints import Checkpoint
from retexo_fl.federation.run_directory import RunDirectory, check_free
from retexo_fl.ledger import SERVER, Account, TrafficLedger, Volume
from retexo_fl.run_log.events import RoundClosed, Started
from retexo_fl.run_log.log import EventLog

ACCOUNT = Account(
    attempt=1,
    kind="control",
    layer=0,
    purpose="train",
    client=0,
    peer=SERVER,
    direction="in",
)


def test_lost_rounds_are_told_as_spans(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "metrics.jsonl")
    for stage, number in ((0, 1), (0, 2), (0, 6), (1, 3)):
        log.record(
            RoundClosed(
                stage=stage,
                round=number,
                rounds=9,
                loss=None,
                val_loss=None,
                val_accuracy=None,
                best_round=None,
                bytes_payload=0,
            )
        )
    assert log.lacking({0: 7, 1: 3}) == [(0, 3, 5), (0, 7, 7), (1, 1, 2)]


@pytest.mark.parametrize("made", ["a file", "a folder with something in it"])
def test_a_place_that_is_taken_is_refused(tmp_path: Path, made: str) -> None:
    path = tmp_path / "run"
    if made == "a file":
        path.write_text("x")
    else:
        path.mkdir()
        (path / "notes.txt").write_text("x")
    with pytest.raises(RunDirectoryError, match="exists and is not an empty directory"):
        check_free(path)


def test_history_is_on_disk_before_the_checkpoint_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path / "run")
    run.create(RunConfig())
    forced: list[tuple[str, int]] = []
    force = os.fsync

    def fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        forced.append((name.partition(".")[0], os.fstat(descriptor).st_size))
        force(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    run.log.record(Started(clients=1, stages=1))
    ledger = TrafficLedger()
    for _ in range(2):
        run.checkpoints.write(Checkpoint(facts={}, tensors={"weights": np.zeros(3)}), ledger)
        ledger.add(ACCOUNT, Volume(messages=1))
    run.close()
    assert forced[0] == ("metrics", (run.path / "metrics.jsonl").stat().st_size)
    account = ["checkpoint-ledger-1", "run"]
    first = ["metrics", *account, "checkpoint", "run"]
    assert [name for name, _ in forced] == [*first, "metrics", account[0], "checkpoint", "run"]
