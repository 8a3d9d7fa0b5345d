"""The ServerApp of an inference whose clients, on machines of their own, keep what they predict.

A folder of the server holds the last attempt's ``status.json`` and ``events.jsonl`` and, of the
last complete set, ``predictions.json``: whose model, how many nodes, how many of them right. Each
client notes beside its file which job made it. A set is complete where every client still has the
file of the job that the summary names; then it is not made again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from retexo_fl.client.api import PredictedAnswer, PredictedRequest, Ticket
from retexo_fl.config import RunConfig, make_config
from retexo_fl.errors import ConfigurationError, RunDirectoryError
from retexo_fl.federation import records
from retexo_fl.federation.asking import Messenger, WaitPolicy
from retexo_fl.federation.checkpoints import replace_file
from retexo_fl.federation.ending import noted_ending
from retexo_fl.federation.prediction_app import EVENTS_NAME, PredictionTask
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.file_lock import locked_folder
from retexo_fl.ledger import TrafficLedger
from retexo_fl.methods.predict.script import PredictionLoop
from retexo_fl.outlet import standard_error
from retexo_fl.progress.prediction import PredictionTable
from retexo_fl.run_log.events import Event
from retexo_fl.run_log.log import line_of
from retexo_fl.run_status import write_status

SUMMARY_NAME: Final = "predictions.json"
#: Raised when the meaning of the summary changes.
_SUMMARY_VERSION: Final = 1
_SET_NAME_DIGITS: Final = 16
#: A ServerApp outlives its SuperLink by half a minute.
_FREE_WITHIN_S: Final = 60.0
#: What a summary must hold for its set to be the one that is asked for.
_IDENTITY: Final = ("model_digest", "missing_peers", "format")


@dataclass(frozen=True, slots=True, kw_only=True)
class InPlaceTask(PredictionTask):
    """What a ServerApp is to predict with.

    Attributes:
        overwrite: Make a set again that is complete, and replace one that is of something else.
    """

    overwrite: bool = False


def make_prediction_in_place_app(task: InPlaceTask) -> ServerApp:
    """Return a ServerApp whose run is one inference; its progress goes to Flower's log."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = make_config(dict(context.run_config))
        table = PredictionTable(
            partitions="parts in place",
            model=config.model,
            engine=config.engine,
            console=standard_error(force_terminal=False),
        )
        predict_in_place(grid, config, task, [table.handle])

    return app


def predict_in_place(
    grid: Grid,
    config: RunConfig,
    task: InPlaceTask,
    listeners: Sequence[Callable[[Event], None]] = (),
) -> dict[str, Any]:
    """Have all clients predict, unless they did; return the summary.

    Args:
        grid: The way to the clients.
        config: That of the run, with the clients and the policies of this inference.
        task: What to predict with.
        listeners: Called with every event.

    Raises:
        RunDirectoryError: The run cannot be read, or the server's folder not be used.
        ConfigurationError: The folder holds other predictions.
        RetexoError: As :meth:`.PredictionLoop.run`.
    """
    folder = Path(task.folder)
    _make(folder)
    with locked_folder(folder, within_s=_FREE_WITHIN_S):
        (folder / EVENTS_NAME).unlink(missing_ok=True)
        _note(folder, "running")
        with noted_ending(lambda reason: _note(folder, "interrupted", reason)) as ending:
            try:
                summary = _predict(grid, config, task, listeners)
            except Exception as error:
                _note(folder, "failed", f"{type(error).__name__}: {error}")
                raise
            except BaseException:
                # Ctrl-C, or Flower ends its ServerApp.
                _note(folder, "interrupted", ending.reason)
                raise
        _note(folder, "finished")
    return summary


def _make(folder: Path) -> None:
    if (folder / "config.toml").exists():
        raise ConfigurationError(f"out: {folder} is a run; expected another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(f"out: {folder} cannot be made ({error.strerror})") from error


def _note(folder: Path, state: str, error: str | None = None) -> None:
    try:
        write_status(folder, state, error)
    except OSError as problem:
        # What ended it must not be hidden by a second complaint.
        if error is None and state != "interrupted":
            raise RunDirectoryError(
                f"out: {folder} cannot be written to ({problem.strerror})"
            ) from problem


def _predict(
    grid: Grid,
    config: RunConfig,
    task: InPlaceTask,
    listeners: Sequence[Callable[[Event], None]],
) -> dict[str, Any]:
    # Whoever makes the app has read the model before, and asked where plug-ins were named.
    model = read_trained_model(Path(task.run), allow_plugins=True)
    path = Path(task.folder) / SUMMARY_NAME
    identity = {
        "model_digest": model.digest,
        "missing_peers": config.missing_peers,
        "format": task.form,
    }
    known = None if task.overwrite else _known(path, identity)
    set_name = model.digest[:_SET_NAME_DIGITS]
    if known is not None and _is_complete(grid, config, known, set_name):
        return known

    def tell(event: Event) -> None:
        with path.with_name(EVENTS_NAME).open("a", encoding="utf-8") as file:
            file.write(line_of(event))
        for listener in listeners:
            listener(event)

    loop = PredictionLoop(
        grid=grid, config=config, model=model, form=task.form, tell=tell, set_name=set_name
    )
    outcome = loop.run()
    facts = outcome.facts()
    summary = {
        "version": _SUMMARY_VERSION,
        **model.facts(),
        "clients": config.clients,
        "engine": config.engine,
        **identity,
        "set": set_name,
        "job": outcome.job,
        "nodes": sum(facts.pop("nodes").values()),
        **facts,
    }
    replace_file(path, f"{json.dumps(summary, indent=1)}\n".encode())
    return summary


def _known(path: Path, identity: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the summary that is there, if it is of this identity.

    Raises:
        ConfigurationError: It is of another, or damaged.
    """
    advice = "expected another folder (--out), or --overwrite"
    try:
        summary = json.loads(path.read_bytes())
        told = {name: summary[name] for name in _IDENTITY}
        str(summary["job"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"out: {path} is damaged; {advice}") from error
    for name, value in identity.items():
        if told[name] != value:
            raise ConfigurationError(
                f"out: {path} is of other predictions ({name.replace('_', '-')} "
                f"{str(told[name])[:40]!r}, not {value!r}); {advice}"
            )
    found: dict[str, Any] = summary
    return found


def _is_complete(grid: Grid, config: RunConfig, known: Mapping[str, Any], set_name: str) -> bool:
    """Ask every client whether it has what the job of a summary predicted."""
    request = PredictedRequest(
        ticket=Ticket(job=str(known["job"]), attempt=1),
        form=str(known["format"]),
        set_name=set_name,
    )
    messenger = Messenger(grid, ledger=TrafficLedger(), policy=WaitPolicy.for_all(config))
    asked = messenger.ask_whoever_comes(request, count=config.clients, purpose="predicted")
    answers = [records.read_answer(PredictedAnswer, reply) for _, reply in asked]
    there = {answer.client for answer in answers if answer.is_there}
    return there == {*range(config.clients)}
