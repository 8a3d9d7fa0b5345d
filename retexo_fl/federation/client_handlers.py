"""Handlers of the messages that a ClientApp answers; no torch, no graph."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from retexo_fl.agent.api import ClientApi, Ticket
from retexo_fl.agent.peering import AgentApi
from retexo_fl.errors import LocalProtocolError, RetexoError
from retexo_fl.federation import records

#: Finds the client that a message is for.
ClientSource = Callable[[Context, Ticket], ClientApi]
#: Answers a message with what is asked of its client.
Reply = Callable[[Message, Context, Callable[[ClientApi], records.Answer]], Message]


def build_client_app(find_client: ClientSource) -> ClientApp:
    """Return a ClientApp whose messages are answered by the client that ``find_client`` returns."""
    app = ClientApp()

    def _reply(
        message: Message, context: Context, ask: Callable[[ClientApi], records.Answer]
    ) -> Message:
        try:
            answer = ask(find_client(context, records.read_ticket(message)))
        except RetexoError as error:
            return Message(records.failure_content(error), reply_to=message)
        return Message(records.answer_content(answer), reply_to=message)

    _answer_training(app, _reply)
    _answer_peering(app, _reply)
    return app


def _answer_training(app: ClientApp, reply: Reply) -> None:
    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        return reply(message, context, lambda client: client.hello(records.read_ticket(message)))

    @app.query("publish")
    def publish(message: Message, context: Context) -> Message:
        return reply(message, context, lambda client: client.publish(records.read_publish(message)))

    @app.query("collect")
    def collect(message: Message, context: Context) -> Message:
        return reply(message, context, lambda client: client.collect(records.read_collect(message)))

    @app.train("layer")
    def train_layer(message: Message, context: Context) -> Message:
        return reply(
            message, context, lambda client: client.train_layer(records.read_train(message))
        )

    @app.evaluate("layer")
    def evaluate_layer(message: Message, context: Context) -> Message:
        return reply(
            message, context, lambda client: client.evaluate_layer(records.read_evaluate(message))
        )

    @app.query("predict")
    def predict(message: Message, context: Context) -> Message:
        return reply(message, context, lambda client: client.predict(records.read_predict(message)))


def _answer_peering(app: ClientApp, reply: Reply) -> None:
    @app.query("introduce")
    def introduce(message: Message, context: Context) -> Message:
        return reply(
            message,
            context,
            lambda client: _agent(client).introduce(records.read_introduce(message)),
        )

    @app.query("relay")
    def relay(message: Message, context: Context) -> Message:
        return reply(
            message, context, lambda client: _agent(client).relay(records.read_relay(message))
        )


def _agent(client: ClientApi) -> AgentApi:
    """Return a client that has an agent.

    Raises:
        LocalProtocolError: It lives in a simulation, where nobody needs to be found.
    """
    if not isinstance(client, AgentApi):
        raise LocalProtocolError("introductions and relay are for clients that have an agent")
    return client
