"""Agents that are their own SuperNodes, over TLS with keys: no process of Flower's at a client."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.commands import program, run_command
from tests.support.deployment import CONNECTION, Deployment
from tests.support.foreign_app import answers_to_foreign_app
from tests.support.hosts import Hosts
from tests.support.limits import PERMISSIVE
from tests.support.part import Part, wait_until
from tests.support.places import host_names
from tests.support.runs import model_bytes

pytestmark = [pytest.mark.system, pytest.mark.deployed, pytest.mark.timeout(1200)]

CLIENTS = 2
#: The most that an agent may have taken while it loaded PyTorch, 278 MB, and once its job is over,
#: 212 MB, of which 13 are pages of files.
MOST_BYTES = 300_000_000
MOST_AFTER_BYTES = 230_000_000
OPTIONS = ("--profile", "retexo", "--candidates", "none", "--hidden", "8", "--rounds", "1")

#: Of another app.
_CLIENT = """
from pathlib import Path
from flwr.clientapp import ClientApp

Path("{mark}").touch()
app = ClientApp()
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    folder = tmp_path_factory.mktemp("own")
    parts = folder / "parts"
    size = ("--clients", str(CLIENTS), "--out", str(parts))
    run_command([program("retexo"), "partition", "make", *size], cwd=folder)
    with Hosts(host_names(CLIENTS)) as hosts:
        deployment = Deployment(
            hosts,
            folder,
            parts,
            CLIENTS,
            agent_settings=dict(PERMISSIVE),
            own_nodes=range(CLIENTS),
        )
        deployment.start()
        yield deployment


def test_agents_do_without_supernodes(federation: Deployment, tmp_path: Path) -> None:
    # One after the other: the last leaves no node.
    check_weights(federation)
    check_other_app(federation, tmp_path)
    check_refusals(federation, tmp_path)


def check_weights(federation: Deployment) -> None:
    """Weights are those of one process."""
    folder = federation.folder
    place = ("--partitions", str(folder / "parts"), "--out", str(folder / "inline"), "--quiet")
    run_command([program("retexo"), "run", *OPTIONS, *place], cwd=folder)
    federation.run(folder / "run", *OPTIONS, timeout_s=800.0)
    assert model_bytes(folder / "run") == model_bytes(folder / "inline")
    memory = federation.agent_status(0)["memory"]
    assert memory["peak_rss_bytes"] < MOST_BYTES
    assert memory["rss_bytes"] < MOST_AFTER_BYTES
    told = federation.agent_status(0)["superlink"]
    assert (told["state"], told["address"]) == ("connected", federation.superlink_address)
    assert told["answered"] >= 6


def check_other_app(federation: Deployment, tmp_path: Path) -> None:
    """A SuperLink comes back; an app of somebody else's is answered by name."""
    federation.kill("superlink")
    for client in range(CLIENTS):
        wait_for_line(federation[f"agent-{client}"], "superlink away=")
    federation.restart("superlink")
    for client in range(CLIENTS):
        wait_for_line(federation[f"agent-{client}"], "away_s=")
    told = answers_to_foreign_app(
        federation,
        tmp_path,
        client=_CLIENT.format(mark=tmp_path / "executed"),
        told="reply.error.reason",
    )
    assert len(told) == CLIENTS
    for reason in told.values():
        assert "is of another app" in reason
    # Nothing of its bundle was run.
    assert not (tmp_path / "executed").exists()


def check_refusals(federation: Deployment, tmp_path: Path) -> None:
    """A node goes when it is told to, and none comes with another key or to another server."""
    node = federation.agent_status(0)["superlink"]["node"]
    begun = time.monotonic()
    assert federation["agent-0"].stop() == 0
    assert time.monotonic() - begun < 10
    # It has said so: a node that is silent is online for a minute.
    assert online(federation)[node] is False

    host, foreign = federation.hosts["client-0"], tmp_path / "tls"
    host.run([federation.certificate_program, foreign, host.address])
    federation.write_settings(0, **{"root-certificates": str(foreign / "ca.crt")})
    federation["agent-0"].start()
    assert federation["agent-0"].process is not None
    assert federation["agent-0"].process.wait(timeout=60) == 2
    said = federation["agent-0"].said_now()
    assert "expected a certificate that root-certificates vouches for" in said
    assert "superlink connected=" not in said

    federation.write_settings(0)
    federation.supernode_key(0).unlink()
    host.run(
        [
            *("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", ""),
            *("-f", federation.supernode_key(0)),
        ]
    )
    federation["agent-0"].start()
    wait_for_line(federation["agent-0"], "superlink refused=")
    assert federation["agent-0"].stop() == 0

    # A node that the server removes while it runs: an end with a name.
    other, log = federation["agent-1"], federation["agent-1"].said
    removed = federation.agent_status(1)["superlink"]["node"]
    federation.flwr("supernode", "unregister", removed, CONNECTION)
    assert other.process is not None
    assert other.process.wait(timeout=60) == 2
    assert "HTTP 401" in log()
    assert "expected the supernode-key of a node that is registered there" in log()


def wait_for_line(agent: Part, words: str) -> None:
    wait_until(lambda: words in agent.said_now(), f"no {words}", part=agent)


def online(federation: Deployment) -> dict[str, bool]:
    told = json.loads(federation.flwr("supernode", "list", CONNECTION, "--format", "json"))
    return {str(node["node-id"]): node["status"] == "online" for node in told["nodes"]}
