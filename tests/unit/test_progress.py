"""The live table, on a terminal and in a pipe."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import pytest
from rich.console import Console

from retexo_fl.progress import LiveTable
from tests.unit.report.runs import Recipe, events, typed


def _console(*, terminal: bool, width: int = 80) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=width,
        height=30,
        color_system="standard" if terminal else None,
        legacy_windows=False,
    )


def _written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _shown(found: list[dict[str, Any]], *, terminal: bool, **names: str) -> str:
    console = _console(terminal=terminal)
    dataset = names.get("dataset", "digits")
    with LiveTable(dataset=dataset, model="sage", engine="inline", console=console) as table:
        for event in typed(found):
            table.handle(event)
    return _written(console)


def _screen(found: list[dict[str, Any]], **names: str) -> list[str]:
    """Return the lines of the last picture on a terminal."""
    written = _shown(found, terminal=True, **names)
    picture = written.split("\x1b[2K")[-1]
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", picture).replace("\r", "").splitlines()


def _resumed(recipe: Recipe) -> list[dict[str, Any]]:
    course = events(recipe)
    cut = next(i for i, e in enumerate(course) if e.get("stage") == 1 and e.get("round") == 30)
    return [{**course[0], "attempt": 2}, *course[cut:]]


def test_live_table_ends_with_every_stage_and_a_summary() -> None:
    lines = _screen(events(Recipe()))
    assert lines[0] == "digits, sage, 5 clients, engine inline"
    assert re.search(r"^0 +done +50/50 .*88\.0 % +1\.9 MB", "\n".join(lines), re.M)
    assert re.search(r"^1 +done +50/50 .*93\.0 % +3\.6 MB", "\n".join(lines), re.M)
    assert lines[-1] == ("done: test accuracy 91.4 %, validation 93.0 %, 3.6 MB moved in 4.82 s")


def test_live_table_shows_running_stage_with_time_left() -> None:
    text = "\n".join(_screen(events(Recipe())[:12]))  # start, exchange, 10 rounds
    # 40 rounds of 0.042 s are left.
    assert re.search(r"^0 +training +10/50 .* 2 s *$", text, re.M)
    assert re.search(r"^1 +waiting *$", text, re.M)
    assert "524 kB moved in" in text
    assert "stopped" in text


def test_live_table_shows_exchange_of_next_stage() -> None:
    text = "\n".join(_screen(events(Recipe())[:53]))  # until the end of stage 0
    assert re.search(r"^0 +done", text, re.M)
    assert re.search(r"^1 +exchange *$", text, re.M)


def test_open_exchange_is_a_line_that_says_who_lacks_what() -> None:
    waiting = {
        **{"event": "waiting", "time_s": 7600.0, "stage": 0, "round": 0, "purpose": "exchange"},
        **{"clients": [1, 4], "lacks": [1200, None], "open_s": 7500.0},
    }
    lines = _shown([*events(Recipe())[:1], waiting], terminal=False).splitlines()
    assert lines[-1] == (
        "stage 0: exchange open for 2 h 05 min: client 1 lacks 1200, client 4 does not answer"
    )
    many = {**waiting, "clients": list(range(13)), "lacks": [2] * 13}
    told = _shown([*events(Recipe())[:1], many], terminal=False).splitlines()[-1]
    assert told.endswith("client 9 lacks 2, and 3 clients more")


def test_live_table_fits_80_columns() -> None:
    recipe = Recipe(clients=1_000_000)
    found = events(recipe)
    for event in found:
        if event["event"] == "round":
            event |= {"rounds": 9999, "round": event["round"] + 9900, "loss": 12345.678}
            event |= {"val_accuracy": 1.0, "best_val_accuracy": 0.0001, "seconds": 7200.0}
            event |= {"bytes_payload": 999_400_000_000, "time_s": event["time_s"] * 1e6}
    lines = _screen(found[:-2], dataset="a" * 100)
    assert max(len(line) for line in lines) <= 80
    text = "\n".join(lines)
    assert "9950/9999" in text
    assert "100.0 %" in text
    assert "999 GB" in text
    assert len([line for line in lines if line.startswith(("0 ", "1 "))]) == 2


def test_what_is_longer_than_a_line_goes_on_in_the_next() -> None:
    found = events(Recipe(clients=1_000_000))
    found[0] |= {"metric": "balanced-accuracy"}
    lines = _screen(found[:4], dataset="synthetic:nodes=20000,degree=20,homophily=0.6")
    assert max(len(line) for line in lines) <= 80
    assert " ".join(line.strip() for line in lines[:2]) == (
        "synthetic:nodes=20000,degree=20,homophily=0.6, sage, 1,000,000 clients, engine inline, "
        "metric balanced-accuracy"
    )


def test_live_table_resumes_in_the_middle() -> None:
    text = "\n".join(_screen(_resumed(Recipe())[:3]))
    assert text.startswith("digits, sage, 5 clients, engine inline, attempt 2")
    assert re.search(r"^0 +done *$", text, re.M)
    assert re.search(r"^1 +training +31/50", text, re.M)


def test_a_stage_that_lost_patience_has_its_last_round_in_both_forms() -> None:
    """It has no event of its own, and the report counts it."""
    told = [
        {**event, "rounds": 13} if event["event"] == "stage_end" and not event["stage"] else event
        for event in events(Recipe())
        if event["event"] != "round" or event["stage"] or event["round"] < 13
    ]
    assert re.search(r"^0 +done +13/50 ", "\n".join(_screen(told)), re.M)
    assert re.search(r"^1 +done +50/50 ", "\n".join(_screen(told)), re.M)
    lines = _shown(told, terminal=False).splitlines()
    assert any(line.startswith("stage 0: done after 13 rounds, best round ") for line in lines)


def test_live_table_takes_unknown_accuracies() -> None:
    text = "\n".join(_screen(events(Recipe(accuracies=False))))
    assert "test accuracy -, validation -" in text


def test_live_table_keeps_up_without_flicker() -> None:
    console = _console(terminal=True)
    course = typed(events(Recipe(rounds=2000)))
    started_s = time.perf_counter()
    with LiveTable(dataset="d", model="m", engine="e", console=console) as table:
        for event in course:
            table.handle(event)
        handled_s = time.perf_counter() - started_s
    pictures = _written(console).count("engine e")
    assert len(course) > 2000
    assert pictures <= 8 * handled_s + 3


def test_live_table_leaves_errors_of_the_body() -> None:
    console = _console(terminal=True)

    def interrupted() -> None:
        with LiveTable(dataset="d", model="m", engine="e", console=console):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "stopped" in _written(console)


def test_live_table_in_a_pipe_writes_plain_lines() -> None:
    lines = _shown(events(Recipe()), terminal=False).splitlines()
    assert lines[0] == "digits, sage, 5 clients, engine inline"
    assert lines[1] == "stage 0: exchange closed, 1,234 vectors, 190 kB moved"
    assert lines[2].startswith("stage 0: round 1/50, ")
    assert lines[-2] == "stage 1: done, best round 37, validation 93.0 %, 3.6 MB moved"
    assert lines[-1].startswith("done: test accuracy 91.4 %")
    rounds = [
        re.findall(r"round (\d+)/50", line) for line in lines if line.startswith("stage 0: r")
    ]
    assert [int(found[0]) for found in rounds] == [1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50]


def test_live_table_in_a_pipe_writes_no_escape_codes() -> None:
    text = _shown(events(Recipe(missing=3)), terminal=False, dataset="a\x1b[31m\nb")
    assert "\x1b" not in text
    assert text.startswith("a?[31m?b, sage")
    assert "1,234 vectors, 3 missing" in text


def test_live_table_in_a_pipe_flushes_each_line() -> None:
    class Pipe(io.StringIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    pipe = Pipe()
    with LiveTable(dataset="d", model="m", engine="e", console=Console(file=pipe)) as table:
        table.handle(typed(events(Recipe()))[0])
        assert (pipe.getvalue().count("\n"), pipe.flushed) == (1, 1)


def test_live_table_in_a_narrow_encoding_replaces() -> None:
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with LiveTable(
        dataset="donn\xe9es", model="m", engine="e", console=Console(file=pipe)
    ) as table:
        table.handle(typed(events(Recipe()))[0])
    pipe.flush()
    assert isinstance(pipe.buffer, io.BytesIO)
    assert pipe.buffer.getvalue().startswith(b"donn\\xe9es, m")


def test_one_client_is_counted_as_one() -> None:
    head, *_ = _shown(events(Recipe(clients=1)), terminal=False).splitlines()
    assert head == "digits, sage, 1 client, engine inline"


def test_live_table_resumed_in_a_pipe_names_the_attempt() -> None:
    lines = _shown(_resumed(Recipe()), terminal=False).splitlines()
    assert lines[0].endswith("attempt 2")
    assert lines[1].startswith("stage 1: round 30/50")


@pytest.mark.parametrize("terminal", [True, False])
def test_live_table_quiet_writes_nothing(terminal: bool) -> None:
    console = _console(terminal=terminal)
    with LiveTable(dataset="d", model="m", engine="e", console=console, quiet=True) as table:
        for event in typed(events(Recipe())):
            table.handle(event)
    assert _written(console) == ""


def test_what_mini_batches_read_by_caches_is_a_line_of_its_stage() -> None:
    *before, end = events(Recipe())
    counts = {"batches": 3, "rows": 10, "hits": 4, "misses": 6, "gpu_bytes": 240, "cpu_bytes": 0}
    cached = {"event": "cached_rows", "stage": 1, "cached": counts, "bytes_payload": 3_600_000}
    said = "10 rows read in mini-batches, 4 cached (40.0 %), 6 not, 240 B copied to GPUs"
    found = [*before, cached, end]
    lines = _shown(found, terminal=False).splitlines()
    assert lines[-2] == f"stage 1: {said}, 3.6 MB moved"
    assert f"stage 1: {said}" in " ".join(line.strip() for line in _screen(found))
    assert "mini-batches" not in _shown([*before, end], terminal=True)


def test_live_table_says_nothing_of_events_for_the_report() -> None:
    assert _shown([{"event": "history_lost", "rounds": [[0, 1, 2]]}], terminal=False) == ""


def _short(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events of which rounds 12, 13 and 20 of stage 0 were closed without some clients."""
    absent = {12: [1], 13: [1], 20: [1, 3]}
    return [
        event | {"absent": absent[event["round"]]}
        if event.get("stage") == 0 and event.get("round") in absent
        else event
        for event in found
    ]


def test_rounds_without_some_clients_are_named_as_they_end_and_at_the_end() -> None:
    lines = _screen(_short(events(Recipe())))
    assert lines[-2] == "without some clients: stage 0 rounds 12-13, 20"
    told = _shown(_short(events(Recipe())), terminal=False).splitlines()
    assert [line.split(":")[1].split("/")[0] for line in told if "without" in line] == [
        " round 12",
        " round 20",
    ]
    assert "without clients 1, 3, " in "\n".join(told)
    assert not [line for line in _screen(events(Recipe())) if "without" in line]


def test_head_says_that_sums_are_masked() -> None:
    console = _console(terminal=False)
    with LiveTable(dataset="d", model="m", engine="e", masked=True, console=console) as table:
        for event in typed(events(Recipe())[:1]):
            table.handle(event)
    assert _written(console) == "d, m, 5 clients, engine e, masked sums\n"
