"""One training in a process of its own, as ``python -m tests.bench.peers.training JSON``.

Prints a line of JSON: what validation said after each round, with the seconds, CPU seconds and
bytes until then, and the test accuracy of the best round. The clock starts when graph and parts are
in memory and, where one process does all, after a round that warms up; Flower's own start counts.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

import retexo_fl
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.graph import Graph, Split, assign_nodes, load_dataset, make_split
from retexo_fl.run_log.events import Event, RoundClosed
from tests.bench.peers.spent import adopt_orphans, tree_s

_SPLIT: Final = "random:0.2/0.1/0.7"
_MODEL: Final = "gcn"
_LAYERS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all trainings of a comparison share.

    Attributes:
        graph: Name of a data set.
        data_dir: Folder of data sets, or "".
        clients: Of federated trainings.
        hidden: Width.
        rounds: Of a layer, of a whole model, or of FedAvg; epochs of one process.
        local_steps: Of FedAvg, and of what is compared with it.
        seed: Of split, parts and weights.
    """

    graph: str
    data_dir: str
    clients: int
    hidden: int
    rounds: int
    local_steps: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A validated model: its accuracy, and what it had taken."""

    validation: float
    cpu_s: float
    wall_s: float
    moved_bytes: int


class Clock:
    """Takes down each validated model.

    Attributes:
        points: In order.
    """

    def __init__(self, used_s: Callable[[], float] = time.process_time) -> None:
        """Start.

        Args:
            used_s: CPU seconds so far; :func:`tree_s` where other processes take part.
        """
        self.points: list[Point] = []
        self._used_s = used_s
        self._begun = (used_s(), time.monotonic())

    def take(self, validation: float, moved_bytes: int) -> None:
        """Take one down."""
        cpu_s, wall_s = self._used_s() - self._begun[0], time.monotonic() - self._begun[1]
        self.points.append(
            Point(validation=validation, cpu_s=cpu_s, wall_s=wall_s, moved_bytes=moved_bytes)
        )


def one_process(task: Task) -> dict[str, Any]:
    """Train on the whole graph with PyG."""
    from tests.bench.peers import gcn

    graph, split = _graph(task)
    whole = gcn.Task.of(graph, split)
    torch.manual_seed(task.seed)
    nodes = whole.masks.sum(dim=1)
    for warming in (True, False):
        model = gcn.Gcn(whole.rows.shape[1], task.hidden, graph.num_classes)
        optimizer, clock, tested = gcn.optimizer_of(model), Clock(), []
        for _ in range(1 if warming else task.rounds):
            gcn.train_epoch(model, optimizer, whole)
            shares = (gcn.right_answers(model, whole) / nodes).tolist()
            tested.append(shares[gcn.TEST])
            clock.take(shares[gcn.VALIDATION], 0)
    return _facts(clock, _best(clock.points, tested))


def on_flower(task: Task) -> dict[str, Any]:
    """Train with FedAvg in Flower's simulation, a PyG model and a subgraph for each client."""
    from flwr.simulation import run_simulation

    from tests.bench.peers import gcn
    from tests.bench.peers.flower_app import client_app, make_server_app

    graph, split = _graph(task)
    owners = assign_nodes(graph, partitioner="random", clients=task.clients, seed=task.seed)
    torch.manual_seed(task.seed)
    model = gcn.Gcn(graph.features.shape[1], task.hidden, graph.num_classes)
    # Down to train, up, and down again to evaluate.
    round_bytes = 3 * task.clients * sum(4 * one.numel() for one in model.parameters())
    tested: list[float] = []
    with tempfile.TemporaryDirectory(prefix="retexo-bench-") as folder:
        for client in range(task.clients):
            part = gcn.Task.of(graph, split, (owners == client).nonzero()[0])
            part.save(Path(folder, f"client-{client}.npz"))
        clock = Clock(tree_s)

        def observe(number: int, sums: list[int]) -> None:
            tested.append(sums[2] / sums[3])
            clock.take(sums[0] / sums[1], number * round_bytes)

        config: dict[str, str | int] = {
            "folder": folder,
            "hidden": task.hidden,
            "classes": graph.num_classes,
            "steps": task.local_steps,
        }
        run_simulation(
            make_server_app(model, config, task.rounds, observe),
            client_app,
            num_supernodes=task.clients,
        )
    return _facts(clock, _best(clock.points, tested))


def here(task: Task, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Train as `retexo run` does with some keys."""
    asked = {"clients": task.clients, **keys}
    cutting = {"dataset": task.graph, "data-dir": task.data_dir, "split": _SPLIT}
    config = make_config({**cutting, "seed": task.seed, "clients": asked.pop("clients")})
    parts = make_parts(config, quiet=True)
    asked |= {
        "partitions": parts,
        "quiet": True,
        "model": _MODEL,
        "hidden": task.hidden,
        "seed": task.seed,
    }
    # The lean schedule has rounds of its own.
    if "profile" in keys or "algorithm" in keys:
        asked["rounds"] = task.rounds
    if keys.get("algorithm") == "drop":
        asked["local_steps"] = task.local_steps
    in_process = "engine" not in keys
    with tempfile.TemporaryDirectory(prefix="retexo-bench-") as folder:
        if in_process:
            retexo_fl.run(**{**asked, "rounds": 1}, out=Path(folder, "warm"))
        clock = Clock(time.process_time if in_process else tree_s)
        # Layer by layer, only the last stage's model is the whole one.
        last = 0 if "algorithm" in keys else _LAYERS - 1

        def observe(event: Event) -> None:
            if isinstance(event, RoundClosed) and event.stage == last:
                clock.take(event.val_accuracy or 0.0, event.bytes_payload)

        run = retexo_fl.run(**asked, out=Path(folder, "run"), callbacks=[observe])
        return _facts(clock, run.result.test_accuracy or 0.0)


def _graph(task: Task) -> tuple[Graph, Split]:
    graph = load_dataset(task.graph, data_dir=Path(task.data_dir) if task.data_dir else None)
    owners = assign_nodes(graph, partitioner="random", clients=1, seed=task.seed)
    return graph, make_split(graph, owners, split=_SPLIT, seed=task.seed)


def _best(points: list[Point], tested: list[float]) -> float:
    best = max(range(len(points)), key=lambda place: points[place].validation)
    return tested[best]


def _facts(clock: Clock, test: float) -> dict[str, Any]:
    return {"points": [asdict(point) for point in clock.points], "test": test}


def train(task: Task, how: str | Mapping[str, Any]) -> dict[str, Any]:
    """Train: ``pyg``, ``fedavg``, or by keys of `retexo run`."""
    torch.set_num_threads(1)
    if how == "pyg":
        return one_process(task)
    if how == "fedavg":
        return on_flower(task)
    assert not isinstance(how, str)
    return here(task, how)


if __name__ == "__main__":
    adopt_orphans()
    asked = json.loads(sys.argv[1])
    print(json.dumps(train(Task(**asked["task"]), asked["how"])))
