"""`python -m tests.bench peers`: how soon ours is as accurate as a peer is at its best.

The peers: PyTorch Geometric, which trains the same GNN on the whole graph in one process; and
FedAvg of PyG models in Flower's own simulation, where each client has a subgraph without the edges
that lead to others. What is not installed is left out, by name. Each training has a process of its
own, on one thread for each, and all take turns; a turn has a split, parts and weights of its own.

*As accurate* is the best validation accuracy that the peer has in that turn, less a point. A ratio
of 0 says that ours never was.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from tests.bench.measure import Spread
from tests.bench.outcome import Outcome, Row
from tests.bench.peers import training
from tests.bench.peers.training import Point, Task
from tests.support.data import data_dir as find_data

PYG, FEDAVG = "PyG", "FedAvg on Flower"
#: Packages without which a peer is left out.
NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    PYG: ("torch_geometric",),
    FEDAVG: ("torch_geometric", "ray"),
}
_PEERS: Final = {PYG: "pyg", FEDAVG: "fedavg"}
_FLOWER: Final = {"engine": "flower"}
#: What FedAvg does: no edges between clients, several local steps.
_DROP: Final = {"algorithm": "drop"}
#: By name, keys of `retexo run`; those without any are its default, `--profile lean`.
OURS: Final[Mapping[str, Mapping[str, Any]]] = {
    "standard, 1 client": {"algorithm": "standard", "clients": 1},
    "retexo, 1 client": {"profile": "retexo", "clients": 1},
    "standard": {"algorithm": "standard"},
    "retexo": {"profile": "retexo"},
    "lean": {},
    "drop": _DROP,
    "lean, engine flower": _FLOWER,
    "drop, engine flower": {**_DROP, **_FLOWER},
}
#: What each peer is compared with.
PAIRS: Final[Mapping[str, tuple[str, ...]]] = {
    PYG: ("standard, 1 client", "retexo, 1 client", "standard", "retexo", "lean"),
    FEDAVG: ("drop", "standard", "retexo", "lean", "drop, engine flower", "lean, engine flower"),
}
#: Made for this bench, with a seed that is used nowhere else: nothing was tuned on it.
UNSEEN: Final = "synthetic:nodes=12000,degree=14,classes=9,features=80,homophily=0.7,seed=2026"
#: Ours is to take at most what the peer takes.
_TARGET: Final = 1.0
_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A training: its validated models and how the best of them tests."""

    points: list[Point]
    test: float

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """Read what ``training`` found."""
        return cls(points=[Point(**point) for point in facts["points"]], test=facts["test"])

    @property
    def best(self) -> float:
        """Best validation accuracy."""
        return max(point.validation for point in self.points)

    def reached(self, wanted: float) -> Point:
        """Return the first point that is as accurate; infinite seconds and bytes if none is."""
        never = Point(validation=0.0, cpu_s=math.inf, wall_s=math.inf, moved_bytes=2**62)
        return next((one for one in self.points if one.validation >= wanted), never)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """What a run works on: graphs, and ``within``: what *as accurate* leaves of the best."""

    graphs: tuple[str, ...]
    task: Task
    within: float
    repeats: int
    ours: tuple[str, ...]


_TASK: Final = Task(graph="", data_dir="", clients=10, hidden=64, rounds=60, local_steps=3, seed=0)
_WHOLE: Final = _Sizes(
    graphs=("cora", UNSEEN),
    task=_TASK,
    within=0.01,
    repeats=4,
    ours=tuple(OURS),
)
_QUICK: Final = _Sizes(
    graphs=("synthetic:nodes=300,features=16,classes=3",),
    task=replace(_TASK, clients=2, hidden=8, rounds=2, local_steps=1),
    within=1.0,
    repeats=2,
    ours=("standard, 1 client", "standard"),
)


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Train by all ways in turn, graph after graph."""
    sizes = _QUICK if quick else _WHOLE
    missing = {peer: _missing(packages) for peer, packages in NEEDS.items()}
    # Flower's simulation takes ten seconds to start.
    there = [peer for peer, why in missing.items() if not why and not (quick and peer == FEDAVG)]
    folder = "" if quick else str(data_dir or find_data())
    ratios, times = [], []
    for graph in sizes.graphs:
        task = replace(sizes.task, graph=graph, data_dir=folder)
        curves = _in_turn(task, there, sizes, training.train if quick else _in_new_process)
        shown = graph.partition(":")[0]
        for peer in there:
            for name in PAIRS[peer]:
                if name in curves:
                    ratios += ratios_of(shown, peer, name, curves, within=sizes.within)
        times += [row for name in curves for row in _figures(shown, name, curves[name])]
    setting = asdict(sizes.task)
    for name in ("graph", "data_dir", "seed"):
        del setting[name]
    return Outcome(
        name="peers",
        setting={
            **setting,
            "model": "gcn of two layers",
            "graphs": " ".join(sizes.graphs),
            "as accurate": f"the peer's best validation accuracy less {sizes.within}",
            **{peer: f"left out: {why} is missing" for peer, why in missing.items() if why},
        },
        ratios=ratios,
        times=times,
    )


def ratios_of(
    graph: str, peer: str, name: str, curves: Mapping[str, list[Curve]], *, within: float
) -> list[Row]:
    """Compare what a peer and ours took until they were as accurate, turn by turn."""
    cpu, wall, moved = [], [], []
    for theirs, ours in zip(curves[peer], curves[name], strict=True):
        wanted = theirs.best - within
        one, other = theirs.reached(wanted), ours.reached(wanted)
        cpu.append(one.cpu_s / other.cpu_s)
        wall.append(one.wall_s / other.wall_s)
        moved.append(one.moved_bytes / max(1, other.moved_bytes))
    found = {"CPU": cpu, "wall": wall} | ({"bytes": moved} if any(moved) else {})
    return [
        Row(
            metric=f"{graph}, {what} until as accurate: {peer} / {name}",
            unit="x",
            spread=Spread.of(samples),
            target=_TARGET,
        )
        for what, samples in found.items()
    ]


_Train = Callable[[Task, str | Mapping[str, Any]], Mapping[str, Any]]


def _in_turn(task: Task, peers: list[str], sizes: _Sizes, train: _Train) -> dict[str, list[Curve]]:
    asked: dict[str, Any] = {peer: _PEERS[peer] for peer in peers}
    asked |= {name: OURS[name] for name in sizes.ours if any(name in PAIRS[peer] for peer in peers)}
    curves: dict[str, list[Curve]] = {name: [] for name in asked}
    for turn in range(sizes.repeats):
        for name in list(asked) if turn % 2 == 0 else list(asked)[::-1]:
            curves[name].append(Curve.of(train(replace(task, seed=turn), asked[name])))
            last = curves[name][-1].points[-1]
            print(f"{task.graph}, turn {turn}: {name}: {last}", file=sys.stderr)
    return curves


def _in_new_process(task: Task, how: str | Mapping[str, Any]) -> Mapping[str, Any]:
    asked = json.dumps({"task": asdict(task), "how": how})
    command = [sys.executable, "-W", "ignore", "-m", training.__name__, asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        raise ChildProcessError(f"{command}: {done.stderr[-2000:]}")
    facts: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def _figures(graph: str, name: str, curves: list[Curve]) -> list[Row]:
    """Return what a whole training came to."""
    last = [curve.points[-1] for curve in curves]
    found = {
        ("test accuracy", ""): [curve.test for curve in curves],
        ("CPU until the last round", "s"): [point.cpu_s for point in last],
        ("wall until the last round", "s"): [point.wall_s for point in last],
        ("moved", "MB"): [point.moved_bytes / 1e6 for point in last],
    }
    return [
        Row(metric=f"{graph}, {what}: {name}", unit=unit, spread=Spread.of(samples))
        for (what, unit), samples in found.items()
        if any(samples)
    ]


def _missing(packages: tuple[str, ...]) -> str:
    return ", ".join(package for package in packages if find_spec(package) is None)
