"""Real agents on real sockets: the same bits as in one process, over TCP and TLS."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.agent.api import Ticket
from retexo_fl.agent.preparation import make_parts
from retexo_fl.agent.remote import RemoteClient, ask_agent
from retexo_fl.config import config_values, make_config
from retexo_fl.graph import GraphPartition
from tests.support.agents import AgentProcess, agents, assert_same_training, retexo, train_with
from tests.support.runs import configured, train

pytestmark = pytest.mark.system

KEYS: dict[str, Any] = {"clients": 2, "hidden": 8, "rounds": 2}


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config(KEYS))


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, parts: list[GraphPartition]
) -> Iterator[list[AgentProcess]]:
    with agents(tmp_path_factory.mktemp("agents"), parts) as made:
        yield made


@pytest.mark.parametrize("algorithm", ["lazy", "standard", "bns"])
def test_agents_train_as_one_process_does(
    tmp_path: Path, pair: list[AgentProcess], algorithm: str
) -> None:
    keys = {**KEYS, "algorithm": algorithm}
    train_with(pair, configured(tmp_path / "agents", **keys))
    train(tmp_path / "inline", **keys)
    assert_same_training(tmp_path / "agents", tmp_path / "inline")


def test_what_an_agent_keeps_is_its_owners_alone(pair: list[AgentProcess]) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(pair[0].socket) == 0o600
    assert mode(pair[0].socket.parent) == 0o700
    assert mode(pair[0].state) == 0o700


def test_two_agents_never_share_a_state_folder(pair: list[AgentProcess]) -> None:
    done = retexo("agent", "run", "--config", str(pair[0].settings))
    assert done.returncode == 2
    assert f"state: {pair[0].state} is used by another agent (process" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_status_tells_of_jobs_and_peers(pair: list[AgentProcess]) -> None:
    ticket = Ticket(job="job-00000000000b", attempt=4)
    RemoteClient(pair[0].socket, config_values(make_config(KEYS))).hello(ticket)
    facts = pair[0].status()
    job = next(item for item in facts["jobs"] if item["job"] == ticket.job)
    assert (job["attempt"], job["state"], job["message"]) == (4, "waiting", "hello")
    assert facts["part"]["client"] == 0
    assert [peer["client"] for peer in facts["peers"]] == [1]
    assert facts["memory"]["peak_rss_bytes"] >= facts["memory"]["rss_bytes"] > 0
    done = retexo("agent", "status", "--config", str(pair[0].settings))
    assert done.returncode == 0
    assert ticket.job in done.stdout
    done = retexo("agent", "forget", ticket.job, "--config", str(pair[0].settings))
    assert done.stdout == f"{ticket.job}: forgotten\n"
    assert ticket.job not in [item["job"] for item in ask_agent(pair[0].socket, "status")["jobs"]]
