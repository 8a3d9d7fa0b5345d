"""Reading a run directory, finished or not."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from retexo_fl.errors import RunDirectoryError
from retexo_fl.ledger import TrafficLedger
from retexo_fl.report.fields import Fields, parse_object
from retexo_fl.report.history import History, read_history
from retexo_fl.report.result import Result, parse_result


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything a report says about a run.

    Attributes:
        name: Name of the run directory.
        state: ``running``, ``finished``, ``failed``, ``interrupted`` or ``unknown``.
        error: What ended a failed run.
        config: Configuration keys and values, as text.
        result: None when the run was not finished.
        history: The course of the run.
        ledger: None when there is none.
        notes: What could not be read, for the reader of the report.
    """

    name: str
    state: str
    error: str | None
    config: Mapping[str, str]
    result: Result | None
    history: History
    ledger: TrafficLedger | None
    notes: tuple[str, ...]


def read_run(run_dir: Path) -> RunRecord:
    """Read a run directory.

    ``result.json``, ``metrics.jsonl``, ``ledger.csv``, ``config.toml`` and ``status.json`` may each
    be absent, but one of the first two must be there. The last line of a file that a stopped run
    left half written is passed over with a note.

    Args:
        run_dir: Directory of one run.

    Returns:
        The record.

    Raises:
        RunDirectoryError: No run is there, or a file is damaged; the message names file and line.
    """
    result_text, metrics = _text(run_dir / "result.json"), _text(run_dir / "metrics.jsonl")
    if result_text is None and metrics is None:
        raise RunDirectoryError(
            f"{run_dir}: not a run directory, expected result.json or metrics.jsonl in it"
        )
    notes: list[str] = []
    result = None
    if result_text is not None:
        result = parse_result(parse_object(result_text, str(run_dir / "result.json")))
    open_end = result is None
    state, error = _status(run_dir / "status.json", finished=result is not None)
    return RunRecord(
        name=run_dir.resolve().name,
        state=state,
        error=error,
        config=_config(run_dir / "config.toml", notes),
        result=result,
        history=read_history(_events(run_dir / "metrics.jsonl", metrics, notes, open_end=open_end)),
        ledger=_ledger(run_dir / "ledger.csv", notes, open_end=open_end),
        notes=tuple(notes),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise RunDirectoryError(f"{path}, line {line}: damaged, expected UTF-8 text") from error
    except OSError as error:
        raise RunDirectoryError(f"{path}: cannot be read ({error.strerror})") from error


def _lines(path: Path, text: str, notes: list[str], *, open_end: bool) -> Iterator[tuple[str, str]]:
    """Yield (place, line), without a half-written last line where ``open_end`` allows one."""
    lines = text.split("\n")
    torn = lines.pop()
    if torn and open_end:
        notes.append(f"The last line of {path.name} is half written and was passed over.")
    elif torn:
        lines.append(torn)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield f"{path}, line {number}", line


def _events(path: Path, text: str | None, notes: list[str], *, open_end: bool) -> Iterator[Fields]:
    if text is None:
        notes.append(f"{path.name} is absent: there are no curves.")
        return
    for place, line in _lines(path, text, notes, open_end=open_end):
        yield parse_object(line, place)


def _ledger(path: Path, notes: list[str], *, open_end: bool) -> TrafficLedger | None:
    text = _text(path)
    if not text:
        return None
    place = str(path)

    def tracked() -> Iterator[str]:
        nonlocal place
        for place, line in _lines(path, text, notes, open_end=open_end):  # noqa: B007
            yield line

    try:
        return TrafficLedger.from_csv(tracked())
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise RunDirectoryError(
            f"{place}: damaged, expected a line as the ledger writes it"
        ) from error


def _config(path: Path, notes: list[str]) -> dict[str, str]:
    text = _text(path)
    if text is None:
        notes.append(f"{path.name} is absent: the configuration is not known.")
        return {}
    try:
        return dict(_flat(tomllib.loads(text), ""))
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path}: damaged TOML ({error})") from error


def _flat(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            yield prefix + key, str(value).lower()
        else:
            yield prefix + key, str(value)


def _status(path: Path, *, finished: bool) -> tuple[str, str | None]:
    text = _text(path)
    if text is None:
        return ("finished" if finished else "unknown"), None
    fields = parse_object(text, str(path))
    error = None if fields.values.get("error") is None else fields.text("error")
    return fields.text("state"), error
