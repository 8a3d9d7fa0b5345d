"""Deployments over links with a delay: how long their packets are under way, beside the prediction.

Agents that are their own SuperNodes, each on a host of its own (a network namespace), train over
links that delay every packet (`tests/support/shaper.py`). Packets are timed, so that what else
happens on this machine stretches little. The delays are those of RETEXO's table 4, over each way.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from retexo_fl.ledger import SERVER
from retexo_fl.simulation.links import read_links
from tests.bench.measure import Spread
from tests.bench.outcome import Outcome, Row
from tests.support.commands import program, run_command
from tests.support.deployment import Deployment
from tests.support.flower_requests import SHORTER_OF_AGENT, Half, halves
from tests.support.hosts import Hosts
from tests.support.limits import PERMISSIVE
from tests.support.packets import Packet, packets, transfers
from tests.support.places import AGENT_PORT, SUPERLINK_PORT, host_names

_CLIENTS: Final = 2
_DELAYS_MS: Final = (50, 200)
_ROUNDS: Final = ("--rounds", "3")
_WAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "paper's schedule, 3 + 3 rounds": (
        *("--profile", "retexo", "--candidates", "none", "--model", "sage"),
        *_ROUNDS,
    ),
    "lean, 3 + 3 rounds": ("--profile", "lean", *_ROUNDS),
    "one-shot": ("--profile", "one-shot"),
}
_QUICK: Final = ("one-shot", 50)
#: Of one training; on a machine with other work a message takes seconds.
_TRAINING_S: Final = 900.0


@dataclass(slots=True, kw_only=True)
class _Measured:
    """One training, by client where there are several values.

    Attributes:
        messages: Seconds of Flower's messages and replies.
        exchange: Seconds of the slowest block of each exchange, together.
        opened: Connections that were opened to the server.
        predicted: Seconds of both, before the training, if connections stay open.
        wall: Seconds that the run says it took, with all that computes.
    """

    messages: list[float] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    exchange: float = 0.0
    predicted: dict[str, float] = field(default_factory=dict)
    wall: float = 0.0

    @property
    def network(self) -> list[float]:
        """Seconds of messages and exchanges, by client."""
        return [self.exchange + seconds for seconds in self.messages]


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Measure every way over every delay."""
    cases = [_QUICK] if quick else [(way, delay_ms) for delay_ms in _DELAYS_MS for way in _WAYS]
    found: dict[str, _Measured] = {}
    delays_s: dict[str, float] = {}
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as root, Hosts(host_names(_CLIENTS)) as hosts:
        folder = Path(root)
        parts = _made_parts(folder, data_dir)
        deployment = Deployment(
            hosts,
            folder,
            parts,
            _CLIENTS,
            agent_settings=PERMISSIVE,
            own_nodes=range(_CLIENTS),
        )
        for host in hosts:
            host.run(["sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"])
        deployment.start()
        for way, delay_ms in cases:
            name = f"{way}, {delay_ms} ms"
            found[name] = _trained(deployment, way, f"delay:{delay_ms}ms")
            delays_s[name] = delay_ms / 1000
    load.append(os.getloadavg()[0])
    return Outcome(
        name="slow_links",
        setting={
            "graph": "digits" if data_dir is None else "cora, random:0.2/0.1/0.7",
            "clients": f"{_CLIENTS}, random parts, agents that are their own SuperNodes",
            "times": "packets under way, of both clients; predicted: `retexo plan --links`",
            "load": f"{load[0]:.1f} before, {load[1]:.1f} after",
        },
        ratios=[
            row
            for name, one in found.items()
            for row in (
                _row(f"{name}: measured / predicted", "x", [_over(one, s) for s in one.network]),
                _row(
                    f"{name}: delays one after the other",
                    "x",
                    [seconds / delays_s[name] for seconds in one.network],
                ),
            )
        ],
        times=[row for name, one in found.items() for row in _times(name, one)],
    )


def _over(measured: _Measured, seconds: float) -> float:
    return seconds / sum(measured.predicted.values())


def _times(name: str, one: _Measured) -> list[Row]:
    return [
        _row(f"{name}: messages", "s", one.messages),
        _row(f"{name}: messages, predicted", "s", [one.predicted["messages"]] * 2),
        _row(f"{name}: exchanges", "s", [one.exchange] * 2),
        _row(f"{name}: exchanges, predicted", "s", [one.predicted["exchanges"]] * 2),
        _row(f"{name}: connections opened", "", [float(count) for count in one.opened]),
        _row(f"{name}: the run, with computing and polls", "s", [one.wall] * 2),
    ]


def _row(metric: str, unit: str, values: list[float]) -> Row:
    return Row(metric=metric, unit=unit, spread=Spread.of(values))


def _made_parts(folder: Path, data_dir: Path | None) -> Path:
    parts = folder / "parts"
    source: tuple[str, ...] = ("--dataset", "digits")
    if data_dir is not None:
        cora = ("--dataset", "cora", "--data-dir", str(data_dir.absolute()))
        source = (*cora, "--split", "random:0.2/0.1/0.7")
    size = ("--partitioner", "random", "--clients", str(_CLIENTS), "--out", str(parts))
    run_command([program("retexo"), "partition", "make", *source, *size], cwd=folder)
    return parts


def _trained(deployment: Deployment, way: str, link: str) -> _Measured:
    """Plan, train and read the packets."""
    folder = deployment.folder
    ask = ("--partitions", str(deployment.parts), "--links", link, "--json")
    said = run_command([program("retexo"), "plan", *_WAYS[way], *ask], cwd=folder)
    there = read_links(link, clients=_CLIENTS).between(0, SERVER)
    record, out = folder / f"packets {way} {link}", folder / f"run {way} {link}"
    deployment.hosts.shape(lambda _one, _other: there, record=record)
    deployment.run(out, *_WAYS[way], timeout_s=_TRAINING_S)
    deployment.hosts.unshape()
    seen, network = packets(record), json.loads(said)["network"]
    found = [_halves(seen, client) for client in range(_CLIENTS)]
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    return _Measured(
        messages=[sum(half.seconds for half in of_client) for of_client in found],
        opened=[sum(half.opened for half in of_client) for of_client in found],
        exchange=_exchange_s(seen),
        predicted={
            "messages": network["seconds"]["messages"],
            "exchanges": _predicted_s(network["exchanges"], opens=_opens(seen)),
        },
        wall=float(result["seconds"]["total"]),
    )


def _halves(seen: list[Packet], client: int) -> list[Half]:
    found = _between(seen, 0, client + 1, SUPERLINK_PORT)
    return halves(found, client=client + 1, server=0, shorter_bytes=SHORTER_OF_AGENT)


def _exchange_s(seen: list[Packet]) -> float:
    found = _between(seen, 1, 2, AGENT_PORT)
    by_sender = [transfers(found, sender=sender) for sender in (1, 2)]
    return float(sum(map(max, zip(*by_sender, strict=True))))


def _opens(seen: list[Packet]) -> bool:
    """Say whether the agents opened their link: they keep it from one training to the next."""
    return any(packet.opens for packet in _between(seen, 1, 2, AGENT_PORT))


def _predicted_s(exchanges: list[dict[str, Any]], *, opens: bool) -> float:
    spared = 0.0 if opens else sum(one["opening_s"] for one in exchanges)
    return float(sum(one["count"] * one["seconds"] for one in exchanges) - spared)


def _between(seen: list[Packet], one: int, other: int, port: int) -> list[Packet]:
    """Return the packets of two hosts; the server is 0, client c is c + 1."""
    return [p for p in seen if p.port == port and {p.sender, p.receiver} == {one, other}]
