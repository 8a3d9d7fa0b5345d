"""Trainings in this process over a grid whose machines go away and whose answers change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Message

from retexo_fl.client.factory import InProcessClients
from retexo_fl.config import RunConfig, config_values
from retexo_fl.federation.client_handlers import build_client_app, in_simulation
from retexo_fl.federation.server_app import run_training
from retexo_fl.graph import GraphPartition
from tests.support.fickle_grid import FickleGrid
from tests.support.hand_clock import HandClock

#: Does to the grid what it likes before a message is sent.
Change = Callable[[FickleGrid, Message], None]
#: Returns what becomes of an answer on its way.
See = Callable[[Message, Message], Message]


def nothing(grid: FickleGrid, message: Message) -> None:
    """Leave the grid as it is."""
    del grid, message


def unchanged(message: Message, reply: Message) -> Message:
    """Leave an answer as it is."""
    del message
    return reply


def node_of(client: int) -> int:
    """Return the Flower node of a client."""
    return client + 2


def train_on_fickle_grid(
    config: RunConfig,
    parts: list[GraphPartition],
    change: Change = nothing,
    *,
    see: See = unchanged,
    made: Callable[[InProcessClients], None] = lambda clients: None,
    clock: HandClock | None = None,
) -> None:
    """Train, with ``change`` before each message and ``see`` after each answer.

    ``made`` gets the clients before they are asked anything. Time, by ``clock``, passes while
    nobody answers, and not while clients compute: on a busy machine, too, those are absent whom
    ``change`` has silenced, and no others.
    """
    clients = InProcessClients(parts, config)
    made(clients)

    class Grid(FickleGrid):
        def push_messages(self, messages: Any) -> Any:
            sent = list(messages)
            for message in sent:
                change(self, message)
            return super().push_messages(sent)

    grid = Grid(
        build_client_app(in_simulation(clients.find)), config.clients, config_values(config)
    )
    grid.weather.replace = see
    run_training(grid, config, clock=clock or HandClock())
