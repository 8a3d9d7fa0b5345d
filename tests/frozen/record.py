"""``python -m tests.frozen.record FOLDER WORDS...``: carry cases out, and note what passed.

Writes ``FOLDER/NUMBER.json`` for each case with one of the words in its name: for each attempt,
every message with its answer, every block between clients of this process, and what was left on
disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Final

# Before torch is imported: its own threads would add up in another order.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from flwr.app import Message

from retexo_fl import errors
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.config import config_values, make_config
from retexo_fl.errors import RetexoError
from retexo_fl.federation.prediction_app import PredictionTask
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.graph import GraphPartition
from retexo_fl.ledger import SERVER
from retexo_fl.simulation.inline_engine import predict_inline
from tests.frozen.cases import TRAIN, Case, cases
from tests.frozen.taps import Place, Tap, tapped
from tests.support.agents import AgentProcess, agents, train_with
from tests.support.fickle_grid import FickleGrid
from tests.support.fickle_training import node_of, train_on_fickle_grid
from tests.support.limits import PERMISSIVE
from tests.support.predictions import files_in
from tests.support.recorded_grid import KEYS, write_graphs
from tests.support.runs import configured, train

#: A server of a deployment knows of no files.
_NO_GRAPH: Final[dict[str, Any]] = {"dataset": "digits"}


class Recorder:
    """Carries cases out, in a folder of its own.

    Args:
        folder: For graphs, runs and agents.
        closing: Ends the agents.
    """

    def __init__(self, folder: Path, closing: ExitStack) -> None:
        self._folder, self._closing = folder, closing
        write_graphs(folder)

    def record(self, case: Case) -> dict[str, Any]:
        """Return what passed in a case, attempt by attempt."""
        between_agents = case.engine == "agents"
        if between_agents:
            self._agents  # noqa: B018 - their keys are drawn by themselves
        out = self._folder / hashlib.sha256(case.name.encode()).hexdigest()[:12]
        if case.engine == "prediction":
            self._train(case, out, {})
        attempts: list[dict[str, Any]] = []
        with tapped(case.name) as tap:
            tap.before = stopping(case)
            ended = self._carry_out(case, out, {})
            attempts.append(noted(tap, ended, between_agents=between_agents))
            tap.before = lambda place: None
            if ended.startswith(KeyboardInterrupt.__name__):
                ended = self._carry_out(case, out, {"resume": str(out)})
                attempts.append(noted(tap, ended, between_agents=between_agents))
        return {
            "case": case.name,
            "keys": {key: str(value) for key, value in case.keys.items()},
            "only_sizes": case.only_sizes,
            "attempts": attempts,
            "left": left_in(out, between_agents=between_agents),
        }

    def _carry_out(self, case: Case, out: Path, more: dict[str, Any]) -> str:
        """Return how an attempt ended: empty where it came to its end."""
        engines: dict[str, Callable[[Case, Path, dict[str, Any]], None]] = {
            "process": self._train,
            "fickle": self._train_fickle,
            "agents": self._train_with_agents,
            "prediction": self._predict,
        }
        try:
            engines[case.engine](case, out, more)
        except (RetexoError, KeyboardInterrupt) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _train(self, case: Case, out: Path, more: dict[str, Any]) -> None:
        train(out, data_dir=self._folder, **{**case.keys, **more})

    def _train_fickle(self, case: Case, out: Path, more: dict[str, Any]) -> None:
        config = configured(out, **{**case.keys, **self._graph(case), **more})
        stores: list[MemoryStore] = []
        made = MemoryStore.__init__

        def init(self: MemoryStore) -> None:
            made(self)
            stores.append(self)

        def change(grid: FickleGrid, message: Message) -> None:
            place = Place.of(message)
            where = (place.stage, place.round) if place.kind == TRAIN else None
            what, client = case.happens.get(where, ("", -1))
            grid.weather.mute = {node_of(client)} if what == "late" else set()
            grid.weather.away = {node_of(client)} if what == "away" else set()
            if what == "forgets" and place.client == client:
                # Clients are made in order, at their first message.
                stores[client]._held.clear()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryStore, "__init__", init)
            train_on_fickle_grid(config, self._parts(case), change)

    def _train_with_agents(self, case: Case, out: Path, more: dict[str, Any]) -> None:
        train_with(self._agents, configured(out, **{**case.keys, **_NO_GRAPH, **more}))

    def _predict(self, case: Case, out: Path, more: dict[str, Any]) -> None:
        del more  # A prediction begins anew.
        values = config_values(read_trained_model(out).config)
        config = make_config({**values, "data-dir": str(self._folder)})
        folder, predictions = out / "prediction", out / "predictions"
        for made in (folder, predictions):
            made.mkdir(exist_ok=True)
        task = PredictionTask(run=str(out), folder=str(folder), form="npz")
        predict_inline(config, self._parts(case), task, predictions=predictions)

    def _parts(self, case: Case) -> list[GraphPartition]:
        keys = {**case.keys, "engine": "inline", "data_dir": self._folder}
        return make_parts(configured(Path("unused"), **keys))

    def _graph(self, case: Case) -> dict[str, Any]:
        return _NO_GRAPH if case.keys.get("engine") == "deployment" else {"data_dir": self._folder}

    @cached_property
    def _agents(self) -> list[AgentProcess]:
        parts = make_parts(configured(Path("unused"), **KEYS, data_dir=self._folder))
        made = agents(self._folder / "agents", parts, settings=PERMISSIVE)
        return self._closing.enter_context(made)


def stopping(case: Case) -> Callable[[Place], None]:
    """Return what presses Ctrl-C where the case says so."""

    def stop(place: Place) -> None:
        if (place.kind, place.stage, place.round) == case.stops_at:
            raise KeyboardInterrupt

    return stop


def noted(tap: Tap, ended: str, *, between_agents: bool) -> dict[str, Any]:
    """Return what passed in an attempt, and forget it."""
    messages, blocks = tap.messages, sorted(tap.blocks)
    tap.messages, tap.blocks = [], []
    if between_agents:
        # Who was asked again until vectors had come says the same then, sooner or later.
        places = {(item["kind"], item["client"], item["group"]): item for item in messages}
        messages = list(places.values())
    return {"ended": ended, "messages": messages, "blocks": blocks}


def left_in(run: Path, *, between_agents: bool) -> dict[str, Any]:
    """Return digests of weights and predictions, and the lines of the account.

    Of agents only what they moved between them: the rest says how often they were asked again.
    """
    if not run.exists():
        return {}
    contents = files_in(run)
    files = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in contents.items()
        if name.startswith(("model/", "predictions/")) and not name.endswith(".json")
    }
    lines = contents.get("ledger.csv", b"").decode().splitlines()
    if between_agents:
        peer = lines[0].split(",").index("peer")
        lines = [line for line in lines if line.split(",")[peer] != str(SERVER)]
    return {"files": files, "ledger": lines}


def main(arguments: Sequence[str]) -> int:
    """Carry out the cases with these words in their names, or all."""
    place, *words = arguments
    root = Path(__file__).parents[2]
    assert Path(errors.__file__).is_relative_to(root), f"{errors.__file__} is not of {root}"
    folder = Path(place)
    (folder / "work").mkdir(parents=True)
    wanted = [case for case in cases() if not words or any(word in case.name for word in words)]
    with ExitStack() as closing:
        recorder = Recorder(folder / "work", closing)
        for number, case in enumerate(wanted):
            noted = json.dumps(recorder.record(case))
            (folder / f"{number}.json").write_text(noted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
