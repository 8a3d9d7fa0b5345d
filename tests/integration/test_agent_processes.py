"""Real agents on real sockets: the same bits as in one process, over TCP and TLS."""

from __future__ import annotations

import asyncio
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent.process import run_agent
from retexo_fl.agent.remote import RemoteClient, ask_agent
from retexo_fl.agent.settings import read_settings
from retexo_fl.agent.socket_server import SocketServer
from retexo_fl.channels import BlockKey
from retexo_fl.channels.doorway import prove
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Roster
from retexo_fl.channels.secure_stream import SecureStream, connecting_context
from retexo_fl.channels.transports.tcp import TcpTransport
from retexo_fl.client.api import HelloRequest, Ticket, TrainRequest
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import config_values, make_config
from retexo_fl.errors import RetexoError
from retexo_fl.exchange import FrameKind
from retexo_fl.exchange.frames import FrameHeader, encode_frame
from retexo_fl.exchange.link.messages import Offer, encode_greet, encode_offer, frame_prefix
from retexo_fl.graph import GraphPartition
from tests.support.agents import (
    ROSTER,
    AgentProcess,
    agents,
    assert_same_training,
    retexo,
    train_with,
)
from tests.support.limits import PERMISSIVE
from tests.support.part import wait_until
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
    with agents(tmp_path_factory.mktemp("agents"), parts, settings=PERMISSIVE) as made:
        yield made


def test_corrections_of_local_steps_are_those_of_one_process(
    tmp_path: Path, pair: list[AgentProcess]
) -> None:
    """All forms of exchange are compared in the grid of recorded bits."""
    keys = {**KEYS, "local_steps": 2, "local_optimizer": "sgd", "local_correction": "scaffold"}
    train_with(pair, configured(tmp_path / "agents", **keys))
    train(tmp_path / "inline", **keys)
    assert_same_training(tmp_path / "agents", tmp_path / "inline")


def test_what_an_agent_keeps_is_its_owners_alone(pair: list[AgentProcess]) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    assert mode(pair[0].socket) == 0o600
    assert mode(pair[0].socket.parent) == 0o700
    assert mode(pair[0].state) == 0o700


def test_memory_is_given_to_what_is_answered_alone(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    """Bodies of 64 MB: for jobs that are none, beyond what all may take, and refused once read."""
    values = config_values(make_config(KEYS))
    known = Ticket(job="job-00000000000d", attempt=1, stage=9)

    def refusal(ticket: Ticket, megabytes: int) -> str:
        asked = TrainRequest(ticket=ticket, weights=np.zeros(megabytes * 250_000, np.float32))
        with pytest.raises(RetexoError) as caught:
            RemoteClient(agent.socket, values).ask(asked)
        return str(caught.value)

    # 300 MB of it are the process's.
    settings = {**PERMISSIVE, "most-memory-mib": 400}
    with agents(tmp_path, parts[:1], settings=settings) as (agent,):
        RemoteClient(agent.socket, values).ask(HelloRequest(ticket=replace(known, stage=0)))
        start = agent.status()["memory"]["peak_rss_bytes"]
        unknown = [Ticket(job=f"job-{number:012x}", attempt=1) for number in range(4)]
        with ThreadPoolExecutor() as pool:
            told = list(pool.map(lambda ticket: refusal(ticket, 64), unknown))
        assert all("is unknown here; expected hello first" in sentence for sentence in told)
        assert "a message of 128 MB; expected at most 119 MB" in refusal(known, 128)
        assert agent.status()["memory"]["peak_rss_bytes"] < start + 2**24
        assert ["stage 9: expected 0 to" in refusal(known, 64) for _ in range(3)] == [True] * 3
        memory = agent.status()["memory"]
        assert memory["rss_bytes"] < start + 2**24
        # The thread that computed may still let one go while the next is read.
        assert memory["peak_rss_bytes"] < start + 2 * 64_000_000 + 2**24


def test_an_agent_without_a_job_has_nothing_that_computes_in_memory(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    """Of a process of its own: others are born of one that has PyTorch already."""
    values = config_values(make_config(KEYS))
    begun = HelloRequest(ticket=Ticket(job="job-00000000000e", attempt=1))
    own = {"PYTHONDONTWRITEBYTECODE": "1"}
    with agents(tmp_path, parts[:1], settings=PERMISSIVE, extra=own) as (agent,):
        waiting = agent.status()["memory"]["peak_rss_bytes"]
        RemoteClient(agent.socket, values).ask(begun)
        computing = agent.status()["memory"]["peak_rss_bytes"]
    assert 2 * waiting < computing


def test_a_roster_that_is_replaced_is_read_without_a_signal(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    with agents(tmp_path, parts, settings=PERMISSIVE) as (agent, _):
        path = tmp_path / ROSTER
        text = path.read_text()
        path.write_text("no roster")
        wait_until(lambda: "roster refused=" in agent.log, "nothing was read")
        path.unlink()
        path.write_text(f"# later\n{text}")
        wait_until(lambda: "roster read=" in agent.log, "nothing was read")
        assert agent.status()["part"]["client"] == 0


def test_two_agents_never_share_a_state_folder(pair: list[AgentProcess]) -> None:
    done = retexo("agent", "run", "--config", str(pair[0].settings))
    assert done.returncode == 2
    assert f"state: {pair[0].state} is used by another agent (process" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_hello_that_is_too_short_ends_one_link_and_no_agent(
    tmp_path: Path, pair: list[AgentProcess]
) -> None:
    ticket = Ticket(job="job-00000000000c", attempt=1)
    RemoteClient(pair[0].socket, config_values(make_config(KEYS))).ask(HelloRequest(ticket=ticket))
    header = FrameHeader(kind=FrameKind.HELLO, sequence=0, payload_bytes=5)
    frame = encode_frame(header, bytes(5), block_seed=0)
    layers = (1 << 16, 2 << 16)
    for layer in layers:
        key = BlockKey(job=ticket.job, layer=layer, weights_digest=b"d" * 32, sender=1, receiver=0)
        asyncio.run(_send_as_peer(pair, key, frame))

    facts = pair[0].status()
    assert facts["peers"][0]["refusals"]["protocol"] >= len(layers)
    assert "HELLO: 5 bytes, expected 91 to 154" in pair[0].log
    train_with(pair, configured(tmp_path / "agents", **KEYS))
    train(tmp_path / "inline", **KEYS)
    assert_same_training(tmp_path / "agents", tmp_path / "inline")


async def _send_as_peer(pair: list[AgentProcess], key: BlockKey, frame: bytes) -> None:
    """Send agent 0 a block of one frame with the key of client 1, until it has refused it."""
    async with asyncio.timeout(30):
        while b"expected 91 to 154" not in await _heard_as_peer(pair, key, frame):
            # A link that agent 0 has just opened to client 1 stands before this one.
            await asyncio.sleep(0.2)


async def _heard_as_peer(pair: list[AgentProcess], key: BlockKey, frame: bytes) -> bytes:
    roster = Roster.read(pair[0].folder.parent / "roster.toml")
    member, folder = roster.members[0], pair[1].folder
    identity = Identity.load(folder / "key.pem", folder / "certificate.pem")
    stream = await TcpTransport().connect(member.addresses[0], 0)
    heard = b""
    try:
        secure = SecureStream(
            connecting_context(identity, member), is_accepting=False, clients={member.digest: 0}
        )
        await prove(stream, secure, within_s=10.0)
        offer = Offer(key=key, num_frames=2, num_bytes=1000, is_eager=True)
        secure.write(encode_greet(1) + encode_offer(1, offer) + frame_prefix(1, len(frame)) + frame)
        await stream.write(secure.data_to_send())
        while b"expected 91 to 154" not in heard and (wire := await stream.read(2**14)):
            secure.receive_data(wire)
            heard += bytes(secure.read() or b"")
    finally:
        await stream.close()
    return heard


def test_status_tells_of_jobs_and_peers(pair: list[AgentProcess]) -> None:
    ticket = Ticket(job="job-00000000000b", attempt=4)
    RemoteClient(pair[0].socket, config_values(make_config(KEYS))).ask(HelloRequest(ticket=ticket))
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


def test_what_asks_the_server_is_stopped_before_what_it_asks(
    tmp_path: Path, parts: list[GraphPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the socket says as it ends would be a final answer."""
    close, was_stopping = SocketServer.close, []

    class Link:
        def __init__(self, socket: Path) -> None:
            self.socket, self.stopping = socket, threading.Event()

        def run(self, stopping: threading.Event, most_bytes: int) -> None:
            self.stopping = stopping
            ask_agent(self.socket, "stop")
            # An agent whose link does not end in time ends its process.
            stopping.wait(1.0)

        def facts(self) -> dict[str, Any]:
            return {"state": "connected"}

    def noted(server: SocketServer) -> None:
        was_stopping.append(link.stopping.is_set())
        close(server)

    monkeypatch.setattr(SocketServer, "close", noted)
    with agents(tmp_path, parts, settings=PERMISSIVE, start=False) as made:
        link = Link(made[0].socket)
        run_agent(read_settings(made[0].settings), link)
    assert was_stopping == [True]
