"""Rounds on Flower's simulation beside an app of Flower's own that carries as many numbers.

That app sends each client the array that ours sends as weights, and gets it back: what is left is
Flower, Ray, and how often something is made anew.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any, Final

import retexo_fl
from retexo_fl.config import make_config
from retexo_fl.simulation.flower_bundle import BundleApps
from retexo_fl.simulation.flower_engine import run_flower_simulation
from retexo_fl.training.stage_model import ModelShape, num_weights
from tests.bench.measure import Spread, quotient
from tests.bench.outcome import Outcome, Row

#: By how much a round of ours may take longer than one of Flower's app.
_TARGET: Final = 1.5
_FEATURES, _CLASSES, _NODES = 512, 10, 2708
_GRAPH: Final = f"synthetic:nodes={_NODES},edges=5278,features={_FEATURES},classes={_CLASSES}"
_KEYS: Final = {"profile": "retexo", "model": "gcn", "layers": 1}

_SERVER: Final = """
import json, time
import numpy as np
from pathlib import Path
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    nodes = []
    while len(nodes) < config["clients"]:
        time.sleep(0.1)
        nodes = list(grid.get_node_ids())
    array = np.ones(config["size"], np.float32)
    times = []
    for number in range(config["rounds"]):
        record = ArrayRecord({"array": Array(array + number)})
        asked = [
            Message(RecordDict({"arrays": record}), dst_node_id=node, message_type="train")
            for node in nodes
        ]
        replies = list(grid.send_and_receive(asked, timeout=600))
        array = sum(reply.content["arrays"]["array"].numpy() for reply in replies) / len(nodes)
        times.append(time.time())
    Path(config["out"]).write_text(json.dumps(times))
"""
_CLIENT: Final = """
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    record = ArrayRecord({"array": Array(message.content["arrays"]["array"].numpy() + 1)})
    return Message(RecordDict({"arrays": record}), reply_to=message)
"""


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Time rounds of either app, one after the other, with ever more clients."""
    del data_dir
    sizes = (4,) if quick else (50, 200, 500, _NODES)
    rounds = 4 if quick else 8
    ratios, times = [], []
    for clients in sizes:
        ours, theirs = _ours_s(clients, rounds), _flowers_s(clients, rounds)
        ratios.append(
            Row(
                metric=f"{clients} clients, a round: ours / Flower's app",
                unit="x",
                spread=quotient(ours, theirs),
                target=_TARGET,
                at_most=True,
            )
        )
        times += [
            Row(metric=f"{clients} clients, a round: ours", unit="s", spread=ours),
            Row(metric=f"{clients} clients, a round: Flower's app", unit="s", spread=theirs),
        ]
    setting = {"dataset": _GRAPH, "weights": _weight_count(), "rounds": rounds, **_KEYS}
    return Outcome(name="flower_rounds", setting=setting, ratios=ratios, times=times)


def _ours_s(clients: int, rounds: int) -> Spread:
    keys: dict[str, Any] = {**_KEYS, "dataset": _GRAPH, "clients": clients, "rounds": rounds}
    if clients == _NODES:
        keys["partitioner"] = "one-node"
    with tempfile.TemporaryDirectory(prefix="retexo-bench-") as folder:
        out = Path(folder, "run")
        retexo_fl.run(out=out, engine="flower", quiet=True, **keys)
        events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return _between([event["time_s"] for event in events if event["event"] == "round"])


def _flowers_s(clients: int, rounds: int) -> Spread:
    with tempfile.TemporaryDirectory(prefix="retexo-bench-") as folder:
        out = Path(folder, "times.json")
        run_flower_simulation(
            {"clients": clients, "size": _weight_count(), "rounds": rounds, "out": str(out)},
            num_clients=clients,
            tick=lambda: None,
            apps=BundleApps(server=_SERVER, client=_CLIENT),
        )
        return _between(json.loads(out.read_text()))


def _weight_count() -> int:
    config = make_config({"model": "gcn", "layers": 1})
    return num_weights(ModelShape.of(config, inputs=_FEATURES, classes=_CLASSES), 0)


def _between(times_s: list[float]) -> Spread:
    """Summarise the seconds from round to round."""
    return Spread.of([after - before for before, after in itertools.pairwise(times_s)])
