"""An agent's own connection to a SuperLink, at a server in this process that speaks the same."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from retexo_fl.agent.settings import AgentSettings
from retexo_fl.errors import ConfigurationError, IdentityError
from retexo_fl.federation import superlink_connection
from retexo_fl.federation.own_node import OwnNode

#: Of the answer to a request, by the last part of its path.
Answers = dict[str, Callable[[bytes], tuple[int, bytes]]]


def _nothing(_: bytes) -> tuple[int, bytes]:
    return 200, b""


class FakeSuperLink:
    """Answers as it is told; a request that nothing is told of gets an empty answer."""

    def __init__(self) -> None:
        self.answers: Answers = {
            "activate-node": lambda _: (200, ActivateNodeResponse(node_id=7).SerializeToString())
        }
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                name = self.path.rpartition("/")[2]
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.asked.append(name)
                status, content = outer.answers.get(name, _nothing)(body)
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_address[1]}"

    def deliver(self, message: Message) -> list[PushMessagesRequest]:
        """Have a message fetched once; return what comes back, when it has."""
        message.metadata.__dict__["_message_id"] = name = message.object_id
        pieces = {key: it.deflate() for key, it in get_all_nested_objects(message).items()}
        response = PullMessagesResponse(
            messages_list=[message_to_proto(message)],
            message_object_trees=[get_object_tree(message)],
        )
        waiting, replies = [response], []

        def pull(_: bytes) -> tuple[int, bytes]:
            return 200, waiting.pop().SerializeToString() if waiting else b""

        def piece(body: bytes) -> tuple[int, bytes]:
            content = pieces[PullObjectRequest.FromString(body).object_id]
            found = PullObjectResponse(
                object_found=True, object_available=True, object_content=content
            )
            return 200, found.SerializeToString()

        def push(body: bytes) -> tuple[int, bytes]:
            replies.append(PushMessagesRequest.FromString(body))
            return 200, PushMessagesResponse().SerializeToString()

        self.answers |= {"pull-messages": pull, "pull-object": piece, "push-messages": push}
        assert name in pieces
        return replies


@pytest.fixture
def superlink() -> Generator[FakeSuperLink]:
    fake = FakeSuperLink()
    yield fake
    fake.server.shutdown()
    fake.thread.join()
    fake.server.server_close()


def node_of(address: str, **changes: Any) -> OwnNode:
    settings = {
        **dict.fromkeys(("partition", "state", "socket", "key", "certificate"), "-"),
        **{"introductions": True, "superlink": address, "insecure": True},
        **changes,
    }
    return OwnNode(AgentSettings(**settings))


class Running:
    """A node in a thread: until it is stopped, or fails."""

    def __init__(self, node: OwnNode, most_bytes: int = 2**20) -> None:
        self.node, self.stopping = node, threading.Event()
        self.error: Exception | None = None
        self._most_bytes = most_bytes
        self.thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        try:
            self.node.run(self.stopping, self._most_bytes)
        except Exception as error:
            self.error = error

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.thread.join(timeout=5.0)
        assert not self.thread.is_alive()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20.0
        while not condition():
            assert time.monotonic() < deadline, self.node.facts()
            time.sleep(0.01)


def message(kind: str, **records: Any) -> Message:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    return Message(RecordDict(records), dst_node_id=7, message_type=kind)


def test_flower_is_as_this_package_uses_it() -> None:
    superlink_connection.check()


def test_another_flower_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ((lambda address: None, "address insecure"),)
    monkeypatch.setattr(superlink_connection, "_CALLED", other)
    with pytest.raises(ConfigurationError, match=r"flwr 1\..*run flower-supernode"):
        node_of("127.0.0.1:1")


def test_a_node_says_that_it_comes_and_goes(superlink: FakeSuperLink) -> None:
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: "pull-messages" in superlink.asked)
        facts = running.node.facts()
    assert (facts["state"], facts["node"], facts["answered"]) == ("connected", "7", 0)
    assert superlink.asked[:2] == ["register-node", "activate-node"]
    assert superlink.asked[-2:] == ["deactivate-node", "unregister-node"]


def test_a_refused_node_fails_by_name(superlink: FakeSuperLink) -> None:
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: "pull-messages" in superlink.asked)
        superlink.answers["pull-messages"] = lambda _: (401, b'{"detail": "Invalid"}')
        running.thread.join(timeout=20.0)
    assert isinstance(running.error, IdentityError)
    assert "HTTP 401: Invalid; expected the supernode-key" in str(running.error)


def test_a_key_that_is_not_let_in_is_tried_again(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink_connection, "_ASK_AGAIN_S", 0.01)
    let_in = superlink.answers["activate-node"]

    def refuse(_: bytes) -> tuple[int, bytes]:
        if superlink.asked.count("activate-node") == 3:
            superlink.answers["activate-node"] = let_in
        return 412, b'{"detail": "Failed."}'

    superlink.answers["activate-node"] = refuse
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["state"] == "connected")
    assert superlink.asked.count("activate-node") == 4


def test_a_key_that_is_never_let_in_fails_by_name(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink_connection, "_REFUSED_FOR_S", -1.0)
    superlink.answers["activate-node"] = lambda _: (412, b'{"detail": "Failed."}')
    with Running(node_of(superlink.address)) as running:
        running.thread.join(timeout=20.0)
    assert isinstance(running.error, IdentityError)
    assert "HTTP 412: Failed.; expected the supernode-key" in str(running.error)


def test_a_superlink_that_is_away_is_asked_again_and_said(
    superlink: FakeSuperLink, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="retexo_fl")
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: "pull-messages" in superlink.asked)
        superlink.answers["pull-messages"] = lambda _: (503, b"")
        running.until(lambda: running.node.facts()["state"] == "away")
        del superlink.answers["pull-messages"]
        running.until(lambda: running.node.facts()["state"] == "connected")
    told = [record.message for record in caplog.records]
    assert [line.split("=")[0] for line in told] == [
        *("superlink connected", "superlink away", "superlink connected")
    ]
    assert "HTTP 503" in told[1]
    assert "away_s=" in told[2]


def test_a_node_stops_while_nobody_answers() -> None:
    with Running(node_of("127.0.0.1:1")) as running:
        running.until(lambda: running.node.facts()["state"] == "away")
    assert running.error is None


@pytest.mark.parametrize(
    "foreign",
    [("query.other", "retexo"), ("train.train_layer", "other")],
    ids=["type", "content"],
)
def test_a_message_of_another_app_is_answered_by_name(
    superlink: FakeSuperLink, foreign: tuple[str, str]
) -> None:
    kind, record = foreign
    replies = superlink.deliver(message(kind, **{record: ConfigRecord({"a": 1})}))
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["answered"])
    (reply,) = replies
    error = reply.messages_list[0].error
    assert error.code == 2
    assert "is of another app" in error.reason
    assert "flower-supernode" in error.reason
    assert "get-fab" not in superlink.asked


def test_a_message_that_is_too_long_is_not_kept(superlink: FakeSuperLink) -> None:
    replies = superlink.deliver(message("query.hello", retexo=ConfigRecord({"a": "x" * 9000})))
    with Running(node_of(superlink.address), most_bytes=5000) as running:
        running.until(lambda: running.node.facts()["answered"])
    assert "more than 5.0 kB" in replies[0].messages_list[0].error.reason


def test_pieces_that_are_no_message_end_nothing(superlink: FakeSuperLink) -> None:
    replies = superlink.deliver(message("query.hello"))
    found = PullObjectResponse(object_found=True, object_available=True, object_content=b"\0" * 9)
    superlink.answers["pull-object"] = lambda _: (200, found.SerializeToString())
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["answered"])
    # What it says of it stays in the log.
    assert replies[0].messages_list[0].error.reason == "ValueError in the agent; see its log"


def test_an_answer_that_the_superlink_fails_of_is_given_up(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(superlink_connection, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(superlink_connection, "_LONGEST_PAUSE_S", 0.001)
    superlink.deliver(message("query.other"))
    superlink.answers["push-messages"] = lambda _: (500, b"")
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: superlink.asked.count("pull-messages") > 2)
        assert running.node.facts()["answered"] == 0
    assert running.error is None
    assert superlink.asked.count("push-messages") == 9
    assert any("unanswered message=query.other" in record.message for record in caplog.records)


def test_a_run_that_is_over_is_left(superlink: FakeSuperLink) -> None:
    replies = superlink.deliver(message("query.hello"))
    superlink.answers["pull-object"] = lambda _: (403, b"{}")
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: superlink.asked.count("pull-messages") > 2)
    assert running.error is None
    assert not replies


def test_a_key_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no key")
    with pytest.raises(IdentityError, match="supernode-key: .*ssh-keygen -t ecdsa"):
        node_of("x:1", insecure=False, supernode_key=str(tmp_path / "key"))
    with pytest.raises(ConfigurationError, match="root-certificates: .*cannot be read"):
        node_of("x:1", insecure=False, root_certificates=str(tmp_path / "none"))
