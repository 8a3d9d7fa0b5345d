"""One training in this process, with clients that a recipe may change."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from retexo_fl.agent.api import ClientApi
from retexo_fl.agent.factory import InProcessClients
from retexo_fl.agent.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.config_keys import Scalar
from retexo_fl.simulation.inline_engine import run_clients

#: Given a client's index and the client, returns the one that takes its place.
Change = Callable[[int, ClientApi], ClientApi]


def train(keys: Mapping[str, Scalar], change: Change | None = None) -> dict[str, Any]:
    """Train, and return what ``result.json`` holds.

    Args:
        keys: Configuration keys, in kebab case.
        change: Puts other clients in the place of real ones.

    Raises:
        RetexoError: Any named failure of the run.
    """
    with tempfile.TemporaryDirectory(prefix="retexo-sims-") as folder:
        run = Path(folder) / "run"
        config = make_config({**keys, "out": str(run)})
        clients = InProcessClients(make_parts(config), config)

        def find(job: str, client: int) -> ClientApi:
            found = clients.find(job, client)
            return found if change is None else change(client, found)

        begun = time.monotonic()
        run_clients(config, find)
        result: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    _tell(keys, result, time.monotonic() - begun)
    return result


def _tell(keys: Mapping[str, Scalar], result: Mapping[str, Any], seconds: float) -> None:
    shown = ("dataset", "model", "aggregator", "seed")
    named = " ".join(str(keys[key]) for key in shown if key in keys)
    print(f"{named}: test accuracy {result['test_accuracy']:.4f}, {seconds:.1f} s", file=sys.stderr)
