"""Agents that find each other through the server: introduced by it, and by its relay."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from retexo_fl.channels.identity import make_identity
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.client import api
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import RunConfig, config_values, make_config
from retexo_fl.errors import ExchangeIncomplete, IdentityError
from retexo_fl.federation import make_client_app
from retexo_fl.federation.asking import waiting
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.run_directory import RunDirectory
from retexo_fl.federation.server_app import run_training
from retexo_fl.federation.server_loop import ServerLoop
from retexo_fl.graph import GraphPartition
from tests.support.agents import AgentProcess, agents, assert_same_training
from tests.support.runs import configured, ledger_of, train
from tests.support.thread_grid import ThreadGrid

pytestmark = pytest.mark.system

KEYS: dict[str, Any] = {"clients": 3, "hidden": 8, "rounds": 2}
DEPLOYED: dict[str, Any] = {**KEYS, "engine": "deployment"}


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config(KEYS))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("inline") / "run", **KEYS)


class Server(ThreadGrid):
    """A server that keeps all that passes it, may lie about a client's key, and may be far away."""

    def __init__(self, made: list[AgentProcess], config: RunConfig) -> None:
        nodes = [{"agent": str(agent.socket)} for agent in made]
        super().__init__(make_client_app(), nodes, config_values(config))
        self.passed: list[bytes] = []
        self.impostor: Member | None = None
        #: Looks in which no answer to an introduction has come yet.
        self.looks_in_vain = 0
        self._introduces = False

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Lie, keep, and send."""
        sent = list(messages)
        for message in sent:
            self._introduces = message.metadata.message_type == api.INTRODUCE.message_type
            self._lie(message)
            self._keep(message)
        return super().push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Keep, and hand on."""
        if self._introduces and self.looks_in_vain:
            self.looks_in_vain -= 1
            return []
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            self._keep(reply)
        return replies

    def _keep(self, message: Message) -> None:
        for record in message.content.config_records.values():
            values = [value for value in record.values() if isinstance(value, bytes)]
            self.passed += values
        for arrays in message.content.array_records.values():
            self.passed += [array.data for array in arrays.values()]

    def _lie(self, message: Message) -> None:
        if self.impostor is None or message.metadata.message_type != api.INTRODUCE.message_type:
            return
        settings = message.content.config_records["retexo"]
        told = Roster.parse(str(settings["roster"]))
        settings["roster"] = told.with_members([self.impostor]).text()


def _without_routes(made: list[AgentProcess]) -> None:
    """Leave them no address but the relay's, and nothing to listen at."""
    roster = made[0].folder.parent / "roster.toml"
    members = Roster.read(roster).members.values()
    relayed = [
        Member(client=m.client, certificate_pem=m.certificate_pem, addresses=("relay:",))
        for m in members
    ]
    roster.write_text(Roster.of(relayed).text())
    for agent in made:
        lines = agent.settings.read_text().splitlines()
        agent.settings.write_text("\n".join(x for x in lines if not x.startswith("listen")))


def _without_roster(made: list[AgentProcess]) -> None:
    """Let them believe the server."""
    for agent in made:
        lines = agent.settings.read_text().splitlines()
        kept = [x for x in lines if not x.startswith("roster")]
        agent.settings.write_text("\n".join([*kept, "introductions = true"]))


def _start(made: list[AgentProcess]) -> None:
    for agent in made:
        agent.start()


def test_relay_carries_everything_and_the_server_reads_nothing(
    tmp_path: Path, parts: list[GraphPartition], reference: Path
) -> None:
    config = configured(tmp_path / "run", **DEPLOYED, relay=True)
    with agents(tmp_path, parts, start=False) as made:
        _without_routes(made)
        _start(made)
        server = Server(made, config)
        run_training(server, config)
        peer = made[0].status()["peers"][0]
    assert_same_training(tmp_path / "run", reference)
    assert ledger_of(tmp_path / "run").sum(purpose="relay").payload > 0
    assert peer["channel"] == "relay"
    passed = b"".join(server.passed)
    for row in _boundary_rows(parts):
        assert row not in passed
        assert zlib.compress(row) not in passed


def _boundary_rows(parts: list[GraphPartition]) -> list[bytes]:
    """Return some rows of every client as a dense or a sparse block has them."""
    rows = []
    for part in parts:
        assert isinstance(part.features, np.ndarray)
        sent = part.features[:40]
        rows += [row.tobytes() for row in sent]
        rows += [row[row != 0].tobytes() for row in sent]
    assert all(len(row) > 40 and any(row) for row in rows)
    return rows


def test_rows_are_found_where_nobody_encrypts(tmp_path: Path, parts: list[GraphPartition]) -> None:
    """The search above would find a row: it does in what a client sends without TLS."""
    from retexo_fl.channels import SpoolChannel
    from tests.support.runs import train_over

    spool = tmp_path / "spool"
    kept: list[bytes] = []

    class Keeping(SpoolChannel):
        def send_block(self, key: Any, frames: Any) -> int:
            kept.extend(frames)
            return super().send_block(key, frames)

    for codec in ("dense", "lossless"):
        train_over(configured(tmp_path / codec, **KEYS, codec=codec), Keeping(spool / codec))
    sent = b"".join(kept)
    assert sum(row in sent for row in _boundary_rows(parts)) > len(parts)


def test_without_a_relay_clients_without_routes_are_named(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    config = configured(tmp_path / "run", **DEPLOYED, exchange_deadline_s=1.0)
    with agents(tmp_path, parts, start=False) as made:
        _without_routes(made)
        _start(made)
        with pytest.raises(ExchangeIncomplete, match="client 0 lacks"):
            run_training(Server(made, config), config)


def test_agent_that_is_killed_goes_on_over_the_relay(
    tmp_path: Path, parts: list[GraphPartition], reference: Path
) -> None:
    config = configured(tmp_path / "run", **DEPLOYED, relay=True)
    with agents(tmp_path, parts, start=False) as made:
        _without_routes(made)
        _start(made)

        class Killing(Server):
            trips = 0

            def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
                sent = list(messages)
                if sent[0].metadata.message_type == api.RELAY.message_type:
                    Killing.trips += 1
                    if Killing.trips == 3:
                        made[1].kill()
                        made[1].start()
                return super().push_messages(sent)

        run_training(Killing(made, config), config)
    assert Killing.trips > 3
    assert_same_training(tmp_path / "run", reference)


def test_introduced_clients_find_each_other(
    tmp_path: Path, parts: list[GraphPartition], reference: Path
) -> None:
    config = configured(tmp_path / "run", **DEPLOYED, introductions=True)
    with agents(tmp_path, parts, start=False) as made:
        _without_roster(made)
        _start(made)
        run_training(Server(made, config), config)
        made[0].kill()
        # What was introduced outlives the process.
        made[0].start()
        assert [peer["client"] for peer in made[0].status()["peers"]] == [1, 2]
    assert_same_training(tmp_path / "run", reference)


def test_slow_introduction_is_told_of_and_writes_nothing(
    tmp_path: Path,
    parts: list[GraphPartition],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(waiting, "_FIRST_REPORT_S", 0.0)
    config = configured(tmp_path / "run", **DEPLOYED, introductions=True)
    run = RunDirectory(tmp_path / "run")
    with agents(tmp_path, parts) as made:
        grid = Server(made, config)
        grid.looks_in_vain = 2
        ServerLoop(grid=grid, config=config, run=run, job=JobState.begin()).greet()
    assert "introduce waits for client" in caplog.text
    assert not run.path.exists()


def test_lie_about_a_key_is_named_where_there_is_a_roster(
    tmp_path: Path, parts: list[GraphPartition], reference: Path
) -> None:
    config = configured(tmp_path / "run", **DEPLOYED, introductions=True)
    forged = make_identity(tmp_path / "forged", 1).certificate_pem
    with agents(tmp_path, parts) as made:
        server = Server(made, config)
        server.impostor = Member(client=1, certificate_pem=forged, addresses=("tcp://127.0.0.1:9",))
        run_training(server, config)
        logs = [agent.log for agent in made]
    assert all("impostor" in log and "peer=1" in log for log in logs)
    assert_same_training(tmp_path / "run", reference)


def test_lie_about_ones_own_key_ends_the_run(tmp_path: Path, parts: list[GraphPartition]) -> None:
    config = configured(tmp_path / "run", **DEPLOYED, introductions=True)
    forged = make_identity(tmp_path / "forged", 1).certificate_pem
    with agents(tmp_path, parts, start=False) as made:
        _without_roster(made)
        _start(made)
        server = Server(made, config)
        server.impostor = Member(client=1, certificate_pem=forged, addresses=("tcp://127.0.0.1:9",))
        with pytest.raises(IdentityError, match="another certificate for client 1"):
            run_training(server, config)
    assert not (tmp_path / "run").exists()
