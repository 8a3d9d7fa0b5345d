"""Flower's Fleet API, spoken by this process as a SuperNode speaks it.

All that an agent uses of what Flower does not publish; :func:`check` says what that is.
Flower's own ``http_request_response`` is not used: on a refusal (HTTP 401) it sends SIGINT to its
process, it ends it where the first request fails, and it repeats requests without an end.
"""

from __future__ import annotations

import inspect
import json
import logging
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import fab_from_proto, message_from_proto, message_to_proto, run_from_proto
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
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
    ObjectPullError,
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
)
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.supernode.fleet_http_client import FleetHttpClient

from retexo_fl.client.log_lines import line, shown
from retexo_fl.config import Scalar
from retexo_fl.errors import EngineFailed, IdentityError, RemoteProtocolError, RetexoError
from retexo_fl.federation.bounded_answers import AnswerTooLong, BoundedAnswers, Budget
from retexo_fl.federation.bundle_config import check_size, run_config
from retexo_fl.federation.node_signature import NodeSignature

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Time between signs of life that the SuperLink is promised, and the real one.
_HEARTBEAT_S: Final = 30.0
_HEARTBEAT_EVERY_S: Final = 20.0
#: After a lost one: a SuperLink that comes back gives a node up that was silent for a minute.
_HEARTBEAT_AGAIN_S: Final = 1.0
#: A node that died holds its key for 60 s, and the SuperLink gives no reason.
_REFUSED_FOR_S: Final = 75.0
_ASK_AGAIN_S: Final = 5.0
#: Pauses while the SuperLink is away, and after how long it is given up.
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 10.0
_MOST_AWAY_S: Final = 86_400.0
#: A request that it fails of so often (HTTP 500: half a minute of them) is one that it cannot take.
_MOST_FAILURES: Final = 8
#: A node that leaves so that the SuperLink names its lost messages is away for longer than a server
#: that waits for its answers takes between two looks.
_LEFT_S: Final = 5.0
#: Before a piece of a message is asked for again that the server has not sent yet, at first and at
#: most, and how long it is.
_PIECE_PAUSES_S: Final = (0.05, 1.0)
_PIECES_WITHIN_S: Final = 7200.0
#: What sets the limit of a message.
_WHY: Final = (
    " (half of most-memory-mib in this client's agent.toml, less what the process itself takes)"
)
#: A message's pieces, of 5 MiB each where an array is long; a bundle, which Flower takes 10 MB of;
#: and every other answer, such as the names of the pieces.
_MOST_PIECES: Final = 16_384
_MOST_BUNDLE_BYTES: Final = 2**24
_MOST_ANSWER_BYTES: Final = 2**21

#: Requests that name no run: nothing but the node depends on what comes of them.
_OF_NODE: Final = (RegisterNodeFleetRequest, ActivateNodeRequest, PullMessagesRequest)
#: Refusals that pass.
_PASSING: Final = (
    httpx.codes.REQUEST_TIMEOUT,
    httpx.codes.TOO_EARLY,
    httpx.codes.TOO_MANY_REQUESTS,
)

#: What is called of Flower, with the parameters that are given to it.
_CALLED: Final[tuple[tuple[Callable[..., Any], str], ...]] = (
    (FleetHttpClient, "base_url interceptors verify"),
    (ProtobufRequestContext, "rpc_method message request"),
    *(
        (getattr(FleetHttpClient, name), "self request")
        for name in (
            *("RegisterNode", "ActivateNode", "DeactivateNode", "UnregisterNode"),
            *("SendNodeHeartbeat", "PullMessages", "PushMessages", "GetRun", "GetFab"),
            *("PullObject", "PushObject", "ConfirmMessageReceived"),
        )
    ),
    (FleetHttpClient.close, "self"),
    (generate_key_pairs, ""),
    (public_key_to_bytes, "public_key"),
    (sign_message, "private_key message"),
    (now, ""),
    (remove_content_from_message, "message"),
    (message_from_proto, "message_proto"),
    (message_to_proto, "message"),
    (run_from_proto, "run_proto"),
    (fab_from_proto, "fab"),
    (get_all_nested_objects, "obj"),
    (get_object_tree, "obj"),
    (iterate_object_tree, "tree"),
    (no_object_id_recompute, ""),
    (inflate_object_from_contents, "object_id object_contents"),
    (
        pull_objects,
        "object_ids pull_object_fn max_time max_tries_per_object initial_backoff backoff_cap",
    ),
    (get_object_body, "object_content cls"),
    (get_object_head_values_from_object_content, "object_content"),
    (push_objects, "objects push_object_fn object_ids_to_push"),
    (make_pull_object_fn_protobuf, "pull_object_protobuf node run_id"),
    (make_push_object_fn_protobuf, "push_object_protobuf node run_id session_id"),
    (
        make_confirm_message_received_fn_protobuf,
        "confirm_message_received_protobuf node run_id",
    ),
)
#: The fields of its messages that are written or read.
_FIELDS: Final = (
    (RegisterNodeFleetRequest, "public_key"),
    (ActivateNodeRequest, "public_key heartbeat_interval"),
    (DeactivateNodeRequest, "node_id"),
    (UnregisterNodeFleetRequest, "node_id"),
    (SendNodeHeartbeatRequest, "node heartbeat_interval"),
    (PullMessagesRequest, "node"),
    (PushMessagesRequest, "node messages_list message_object_trees clientapp_runtime_list"),
    (GetRunRequest, "node run_id"),
    (GetFabRequest, "node hash_str run_id"),
    (ActivateNodeResponse, "node_id"),
    (PullMessagesResponse, "messages_list message_object_trees"),
    (PushMessagesResponse, "session_id objects_to_push"),
    (GetRunResponse, "run"),
    (GetFabResponse, "fab"),
    (ObjectTree, "object_id"),
    (Node, "node_id"),
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
    for kind, names in _FIELDS:
        fields = kind.DESCRIPTOR.fields_by_name
        if not set(names.split()) <= {*fields}:
            raise AttributeError(f"{kind.__name__}: {', '.join(fields)}")


class Stopped(Exception):
    """The agent is about to end; nothing more is asked."""


class RunOver(Exception):
    """The message belongs to a run that is not running any more."""


class Declined(RetexoError):
    """The SuperLink answers a request with an error."""


class Unknown(IdentityError):
    """The SuperLink knows no such node, or not any more."""


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
        tls: Whom to trust; None without TLS.
        key: The node's private key; None: it registers itself, with a key of this process.
        stopping: Set when nothing more is to be asked.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: ssl.SSLContext | None,
        key: ec.EllipticCurvePrivateKey | None,
        stopping: threading.Event,
    ) -> None:
        self._address, self._stopping, self._registers = address, stopping, key is None
        if key is None:
            key, _ = generate_key_pairs()
        self._public_key = public_key_to_bytes(key.public_key())
        self._pieces = Budget(0)
        self._answers = BoundedAnswers(tls, self._budget_of)
        self._client = FleetHttpClient(
            f"{'http' if tls is None else 'https'}://{address}",
            interceptors=[NodeSignature(key), self._answers],
            # What it would send by is not used.
            verify=False if tls is None else tls,
        )
        self._node: Node | None = None
        # It was let in, and asked for messages since.
        self._is_registered, self._was_known = False, False
        #: A request for messages has failed, maybe after the SuperLink had taken one out for it, or
        #: a process with this node's key died, maybe with one.
        self._may_lack = False
        self._noting = threading.Lock()
        self._state, self._since, self._reason = "connecting", time.time(), ""
        self._ended = threading.Event()
        self._heart: threading.Thread | None = None

    def facts(self) -> dict[str, Any]:
        """Return the ``state``, ``since`` when (Unix time), the ``reason``, and the ``node``."""
        told = {"state": self._state, "since": self._since, "reason": self._reason}
        node = self._node
        return {**told, "node": None if node is None else str(node.node_id)}

    def activate(self) -> None:
        """Have the SuperLink know that this node is there.

        Raises:
            IdentityError: It does not let this node in.
            Stopped: As all that asks.
        """
        deadline: float | None = None
        while self._node is None:
            try:
                self._activate()
            except Declined as error:
                # Of a node that died: it is let in by then.
                deadline = deadline or time.monotonic() + _REFUSED_FOR_S
                if time.monotonic() > deadline:
                    raise IdentityError(
                        f"{error}; expected the supernode-key of a node that is registered there, "
                        "and runs nowhere else"
                    ) from error
                self._note("refused", f"{error}; asked again for {_REFUSED_FOR_S:g} s")
                self._pause(_ASK_AGAIN_S)
        # What the one that died had fetched: its time was over the moment this one was let in.
        self._may_lack |= deadline is not None
        self._note("connected")
        if self._heart is None:
            self._heart = threading.Thread(target=self._keep_alive, name="heartbeat", daemon=True)
            self._heart.start()

    def _activate(self) -> None:
        refusal: Declined | None = None
        if self._registers and not self._is_registered:
            request = RegisterNodeFleetRequest(public_key=self._public_key)
            try:
                self._ask(self._client.RegisterNode, request)
                self._is_registered = True
            except Declined as error:
                # Or it is registered, and the answer that said so was lost.
                refusal = error
        request = ActivateNodeRequest(public_key=self._public_key, heartbeat_interval=_HEARTBEAT_S)
        try:
            self._node = Node(node_id=self._ask(self._client.ActivateNode, request).node_id)
        except Declined:
            if refusal is None:
                raise
            raise IdentityError(f"{refusal} Expected a supernode-key") from refusal

    def close(self) -> None:
        """Say goodbye to the SuperLink, once, and end the connection."""
        self._ended.set()
        if self._node is not None:
            node_id = self._node.node_id
            # A SuperLink that is away learns of it by the silence.
            with suppress(httpx.HTTPError, ValueError, AnswerTooLong):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))
                if self._registers:
                    self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=node_id))
        self._client.close()
        self._answers.close()

    def receive(self) -> Incoming | None:
        """Return the next message for this node; None while there is none.

        Raises:
            IdentityError: It is not let in any more.
            EngineFailed: As all that asks.
            Stopped: Likewise.
        """
        try:
            answer = self._ask(self._client.PullMessages, PullMessagesRequest(node=self._node))
        except Unknown as error:
            if not self._registers or not self._was_known:
                raise
            # A SuperLink that was started again without what it knew.
            self._node, self._is_registered, self._was_known = None, False, False
            self._note("away", str(error))
            self.activate()
            return None
        self._was_known = True
        if not answer.messages_list:
            if self._may_lack:
                self._leave_and_return()
            return None
        try:
            with _read_from_server("a message that cannot be read"):
                return Incoming(
                    head=message_from_proto(answer.messages_list[0]),
                    tree=answer.message_object_trees[0],
                )
        except RemoteProtocolError as error:
            logger.warning(line("unread", reason=str(error)))
            self._pause(_ASK_AGAIN_S)
            return None

    def _leave_and_return(self) -> None:
        """Be away for a moment, so that the server asks again what this node has not answered.

        The SuperLink (flwr 1.41) marks a message as delivered before it has all of its answer: if
        it fails in between, or its answer does not arrive, the message is lost, and the server
        waits for an answer until its time-out. Nothing is being answered while messages are asked
        for.
        """
        self._may_lack = False
        left, self._node = self._node, None
        assert left is not None
        self._note("away", "so that the server asks again for what may have been lost")
        with suppress(httpx.HTTPError, ValueError, AnswerTooLong):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=left.node_id))
        self._pause(_LEFT_S)
        self.activate()

    def fetch(self, incoming: Incoming, most_bytes: int) -> Message:
        """Return a message with its content, and confirm to the SuperLink that it is here.

        Raises:
            AnswerTooLong: It is longer than ``most_bytes``, or would be.
            RemoteProtocolError: What comes is no message, or another.
            RunOver: Its run has ended.
        """
        assert self._node is not None
        head, tree = incoming.head.metadata, incoming.tree
        names = [piece.object_id for piece in iterate_object_tree(tree)]
        if len(names) > _MOST_PIECES:
            raise RemoteProtocolError(f"{len(names)} pieces; expected at most {_MOST_PIECES}")
        limit = most_bytes, "a message", _WHY
        self._pieces = Budget(*limit)
        pull = make_pull_object_fn_protobuf(
            lambda request: self._ask(self._client.PullObject, request), self._node, head.run_id
        )
        first_s, longest_s = _PIECE_PAUSES_S
        try:
            contents = pull_objects(
                names,
                pull,
                max_time=_PIECES_WITHIN_S,
                max_tries_per_object=None,
                initial_backoff=first_s,
                backoff_cap=longest_s,
            )
        except ObjectPullError as error:
            raise RemoteProtocolError(shown(error)) from error
        make_confirm_message_received_fn_protobuf(
            lambda request: self._ask(self._client.ConfirmMessageReceived, request),
            self._node,
            head.run_id,
        )(head.message_id)
        with _read_from_server("pieces that make no message"):
            Budget(*limit).take(_joined_bytes(contents))
            message = inflate_object_from_contents(tree.object_id, contents)
        if not isinstance(message, Message):
            raise RemoteProtocolError(f"{type(message).__name__}; expected a message")
        # What is named by a digest of its content does not hold its name.
        message.metadata.__dict__["_message_id"] = tree.object_id
        for name in ("message_id", "run_id", "dst_node_id", "message_type"):
            wanted, found = getattr(head, name), getattr(message.metadata, name)
            if found != wanted:
                raise RemoteProtocolError(
                    f"a message whose content has {name} {shown(found)}; expected {shown(wanted)}"
                )
        return message

    def run_config(self, run_id: int) -> dict[str, Scalar]:
        """Return a run's configuration: its bundle's, of which nothing else is read, and its own.

        Raises:
            RemoteProtocolError: One of them cannot be read, or is too long.
            RunOver: It has ended.
        """
        request = GetRunRequest(node=self._node, run_id=run_id)
        told = self._ask(self._client.GetRun, request).run
        check_size("a run", told.ByteSize())
        run = run_from_proto(told)
        wanted = GetFabRequest(node=self._node, hash_str=run.fab_hash, run_id=run_id)
        bundle = fab_from_proto(self._ask(self._client.GetFab, wanted).fab).content
        with _read_from_server("a bundle that cannot be read"):
            return run_config(bundle, run.override_config)

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
            try:
                push_objects(
                    get_all_nested_objects(answer),
                    push,
                    object_ids_to_push=set(told.objects_to_push),
                )
            except ObjectPushError as error:
                raise Declined(shown(error)) from error

    # ---- requests --------------------------------------------------------------------------------

    def _budget_of(self, request: Any) -> Budget:
        if isinstance(request, PullObjectRequest):
            return self._pieces
        is_bundle = isinstance(request, GetFabRequest)
        return Budget(_MOST_BUNDLE_BYTES if is_bundle else _MOST_ANSWER_BYTES)

    def _ask(self, call: Callable[[Any], _T], request: Any) -> _T:
        """Ask the SuperLink, again while it is away.

        Raises:
            Unknown: It refuses this node.
            IdentityError: Its certificate is not vouched for.
            RunOver: The request is about a run that is not running.
            Declined: It answers with another error what is about a run, or lets this node not in.
            AnswerTooLong: What it says of a run is.
            EngineFailed: It was away for a day.
            Stopped: The agent ends.
        """
        of_run = not isinstance(request, _OF_NODE)
        pause_s, begun, failures = _FIRST_PAUSE_S, time.monotonic(), 0
        while True:
            if self._stopping.is_set():
                raise Stopped
            try:
                answer = call(request)
            except httpx.HTTPStatusError as error:
                reason = self._read(error, of_run)
                failed = error.response.status_code == httpx.codes.INTERNAL_SERVER_ERROR
                failures += failed
                self._may_lack |= failed and isinstance(request, PullMessagesRequest)
                if of_run and failures > _MOST_FAILURES:
                    raise Declined(reason) from error
            # Where another program answers, its answer cannot be read.
            except (httpx.HTTPError, ValueError, AnswerTooLong) as error:
                if of_run and isinstance(error, AnswerTooLong):
                    raise
                self._check_certificate(error)
                is_sent = not isinstance(error, httpx.ConnectError)
                self._may_lack |= is_sent and isinstance(request, PullMessagesRequest)
                reason = shown(error) or type(error).__name__
            else:
                if self._node is not None:
                    self._note("connected")
                return answer
            if time.monotonic() - begun > _MOST_AWAY_S:
                raise EngineFailed(f"superlink: {self._address} was away for a day ({reason})")
            self._note("away", reason)
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _read(self, error: httpx.HTTPStatusError, of_run: bool) -> str:
        """Return why the SuperLink is away, or raise what its answer means.

        Of a node that was let in, nothing but its key is refused for good: a proxy between may give
        any other answer for a while.
        """
        status = error.response.status_code
        said = f"superlink: {self._address} answers {_said(error.response)}"
        if status == httpx.codes.UNAUTHORIZED:
            if of_run and self._registers:
                # What does not know the node any more has no runs of before.
                raise RunOver(said)
            key = (
                ""
                if self._registers
                else "the supernode-key of a node that is registered there, and "
            )
            raise Unknown(f"{said}; expected {key}clocks that agree to five minutes")
        if of_run and status == httpx.codes.FORBIDDEN:
            raise RunOver(said)
        of_key = self._node is None and status == httpx.codes.PRECONDITION_FAILED
        if of_key or (
            of_run and status < httpx.codes.INTERNAL_SERVER_ERROR and status not in _PASSING
        ):
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
        """Note the state, and log a change."""
        with self._noting:
            before, since = self._state, self._since
            self._reason = reason
            if state == before:
                return
            self._state, self._since = state, time.time()
        if state == "connected":
            node = "" if self._node is None else self._node.node_id
            facts: dict[str, Any] = {"connected": self._address, "node": node}
            if before == "away":
                facts["away_s"] = round(time.time() - since, 1)
            logger.info(line("superlink", **facts))
        else:
            logger.warning(line("superlink", **{state: self._address}, reason=reason))

    def _keep_alive(self) -> None:
        """Send signs of life.

        While an answer is computed nothing else is sent, so it is noted when two are lost.
        """
        lost = 0
        while not self._ended.wait(_HEARTBEAT_AGAIN_S if lost else _HEARTBEAT_EVERY_S):
            node = self._node
            if node is None:
                continue
            request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=_HEARTBEAT_S)
            try:
                self._client.SendNodeHeartbeat(request)
            except (httpx.HTTPError, ValueError, RuntimeError, AnswerTooLong) as error:
                lost += 1
                if lost > 1 and not self._ended.is_set():
                    self._note("away", shown(error) or type(error).__name__)
            else:
                if lost > 1:
                    self._note("connected")
                lost = 0


@contextmanager
def _read_from_server(what: str) -> Generator[None]:
    """Give what fails of what a server sent a name."""
    try:
        yield
    except RetexoError:
        raise
    except Exception as error:
        said = shown(f"{type(error).__name__}: {error}")
        raise RemoteProtocolError(f"{what} ({said})") from error


def _joined_bytes(contents: Mapping[str, bytes]) -> int:
    """Return how long the arrays of pieces are: each names its chunks as often as it likes."""
    total = 0
    for content in contents.values():
        kind, chunks, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            sizes = [len(contents[chunk]) for chunk in chunks]
            body = json.loads(get_object_body(content, Array))
            total += sum(sizes[index] for index in body["arraychunk_ids"])
    return total


def _said(response: httpx.Response) -> str:
    """Return an answer's status, and what it says."""
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError, RecursionError):
        detail = ""
    return f"HTTP {response.status_code}" + (f": {shown(detail)}" if detail else "")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
