from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console

from retexo_fl.progress.prediction import PredictionTable
from retexo_fl.run_log.events import PREDICTION_EVENTS, event_of

COURSE: list[dict[str, Any]] = [
    {"event": "start", "clients": 5, "stages": 2, "bytes_payload": 100},
    {"event": "answers", "stage": 0, "step": "publish", "answers": 3, "bytes_payload": 900},
    {"event": "exchange", "stage": 0, "vectors": 1234, "missing": 0, "bytes_payload": 190_000},
    {"event": "answers", "stage": 1, "step": "publish", "answers": 2, "bytes_payload": 200_000},
    {"event": "exchange", "stage": 1, "vectors": 1234, "missing": 7, "bytes_payload": 380_000},
    {"event": "answers", "stage": 1, "step": "predict", "answers": 4, "bytes_payload": 380_100},
    {"event": "finish", "nodes": 1797, "bytes_payload": 380_200},
]


def shown(events: list[dict[str, Any]], *, terminal: bool, **options: Any) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80, height=30)
    with PredictionTable(
        partitions="parts\x1b[31m", model="gcn", engine="inline", console=console, **options
    ) as table:
        for values in events:
            event = event_of(values, "a test", PREDICTION_EVENTS)
            assert event is not None
            table.handle(event)
    return file.getvalue()


def screen(events: list[dict[str, Any]]) -> str:
    picture = shown(events, terminal=True).split("\x1b[2K")[-1]
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", picture).replace("\r", "")


def test_pipe_gets_a_line_for_each_exchange() -> None:
    lines = shown(COURSE, terminal=False).splitlines()
    assert lines[:3] == [
        "parts?[31m, gcn, 5 clients, engine inline",
        "exchange 0: closed, 1,234 vectors, 190 kB moved",
        "exchange 1: closed, 1,234 vectors, 7 missing, 380 kB moved",
    ]
    assert re.fullmatch(r"done: 1,797 nodes predicted, 380 kB moved in .* s", lines[3])
    assert len(lines) == 4


def test_terminal_shows_how_many_clients_have_answered() -> None:
    first = screen(COURSE[:2])
    assert re.search(r"^exchange 0 +working +3/5 ", first, re.M)
    assert re.search(r"^exchange 1 +waiting *$", first, re.M)
    assert "stopped" in first
    second = screen(COURSE[:4])
    assert re.search(r"^exchange 0 +done +5/5 .*1,234 vectors", second, re.M)
    assert re.search(r"^exchange 1 +working +2/5 ", second, re.M)
    assert re.search(r"^predict +waiting *$", second, re.M)
    assert re.search(r"^predict +working +4/5 ", screen(COURSE[:6]), re.M)
    last = screen(COURSE)
    assert re.search(r"^predict +done +5/5 .*1,797 nodes", last, re.M)
    assert "done: 1,797 nodes predicted, 380 kB moved in" in last
    assert "stopped" not in last
    assert max(len(line) for line in last.splitlines()) <= 80


def test_quiet_writes_nothing() -> None:
    for terminal in (True, False):
        assert shown(COURSE, terminal=terminal, quiet=True) == ""


def test_early_events_are_passed_over() -> None:
    assert shown(COURSE[1:], terminal=False) == ""
