"""Flower's own part of a deployment, as our certificates and units use it: TLS, keys, restarts."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.commands import ROOT, program
from tests.support.deployment import CONNECTION, Deployment
from tests.support.foreign_app import answers_to_foreign_app
from tests.support.host import Host
from tests.support.hosts import Hosts
from tests.support.part import wait_until
from tests.support.places import host_names

pytestmark = [pytest.mark.system, pytest.mark.deployed]

_CLIENT = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query("other")
def hello(message, context):
    agent = ConfigRecord({"agent": context.node_config["agent"]})
    return Message(RecordDict({"hello": agent}), reply_to=message)
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Generator[Deployment]:
    with Hosts(host_names(2)) as hosts:
        deployment = Deployment(hosts, tmp_path_factory.mktemp("flower"), None, 2)
        deployment.start()
        yield deployment


def hello(federation: Deployment, folder: Path) -> dict[int, str]:
    """Ask both clients for the place of their agents; return it by node id."""
    told = 'reply.content["hello"]["agent"]'
    return answers_to_foreign_app(federation, folder, client=_CLIENT, told=told)


def test_a_killed_superlink_comes_back_with_the_same_nodes(
    federation: Deployment, tmp_path: Path
) -> None:
    first = hello(federation, tmp_path / "first")
    places = {str(federation.client_folder(client) / "agent.sock") for client in range(2)}
    assert set(first.values()) == places
    federation.kill("superlink")
    assert not federation.superlink_answers()
    federation.restart("superlink")
    assert hello(federation, tmp_path / "second") == first


def test_a_supernode_with_an_unknown_key_is_refused(federation: Deployment, tmp_path: Path) -> None:
    client = federation.hosts["client-0"]
    before = known_nodes(federation)
    stranger = client.popen(
        [
            *(program("flower-supernode"), "--root-certificates", federation.root_certificates),
            *("--superlink", federation.superlink_address, "--port", "9099"),
            *("--auth-supernode-private-key", new_key(client, tmp_path)),
        ],
        env=federation.environment("client-0"),
        log=tmp_path / "log",
    )
    assert stranger.wait(timeout=500) != 0
    assert known_nodes(federation) == before


def test_whoever_reaches_the_superlink_can_give_it_orders(
    federation: Deployment, tmp_path: Path
) -> None:
    # What server/README.md warns of. Should Flower begin to ask who somebody is, say so there.
    before = known_nodes(federation)
    client = federation.hosts["client-0"]
    key = new_key(client, tmp_path)
    order = (ROOT / "server" / "register-client.sh", federation.superlink_address)
    client.run(
        [*order, federation.root_certificates, f"{key}.pub"],
        env=federation.environment("client-0"),
    )
    assert len(known_nodes(federation) - before) == 1
    # All keys together, as a fleet has them, when one more has come.
    (tmp_path / "more").mkdir()
    more = new_key(client, tmp_path / "more")
    said = client.run(
        [*order, federation.root_certificates, f"{key}.pub", f"{more}.pub"],
        env=federation.environment("client-0"),
    )
    assert f"register-client: {key}.pub: registered before\n" in said
    assert len(known_nodes(federation) - before) == 2


def new_key(host: Host, folder: Path) -> Path:
    key = folder / "key"
    host.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", key])
    return key


def known_nodes(federation: Deployment) -> set[str]:
    told = json.loads(federation.flwr("supernode", "list", CONNECTION, "--format", "json"))
    return {node["node-id"] for node in told["nodes"]}


def test_a_server_of_another_authority_is_not_trusted(
    federation: Deployment, tmp_path: Path
) -> None:
    client = federation.hosts["client-1"]
    client.run([federation.certificate_program, tmp_path / "tls", client.address])
    said = tmp_path / "log"
    node = client.popen(
        [
            *(program("flower-supernode"), "--root-certificates", tmp_path / "tls" / "ca.crt"),
            *("--superlink", federation.superlink_address, "--port", "9099"),
            *("--auth-supernode-private-key", federation.supernode_key(1), "--max-retries", "1"),
        ],
        env=federation.environment("client-1"),
        log=said,
    )
    wait_until(lambda: node.poll() is not None, "the SuperNode goes on")
    assert "CERTIFICATE_VERIFY_FAILED" in said.read_text()
    assert "SuperNode ID: " not in said.read_text()
