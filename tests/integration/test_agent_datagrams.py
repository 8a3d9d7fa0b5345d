"""Agents that take vectors as datagrams: the bits of one process, whatever goes wrong."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.client.part import without_peers
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.vector_carrier import split_layer
from retexo_fl.config import make_config
from retexo_fl.errors import (
    ConfigurationError,
    ExchangeIncomplete,
    PartitionError,
    RetexoError,
)
from retexo_fl.graph import GraphPartition
from tests.support.agents import AgentProcess, agents, train_with
from tests.support.limits import PERMISSIVE
from tests.support.loopback import free_ports
from tests.support.runs import configured, model_bytes, train

pytestmark = pytest.mark.system

KEYS: dict[str, Any] = {"clients": 3, "hidden": 8, "rounds": 2, "codec": "fixed"}
LEAN: dict[str, Any] = {"row-bits": 8, "update-bits": 8, "weight-bits": 8, "dropout": 0.0}


#: What an agent logs where datagrams gain nothing, and what is to be done.
UNADDED = (
    'added=0 reason="the plan of rows sends no sums; run with --boundary-plan cover, or over TCP"'
)


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config(KEYS))


def loopback_addresses(clients: int, scheme: str = "udp") -> list[tuple[str, ...]]:
    ports = free_ports(2 * clients)
    return [
        (f"tcp://127.0.0.1:{ports[2 * at]}", f"{scheme}://127.0.0.1:{ports[2 * at + 1]}")
        for at in range(clients)
    ]


@pytest.fixture(scope="module")
def three(
    tmp_path_factory: pytest.TempPathFactory, parts: list[GraphPartition]
) -> Iterator[list[AgentProcess]]:
    root = tmp_path_factory.mktemp("agents")
    addresses = loopback_addresses(len(parts))
    with agents(root, parts, addresses=addresses, settings=PERMISSIVE) as made:
        yield made


def counted(made: Sequence[AgentProcess], name: str) -> int:
    return sum(agent.status()["datagrams"]["counters"][name] for agent in made)


@pytest.mark.parametrize(
    ("algorithm", "plan", "more"),
    [
        ("lazy", "rows", {}),
        ("lazy", "cover", {}),
        ("lazy", "rows", LEAN),
        ("lazy", "cover", LEAN),
        ("standard", "rows", {}),
        ("standard", "cover", {}),
        ("bns", "rows", {}),
    ],
)
def test_agents_train_by_datagrams_as_one_process_does(
    tmp_path: Path, three: list[AgentProcess], algorithm: str, plan: str, more: dict[str, Any]
) -> None:
    keys = {**KEYS, "algorithm": algorithm, "boundary-plan": plan, **more}
    before, logged = counted(three, "data_new"), [len(agent.log) for agent in three]

    train_with(three, configured(tmp_path / "agents", **keys))

    train(tmp_path / "inline", **keys)
    assert model_bytes(tmp_path / "agents") == model_bytes(tmp_path / "inline")
    assert counted(three, "data_new") > before
    warned = [agent.log[at:].count(UNADDED) for agent, at in zip(three, logged, strict=True)]
    assert warned == [int((algorithm, plan) == ("lazy", "rows"))] * 3


@pytest.mark.parametrize("algorithm", ["lazy", "standard"])
def test_agents_take_blocks_from_peers_that_believe_they_choose(
    tmp_path: Path, parts: list[GraphPartition], algorithm: str
) -> None:
    keys = {**KEYS, "algorithm": algorithm, "boundary-plan": "cover"}
    addresses = loopback_addresses(len(parts), "auto")
    with agents(tmp_path, parts, addresses=addresses, settings=PERMISSIVE, start=False) as made:
        for agent in made:
            agent.settings.write_text(_settings(agent).replace("auto://", "udp://"))
            agent.start()
        train_with(made, configured(tmp_path / "agents", **keys))
        assert counted(made, "packets_sent") == 0
        told = [each for agent in made for each in agent.status()["deliveries"]]
        assert {split_layer(each["layer"])[1] for each in told} == {0}

    train(tmp_path / "inline", **keys)
    assert model_bytes(tmp_path / "agents") == model_bytes(tmp_path / "inline")


def test_peers_that_may_stay_away_have_nothing_added(
    tmp_path: Path, three: list[AgentProcess]
) -> None:
    logged = [len(agent.log) for agent in three]
    keys = {**KEYS, "boundary-plan": "cover", "missing-peers": "drop"}
    train_with(three, configured(tmp_path / "agents", **keys))
    for agent, at in zip(three, logged, strict=True):
        assert 'added=0 reason="missing-peers = drop keeps' in agent.log[at:]


def test_other_codecs_take_no_datagrams(tmp_path: Path, three: list[AgentProcess]) -> None:
    keys = {**KEYS, "codec": "lossless"}
    before = counted(three, "data_new")

    train_with(three, configured(tmp_path / "agents", **keys))

    train(tmp_path / "inline", **keys)
    assert model_bytes(tmp_path / "agents") == model_bytes(tmp_path / "inline")
    assert counted(three, "data_new") == before


def test_a_client_that_lists_edges_of_its_own_making_is_named(tmp_path: Path) -> None:
    keys = {**KEYS, "clients": 2, "exchange_deadline_s": 3.0}
    believing, other = make_parts(make_config({**KEYS, "clients": 2}))
    parts = [believing, without_peers(other)]
    told: list[RetexoError] = []
    with agents(tmp_path, parts, addresses=loopback_addresses(2)) as made:
        # Who awaits nothing has closed the exchange at once: if before the notice came, nobody
        # sees it, and the exchange ends at its deadline.
        while len(told) < 5 and not isinstance(told[-1] if told else None, PartitionError):
            with pytest.raises((PartitionError, ExchangeIncomplete)) as raised:
                train_with(made, configured(tmp_path / f"run-{len(told)}", **keys))
            told.append(raised.value)
    assert isinstance(told[-1], PartitionError)
    assert re.search("client 0 lists .* edges to client 1", str(told[-1]))


@pytest.mark.parametrize("listens", [False, True])
def test_rosters_that_disagree_about_datagrams_are_named(tmp_path: Path, listens: bool) -> None:
    keys = {**KEYS, "clients": 2}
    parts = make_parts(make_config(keys))
    with agents(tmp_path, parts, addresses=loopback_addresses(2), start=False) as made:
        roster, text = tmp_path / "roster.toml", _settings(made[1])
        if listens:
            # It knows of no client that does.
            other = tmp_path / "other.toml"
            other.write_text(re.sub(r'\s*"udp://[^"]*",', "", roster.read_text()))
            text = text.replace(str(roster), str(other))
        else:
            text = re.sub(r"listen = .*", f"listen = {json.dumps(_of_tcp(roster))}", text)
        made[1].settings.write_text(text)
        for agent in made:
            agent.start()
        # Whichever client the server hears first.
        with pytest.raises(ConfigurationError, match="client . sends datagrams, client ."):
            train_with(made, configured(tmp_path / "run", **keys))


def _settings(agent: AgentProcess) -> str:
    return agent.settings.read_text()


def _of_tcp(roster: Path) -> list[str]:
    members = tomllib.loads(roster.read_text())["member"]
    return [address for address in members[1]["addresses"] if address.startswith("tcp")]
