from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.fleet.vce.vce_api import _register_nodes
from flwr.server.superlink.linkstate import LinkStateFactory, in_memory_linkstate
from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.date import now
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from retexo_fl.federation.asking.simulated_grid import with_messages_by_node
from retexo_fl.simulation.inline_grid import InlineGrid


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Flower's own of a simulation of four nodes."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    factory = LinkStateFactory(
        FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()
    )
    state: Any = factory.state()
    needed = [
        item.name
        for item in dataclasses.fields(Run)
        if item.default is item.default_factory is dataclasses.MISSING
    ]
    values: dict[str, Any] = dict.fromkeys(needed)
    run = Run(**{**values, "run_id": 1, "federation_id": NOOP_FEDERATION_ID})
    run.primary_task_id = 1
    state.run_ids[1], state.task_store[1] = RunRecord(run=run), Task(task_id=1, run_id=1)
    _register_nodes(4, factory)
    made = InMemoryGrid(state_factory=factory)
    made.set_run(run)
    return made


def message(node: int, number: int, ttl: float = 60.0) -> Message:
    content = RecordDict({"of": ConfigRecord({"number": number})})
    return Message(content, dst_node_id=node, message_type="query", ttl=ttl)


def delivered(grid: Any, node: int) -> list[int]:
    """Take the next message of a node as Flower's simulation does; return its number."""
    found = grid.state.get_message_ins(node_id=node, limit=1)
    return [int(item.content["of"]["number"]) for item in found]


def test_each_node_gets_its_messages_once_and_in_their_order(grid: Any) -> None:
    nodes = sorted(grid.get_node_ids())
    grid.push_messages([message(nodes[0], 7)])
    assert with_messages_by_node(with_messages_by_node(grid)) is grid
    asked = [message(node, number) for number in range(2) for node in nodes[1:3]]
    assert len(list(grid.push_messages(asked))) == 4
    assert [delivered(grid, node) for node in nodes] == [[7], [0], [0], []]
    assert [delivered(grid, node) for node in nodes] == [[], [1], [1], []]
    assert [delivered(grid, node) for node in nodes] == [[], [], [], []]
    assert all(item.metadata.delivered_at for item in asked)


def test_replies_arrive_as_from_flowers_own(grid: Any) -> None:
    nodes = sorted(grid.get_node_ids())
    names = list(with_messages_by_node(grid).push_messages([message(nodes[1], 3)]))
    (found,) = grid.state.get_message_ins(node_id=nodes[1], limit=1)
    reply = Message(RecordDict(), reply_to=found)
    reply.metadata.__dict__["_message_id"] = "reply"
    grid.state.store_message_res(reply)
    assert [item.metadata.reply_to_message_id for item in grid.pull_messages(names)] == names
    assert not grid.state.message_ins_store


def test_message_that_has_expired_is_not_delivered(
    grid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = min(with_messages_by_node(grid).get_node_ids())
    grid.push_messages([message(node, 1, ttl=20.0), message(node, 2)])
    # Only then: Flower takes no message whose time is over.
    later = now() + timedelta(seconds=30)
    monkeypatch.setattr(in_memory_linkstate, "now", lambda: later)
    assert [delivered(grid, node) for _ in range(3)] == [[], [2], []]


def test_messages_that_flower_names_otherwise_are_found_by_flower(
    grid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = sorted(grid.get_node_ids())
    own = grid.push_messages
    monkeypatch.setattr(grid, "push_messages", lambda messages: [f"0x{x}" for x in own(messages)])
    with_messages_by_node(grid).push_messages([message(nodes[0], 1)])
    assert delivered(grid, nodes[0]) == [1]


def test_other_grids_are_left_as_they_are(grid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = object.__new__(InlineGrid)
    assert with_messages_by_node(other) is other
    assert "push_messages" not in vars(other)
    # Flower's own, kept otherwise in a later version.
    monkeypatch.setattr(grid.state, "message_ins_store", None)
    assert with_messages_by_node(grid) is grid
    assert "push_messages" not in vars(grid)
