"""An agent's own connection to a SuperLink, at a server in this process that speaks the same."""

from __future__ import annotations

import gc
import gzip
import io
import json
import logging
import threading
import time
import tracemalloc
import weakref
import zipfile
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto, user_config_to_proto
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.proto.fleet_pb2 import (
    ActivateNodeResponse,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.run_pb2 import GetRunResponse, Run
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from retexo_fl.agent.settings import AgentSettings
from retexo_fl.client.api import HelloRequest, Ticket, question_of
from retexo_fl.errors import ConfigurationError, IdentityError, LocalProtocolError, RetexoError
from retexo_fl.federation import bounded_answers, own_node, superlink_connection
from retexo_fl.federation.own_node import OwnNode
from retexo_fl.federation.records import request_content
from retexo_fl.federation.superlink_connection import Connection
from tests.support.bundle_projects import bundle_project

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
        self.headers: dict[str, str] = {}
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
                for header in outer.headers.items():
                    self.send_header(*header)
                self.end_headers()
                # Who is told too much goes.
                with suppress(ConnectionError):
                    self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_address[1]}"

    def refuse(self, name: str, *answers: tuple[int, bytes]) -> None:
        """Give answers to so many requests, before what is given now."""
        waiting, then = list(answers), self.answers.get(name, _nothing)
        self.answers[name] = lambda body: waiting.pop(0) if waiting else then(body)

    def deliver(
        self, message: Message, forged: Callable[[bytes], bytes] = bytes
    ) -> list[PushMessagesRequest]:
        """Have a message fetched once, in changed pieces; return what comes back, when it has."""
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
            content = forged(pieces[PullObjectRequest.FromString(body).object_id])
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


HELLO = HelloRequest(ticket=Ticket(job="job-0123456789ab", attempt=1))
KIND = question_of(HELLO).message_type


def hello(superlink: FakeSuperLink, **more: Any) -> list[PushMessagesRequest]:
    """Deliver a question of this package's, of a run without keys."""
    superlink.answers["get-run"] = lambda _: (200, GetRunResponse(run=Run()).SerializeToString())
    superlink.answers["get-fab"] = lambda _: (200, bundle_of(PROJECT))
    asked = Message(request_content(HELLO), dst_node_id=7, message_type=KIND)
    return superlink.deliver(asked, **more)


PROJECT = bundle_project().encode()


def bundle_of(project: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", compression) as archive:
        archive.writestr("pyproject.toml", project)
    return bytes(GetFabResponse(fab=Fab(content=written.getvalue())).SerializeToString())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S", "_ASK_AGAIN_S"):
        monkeypatch.setattr(superlink_connection, name, 0.001)


def test_flower_is_as_this_package_uses_it() -> None:
    superlink_connection.check()


def test_another_flower_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ((lambda address: None, "address insecure"),)
    monkeypatch.setattr(superlink_connection, "_CALLED", other)
    fields = ((GetRunResponse, "run other"),)
    with pytest.raises(ConfigurationError, match=r"flwr 1\..*run flower-supernode"):
        node_of("127.0.0.1:1")
    monkeypatch.setattr(superlink_connection, "_CALLED", ())
    monkeypatch.setattr(superlink_connection, "_FIELDS", fields)
    with pytest.raises(ConfigurationError, match=r"\(GetRunResponse: run\)"):
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
    # It has no key; a SuperLink that has forgotten it would have let it in again.
    assert "HTTP 401: Invalid; expected clocks that agree" in str(running.error)
    assert superlink.asked.count("register-node") == 2


def test_a_superlink_that_has_forgotten_all_is_told_again(superlink: FakeSuperLink) -> None:
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: superlink.asked.count("pull-messages") > 1)
        node = ActivateNodeResponse(node_id=8).SerializeToString()
        superlink.answers["activate-node"] = lambda _: (200, node)
        superlink.refuse("pull-messages", (401, b""))
        running.until(lambda: running.node.facts()["node"] == "8")
    assert running.error is None
    assert superlink.asked.count("register-node") == 2


TREELESS = PullMessagesResponse(
    messages_list=[message_to_proto(message("query.other"))]
).SerializeToString()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("name", "answers"),
    [
        *(("pull-messages", [(status, b"")]) for status in (307, 403, 404, 408, 412, 429)),
        ("pull-messages", [(500, b"")] * 12),
        ("pull-messages", [(200, TREELESS)]),
        ("pull-messages", [(200, b"\n" + b"x" * 2**22)]),
        *(("register-node", [(status, b"")]) for status in (403, 404)),
        ("register-node", [(500, b"")] * 12),
        *(("activate-node", [(status, b"")]) for status in (403, 404)),
        ("activate-node", [(500, b"")] * 12),
    ],
)
def test_what_a_superlink_fails_of_ends_no_node(
    superlink: FakeSuperLink,
    caplog: pytest.LogCaptureFixture,
    name: str,
    answers: list[tuple[int, bytes]],
) -> None:
    superlink.refuse(name, *answers)
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: superlink.asked.count(name) >= len(answers))
        running.until(lambda: "pull-messages" in superlink.asked[-1:])
        running.until(lambda: running.node.facts()["state"] == "connected")
    assert running.error is None
    assert not any("refused" in record.message for record in caplog.records)


@pytest.mark.usefixtures("quick")
def test_a_redirection_is_not_followed(superlink: FakeSuperLink) -> None:
    superlink.headers["location"] = f"http://{superlink.address}/elsewhere"
    superlink.answers["pull-messages"] = lambda _: (307, b"")
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: "HTTP 307" in str(running.node.facts()))
    assert "elsewhere" not in superlink.asked


@pytest.mark.usefixtures("quick")
def test_an_answer_is_not_unpacked(superlink: FakeSuperLink) -> None:
    superlink.deliver(message("query.other"))
    packed, pull = [], superlink.answers["pull-messages"]

    def pack(body: bytes) -> tuple[int, bytes]:
        superlink.headers["content-encoding"] = "gzip"
        packed.append(gzip.compress(pull(body)[1]))
        return 200, packed[0]

    superlink.answers["pull-messages"] = pack
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["state"] == "away")
    assert "pull-object" not in superlink.asked


@pytest.mark.usefixtures("quick")
def test_an_answer_has_a_time(superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_answers, "_LONGEST_S", -1.0)
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: "not whole after" in str(running.node.facts()))


@pytest.mark.usefixtures("quick")
def test_the_last_reason_is_told(superlink: FakeSuperLink) -> None:
    superlink.answers["pull-messages"] = lambda _: (503, b"")
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: "HTTP 503" in str(running.node.facts()))
        superlink.answers["pull-messages"] = lambda _: (502, b"")
        running.until(lambda: "HTTP 502" in str(running.node.facts()))


def test_a_superlink_that_goes_during_an_answer_is_away(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink_connection, "_HEARTBEAT_EVERY_S", 0.01)
    computing = threading.Event()

    def wait(_: bytes) -> tuple[int, bytes]:
        computing.wait(40.0)
        return 200, b""

    def lost(_: bytes) -> tuple[int, bytes]:
        # From now on the usual time would be too long.
        monkeypatch.setattr(superlink_connection, "_HEARTBEAT_EVERY_S", 600.0)
        return 503, b""

    superlink.answers |= {"pull-messages": wait, "send-node-heartbeat": lost}
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["state"] == "away")
        assert "503" in running.node.facts()["reason"]
        del superlink.answers["send-node-heartbeat"]
        running.until(lambda: running.node.facts()["state"] == "connected")
        computing.set()


def test_a_key_that_is_not_let_in_is_tried_again(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_ASK_AGAIN_S", "_LEFT_S"):
        monkeypatch.setattr(superlink_connection, name, 0.01)
    let_in = superlink.answers["activate-node"]

    def refuse(_: bytes) -> tuple[int, bytes]:
        if superlink.asked.count("activate-node") == 3:
            superlink.answers["activate-node"] = let_in
        return 412, b'{"detail": "Failed."}'

    superlink.answers["activate-node"] = refuse
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: superlink.asked.count("activate-node") == 5)
        asked = [name for name in superlink.asked if name.endswith("activate-node")]
    # A server that looks while it is away asks again what another process had fetched, and died.
    assert asked == [*["activate-node"] * 4, "deactivate-node", "activate-node"]
    assert superlink.asked.count("register-node") == 1


def test_a_superlink_that_registers_no_node_is_named(superlink: FakeSuperLink) -> None:
    said = b'{"detail": "SuperNode authentication is enabled."}'
    superlink.answers["register-node"] = lambda _: (412, said)
    # It is let in, so it was: the answer to an earlier try was lost.
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["state"] == "connected")
    superlink.answers["activate-node"] = lambda _: (412, said)
    with Running(node_of(superlink.address)) as running:
        running.thread.join(timeout=20.0)
    assert isinstance(running.error, IdentityError)
    assert "is enabled. Expected a supernode-key" in str(running.error)


def test_a_key_is_tried_again_however_late_the_superlink_came(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_REFUSED_FOR_S", 0.2), ("_FIRST_PAUSE_S", 0.3), ("_ASK_AGAIN_S", 0.01)):
        monkeypatch.setattr(superlink_connection, name, seconds)
    superlink.refuse("activate-node", (503, b""), (412, b""))
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["state"] == "connected")


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


def reason_of(replies: list[PushMessagesRequest]) -> str:
    (reply,) = replies
    return str(reply.messages_list[0].error.reason)


def test_a_chunk_counts_as_often_as_it_is_named(superlink: FakeSuperLink) -> None:
    array = Array(np.arange(10_000, dtype=np.uint8))
    named = json.dumps({"arraychunk_ids": [0] * 400})[1:-1].encode()
    replies = superlink.deliver(
        message("query.hello", retexo=ConfigRecord({"a": 1}), arrays=ArrayRecord({"a": array})),
        lambda content: content.replace(b'"arraychunk_ids": [0]', named),
    )
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["answered"])
    assert "a message of more than 1.0 MB" in reason_of(replies)


def test_a_message_has_so_many_pieces(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink_connection, "_MOST_PIECES", 1)
    replies = superlink.deliver(message("query.hello"))
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["answered"])
    assert "2 pieces; expected at most 1" in reason_of(replies)
    assert "pull-object" not in superlink.asked


def test_a_content_of_another_message_is_refused(superlink: FakeSuperLink) -> None:
    replies = superlink.deliver(
        message("query.hello"), lambda content: content.replace(b"query.hello", b"query.jello")
    )
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["answered"])
    assert "has message_type query.jello; expected query.hello" in reason_of(replies)


class Client:
    """In place of the agent's socket."""

    error: Callable[[], Exception] = partial(LocalProtocolError, "noted")

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def ask(self, _: object) -> object:
        raise self.error()


def test_nothing_is_kept_of_a_message(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_node, "RemoteClient", Client)
    replies, contents, fetch = hello(superlink), [], Connection.fetch

    def noted(*given: Any) -> Message:
        fetched = fetch(*given)
        contents.append(weakref.ref(fetched.content))
        return fetched

    monkeypatch.setattr(Connection, "fetch", noted)
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["answered"])
        gc.collect()
        assert [content() for content in contents] == [None]
    assert not reason_of(replies)


def test_a_fault_of_the_agent_is_told_with_its_place(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(own_node, "RemoteClient", Client)
    monkeypatch.setattr(Client, "error", partial(KeyError, "\x1b" + "x" * 10_000))
    replies = hello(superlink)
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["answered"])
    (told,) = [record for record in caplog.records if record.message.startswith("refused")]
    assert told.exc_info is not None
    assert len(told.message) < 300
    assert told.message.isprintable()
    assert reason_of(replies) == "KeyError in the agent; see its log"


@pytest.mark.usefixtures("quick")
def test_what_passes_ends_no_message(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_node, "RemoteClient", Client)
    replies = hello(superlink)
    for name in ("pull-object", "get-run", "push-messages"):
        superlink.refuse(name, *((status, b"") for status in (408, 425, 429, 500, 503)))
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: running.node.facts()["answered"])
    assert not reason_of(replies)


@pytest.mark.usefixtures("quick")
def test_a_message_that_the_superlink_may_have_lost_is_asked_for_by_leaving(
    superlink: FakeSuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(superlink_connection, "_LEFT_S", 0.001)
    with Running(node_of(superlink.address)) as running:
        running.until(lambda: superlink.asked.count("pull-messages") > 1)
        superlink.refuse("pull-messages", (500, b""))
        running.until(lambda: superlink.asked.count("activate-node") == 2)
        seen = len(superlink.asked)
        running.until(lambda: len(superlink.asked) > seen + 3)
        assert running.node.facts()["state"] == "connected"
    left = superlink.asked.index("deactivate-node")
    assert superlink.asked[left - 1 : left + 2] == [
        *("pull-messages", "deactivate-node", "activate-node")
    ]
    # Once for the failure, and once at the end.
    assert superlink.asked.count("deactivate-node") == 2
    assert superlink.asked.count("register-node") == 1


def test_an_agent_that_is_away_is_waited_for_until_it_stops(
    superlink: FakeSuperLink, tmp_path: Path
) -> None:
    replies = hello(superlink)
    with Running(node_of(superlink.address, socket=str(tmp_path / "none"))) as running:
        running.until(lambda: "get-fab" in superlink.asked)
        time.sleep(0.1)
    assert running.error is None
    assert not replies


def configured(superlink: FakeSuperLink) -> Connection:
    stopping = threading.Event()
    return Connection(superlink.address, tls=None, key=None, stopping=stopping)


@pytest.mark.parametrize(
    ("bundle", "expected"),
    [
        (bundle_of(b"#" * 2**21), "pyproject.toml of more than 1.0 MB"),
        (bundle_of(PROJECT, zipfile.ZIP_BZIP2), "compression 12; expected deflated or stored"),
    ],
)
def test_a_bundle_is_read_within_bounds(
    superlink: FakeSuperLink, bundle: bytes, expected: str
) -> None:
    superlink.answers["get-fab"] = lambda _: (200, bundle)
    with closing(configured(superlink)) as connection, pytest.raises(RetexoError, match=expected):
        connection.run_config(1)


def test_a_bundle_that_says_it_is_short_is_not_believed(superlink: FakeSuperLink) -> None:
    size = 2**25
    told, forged = size.to_bytes(4, "little"), (10).to_bytes(4, "little")
    bundle = bundle_of(b"#" * size)
    assert bundle.count(told) == 2
    superlink.answers["get-fab"] = lambda _: (200, bundle.replace(told, forged))
    with closing(configured(superlink)) as connection:
        tracemalloc.start()
        try:
            with pytest.raises(RetexoError, match="a bundle that cannot be read"):
                connection.run_config(1)
            assert tracemalloc.get_traced_memory()[1] < size // 2
        finally:
            tracemalloc.stop()


def test_what_a_run_says_is_read_within_bounds(superlink: FakeSuperLink) -> None:
    for size, expected in ((2**20, "a run of more than"), (2**22, "an answer of more than")):
        run = Run(override_config=user_config_to_proto({"a": "x" * size}))
        answer = GetRunResponse(run=run).SerializeToString()
        superlink.refuse("get-run", (200, answer))
        refused = pytest.raises(RetexoError, match=expected)
        with closing(configured(superlink)) as connection, refused:
            connection.run_config(1)


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
    assert "RemoteProtocolError: pieces that make no message" in reason_of(replies)


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
    for roots in (b"", b"\xff", b"no PEM", b"-----BEGIN CERTIFICATE-----\n"):
        (tmp_path / "ca.crt").write_bytes(roots)
        with pytest.raises(ConfigurationError, match=r"root-certificates: .*expected PEM"):
            node_of("x:1", insecure=False, root_certificates=str(tmp_path / "ca.crt"))


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP384R1()).private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    )
    (tmp_path / "key").write_bytes(key)
    given = {"insecure": False, "supernode_key": str(tmp_path / "key")}
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(IdentityError, match=r"supernode-key: .*mode 0640.*expected 0600"):
        node_of("x:1", **given)
    (tmp_path / "key").chmod(0o600)
    node_of("x:1", **given)
