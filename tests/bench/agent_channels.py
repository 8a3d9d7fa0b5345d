"""Whole agents that exchange by TCP, by datagrams in user space or the kernel, or as they choose.

Each on a host of its own (a network namespace); the same training, to the bit. Processor time of
all agents, with what they compute, and of the kernel threads that take their packets (threaded
NAPI): XDP's and TCP's work on what arrives is in both. The switch between them is in neither. Ways
take turns, so that what else happens on the machine meets them all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from retexo_fl.additions.kernel_path.carrying.choice import LEAST_TIMES
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from tests.bench.measure import Spread
from tests.bench.outcome import Outcome, Row
from tests.support.agents import AgentProcess, agents, train_with
from tests.support.host import Host, call
from tests.support.hosts import Hosts
from tests.support.inside import inside
from tests.support.limits import PERMISSIVE
from tests.support.loss import bad_cables, switch_of
from tests.support.offloads import join_packets
from tests.support.runs import configured

_TCP_PORT: Final = 7411
_UDP_PORT: Final = 7412
#: As many agents as this start slowly where there is other work.
_START_S: Final = 600.0
_WAYS: Final = ("tcp", "udp", "xdp", "auto")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Trainings of the same agents.

    Attributes:
        clients: How many.
        nodes: Of a random graph; 0 for the digits that come with the library.
        trainings: By name, what each is configured with.
    """

    clients: int
    nodes: int
    trainings: Mapping[str, dict[str, Any]]


_SMALL: Final = _Case(
    clients=4,
    nodes=0,
    trainings={
        f"standard, 4 clients, small exchanges, {rounds} rounds": {
            "algorithm": "standard",
            "hidden": 64,
            "rounds": rounds,
        }
        for rounds in (LEAST_TIMES, 30)
    },
)
_MANY: Final = _Case(
    clients=16,
    nodes=0,
    trainings={
        f"standard, 16 clients, small exchanges of rows and sums, {LEAST_TIMES} rounds": {
            "algorithm": "standard",
            "hidden": 64,
            "rounds": LEAST_TIMES,
            "boundary-plan": "cover",
        }
    },
)
_DEEP: Final = {"hidden": 256, "rounds": 2, "layers": 4}
_LARGE: Final = _Case(
    clients=6,
    nodes=20_000,
    trainings={
        "lazy, 6 clients, large exchanges of rows": _DEEP,
        "lazy, 6 clients, large exchanges of rows and sums": {**_DEEP, "boundary-plan": "cover"},
    },
)
#: As the profile `lean`, with vectors of 8 bits.
_LEANLY: Final = {
    **{"hidden": 256, "rounds": 4, "layers": 3, "optimizer": "lbfgs", "warm-start": True},
    **{"row-bits": 8, "update-bits": 8, "weight-bits": 4},
}
_LEAN: Final = _Case(
    clients=6,
    nodes=20_000,
    trainings={
        "lean, 6 clients, exchanges of rows": _LEANLY,
        "lean, 6 clients, exchanges of rows and sums": {**_LEANLY, "boundary-plan": "cover"},
    },
)


@dataclass(slots=True, kw_only=True)
class _Spent:
    """CPU seconds of trainings, one entry for each.

    Attributes:
        agents: All agents' processes.
        packets: The kernel threads that take their packets.
        others: The kernel's threads for what interrupts left undone, of the whole machine.
    """

    agents: list[float] = field(default_factory=list)
    packets: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    @property
    def total(self) -> list[float]:
        """Agents and the threads that take their packets."""
        return [sum(both) for both in zip(self.agents, self.packets, strict=True)]


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Measure all cases."""
    del data_dir
    keys = next(iter(_SMALL.trainings.values()))
    small = {"standard, 2 clients, 2 rounds": {**keys, "rounds": 2}}
    cases = (
        [_Case(clients=2, nodes=0, trainings=small)] if quick else [_SMALL, _MANY, _LARGE, _LEAN]
    )
    found: dict[tuple[str, str], _Spent] = {}
    load = [os.getloadavg()[0]]
    for case in cases:
        found |= _measured(case, repeats=2 if quick else 3)
    names = [name for case in cases for name in case.trainings]
    return Outcome(
        name="agent_channels",
        setting={
            "times": "CPU seconds of all agents for a training, with what they compute, and of the "
            "kernel threads that take their packets",
            "wire": "virtual cables, MTU 1,500, packets joined on arrival (GRO); codec fixed",
            "load": f"{load[0]:.1f} before",
        },
        ratios=[
            Row(metric=f"{name}: {way} / tcp", unit="x", spread=_ratio(found, name, way))
            for name in names
            for way in _WAYS[1:]
        ],
        times=[
            Row(metric=f"{name}: {way}{what}", unit="s", spread=Spread.of(seconds))
            for name in names
            for way in _WAYS
            for what, seconds in _parts(found[name, way])
        ],
    )


def _ratio(found: Mapping[tuple[str, str], _Spent], name: str, way: str) -> Spread:
    pairs = zip(found[name, way].total, found[name, "tcp"].total, strict=True)
    return Spread.of([seconds / of_tcp for seconds, of_tcp in pairs])


def _parts(spent: _Spent) -> Iterator[tuple[str, list[float]]]:
    yield "", spent.total
    yield ", of which kernel threads", spent.packets
    yield ", not in it: ksoftirqd, whole machine", spent.others


def _measured(case: _Case, *, repeats: int) -> dict[tuple[str, str], _Spent]:
    """Train by all ways in turn, after one training of each that warms up."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        keys: dict[str, Any] = {"clients": case.clients, "codec": "fixed"}
        if case.nodes:
            _write_graph(root / "random.npz", case.nodes)
            keys |= {"dataset": "random", "data-dir": str(root), "split": "random:0.4/0.3/0.3"}
        made = {way: stack.enter_context(_federation(root / way, keys, way)) for way in _WAYS}
        found = {(name, way): _Spent() for name in case.trainings for way in _WAYS}
        forwards = list(found)
        turns = [forwards if turn % 2 == 0 else forwards[::-1] for turn in range(repeats + 1)]
        for number, (name, way) in enumerate(chain.from_iterable(turns)):
            turn = number // len(found)
            # Other vectors in each turn: none that are trained are answered from the cache.
            own = {**keys, **case.trainings[name]}
            if "optimizer" in own:
                own |= {"dropout": 0.0, "weight-decay": 1e-4 * (1 + turn)}
            else:
                own |= {"dropout": 0.1 * turn}
            before = made[way].spent()
            train_with(made[way].agents, configured(root / f"run-{number}", **own))
            if turn:
                for seconds, then, now in zip(
                    (found[name, way].agents, found[name, way].packets, found[name, way].others),
                    before,
                    made[way].spent(),
                    strict=True,
                ):
                    seconds.append(now - then)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Federation:
    """Agents, and the kernel threads that take their packets."""

    agents: list[AgentProcess]
    threads: Sequence[int]

    def spent(self) -> tuple[float, float, float]:
        """Return the CPU seconds so far, as :class:`_Spent` has them."""
        return (
            sum(map(_process_s, self.agents)),
            sum(map(_thread_s, self.threads)),
            sum(map(_thread_s, _threads_named("ksoftirqd/"))),
        )


@contextmanager
def _federation(root: Path, keys: dict[str, Any], way: str) -> Iterator[_Federation]:
    root.mkdir()
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
        threads = _take_in_threads(hosts)
        made = stack.enter_context(
            agents(
                root,
                parts,
                addresses=addresses,
                hosts=hosts,
                settings={**PERMISSIVE, "datagram-memory-mib": 64.0},
                start=False,
            )
        )
        for agent in made:
            agent.start_s = _START_S
            agent.begin()
        for agent in made:
            agent.wait_until_it_answers()
        yield _Federation(agents=made, threads=threads)


def _take_in_threads(hosts: Sequence[Host]) -> list[int]:
    """Have kernel threads take what arrives at hosts, and others what arrives at their switch."""
    serves = "napi/eth0-"
    before = set(_threads_named(serves))
    for host in hosts:
        for namespace, name in ((host.namespace, "eth0"), (switch_of(host), host.port)):
            with inside(namespace):
                # It gives the interface NAPI, without which it has no thread.
                join_packets(name)
            folder = f"/sys/class/net/{name}"
            orders = f"echo 1 > {folder}/threaded; echo 0 | tee {folder}/queues/rx-*/rps_cpus"
            call(["ip", "netns", "exec", namespace, "sh", "-ec", orders])
    found = sorted(set(_threads_named(serves)) - before)
    if len(found) < len(hosts):
        raise LookupError(f"{len(found)} kernel threads for {len(hosts)} hosts")
    return found


def _threads_named(beginning: str) -> list[int]:
    """Return the process ids of kernel threads, in any namespace, whose names begin so."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it ended meanwhile
                if (path / "comm").read_text(encoding="utf-8").startswith(beginning):
                    found.append(int(path.name))
    return found


def _thread_s(process: int) -> float:
    """Return the seconds that a process's first thread has run."""
    nanoseconds = Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()[0]
    return int(nanoseconds) / 1e9


def _process_s(agent: AgentProcess) -> float:
    assert agent.process is not None
    text = Path(f"/proc/{agent.process.pid}/stat").read_text(encoding="ascii")
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


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
