"""What a SuperLink's server errors leave of messages, with Flower's own state behind the grid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

from retexo_fl.federation.asking import bounded_grid
from retexo_fl.federation.asking.bounded_grid import BoundedGrid
from retexo_fl.federation.asking.deliveries import _absence_of


class Failing:
    """Flower's Runtime API, whose first push is carried out, and answered by HTTP 500."""

    def __init__(self, state: Any, task: Any) -> None:
        self.state, self.task = state, task
        self.pushes = 0

    def PushMessages(self, request: Any) -> Any:
        answer = runtime_handlers.push_messages(request, self.state, self.task)
        self.pushes += 1
        if self.pushes == 1:
            asked = httpx.Request("POST", "https://127.0.0.1/v1/runtime/push-messages")
            raise httpx.HTTPStatusError("500", request=asked, response=httpx.Response(500))
        return answer

    def PushObject(self, request: Any) -> Any:
        return runtime_handlers.push_object(request, self.state, self.task)

    def PullMessages(self, request: Any) -> Any:
        return runtime_handlers.pull_messages(request, self.state, self.task)

    def PullObject(self, request: Any) -> Any:
        return runtime_handlers.pull_object(request, self.state, self.task)

    def ConfirmMessageReceived(self, request: Any) -> Any:
        return runtime_handlers.confirm_message_received(request, self.state, self.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Flower's grid over its own state, of two nodes.

    Attributes:
        state: Of the SuperLink.
        nodes: Their ids.
        grid: What a ServerApp has.
        runtime: The API behind it.
    """

    state: Any
    nodes: list[int]
    grid: Any
    runtime: Failing

    def messages(self) -> list[Message]:
        """Return a question to each; both share the piece that is their content."""
        content = RecordDict({"of": ConfigRecord({"a": 1})})
        return [Message(content, dst_node_id=node, message_type="query") for node in self.nodes]

    def pulled(self, node: int) -> Any:
        """Return what a node gets that asks for messages."""
        request = PullMessagesRequest(node=Node(node_id=node))
        return fleet_handlers.pull_messages(request, self.state, self.state.object_store)


@pytest.fixture(params=["in memory", "database"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Server:
    monkeypatch.setattr(bounded_grid, "_AGAIN_AFTER_S", 0.01)
    place = FLWR_IN_MEMORY_DB_NAME if request.param == "in memory" else str(tmp_path / "a.db")
    links = LinkStateFactory(place, NoOpFederationManager(), ObjectStoreFactory(place))
    state: Any = links.state()
    nodes = [state.create_node("of", "nobody", b"key %d" % number, 30) for number in range(2)]
    assert all(state.activate_node(node, 30) for node in nodes)
    run = state.create_run(
        None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP
    )
    for name, value in (("task_id", 1), ("run_id", run), ("node_id", 1)):
        monkeypatch.setattr(TaskIdentity, f"_{name}", value)
    grid: Any = HttpGrid("127.0.0.1:1", insecure=True, root_certificates=None, token="-")  # noqa: S106
    grid.set_run(state.get_run_info(run_ids=[run])[0])
    grid._client = runtime = Failing(state, SimpleNamespace(run_id=run))
    return Server(state=state, nodes=nodes, grid=grid, runtime=runtime)


# Flower's migrations use what the newest Alembic calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")


def test_a_message_that_is_pushed_again_arrives_once(server: Server) -> None:
    sent = server.messages()
    names = list(BoundedGrid(server.grid).push_messages(sent))
    assert server.runtime.pushes == 2
    assert names == [message.metadata.message_id for message in sent]
    for node, message in zip(server.nodes, sent, strict=True):
        got, nothing = server.pulled(node), server.pulled(node)
        (one,) = got.messages_list
        assert one.metadata.message_id == message.metadata.message_id
        assert not nothing.messages_list
        pieces = [tree.object_id for tree in got.message_object_trees[0].children]
        assert all(server.state.object_store.get(piece) for piece in pieces)


def test_a_message_that_a_failure_took_is_named_when_its_node_leaves(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an agent does that has met with one: `superlink_connection.py`."""
    grid = BoundedGrid(server.grid)
    names = list(grid.push_messages(server.messages()))
    with monkeypatch.context() as patched:
        patched.setattr(server.state, "store_traffic", _fails)
        with pytest.raises(OSError, match="locked"):
            server.pulled(server.nodes[0])
    assert not server.pulled(server.nodes[0]).messages_list
    assert not list(grid.pull_messages(names))
    server.state.deactivate_node(server.nodes[0])
    (reply,) = grid.pull_messages(names)
    assert reply.metadata.reply_to_message_id == names[0]
    assert _absence_of(reply) == "its SuperNode is not connected"


def _fails(*_: object, **__: object) -> None:
    raise OSError("database is locked")
