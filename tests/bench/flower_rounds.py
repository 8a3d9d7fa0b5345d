"""Rounds on Flower's simulation beside rounds of a trivial Flower app that carry as many bytes.

The training is what ``retexo run --engine flower`` does by default. A trivial round precedes each
of its rounds, in the same simulation (``flower_pairs.py``): what is left is what is made anew for
each message, and what clients compute. The same trivial app runs alone, too, for its memory. The
environment's ``BENCH_CLIENTS`` says how many clients, with spaces between several: thousands take a
quarter of an hour.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import retexo_fl
from retexo_fl.simulation import flower_engine
from retexo_fl.simulation.flower_bundle import BundleApps
from retexo_fl.simulation.flower_processes import descendants_of, process_table
from tests.bench.flower_pairs import OUT_VARIABLE
from tests.bench.measure import Spread
from tests.bench.outcome import Outcome, Row
from tests.support.memory import Looking, bytes_of

#: By how much a round of ours may take longer than one of Flower's app.
_TARGET: Final = 1.2
_NODES: Final = 2708
#: Cora's sizes, where its file is not given.
_GRAPH: Final = f"synthetic:nodes={_NODES},edges=5278,features=1433,classes=7,words=18"
_LOOK_S: Final = 1.0
#: Of a process's command, by what of it is named so. Ray's own come last: theirs hold much.
_PROGRAMS: Final = {
    "flwr-simulation": "server with Ray's driver",
    "ray::": "a Ray actor",
    "flower-super": "Flower's SuperLink and SuperExec",
    "flwr run": "Flower's command",
    "flower_daemon": "supervisor",
    "/ray/": "Ray's own processes",
}

_SERVER: Final = """
import time
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    nodes = []
    while len(nodes) < config["clients"]:
        time.sleep(0.1)
        nodes = list(grid.get_node_ids())
    for number in range(config["rounds"]):
        array = Array(np.full(config["down-bytes"], number, np.uint8))
        content = RecordDict(
            {
                "arrays": ArrayRecord({"array": array}),
                "config": ConfigRecord({"up-bytes": config["up-bytes"]}),
            }
        )
        asked = [Message(content, dst_node_id=node, message_type="train") for node in nodes]
        grid.send_and_receive(asked, timeout=600)
"""
_CLIENT: Final = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    array = message.content["arrays"]["array"].numpy()
    answer = Array(np.resize(array, message.content["config"]["up-bytes"]))
    return Message(RecordDict({"arrays": ArrayRecord({"array": answer})}), reply_to=message)
"""


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Time pairs of rounds for each number of clients, and weigh the processes."""
    wanted = os.environ.get("BENCH_CLIENTS", "50 200 500 1000 2708")
    sizes = (4,) if quick else map(int, wanted.split())
    ratios, times, memory = [], [], {}
    for clients in sizes:
        pairs, of_ours = _trained(clients, data_dir)
        of_flowers = _trivial_memory(clients, pairs[-1])
        for unit, kind in (("s", "wall"), ("cpu_s", "CPU")):
            ours = [pair[f"ours_{unit}"] for pair in pairs]
            flowers = [pair[f"flower_{unit}"] for pair in pairs]
            ratios.append(
                Row(
                    metric=f"{clients} clients, {kind} of a round: ours / Flower's app",
                    unit="x",
                    spread=Spread.of([a / b for a, b in zip(ours, flowers, strict=True)]),
                    target=_TARGET,
                    at_most=True,
                )
            )
            times += [
                Row(metric=f"{clients} clients, {kind} of a round: {name}", unit="s", spread=spread)
                for name, spread in (
                    ("ours", Spread.of(ours)),
                    ("Flower's app", Spread.of(flowers)),
                )
            ]
            if kind == "CPU":
                computed = [pair["ours_computed_s"] for pair in pairs]
                left = [(a - c) / b for a, b, c in zip(ours, flowers, computed, strict=True)]
                times += [
                    Row(
                        metric=f"{clients} clients, CPU of a round: clients' computing",
                        unit="s",
                        spread=Spread.of(computed),
                    ),
                    Row(
                        metric=f"{clients} clients, CPU of a round: ours without it / Flower's app",
                        unit="x",
                        spread=Spread.of(left),
                    ),
                ]
        memory[clients] = {"ours": of_ours, "Flower's app": of_flowers, **_sizes(pairs)}
    setting = {"dataset": _graph(data_dir)["dataset"], "profile": "lean", "PSS, MB": memory}
    return Outcome(name="flower_rounds", setting=setting, ratios=ratios, times=times)


def _graph(data_dir: Path | None) -> dict[str, Any]:
    return (
        {"dataset": _GRAPH} if data_dir is None else {"dataset": "cora", "data_dir": str(data_dir)}
    )


def _sizes(pairs: list[dict[str, float]]) -> dict[str, int]:
    return {key: round(pairs[-1][key]) for key in ("asked", "down_bytes", "up_bytes")}


def _trained(
    clients: int, data_dir: Path | None
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Train; return the pairs of rounds, and the processes' memory."""
    keys: dict[str, Any] = {**_graph(data_dir), "clients": clients, "rounds": _rounds(clients)}
    if clients == _NODES:
        keys["partitioner"] = "one-node"
    with tempfile.TemporaryDirectory(prefix="retexo-bench-") as folder:
        out = Path(folder, "rounds.json")
        with (
            mock.patch.object(flower_engine, "run_flower_simulation", _with_pairs(out)),
            _Memory() as memory,
        ):
            retexo_fl.run(out=Path(folder, "run"), engine="flower", quiet=True, **keys)
        # A pair is open where the training ends.
        pairs = [pair for pair in json.loads(out.read_text()) if "ours_s" in pair]
    return pairs, memory.most_mb()


def _rounds(clients: int) -> int:
    """Return the most rounds of a stage: fewer where a round takes seconds."""
    return 8 if clients <= 500 else 3


def _with_pairs(out: Path) -> Any:
    """Return what runs a simulation whose components carry trivial rounds, too."""
    run_simulation = flower_engine.run_flower_simulation

    @functools.wraps(run_simulation)
    def run_pairs(*given: Any, apps: BundleApps, **how: Any) -> None:
        name = "from tests.bench.flower_pairs import"
        paired = replace(
            apps,
            server=apps.server.replace("from retexo_fl.federation import", name),
            client=apps.client.replace("from retexo_fl.federation import", name),
        )
        run_simulation(*given, apps=paired, extra_environment={OUT_VARIABLE: str(out)}, **how)

    return run_pairs


def _trivial_memory(clients: int, pair: dict[str, float]) -> dict[str, float]:
    """Run the trivial app alone; return its processes' memory."""
    with _Memory() as memory:
        flower_engine.run_flower_simulation(
            {
                "clients": clients,
                "rounds": _rounds(clients),
                "down-bytes": round(pair["down_bytes"]),
                "up-bytes": round(pair["up_bytes"]),
            },
            num_clients=clients,
            tick=lambda: None,
            apps=BundleApps(server=_SERVER, client=_CLIENT),
        )
    return memory.most_mb()


class _Memory(Looking):
    """Looks at the proportional memory of all processes under this one."""

    def __init__(self) -> None:
        super().__init__(_LOOK_S)
        self._most: dict[str, float] = defaultdict(float)

    def most_mb(self) -> dict[str, float]:
        """Return the most MB by program: of one actor, of all processes of the others together."""
        return {name: round(self._most[name] / 1e6) for name in sorted(self._most)}

    def look(self) -> None:
        """Look once."""
        now: dict[str, float] = defaultdict(float)
        for pid in descendants_of(process_table(), os.getpid()):
            name, pss = _program_of(pid), float(_pss_bytes(pid))
            now[name] = max(now[name], pss) if name == "a Ray actor" else now[name] + pss
            now["all"] += pss
        for name, taken in now.items():
            self._most[name] = max(self._most[name], taken)


def _program_of(pid: int) -> str:
    try:
        command = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace")
    except OSError:  # it ended meanwhile
        return "others"
    command = command.replace("\0", " ")
    return next((name for part, name in _PROGRAMS.items() if part in command), "others")


def _pss_bytes(pid: int) -> int:
    try:
        return bytes_of(Path("/proc", str(pid), "smaps_rollup"), "Pss")
    except OSError:  # it ended meanwhile
        return 0
