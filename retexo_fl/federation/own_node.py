"""An agent that is its own SuperNode: it asks the SuperLink for messages and answers them itself.

What Flower's SuperNode and ClientApp do in processes of their own is a thread here. Each message is
handed to the agent's socket as the ClientApp hands it, so the agent checks it likewise; nothing of
the run's bundle is executed.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict

from retexo_fl.agent.remote import RemoteClient
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.identity import check_private
from retexo_fl.client.api import ClientApi, Ticket
from retexo_fl.client.log_lines import line, shown
from retexo_fl.config import Scalar
from retexo_fl.errors import ConfigurationError, EngineFailed, IdentityError, RetexoError
from retexo_fl.federation import records
from retexo_fl.federation.client_app import keys_of_run
from retexo_fl.federation.client_handlers import build_client_app
from retexo_fl.server_address import ServerAddress

if TYPE_CHECKING:
    from retexo_fl.federation.superlink_connection import Connection, Incoming

logger = logging.getLogger(__name__)

#: Between questions for messages: a share of the time since the last one, within two limits. So a
#: message waits an eighth longer than it took to come, and a SuperLink without a run is left alone.
_SHARE: Final = 0.125
_SHORTEST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 3.0
#: Flower's code of an error that the same question meets with again.
_RAISED: Final = 2
#: Configurations of so many runs are kept.
_MOST_RUNS: Final = 16
_EXPECTED_KEY: Final = "one of `ssh-keygen -t ecdsa -b 384 -N ''`"
#: Letters of a message's type that are shown.
_SHOWN_KIND: Final = 40


class OwnNode:
    """Answers the messages of a SuperLink; see :class:`~retexo_fl.agent.process.ServerLink`.

    Args:
        settings: Of ``agent.toml``, with a ``superlink``.

    Raises:
        ConfigurationError: A file cannot be read, or Flower's inner modules are not as expected.
        IdentityError: The key is none of a SuperNode.
    """

    def __init__(self, settings: AgentSettings) -> None:
        _check_flower()
        server = ServerAddress.parse(settings.superlink, "superlink")
        self._address, self._socket = str(server), Path(settings.socket)
        self._tls = None if settings.without_tls else _trusted(settings.root_certificates)
        self._key = _node_key(settings.supernode_key)
        self._stopping = threading.Event()
        self._configs: dict[int, dict[str, Scalar]] = {}
        self._connection: Connection | None = None
        self._answered = 0

    def facts(self) -> dict[str, Any]:
        """See :class:`~retexo_fl.agent.process.ServerLink`."""
        known: dict[str, Any] = {"state": "starting"}
        if self._connection is not None:
            known = self._connection.facts()
        return {"address": self._address, "answered": self._answered, **known}

    def run(self, stopping: threading.Event, most_bytes: int) -> None:
        """See :class:`~retexo_fl.agent.process.ServerLink`."""
        from retexo_fl.federation.superlink_connection import Connection, Stopped

        self._stopping = stopping
        self._connection = Connection(
            self._address, tls=self._tls, key=self._key, stopping=stopping
        )
        try:
            self._connection.activate()
            self._serve(self._connection, stopping, most_bytes)
        except Stopped:
            return
        finally:
            self._connection.close()

    def _serve(self, connection: Connection, stopping: threading.Event, most_bytes: int) -> None:
        since = time.monotonic()
        while not stopping.is_set():
            incoming = connection.receive()
            if incoming is None:
                wanted_s = _SHARE * (time.monotonic() - since)
                stopping.wait(min(max(wanted_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S))
                continue
            self._answer(connection, incoming, stopping, most_bytes)
            since = time.monotonic()

    def _answer(
        self,
        connection: Connection,
        incoming: Incoming,
        stopping: threading.Event,
        most_bytes: int,
    ) -> None:
        from retexo_fl.federation.superlink_connection import RunOver, Stopped

        begun = time.monotonic()
        kind = shown(incoming.head.metadata.message_type, _SHOWN_KIND)
        try:
            answer = self._answer_of(connection, incoming, most_bytes)
            # An agent that stops answers nothing that would be final.
            if not stopping.is_set():
                connection.reply(answer, time.monotonic() - begun)
                self._answered += 1
        except RunOver as error:
            logger.info(line("unanswered", message=kind, reason=str(error)))
        except (Stopped, IdentityError, EngineFailed):
            raise
        # What one answer met with ends no other: the server asks again.
        except Exception as error:
            _tell_failure(logging.ERROR, "unanswered", kind, error)

    def _answer_of(self, connection: Connection, incoming: Incoming, most_bytes: int) -> Message:
        from retexo_fl.federation.superlink_connection import RunOver, Stopped

        run_id = incoming.head.metadata.run_id
        try:
            message = connection.fetch(incoming, most_bytes)
            _check_ours(message)
            if run_id not in self._configs:
                self._configs[run_id] = connection.run_config(run_id)
                if len(self._configs) > _MOST_RUNS:
                    del self._configs[next(iter(self._configs))]
            context = Context(
                run_id=run_id,
                node_id=message.metadata.dst_node_id,
                node_config={},
                state=RecordDict(),
                run_config=self._configs[run_id],
                series_id=0,
            )
            # One app for all would keep what it was asked last.
            return build_client_app(self._agent)(message=message, context=context)
        except (RunOver, Stopped, IdentityError, EngineFailed):
            raise
        # Whatever the server has sent, others are to be answered after it.
        except Exception as error:
            kind = shown(incoming.head.metadata.message_type, _SHOWN_KIND)
            _tell_failure(logging.WARNING, "refused", kind, error)
            said = f"{type(error).__name__}: {error}"
            if not isinstance(error, RetexoError):
                # Its text may hold what the owner's files do.
                said = f"{type(error).__name__} in the agent; see its log"
            return Message(Error(_RAISED, said), reply_to=incoming.head)

    def _agent(self, context: Context, ticket: Ticket) -> ClientApi:
        return RemoteClient(self._socket, keys_of_run(context), stopping=self._stopping)


def _tell_failure(level: int, what: str, kind: str, error: Exception) -> None:
    """Write what a message met with to the log; of what has no name, also where."""
    said = shown(f"{type(error).__name__}: {error}")
    is_bug = not isinstance(error, RetexoError)
    logger.log(level, line(what, message=kind, reason=said), exc_info=error if is_bug else None)


def _check_ours(message: Message) -> None:
    if not records.is_ours(message):
        kind = shown(message.metadata.message_type, _SHOWN_KIND)
        raise ConfigurationError(
            f"message type {kind!r} is of another app; this node is "
            "an agent of retexo-fl, which runs no app: expected flower-supernode for it"
        )


def _check_flower() -> None:
    try:
        from retexo_fl.federation.superlink_connection import check

        check()
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"superlink: inner modules of flwr {version('flwr')} are not as this retexo-fl expects "
            f"them ({error}); leave it out, and run flower-supernode beside the agent "
            "(docs/deployment.md)"
        ) from error


def _file(key: str, path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{key}: {path} cannot be read ({error.strerror})") from error


def _trusted(roots: str) -> ssl.SSLContext:
    """Return what vouches for the SuperLink: certificates of a file, or those of every program."""
    data = _file("root-certificates", roots)
    try:
        if data is None:
            return httpx.create_ssl_context()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=data.decode("ascii"))
    # What SSL_CERT_FILE names, too.
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"root-certificates: {roots or 'of this machine'}: {shown(error)}; expected PEM"
        ) from error
    return context


def _node_key(path: str) -> ec.EllipticCurvePrivateKey | None:
    data = _file("supernode-key", path)
    if data is None:
        return None
    try:
        key = load_ssh_private_key(data, None)
    # Unsupported kinds, and keys with a password, too.
    except Exception as error:
        raise IdentityError(f"supernode-key: {path}: {error}; expected {_EXPECTED_KEY}") from error
    check_private(Path(path), f"supernode-key: {path}")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"supernode-key: {path}: another kind of key; expected {_EXPECTED_KEY}")
    return key
