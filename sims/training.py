"""One training in this process, with answers that a recipe may read or change."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from retexo_fl.client.api import AnswerT, ClientApi, Request
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import Scalar, make_config
from retexo_fl.ledger import TrafficLedger
from retexo_fl.simulation.inline_engine import make_channel, make_network, run_clients
from sims.trained import Trained, moved_lines

#: Given a client's index, a request and the client's answer, returns the one that takes its place.
Change = Callable[[int, Request[Any], Any], Any]
#: A training that is interrupted starts again; its checkpoints would take longer than its rounds.
_NO_CHECKPOINTS: Final = 2**31 - 1
_ROUND_FACTS: Final = ("stage", "round", "val_accuracy")


def train(keys: Mapping[str, Scalar], change: Change | None = None) -> dict[str, Any]:
    """Train, and return what ``result.json`` holds.

    Args:
        keys: Configuration keys, in kebab case.
        change: Sees all answers of clients, and may put others in their place.

    Raises:
        RetexoError: Any named failure of the run.
    """
    return dict(train_whole(keys, change).result)


def train_whole(
    keys: Mapping[str, Scalar], change: Change | None = None, graph: object | None = None
) -> Trained:
    """Train, and return the result with what moved and how the rounds went; see :func:`train`.

    Args:
        keys: Configuration keys, in kebab case.
        change: As :func:`train` takes it.
        graph: Takes the place of the one that the keys name.
    """
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="retexo-sims-") as folder:
        run = Path(folder) / "run"
        places: dict[str, Scalar] = {"out": str(run), "checkpoint-every": _NO_CHECKPOINTS}
        config = make_config({**keys, **places})
        network = make_network(config)
        clients = InProcessClients(
            make_parts(config, graph=graph), config, channel=make_channel(network)
        )

        def find(job: str, client: int) -> ClientApi:
            found = clients.find(job, client)
            return found if change is None else _Changed(client, found, change)

        run_clients(config, find, network=network)
        trained = replace(_read(run), wall_s=time.monotonic() - begun_s)
    _tell(keys, trained)
    return trained


class _Changed:
    """A client whose answers pass through a change."""

    def __init__(self, index: int, client: ClientApi, change: Change) -> None:
        self._index = index
        self._client = client
        self._change = change

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Return what takes the place of the client's answer."""
        answer: AnswerT = self._change(self._index, request, self._client.ask(request))
        return answer


def _read(run: Path) -> Trained:
    with (run / "ledger.csv").open(encoding="utf-8", newline="") as file:
        moved = moved_lines(TrafficLedger.from_csv(file))
    with (run / "metrics.jsonl").open(encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    return Trained(
        result=json.loads((run / "result.json").read_text(encoding="utf-8")),
        moved=moved,
        history=[
            {name: event[name] for name in _ROUND_FACTS}
            for event in events
            if event["event"] == "round"
        ],
    )


def _tell(keys: Mapping[str, Scalar], trained: Trained) -> None:
    shown = ("dataset", "model", "algorithm", "clients", "aggregator", "seed")
    named = " ".join(str(keys[key]) for key in shown if key in keys)
    metric = trained.result.get("metric") or {"name": "accuracy", "value": trained.accuracy}
    value = metric["value"]
    told = f"test {metric['name']} {'undefined' if value is None else f'{value:.4f}'}"
    print(f"{named}: {told}, {trained.wall_s:.1f} s", file=sys.stderr)
