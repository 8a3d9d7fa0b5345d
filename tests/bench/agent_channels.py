"""Whole agents that exchange by TCP, by datagrams in user space, and with the kernel's program.

Each on a host of its own (a network namespace); the same training, to the bit. Processor time of
all agents, with what they compute; of the kernel only what it does in their time, so that XDP's
and TCP's work on arriving packets is in neither.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from retexo_fl.agent.preparation import make_parts
from retexo_fl.config import make_config
from tests.bench.measure import Spread
from tests.bench.outcome import Outcome, Row
from tests.support.agents import AgentProcess, agents, train_with
from tests.support.hosts import Hosts
from tests.support.loss import bad_cables
from tests.support.runs import configured

_TCP_PORT: Final = 7411
_UDP_PORT: Final = 7412
_WAYS: Final = ("tcp", "udp", "xdp")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A training: ``nodes`` of a random graph, 0 for the digits that come with the library."""

    name: str
    clients: int
    nodes: int
    keys: dict[str, Any]


_SMALL: Final = _Case(
    name="standard, 4 clients, small exchanges",
    clients=4,
    nodes=0,
    keys={"algorithm": "standard", "hidden": 64, "rounds": 30},
)
_LARGE: Final = _Case(
    name="lazy, 6 clients, 95 MB an exchange",
    clients=6,
    nodes=20_000,
    keys={"hidden": 256, "rounds": 2, "layers": 4},
)


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Measure all cases."""
    del data_dir
    cases = [_Case(name=_SMALL.name, clients=2, nodes=0, keys={**_SMALL.keys, "rounds": 2})]
    if not quick:
        cases = [_SMALL, _LARGE]
    ratios, times = [], []
    for case in cases:
        found = {way: _seconds(case, way, repeats=2 if quick else 3) for way in _WAYS}
        for way in _WAYS[1:]:
            pairs = zip(found[way], found["tcp"], strict=True)
            spread = Spread.of([seconds / of_tcp for seconds, of_tcp in pairs])
            ratios.append(Row(metric=f"{case.name}: {way} / tcp", unit="x", spread=spread))
        times += [
            Row(metric=f"{case.name}: {way}", unit="s", spread=Spread.of(found[way]))
            for way in _WAYS
        ]
    return Outcome(
        name="agent_channels",
        setting={
            "times": "CPU seconds of all agents for a training, with what they compute",
            "wire": "virtual cables, MTU 1,500; codec fixed",
        },
        ratios=ratios,
        times=times,
    )


def _seconds(case: _Case, way: str, *, repeats: int) -> list[float]:
    """Return the CPU seconds of each of several trainings, after one that warms up."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        keys = {"clients": case.clients, "codec": "fixed", **case.keys}
        if case.nodes:
            _write_graph(root / "random.npz", case.nodes)
            keys |= {"dataset": "random", "data-dir": str(root), "split": "random:0.4/0.3/0.3"}
        with _federation(root, keys, way) as made:
            seconds = []
            for turn in range(repeats + 1):
                before = _spent(made)
                # Other vectors in each turn: none is answered from the cache.
                run = configured(root / f"run-{turn}", **keys, dropout=0.1 * turn)
                train_with(made, run)
                seconds.append(_spent(made) - before)
    return seconds[1:]


@contextmanager
def _federation(root: Path, keys: dict[str, Any], way: str) -> Iterator[list[AgentProcess]]:
    parts = make_parts(make_config(keys))
    with ExitStack() as stack:
        hosts = list(stack.enter_context(Hosts([f"client-{part.client}" for part in parts])))
        stack.enter_context(bad_cables(*hosts, udp_port=_UDP_PORT, with_xdp=True))
        addresses = [
            (f"tcp://{host.address}:{_TCP_PORT}",)
            if way == "tcp"
            else (f"tcp://{host.address}:{_TCP_PORT}", f"{way}://{host.address}:{_UDP_PORT}")
            for host in hosts
        ]
        yield stack.enter_context(
            agents(
                root,
                parts,
                addresses=addresses,
                hosts=hosts,
                settings={"datagram-memory-mib": 256.0},
            )
        )


def _spent(made: Sequence[AgentProcess]) -> float:
    total = 0
    for agent in made:
        assert agent.process is not None
        text = Path(f"/proc/{agent.process.pid}/stat").read_text(encoding="ascii")
        fields = text.rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def _write_graph(path: Path, nodes: int) -> None:
    rng = np.random.default_rng(0)
    ends = np.sort(rng.integers(0, nodes, (8 * nodes, 2)), axis=1)
    edges = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
    np.savez(
        path,
        x=rng.normal(size=(nodes, 16)).astype(np.float32),
        y=rng.integers(0, 4, nodes).astype(np.int16),
        edge_index=edges.T.astype(np.int32),
    )
