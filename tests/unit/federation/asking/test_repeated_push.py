"""Messages that are pushed again to a SuperLink that failed, with Flower's own state behind it."""

from __future__ import annotations

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


@pytest.fixture(params=["in memory", "database"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    place = FLWR_IN_MEMORY_DB_NAME if request.param == "in memory" else str(tmp_path / "a.db")
    return LinkStateFactory(place, NoOpFederationManager(), ObjectStoreFactory(place)).state()


# Flower's migrations use what the newest Alembic calls deprecated.
@pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")
def test_a_message_that_is_pushed_again_arrives_once(
    state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_grid, "_AGAIN_AFTER_S", 0.01)
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
    # Both share the piece that is their content.
    sent = [
        Message(RecordDict({"of": ConfigRecord({"a": 1})}), dst_node_id=node, message_type="query")
        for node in nodes
    ]
    names = list(BoundedGrid(grid).push_messages(sent))
    assert runtime.pushes == 2
    assert names == [message.metadata.message_id for message in sent]
    for node, message in zip(nodes, sent, strict=True):
        pull = PullMessagesRequest(node=Node(node_id=node))
        got, nothing = (
            fleet_handlers.pull_messages(pull, state, state.object_store) for _ in range(2)
        )
        assert [one.metadata.message_id for one in got.messages_list] == [
            message.metadata.message_id
        ]
        assert not nothing.messages_list
        pieces = [tree.object_id for tree in got.message_object_trees[0].children]
        assert all(state.object_store.get(piece) for piece in pieces)
