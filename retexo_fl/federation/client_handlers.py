"""Handlers of the messages that a ClientApp answers, and whose they are; no torch, no graph."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from retexo_fl.client.api import QUESTIONS, ClientApi, Ticket
from retexo_fl.errors import ConfigurationError, RetexoError
from retexo_fl.federation import records
from retexo_fl.plugins import named_plugin_errors

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
    def answer(message: Message, context: Context) -> Message:
        try:
            with named_plugin_errors():
                return Message(_answer(message, context), reply_to=message)
        except RetexoError as error:
            return Message(records.failure_content(error), reply_to=message)

    def _answer(message: Message, context: Context) -> RecordDict:
        first, request = records.read_first(message), records.read_request(message)
        client = find_client(context, request.ticket)
        before: list[object] = []
        for item in first:
            before.append(client.ask(item))
            if records.leaves_open(before[-1]):
                return records.answer_content(None, before)
        return records.answer_content(client.ask(request), before)

    return answer


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
