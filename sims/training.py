"""One training in this process, with clients that a recipe may change."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from retexo_fl.client.api import ClientApi
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import Scalar, make_config
from retexo_fl.ledger import TrafficLedger
from retexo_fl.simulation.inline_engine import make_channel, make_network, run_clients
from sims.origin import commit
from sims.trained import Trained, moved_lines

#: Given a client's index and the client, returns the one that takes its place.
Change = Callable[[int, ClientApi], ClientApi]
#: A training that is interrupted starts again; its checkpoints would take longer than its rounds.
_NO_CHECKPOINTS: Final = 2**31 - 1
_ROUND_FACTS: Final = ("stage", "round", "val_accuracy")


def train(keys: Mapping[str, Scalar], change: Change | None = None) -> dict[str, Any]:
    """Train, and return what ``result.json`` holds.

    Args:
        keys: Configuration keys, in kebab case.
        change: Puts other clients in the place of real ones.

    Raises:
        RetexoError: Any named failure of the run.
    """
    return dict(train_whole(keys, change).result)


def train_whole(keys: Mapping[str, Scalar], change: Change | None = None) -> Trained:
    """Train, and return the result with what moved and how the rounds went; see :func:`train`."""
    with tempfile.TemporaryDirectory(prefix="retexo-sims-") as folder:
        run = Path(folder) / "run"
        places: dict[str, Scalar] = {"out": str(run), "checkpoint-every": _NO_CHECKPOINTS}
        config = make_config({**keys, **places})
        network = make_network(config)
        clients = InProcessClients(make_parts(config), config, channel=make_channel(network))

        def find(job: str, client: int) -> ClientApi:
            found = clients.find(job, client)
            return found if change is None else change(client, found)

        begun = time.monotonic()
        run_clients(config, find, network=network)
        trained = _read(run)
    _tell(keys, trained, time.monotonic() - begun)
    return trained


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
        commit=commit(),
    )


def _tell(keys: Mapping[str, Scalar], trained: Trained, seconds: float) -> None:
    shown = ("dataset", "model", "algorithm", "clients", "aggregator", "seed")
    named = " ".join(str(keys[key]) for key in shown if key in keys)
    metric = trained.result.get("metric") or {"name": "accuracy", "value": trained.accuracy}
    value = metric["value"]
    told = f"test {metric['name']} {'undefined' if value is None else f'{value:.4f}'}"
    print(f"{named}: {told}, {seconds:.1f} s", file=sys.stderr)
