"""Reading run directories: whole, unfinished, resumed and damaged ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.errors import RunDirectoryError
from retexo_fl.report.read import read_run
from retexo_fl.run_log.course import StageCourse
from tests.unit.report.runs import (
    Recipe,
    events,
    result,
    write_events,
    write_run,
    write_status,
    write_unfinished,
)


def test_read_run_types_a_finished_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run-7", Recipe()))
    assert run.result is not None
    assert run.ledger is not None
    assert (run.name, run.state, run.notes) == ("run-7", "finished", ())
    assert run.result.volumes["payload"]["boundary"] == 285_000
    assert run.result.volumes["wire"]["boundary"] is None
    assert run.ledger.sum(kind="boundary", layer=1).payload == 95_000
    assert run.config["hidden-width"] == "64"
    assert [len(stage.points) for stage in run.course.stages] == [50, 50]
    assert run.course.moved_bytes == 3_629_000


def test_read_run_places_stages_on_bytes(tmp_path: Path) -> None:
    first, second = read_run(write_run(tmp_path, Recipe())).course.stages
    assert (first.start_bytes, exchanged(first)) == (0, 190_000)
    # 190,000 and 50 rounds of 33,440 bytes.
    assert (second.start_bytes, exchanged(second)) == (1_862_000, 1_957_000)
    assert first.best is not None
    assert first.best.round == 37


def exchanged(stage: StageCourse) -> int:
    assert stage.exchange is not None
    return stage.exchange.bytes_payload


def test_read_run_without_result_is_unfinished(tmp_path: Path) -> None:
    run = read_run(write_unfinished(tmp_path, Recipe(), rounds=21, state="interrupted"))
    assert run.result is None
    assert run.state == "interrupted"
    assert run.error is not None
    assert [len(stage.points) for stage in run.course.stages] == [50, 21]
    assert [stage.end is not None for stage in run.course.stages] == [True, False]
    assert not run.course.finished


def test_read_run_merges_attempts(tmp_path: Path) -> None:
    write_run(tmp_path, Recipe())
    course = events(Recipe())
    cut = next(i for i, e in enumerate(course) if e.get("stage") == 1 and e.get("round") == 30)
    resumed = [{**course[0], "attempt": 2}, *(_later(event) for event in course[cut - 4 :])]
    write_events(tmp_path, [*course[: cut + 1], *resumed])
    found = read_run(tmp_path).course
    assert [point.round for point in found.stages[1].points] == list(range(1, 51))
    assert found.stages[1].points[28].loss == 0.5  # round 29, as the second attempt had it
    assert found.stages[1].points[24].loss != 0.5
    assert found.attempts == 2
    # Stage 0 took 0.31 + 50 * 0.042, stage 1 until round 30 took 0.31 + 30 * 0.042; then 1.0.
    assert found.seconds == pytest.approx(2.41 + 1.57 + 1.0)


def _later(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "time_s": 1.0} | ({"loss": 0.5} if "loss" in event else {})


def test_read_run_refuses_other_directories(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('title = "a site"\n')
    with pytest.raises(RunDirectoryError, match=r"not a run directory, expected result\.json"):
        read_run(tmp_path)
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        read_run(tmp_path / "absent")
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        read_run(tmp_path / "config.toml")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("metrics.jsonl", '{"event": "round", '),
        ("metrics.jsonl", "[1, 2]"),
        ("metrics.jsonl", '{"stage": 0}'),
        ("metrics.jsonl", '{"event": "exchange", "stage": "0", "vectors": 1, "missing": 0}'),
        ("metrics.jsonl", '{"event": "exchange", "stage": true, "vectors": 1, "missing": 0}'),
        ("ledger.csv", "1,boundary,0,exchange"),
        ("ledger.csv", "1,boundary,0,exchange,0,1,out,many,1,1,1"),
    ],
)
def test_read_run_names_file_and_line_of_damage(tmp_path: Path, name: str, line: str) -> None:
    path = write_run(tmp_path, Recipe()) / name
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], line, *lines[3:]]) + "\n")
    with pytest.raises(RunDirectoryError, match=rf"{name}, line 4: ") as caught:
        read_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_read_run_names_line_of_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = write_run(tmp_path, Recipe()) / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], b"\xff\xfe\n", *lines[5:]]))
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl, line 6: damaged"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["result.json", "status.json", "config.toml"])
def test_read_run_names_damaged_file(tmp_path: Path, name: str) -> None:
    (write_run(tmp_path, Recipe()) / name).write_text('{"version": ')
    with pytest.raises(RunDirectoryError, match=rf"{name}: damaged"):
        read_run(tmp_path)


def test_read_run_passes_over_half_written_last_line(tmp_path: Path) -> None:
    path = write_unfinished(tmp_path, Recipe(), rounds=21, state="running") / "metrics.jsonl"
    path.write_text(path.read_text() + '{"event": "round", "sta')
    run = read_run(tmp_path)
    assert len(run.course.stages[1].points) == 21
    (note,) = run.notes
    assert re.fullmatch(r"The last line of metrics\.jsonl .*skipped\.", note)


def test_read_run_refuses_half_written_line_of_finished_run(tmp_path: Path) -> None:
    path = write_run(tmp_path, Recipe()) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"event": "round", "sta')
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl, line 107: damaged"):
        read_run(tmp_path)


def test_read_run_refuses_other_result_version(tmp_path: Path) -> None:
    path = write_run(tmp_path, Recipe()) / "result.json"
    path.write_text(json.dumps(result(Recipe()) | {"version": 2}))
    with pytest.raises(RunDirectoryError, match="result version 2, expected 1"):
        read_run(tmp_path)


def test_read_run_names_key_of_wrong_kind(tmp_path: Path) -> None:
    path = write_run(tmp_path, Recipe()) / "result.json"
    content = result(Recipe())
    content["client_table"][3]["nodes"] = "many"
    path.write_text(json.dumps(content))
    with pytest.raises(RunDirectoryError, match=r'client_table\[3\]: key \'nodes\' is "many"'):
        read_run(tmp_path)
    content["client_table"][3]["nodes"] = 3
    del content["bytes"]["raw"]["control"]
    path.write_text(json.dumps(content))
    with pytest.raises(RunDirectoryError, match="bytes, raw: key 'control' is absent"):
        read_run(tmp_path)


def test_read_run_reads_numbers_that_are_not_finite_as_unknown(tmp_path: Path) -> None:
    course = events(Recipe())
    course[2]["loss"] = float("nan")
    write_run(tmp_path, Recipe())
    write_events(tmp_path, course)
    assert read_run(tmp_path).course.stages[0].points[0].loss is None


def test_read_run_names_numbers_that_no_count_is(tmp_path: Path) -> None:
    path = write_run(tmp_path, Recipe()) / "result.json"
    whole = path.read_text()
    for key in ("seed", "missing_rows"):
        for digits in (400, 5000):  # Python's own limit of a number's digits is 4300.
            path.write_text(json.dumps(result(Recipe()) | {key: "?"}).replace('"?"', "9" * digits))
            with pytest.raises(RunDirectoryError, match=r"result\.json"):
                read_run(tmp_path)
    path.write_text(json.dumps(result(Recipe()) | {"absences": {"one": 3}}))
    with pytest.raises(RunDirectoryError, match="absences: key 'one', expected the index of a"):
        read_run(tmp_path)
    path.write_text(whole)
    ledger = tmp_path / "ledger.csv"
    ledger.write_text(ledger.read_text().replace(f",{190_000},", f",{'9' * 400},", 1))
    with pytest.raises(RunDirectoryError, match=r"ledger\.csv, line 2: damaged"):
        read_run(tmp_path)


@pytest.mark.parametrize("value", ["9" * 400, "1e301", "-1e308"])
def test_read_run_reads_numbers_beyond_all_charts_as_unknown(tmp_path: Path, value: str) -> None:
    course = events(Recipe())
    course[2]["loss"] = "?"
    write_run(tmp_path, Recipe())
    write_events(tmp_path, course)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().replace('"?"', value))
    assert read_run(tmp_path).course.stages[0].points[0].loss is None


def test_read_run_flattens_tables_of_the_configuration(tmp_path: Path) -> None:
    write_run(tmp_path, Recipe())
    (tmp_path / "config.toml").write_text("drop = true\n[links]\nrate = 3\n")
    assert read_run(tmp_path).config == {"drop": "true", "links.rate": "3"}


def test_read_run_notes_absent_files(tmp_path: Path) -> None:
    write_run(tmp_path, Recipe())
    for name in ("config.toml", "metrics.jsonl", "status.json", "ledger.csv"):
        (tmp_path / name).unlink()
    run = read_run(tmp_path)
    assert run.state == "finished"
    assert run.ledger is None
    assert [note.split()[0] for note in run.notes] == ["config.toml", "metrics.jsonl"]


def test_read_run_keeps_state_of_status(tmp_path: Path) -> None:
    write_run(tmp_path, Recipe())
    write_status(tmp_path, "failed", "RoundIncomplete: client 2")
    run = read_run(tmp_path)
    assert (run.state, run.error) == ("failed", "RoundIncomplete: client 2")
