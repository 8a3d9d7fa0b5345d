from __future__ import annotations

import json
from pathlib import Path

import pytest

from retexo_fl.api.flower_run import (
    LOG_NAME,
    EndWait,
    TrainingEnded,
    follow,
    mark_of,
    named_error,
)
from retexo_fl.errors import EngineFailed, PartitionError, RoundIncomplete, TrainingDiverged
from retexo_fl.run_log.events import Event, Finished
from retexo_fl.run_log.log import line_of

FAILURE = EngineFailed("the run failed: something\nfirst line\nlast line")


def write_status(run: Path, state: str, error: str | None) -> None:
    run.mkdir(exist_ok=True)
    partial = run / "status.json.part"
    partial.write_text(json.dumps({"state": state, "error": error}))
    partial.replace(run / "status.json")


def test_named_error_takes_the_error_that_the_server_app_left(tmp_path: Path) -> None:
    write_status(tmp_path / "run", "failed", "TrainingDiverged: round 3: not finite: at all")
    error = named_error(FAILURE, tmp_path / "run", None)
    assert type(error) is TrainingDiverged
    assert str(error) == "round 3: not finite: at all"
    assert not (tmp_path / "run" / LOG_NAME).exists()


def test_named_error_ignores_the_error_of_an_earlier_attempt(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_status(run, "failed", "TrainingDiverged: long ago")
    error = named_error(FAILURE, run, mark_of(run / "status.json"))
    assert type(error) is EngineFailed
    assert str(error) == f"the run failed: something (the end of its log: {run / LOG_NAME})"
    assert (run / LOG_NAME).read_text() == "the run failed: something\nfirst line\nlast line\n"
    assert json.loads((run / "status.json").read_text())["error"] == "TrainingDiverged: long ago"


@pytest.mark.parametrize(
    ("log", "kind", "sentence"),
    [
        (
            "Traceback\nretexo_fl.errors.PartitionError: part-1: gone\n",
            PartitionError,
            "part-1: gone",
        ),
        (
            "retexo_fl.errors.PartitionError: cause\n\nretexo_fl.errors.RoundIncomplete: effect",
            RoundIncomplete,
            "effect",
        ),
    ],
)
def test_named_error_reads_the_log_without_a_run_directory(
    tmp_path: Path, log: str, kind: type[Exception], sentence: str
) -> None:
    error = named_error(EngineFailed(f"the run failed: x\n{log}"), tmp_path / "run", None)
    assert type(error) is kind
    assert str(error) == sentence
    assert list(tmp_path.iterdir()) == []


def test_named_error_keeps_the_log_beside_an_unmade_directory(tmp_path: Path) -> None:
    log = "retexo_fl.errors.Nonesuch: x\nother.errors.PartitionError: y"
    error = named_error(EngineFailed(f"it ended\n{log}"), tmp_path / "runs" / "run", None)
    place = tmp_path / "runs" / "run.log"
    assert str(error) == f"it ended (the end of its log: {place})"
    assert place.read_text() == f"it ended\n{log}\n"
    assert not (tmp_path / "runs" / "run").exists()


def test_named_error_notes_that_a_running_run_has_failed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_status(run, "running", None)
    named_error(FAILURE, run, None)
    assert json.loads((run / "status.json").read_text()) == {
        "state": "failed",
        "error": "EngineFailed: the run failed: something",
    }


@pytest.mark.parametrize(("state", "kind"), [("failed", EngineFailed), ("finished", TrainingEnded)])
def test_flower_that_does_not_end_after_its_app_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, kind: type[Exception]
) -> None:
    run, now = tmp_path / "run", [100.0]
    monkeypatch.setattr("retexo_fl.api.flower_run.time.monotonic", lambda: now[0])
    write_status(run, state, None)  # of an earlier attempt
    wait = EndWait(run, mark_of(run / "status.json"))

    def passes(seconds: float) -> None:
        now[0] += seconds
        wait.look()

    passes(1000.0)
    write_status(run, "running", None)
    passes(1.0)
    passes(1000.0)
    write_status(run, state, None)
    passes(1.0)
    passes(29.0)
    with pytest.raises(kind):
        passes(2.0)


def test_follow_hands_on_whole_lines_once(tmp_path: Path) -> None:
    path, seen = tmp_path / "metrics.jsonl", list[Event]()
    look = follow(path, seen.append)
    look()
    first, second, third = (finished(moved) for moved in (1, 2, 3))
    with path.open("w") as file:
        for text, expected in (
            (f"{first}\n{second[:9]}", [1]),
            (second[9:], [1]),
            (f'\n{{"event": "of a later version"}}\n{third}\n', [1, 2, 3]),
        ):
            file.write(text)
            file.flush()
            look()
            assert seen == [Finished(bytes_payload=moved) for moved in expected]


def finished(moved_bytes: int) -> str:
    return line_of(Finished(bytes_payload=moved_bytes)).rstrip()


def test_follow_passes_over_what_was_there_and_survives_a_cut(tmp_path: Path) -> None:
    path, seen = tmp_path / "metrics.jsonl", list[Event]()
    path.write_text("".join(f"{finished(old)}\n" for old in (1, 2, 3)))
    look = follow(path, seen.append)
    look()
    assert seen == []
    path.write_text(f"{finished(1)}\n")
    look()
    with path.open("a") as file:
        file.write(f"{finished(4)}\n")
    look()
    assert seen == [Finished(bytes_payload=4)]
