"""A training by Flower's simulation: input checked before Flower starts, its failures named."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retexo_fl import errors
from retexo_fl.config import RunConfig, Scalar, config_values, default_values
from retexo_fl.errors import ConfigurationError, EngineFailed, RetexoError
from retexo_fl.run_log.events import EVENTS, Event, event_of
from retexo_fl.run_log.json_form import parse_object
from retexo_fl.run_status import ACTIVE

if TYPE_CHECKING:
    from retexo_fl.graph.parts.partition import GraphPartition
    from retexo_fl.progress import LiveTable
    from retexo_fl.run_log.profile import ChosenProfile

logger = logging.getLogger(__name__)

#: Where the last lines of Flower's logs are kept when it fails.
LOG_NAME: Final = "flower.log"
#: From the end of its ServerApp to that of Flower, which takes some seconds.
_END_WITHIN_S: Final = 30.0
_TRACEBACK_END: Final = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.MULTILINE)


def run_on_flower(
    run_path: Path,
    make: Callable[[], tuple[RunConfig, list[GraphPartition], ChosenProfile | None]],
    table: LiveTable,
    listeners: Sequence[Callable[[Event], None]],
    *,
    overwrite: bool = False,
    ray_address: str = "",
) -> None:
    """Run Flower's simulation on parts that are cut here, so that bad input ends at once.

    Args:
        run_path: Where its results go.
        make: Returns the configuration, fitted to the parts, these, and the run's profile.
        table: A context in which the training takes place.
        listeners: Called with every event.
        overwrite: Replace a run that is there.
        ray_address: Of a Ray cluster that is there, which answers; empty for a private one.

    Raises:
        RetexoError: A failure of the training, of the class that its ServerApp raised.
        EngineFailed: Flower itself failed; the message points to the end of its log.
    """
    from retexo_fl.client.factory import PARTS_NAME
    from retexo_fl.client.preparation import keep_recipe
    from retexo_fl.graph.parts.storage import write_partitions
    from retexo_fl.simulation.flower_bundle import training_apps, with_folders
    from retexo_fl.simulation.flower_engine import run_flower_simulation

    def handle(event: Event) -> None:
        for listener in listeners:
            listener(event)

    with _scratch(run_path, ray_address) as scratch_name:
        scratch = Path(scratch_name)
        config, parts, profile = make()
        # Of the configuration, which is replayed, only what the user said of them is part.
        folder = Path(config.partitions).absolute() if config.partitions else scratch / PARTS_NAME
        if not config.partitions:
            write_partitions(parts, folder)
        recipe = parts[0].recipe
        del parts
        before = mark_of(run_path / "status.json")
        with table:
            look = follow(run_path / "metrics.jsonl", handle)
            wait = EndWait(run_path, before)

            def tick() -> None:
                look()
                wait.look()

            try:
                run_flower_simulation(
                    _not_by_default(config),
                    num_clients=config.clients,
                    tick=tick,
                    apps=with_folders(
                        training_apps(profile, overwrite=overwrite), scratch=scratch, parts=folder
                    ),
                    ray_address=ray_address,
                )
            except TrainingEnded:
                logger.warning("Flower did not end after the training, and was ended")
            except EngineFailed as failure:
                is_new = not config.resume
                raise named_error(failure, run_path, before, is_new=is_new) from failure
            except KeyboardInterrupt:
                note_end(run_path, before, "interrupted", None)
                raise
        keep_recipe(recipe, run_path)


class TrainingEnded(Exception):
    """A training has finished, and Flower's processes are still there."""


class EndWait:
    """Bounds the time that Flower takes to end after its ServerApp has ended.

    It waits for its workers without limit, such as for one on a node that Ray has lost.

    Args:
        run_path: Run directory.
        before: :func:`mark_of` its ``status.json`` when this attempt began.
    """

    def __init__(self, run_path: Path, before: object) -> None:
        self._path = run_path
        self._before = before
        self._known: object = before
        self._ended_s: float | None = None

    def look(self) -> None:
        """Note when the ServerApp has written how it ended.

        Raises:
            EngineFailed: It failed some time ago; the status says of what.
            TrainingEnded: It finished some time ago.
        """
        mark = mark_of(self._path / "status.json")
        if mark not in {self._before, self._known, None}:
            self._known = mark
            self._ended_s = None if state_of(self._path) in ACTIVE else time.monotonic()
        if self._ended_s is None or time.monotonic() - self._ended_s < _END_WITHIN_S:
            return
        if state_of(self._path) == "finished":
            raise TrainingEnded
        raise EngineFailed(f"Flower did not end within {_END_WITHIN_S:g} s of its ServerApp")


def _not_by_default(config: RunConfig) -> dict[str, Scalar]:
    """Return the keys that a run has otherwise: Flower copies all it is given with each message."""
    by_default = default_values()
    return {key: value for key, value in config_values(config).items() if value != by_default[key]}


def _scratch(run_path: Path, ray_address: str) -> tempfile.TemporaryDirectory[str]:
    """Make a folder for what clients share: on a cluster beside the run, which its nodes have."""
    if not ray_address:
        return tempfile.TemporaryDirectory(prefix="retexo-")
    try:
        run_path.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=f".{run_path.name}.", dir=run_path.parent)
    except OSError as error:
        raise ConfigurationError(
            f"out: {run_path.parent} cannot be written to ({error.strerror}); expected a folder "
            "that all nodes of the Ray cluster have"
        ) from error


def named_error(
    failure: EngineFailed, run_path: Path, before: object, *, is_new: bool = False
) -> RetexoError:
    """Return the error that ended a run in Flower's processes, in one line.

    Args:
        failure: The error of Flower's engine: a line, then the end of its log.
        run_path: Run directory; it may not have been made.
        before: :func:`mark_of` its ``status.json`` when this attempt began.
        is_new: A directory that has this status still is of another run, to be left alone.

    Returns:
        The error of the ServerApp if it left one in ``status.json`` or in the log; otherwise an
        ``EngineFailed`` that points to a file with the log.
    """
    first, _, log = str(failure).partition("\n")
    told = _told_error(run_path, before) or _logged_error(log)
    if told is not None:
        return told
    note_end(run_path, before, "failed", f"EngineFailed: {first}")
    is_there = run_path.is_dir() and not (
        is_new and before is not None and mark_of(run_path / "status.json") == before
    )
    place = run_path / LOG_NAME if is_there else run_path.with_name(f"{run_path.name}.log")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{first}\n{log}\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        return EngineFailed(f"{first} (its log could not be kept: {error.strerror})")
    return EngineFailed(f"{first} (the end of its log: {place})")


def _told_error(run_path: Path, before: object) -> RetexoError | None:
    """Return the error in ``status.json``, if this attempt wrote one that has a name."""
    path = run_path / "status.json"
    if mark_of(path) == before:
        return None
    status = json.loads(path.read_text(encoding="utf-8"))
    name, _, sentence = str(status["error"] or "").partition(": ")
    return _of_name(name, sentence)


def _logged_error(log: str) -> RetexoError | None:
    """Return the named error that a log ends with: one from before there was a run directory."""
    found = _TRACEBACK_END.findall(log)
    return _of_name(*found[-1]) if found else None


def _of_name(name: str, sentence: str) -> RetexoError | None:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, RetexoError):
        return kind(sentence)
    return None


def note_end(run_path: Path, before: object, state: str, error: str | None) -> None:
    """Write how the run ended, if its ServerApp was ended before it could."""
    from retexo_fl.federation.run_directory import RunDirectory

    if mark_of(run_path / "status.json") == before or state_of(run_path) not in ACTIVE:
        return
    RunDirectory(run_path).write_status(state, error)


def state_of(run_path: Path) -> str:
    """Return the state in the ``status.json`` of a run."""
    return status_of(run_path)[0]


def status_of(run_path: Path) -> tuple[str, str]:
    """Return the state and the reason, or nothing, in the ``status.json`` of a run."""
    status = json.loads((run_path / "status.json").read_text(encoding="utf-8"))
    return str(status["state"]), str(status["error"] or "")


def mark_of(path: Path) -> tuple[int, int] | None:
    """Return something that changes when a file is replaced; None where there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def follow(
    path: Path,
    handle: Callable[[Event], None],
    *,
    kinds: Mapping[str, type[Event]] = EVENTS,
    begin: int | None = None,
) -> Callable[[], None]:
    """Return a function that passes on the events which a file has gained since its last call.

    The first call passes on what is new since now, or what lies beyond ``begin`` bytes. Of a file
    that has taken the place of another, all is new.
    """
    known = path.stat() if path.exists() else None
    position = (0 if known is None else known.st_size) if begin is None else begin

    def look() -> None:
        nonlocal known, position
        if not path.exists():
            return
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if known is not None and not os.path.samestat(found, known):
                position = 0
            known = found
            # A resumed run cuts its history back to the checkpoint before it continues.
            file.seek(min(position, path.stat().st_size))
            lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            position = file.tell() - len(lines) + len(whole)
        for line in whole.decode().splitlines():
            event = event_of(parse_object(line, str(path)), str(path), kinds)
            if event is not None:
                handle(event)

    return look
