"""A lost node is found by its port, which a listening socket stands for."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from flwr.clientapp import ClientApp

from retexo_fl.client.api import HelloRequest, Ticket
from retexo_fl.errors import EngineFailed
from retexo_fl.federation.asking import Ask, Messenger, WaitPolicy
from retexo_fl.federation.asking.ray_nodes import RayNodes
from retexo_fl.ledger import TrafficLedger
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.support.hand_clock import HandClock


class InMemoryGrid(InlineGrid):
    """Has the name of Flower's grid of a simulation."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Have this process drive a cluster of two nodes, and one that was lost long ago."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        nodes: list[dict[str, Any]] = [
            {"NodeManagerAddress": host, "NodeManagerPort": port, "Alive": True}
            for host, port in (one.getsockname()[:2], other.getsockname()[:2])
        ]
        gone = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1, "Alive": False}
        ray = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: [*nodes, gone])
        monkeypatch.setitem(sys.modules, "ray", ray)
        yield [one, other]


def look_until(nodes: RayNodes, clock: HandClock, *, at_most_s: float, since_s: float) -> None:
    begun = clock.now_s()
    while clock.now_s() < begun + at_most_s:
        nodes.look(clock.now_s() - since_s, lambda: "client 3")
        clock.pause(0.5)


def test_lost_node_is_named_after_some_seconds_of_silence(cluster: list[socket.socket]) -> None:
    clock = HandClock()
    nodes = RayNodes(InMemoryGrid(ClientApp(), 2, {}), clock)
    nodes.look(0.0, str)
    where = cluster[1].getsockname()[1]
    begun = clock.now_s()
    look_until(nodes, clock, at_most_s=100.0, since_s=begun)
    cluster[1].close()
    closed = clock.now_s()
    with pytest.raises(EngineFailed, match=rf"^client 3: Ray lost a node, 127\.0\.0\.1:{where};"):
        look_until(nodes, clock, at_most_s=100.0, since_s=begun)
    assert 10.0 <= clock.now_s() - closed < 15.0


def test_nodes_matter_only_while_nothing_is_heard(cluster: list[socket.socket]) -> None:
    clock = HandClock()
    nodes = RayNodes(InMemoryGrid(ClientApp(), 2, {}), clock)
    cluster[0].close()
    for _ in range(50):
        nodes.look(4.0, str)
        clock.pause(3.0)


def test_clusters_of_others_matter_not(cluster: list[socket.socket]) -> None:
    clock = HandClock()
    nodes = RayNodes(InlineGrid(ClientApp(), 2, {}), clock)
    cluster[0].close()
    look_until(nodes, clock, at_most_s=100.0, since_s=0.0)


@pytest.mark.parametrize("ray", [None, ModuleType("ray")], ids=["not there", "being imported"])
def test_a_process_without_a_cluster_looks_at_nothing(
    ray: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    monkeypatch.setitem(sys.modules, "ray", ray)
    look_until(
        RayNodes(InMemoryGrid(ClientApp(), 2, {}), clock), clock, at_most_s=100.0, since_s=0.0
    )


def test_a_question_ends_with_the_node_that_computes_for_its_client(
    cluster: list[socket.socket],
) -> None:
    class Silent(InMemoryGrid):
        def pull_messages(self, message_ids: object) -> list[Any]:
            del message_ids
            if clock.now_s() > begun + 20.0:
                cluster[0].close()
            return []

    # Known by its name.
    silent = type("InMemoryGrid", (Silent,), {})
    clock = HandClock()
    begun = clock.now_s()
    policy = WaitPolicy(timeout_s=3600.0)
    messenger = Messenger(
        silent(ClientApp(), 2, {}), ledger=TrafficLedger(), policy=policy, clock=clock
    )
    messenger.introduce({0: 2, 1: 3}, attempt=1)
    request = HelloRequest(ticket=Ticket(job="job-1", attempt=1))
    asked = Ask.of([0, 1], request, stage=-1, purpose="hello")
    with pytest.raises(EngineFailed, match=r"^client 0: Ray lost a node, 127\.0\.0\.1:"):
        list(messenger.replies(asked, messenger.questions(asked)))
    assert clock.now_s() - begun < 40.0
    waiting = messenger.ask_whoever_comes(request, count=2, purpose="hello")
    with pytest.raises(EngineFailed, match=r"^clients connected: .*: Ray lost a node"):
        list(waiting)
