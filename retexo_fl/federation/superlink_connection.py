"""Flower's Fleet API, spoken by this process as a SuperNode speaks it.

The only module that imports what Flower does not publish; :func:`check` says what it uses of that.
Flower's own ``http_request_response`` is not used: on a refusal (HTTP 401) it sends SIGINT to its
process, it ends it where the first request fails, and it repeats requests without an end.
"""

from __future__ import annotations

import inspect
import io
import logging
import ssl
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.config import get_fused_config_from_fab
from flwr.common.serde import fab_from_proto, message_from_proto, message_to_proto, run_from_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from retexo_fl.client.log_lines import line
from retexo_fl.config import Scalar
from retexo_fl.errors import ConfigurationError, EngineFailed, IdentityError, RetexoError
from retexo_fl.units import format_bytes

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: What the SuperLink is told about the time between signs of life, and that time.
_HEARTBEAT_S: Final = 30.0
_HEARTBEAT_EVERY_S: Final = 20.0
#: A node that died holds its key for 60 s, and the SuperLink gives no reason.
_REFUSED_FOR_S: Final = 75.0
_ASK_AGAIN_S: Final = 5.0
#: Pauses while the SuperLink is away, and after how long it is given up.
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 10.0
_MOST_AWAY_S: Final = 86_400.0
#: A request that it fails of so often (HTTP 500: half a minute of them) is one that it cannot take.
_MOST_FAILURES: Final = 8
#: Before a piece of a message is asked for again that the server has not sent yet.
_PIECE_PAUSE_S: Final = 0.05
#: A bundle's pyproject.toml.
_MOST_CONFIG_BYTES: Final = 2**20
_SHOWN: Final = 200

#: What is called of Flower, with the parameters that are given to it.
_CALLED: Final[tuple[tuple[Callable[..., Any], str], ...]] = (
    (
        FleetHttpClient.from_server_address,
        "server_address insecure root_certificates interceptors",
    ),
    *(
        (getattr(FleetHttpClient, name), "self request")
        for name in (
            *("RegisterNode", "ActivateNode", "DeactivateNode", "UnregisterNode"),
            *("SendNodeHeartbeat", "PullMessages", "PushMessages", "GetRun", "GetFab"),
            *("PullObject", "PushObject", "ConfirmMessageReceived"),
        )
    ),
    (FleetHttpClient.close, "self"),
    (NodeAuthHttpInterceptor, "private_key public_key"),
    (generate_key_pairs, ""),
    (public_key_to_bytes, "public_key"),
    (remove_content_from_message, "message"),
    (message_from_proto, "message_proto"),
    (message_to_proto, "message"),
    (run_from_proto, "run_proto"),
    (fab_from_proto, "fab"),
    (get_fused_config_from_fab, "fab_file run"),
    (get_all_nested_objects, "obj"),
    (get_object_tree, "obj"),
    (iterate_object_tree, "tree"),
    (no_object_id_recompute, ""),
    (inflate_object_from_contents, "object_id object_contents"),
    (pull_objects, "object_ids pull_object_fn initial_backoff"),
    (push_objects, "objects push_object_fn object_ids_to_push"),
    (make_pull_object_fn_protobuf, "pull_object_protobuf node run_id"),
    (make_push_object_fn_protobuf, "push_object_protobuf node run_id session_id"),
    (
        make_confirm_message_received_fn_protobuf,
        "confirm_message_received_protobuf node run_id",
    ),
)
#: The fields of its messages that are written.
_WRITTEN: Final = (
    (RegisterNodeFleetRequest, "public_key"),
    (ActivateNodeRequest, "public_key heartbeat_interval"),
    (DeactivateNodeRequest, "node_id"),
    (UnregisterNodeFleetRequest, "node_id"),
    (SendNodeHeartbeatRequest, "node heartbeat_interval"),
    (PullMessagesRequest, "node"),
    (PushMessagesRequest, "node messages_list message_object_trees clientapp_runtime_list"),
    (GetRunRequest, "node run_id"),
    (GetFabRequest, "node hash_str run_id"),
)


def check() -> None:
    """Compare what is used of Flower with what is installed.

    Raises:
        AttributeError: Something takes other parameters, or has other fields, than it is given.
    """
    for called, names in _CALLED:
        # What more it takes has to have a default.
        parameters = inspect.signature(called).parameters
        needed = {name for name, it in parameters.items() if it.default is inspect.Parameter.empty}
        given = set(names.split())
        if not needed <= given <= parameters.keys():
            raise AttributeError(f"{called.__qualname__}({', '.join(parameters)})")
    for written, names in _WRITTEN:
        fields = written.DESCRIPTOR.fields_by_name
        if not set(names.split()) <= {*fields}:
            raise AttributeError(f"{written.__name__}: {', '.join(fields)}")


class Stopped(Exception):
    """The agent is about to end; nothing more is asked."""


class RunOver(Exception):
    """The message belongs to a run that is not running any more."""


class Declined(RetexoError):
    """The SuperLink answers a request with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A message whose content has not been fetched.

    Attributes:
        head: What says whose it is.
        tree: Names of the pieces of its content.
    """

    head: Message
    tree: ObjectTree


class Connection:
    """A node's connection to a SuperLink, over which it asks for messages.

    A request to a SuperLink that is away is repeated for a day, with pauses of ten seconds at
    most; the log and :meth:`facts` say so.

    Args:
        address: HOST:PORT.
        insecure: Without TLS.
        root_certificates: PEM of its CA; None for those of the operating system.
        key: The node's private key; None: it registers itself, with a key of this process.
        stopping: Set when nothing more is to be asked.
    """

    def __init__(
        self,
        address: str,
        *,
        insecure: bool,
        root_certificates: bytes | None,
        key: ec.EllipticCurvePrivateKey | None,
        stopping: threading.Event,
    ) -> None:
        self._address, self._stopping, self._registers = address, stopping, key is None
        keys = generate_key_pairs() if key is None else (key, key.public_key())
        self._public_key = public_key_to_bytes(keys[1])
        self._client = FleetHttpClient.from_server_address(
            address, insecure, root_certificates, [NodeAuthHttpInterceptor(*keys)]
        )
        self._node: Node | None = None
        self._state, self._since, self._reason = "connecting", time.time(), ""
        self._ended = threading.Event()

    def facts(self) -> dict[str, Any]:
        """Return the ``state``, ``since`` when (Unix time), the ``reason``, and the ``node``."""
        node = None if self._node is None else str(self._node.node_id)
        return {"state": self._state, "since": self._since, "reason": self._reason, "node": node}

    def activate(self) -> None:
        """Have the SuperLink know that this node is there.

        Raises:
            IdentityError: It does not let this node in.
            Stopped: As all that asks.
        """
        deadline = time.monotonic() + _REFUSED_FOR_S
        while self._node is None:
            try:
                self._activate()
            except Declined as error:
                if time.monotonic() > deadline:
                    raise IdentityError(
                        f"{error}; expected the supernode-key of a node that is registered there, "
                        "and runs nowhere else"
                    ) from error
                self._note("refused", f"{error}; asked again for {_REFUSED_FOR_S:g} s")
                self._pause(_ASK_AGAIN_S)
        threading.Thread(target=self._keep_alive, name="heartbeat", daemon=True).start()

    def _activate(self) -> None:
        if self._registers:
            try:
                self._ask(
                    self._client.RegisterNode,
                    RegisterNodeFleetRequest(public_key=self._public_key),
                )
            except Declined as error:
                raise IdentityError(f"{error} Expected a supernode-key") from error
        request = ActivateNodeRequest(public_key=self._public_key, heartbeat_interval=_HEARTBEAT_S)
        self._node = Node(node_id=self._ask(self._client.ActivateNode, request).node_id)
        self._note("connected")

    def close(self) -> None:
        """Tell the SuperLink that this node goes, once, and end the connection."""
        self._ended.set()
        if self._node is not None:
            node_id = self._node.node_id
            # A SuperLink that is away learns of it by the silence.
            with suppress(httpx.HTTPError, ValueError):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))
                if self._registers:
                    self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=node_id))
        self._client.close()

    def receive(self) -> Incoming | None:
        """Return the next message for this node; None while there is none."""
        answer = self._ask(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not answer.messages_list:
            return None
        return Incoming(
            head=message_from_proto(answer.messages_list[0]),
            tree=answer.message_object_trees[0],
        )

    def fetch(self, incoming: Incoming, most_bytes: int) -> Message:
        """Return a message with its content, and tell the SuperLink that it is here.

        Raises:
            ConfigurationError: It is longer than ``most_bytes``.
            RunOver: Its run has ended.
        """
        assert self._node is not None
        run_id, tree = incoming.head.metadata.run_id, incoming.tree
        pull = make_pull_object_fn_protobuf(
            lambda request: self._ask(self._client.PullObject, request), self._node, run_id
        )
        sizes: list[int] = []

        def pull_within(object_id: str) -> bytes:
            content = pull(object_id)
            sizes.append(len(content))
            if sum(sizes) > most_bytes:
                raise ConfigurationError(
                    f"a message of more than {format_bytes(most_bytes)}; expected at most that "
                    "(half of most-memory-mib in this client's agent.toml, less what the process "
                    "itself takes)"
                )
            return content

        contents = pull_objects(
            [piece.object_id for piece in iterate_object_tree(tree)],
            pull_within,
            initial_backoff=_PIECE_PAUSE_S,
        )
        make_confirm_message_received_fn_protobuf(
            lambda request: self._ask(self._client.ConfirmMessageReceived, request),
            self._node,
            run_id,
        )(incoming.head.metadata.message_id)
        message = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(message, Message):
            raise TypeError(f"{type(message).__name__}; expected a message")
        # What is named by a digest of its content does not hold its name.
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def run_config(self, run_id: int) -> dict[str, Scalar]:
        """Return a run's configuration: its bundle's, of which nothing else is read, and its own.

        Raises:
            RunOver: It has ended.
        """
        request = GetRunRequest(node=self._node, run_id=run_id)
        run = run_from_proto(self._ask(self._client.GetRun, request).run)
        wanted = GetFabRequest(node=self._node, hash_str=run.fab_hash, run_id=run_id)
        bundle = fab_from_proto(self._ask(self._client.GetFab, wanted).fab).content
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            size = archive.getinfo("pyproject.toml").file_size
        if size > _MOST_CONFIG_BYTES:
            raise ConfigurationError(
                f"a bundle's pyproject.toml of {format_bytes(size)}; expected at most "
                f"{format_bytes(_MOST_CONFIG_BYTES)}"
            )
        return dict(get_fused_config_from_fab(bundle, run))

    def reply(self, answer: Message, seconds: float) -> None:
        """Send an answer, which took so many seconds.

        Raises:
            RunOver: Nobody waits for it any more.
        """
        assert self._node is not None
        answer.metadata.__dict__["_message_id"] = answer.object_id
        with no_object_id_recompute():
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(answer))],
                message_object_trees=[get_object_tree(answer)],
                clientapp_runtime_list=[seconds],
            )
            told = self._ask(self._client.PushMessages, request)
            push = make_push_object_fn_protobuf(
                lambda asked: self._ask(self._client.PushObject, asked),
                self._node,
                answer.metadata.run_id,
                told.session_id,
            )
            push_objects(
                get_all_nested_objects(answer), push, object_ids_to_push=set(told.objects_to_push)
            )

    # ---- requests --------------------------------------------------------------------------------

    def _ask(self, call: Callable[[Any], _T], request: Any) -> _T:
        """Ask the SuperLink, again while it is away.

        Raises:
            IdentityError: It refuses this node, or its certificate is not vouched for.
            RunOver: The request is about a run that is not running.
            Declined: It answers with another error.
            EngineFailed: It was away for a day.
            Stopped: The agent ends.
        """
        pause_s, begun, failures = _FIRST_PAUSE_S, time.monotonic(), 0
        while True:
            if self._stopping.is_set():
                raise Stopped
            try:
                answer = call(request)
            except httpx.HTTPStatusError as error:
                reason = self._read(error)
                failures += error.response.status_code == httpx.codes.INTERNAL_SERVER_ERROR
                if failures > _MOST_FAILURES:
                    raise Declined(reason) from error
            # Where another program answers, its answer cannot be read.
            except (httpx.HTTPError, ValueError) as error:
                self._check_certificate(error)
                reason = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
            else:
                if self._node is not None:
                    self._note("connected")
                return answer
            if time.monotonic() - begun > _MOST_AWAY_S:
                raise EngineFailed(f"superlink: {self._address} was away for a day ({reason})")
            self._note("away", reason)
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _read(self, error: httpx.HTTPStatusError) -> str:
        """Return why the SuperLink is away, or raise what its answer means."""
        status = error.response.status_code
        said = f"superlink: {self._address} answers {_said(error.response)}"
        if status == httpx.codes.UNAUTHORIZED:
            raise IdentityError(
                f"{said}; expected the supernode-key of a node that is registered there, and "
                "clocks that agree to five minutes"
            )
        if status == httpx.codes.FORBIDDEN:
            raise RunOver(said)
        if status < httpx.codes.INTERNAL_SERVER_ERROR:
            raise Declined(said)
        return said

    def _check_certificate(self, error: BaseException) -> None:
        for cause in _causes(error):
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise IdentityError(
                    f"superlink: {self._address}: {cause.verify_message}; expected a certificate "
                    "that root-certificates vouches for"
                ) from error

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise Stopped

    def _note(self, state: str, reason: str = "") -> None:
        """Tell the log of a change."""
        if state == self._state:
            return
        before, since = self._state, self._since
        self._state, self._since, self._reason = state, time.time(), reason
        if state == "connected":
            node = "" if self._node is None else self._node.node_id
            facts: dict[str, Any] = {"connected": self._address, "node": node}
            if before == "away":
                facts["away_s"] = round(time.time() - since, 1)
            logger.info(line("superlink", **facts))
        else:
            logger.warning(line("superlink", **{state: self._address}, reason=reason))

    def _keep_alive(self) -> None:
        """Send signs of life; what they meet with, the next request for messages meets with too."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=_HEARTBEAT_S)
        while not self._ended.wait(_HEARTBEAT_EVERY_S):
            with suppress(httpx.HTTPError, ValueError, RuntimeError):
                self._client.SendNodeHeartbeat(request)


def _said(response: httpx.Response) -> str:
    """Return an answer's status, and what it says."""
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = ""
    words = " ".join(str(detail).split())[:_SHOWN]
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    return f"HTTP {response.status_code}" + (f": {shown}" if shown else "")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
