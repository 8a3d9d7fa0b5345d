"""The ServerApp of an inference, and the files in which it reports how that went.

They lie in a folder of the server: ``events.jsonl`` grows while the clients work, ``outcome.json``
comes at the end and holds the result, or the named error that ended it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from retexo_fl import errors
from retexo_fl.config import make_config
from retexo_fl.errors import EngineFailed, RetexoError
from retexo_fl.federation.checkpoints import replace_file
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.methods.predict.script import PredictionLoop
from retexo_fl.run_log.events import Event
from retexo_fl.run_log.log import line_of

EVENTS_NAME: Final = "events.jsonl"
_OUTCOME_NAME: Final = "outcome.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionTask:
    """What a ServerApp is to predict with.

    Attributes:
        run: Directory of the finished run.
        folder: Existing folder for the server's own files; clients write elsewhere.
        form: What clients write: ``csv``, ``parquet`` or ``npz``.
    """

    run: str
    folder: str
    form: str


def make_prediction_app(
    task: PredictionTask, listeners: Sequence[Callable[[Event], None]] = ()
) -> ServerApp:
    """Return a ServerApp whose run is one inference.

    Args:
        task: What to predict with.
        listeners: Called with every event, for callers in the same process.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = make_config(dict(context.run_config))
        folder = Path(task.folder)

        def tell(event: Event) -> None:
            with (folder / EVENTS_NAME).open("a", encoding="utf-8") as file:
                file.write(line_of(event))
            for listener in listeners:
                listener(event)

        # Whoever makes this app has read the model before, and asked where plug-ins were named.
        model = read_trained_model(Path(task.run), allow_plugins=True)
        loop = PredictionLoop(grid=grid, config=config, model=model, form=task.form, tell=tell)
        try:
            _write_outcome(folder, loop.run().facts())
        except RetexoError as error:
            _write_outcome(folder, {"error": [type(error).__name__, str(error)]})
            raise

    return app


def read_outcome(folder: Path) -> dict[str, Any]:
    """Return :meth:`PredictionOutcome.facts` of the inference whose server wrote to ``folder``.

    Raises:
        RetexoError: The named error that ended it.
        EngineFailed: It ended without a word.
    """
    try:
        facts: dict[str, Any] = json.loads((folder / _OUTCOME_NAME).read_bytes())
    except FileNotFoundError as error:
        raise EngineFailed("the ServerApp ended without a result") from error
    if "error" in facts:
        name, sentence = facts["error"]
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, RetexoError):
            raise kind(sentence)
        raise EngineFailed(f"{name}: {sentence}")
    return facts


def _write_outcome(folder: Path, facts: dict[str, Any]) -> None:
    replace_file(folder / _OUTCOME_NAME, json.dumps(facts).encode())
