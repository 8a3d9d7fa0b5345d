"""Reading a run directory, finished or not."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from retexo_fl.errors import ConfigurationError, RunDirectoryError
from retexo_fl.files import read_toml
from retexo_fl.ledger import TrafficLedger
from retexo_fl.run_log.course import RunCourse
from retexo_fl.run_log.events import Event, event_of
from retexo_fl.run_log.json_form import parse_object, read
from retexo_fl.run_log.result import Result, read_result


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything a report shows of a run.

    Attributes:
        name: Name of the run directory.
        state: ``running``, ``finished``, ``failed``, ``interrupted`` or ``unknown``.
        error: What ended a failed run.
        config: Configuration keys and values, as text.
        result: None when the run was not finished.
        course: The course of the run.
        ledger: None when there is none.
        notes: What could not be read, for the reader of the report.
        classes: Names of the classes, where they have others than their numbers from 0.
    """

    name: str
    state: str
    error: str | None
    config: Mapping[str, str]
    result: Result | None
    course: RunCourse
    ledger: TrafficLedger | None
    notes: tuple[str, ...]
    classes: tuple[str, ...] = ()

    def named(self, key: str, default: str = "") -> str:
        """Return what the result says of a key, or the configuration of a run that has none."""
        if self.result is None:
            return self.config.get(key, default)
        return str(getattr(self.result, key))


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
        result = read_result(result_text, str(run_dir / "result.json"))
    open_end = result is None
    state, error = _status(run_dir / "status.json", finished=result is not None)
    return RunRecord(
        name=run_dir.resolve().name,
        state=state,
        error=error,
        config=_config(run_dir / "config.toml", notes),
        result=result,
        course=RunCourse.of(_events(run_dir / "metrics.jsonl", metrics, notes, open_end=open_end)),
        ledger=_ledger(run_dir / "ledger.csv", notes, open_end=open_end),
        notes=tuple(notes),
        classes=_classes(run_dir / "recipe.toml"),
    )


def _classes(recipe: Path) -> tuple[str, ...]:
    """Return the names of classes that a recipe holds, if there is one; it is read as text."""
    try:
        return tuple(map(str, read_toml(recipe).get("classes", ())))
    except ConfigurationError:
        return ()


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
        notes.append(f"The last line of {path.name} is incomplete and was skipped.")
    elif torn:
        lines.append(torn)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield f"{path}, line {number}", line


def _events(path: Path, text: str | None, notes: list[str], *, open_end: bool) -> Iterator[Event]:
    if text is None:
        notes.append(f"{path.name} is absent: there are no curves.")
        return
    for place, line in _lines(path, text, notes, open_end=open_end):
        event = event_of(parse_object(line, place), place)
        if event is not None:
            yield event


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
    except (ValueError, csv.Error) as error:
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
    status = read(_Status, parse_object(text, str(path)), str(path))
    return status.state, status.error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Status:
    state: str
    error: str | None = None
