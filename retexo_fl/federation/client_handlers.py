"""Handlers of the messages that a ClientApp answers, and whose they are; no torch, no graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from retexo_fl.client.api import QUESTIONS, ClientApi, Request, Ticket
from retexo_fl.config import Scalar
from retexo_fl.config.profiles import with_settled
from retexo_fl.errors import ConfigurationError, RetexoError
from retexo_fl.federation import records
from retexo_fl.plugins import plugin_failure

#: Finds the client that a message is for.
ClientSource = Callable[[Context, Ticket], ClientApi]


def build_client_app(find_client: ClientSource, app: ClientApp | None = None) -> ClientApp:
    """Return a ClientApp whose messages are answered by the client that ``find_client`` returns.

    Args:
        find_client: Finds the client that a message is for.
        app: Takes the handlers; a new one by default.
    """
    app = ClientApp() if app is None else app
    for question in QUESTIONS.values():
        kind, action = question.message_type.split(".")
        getattr(app, kind)(action)(_handler(find_client))
    kind, action = records.NUDGE.split(".")
    getattr(app, kind)(action)(_nudged)
    return app


def _nudged(message: Message, _: Context) -> Message:
    return Message(RecordDict(), reply_to=message)


def _handler(find_client: ClientSource) -> Callable[[Message, Context], Message]:
    read: tuple[RecordDict, list[Request[Any]], Request[Any]] | None = None

    def answer(message: Message, context: Context) -> Message:
        nonlocal read
        try:
            # Clients of one process are asked with one content: it is read once.
            last, own = read, message.content
            if last is None or last[0] is not own:
                read = last = own, records.read_first(message), records.read_request(message)
            _, first, request = last
            if records.SETTLED in message.content:
                context = _with_keys(context, records.settled_keys(message))
            content = _answers(find_client(context, request.ticket), first, request)
        except Exception as error:
            named = error if isinstance(error, RetexoError) else plugin_failure(error)
            if named is None:
                raise
            content = records.failure_content(named)
        return Message(content, reply_to=message)

    return answer


def _with_keys(context: Context, keys: Mapping[str, Scalar]) -> Context:
    """Return a context whose run has other keys, which the server has settled since it began."""
    return Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config=context.node_config,
        state=context.state,
        run_config=with_settled(context.run_config, keys),
    )


def _answers(client: ClientApi, first: Iterable[Request[Any]], request: Request[Any]) -> RecordDict:
    """Return what a client answers to the requests ``first`` in a message, and to its own."""
    before: list[object] = []
    for item in first:
        before.append(client.ask(item))
        if records.leaves_open(before[-1]):
            return records.answer_content(None, before)
    return records.answer_content(client.ask(request), before)


def in_simulation(find: Callable[[str, int], ClientApi]) -> ClientSource:
    """Return what finds the client of a simulation's node.

    Args:
        find: Returns a client by job and index.
    """

    def find_client(context: Context, ticket: Ticket) -> ClientApi:
        return find(ticket.job, client_index(context))

    return find_client


def client_index(context: Context) -> int:
    """Return which client a Flower node is.

    Raises:
        ConfigurationError: The node was not given a ``partition-id``.
    """
    index = context.node_config.get("partition-id")
    if not isinstance(index, int):
        raise ConfigurationError(
            f"node {context.node_id} has neither an agent nor a partition-id; expected "
            "--node-config 'agent=\"/run/retexo/agent.sock\"', or a node of Flower's simulation"
        )
    return index
