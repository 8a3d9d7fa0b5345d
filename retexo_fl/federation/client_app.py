"""The ClientApp that Flower starts: ``clients/app.py`` is one call of this."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.clientapp import ClientApp

from retexo_fl.agent.remote import RemoteClient
from retexo_fl.client.api import ClientApi, Ticket
from retexo_fl.errors import ConfigurationError
from retexo_fl.federation.client_handlers import build_client_app, client_index

if TYPE_CHECKING:
    from retexo_fl.client.factory import WorkerClients
    from retexo_fl.config import RunConfig, Scalar


def make_client_app(predictions: str = "", scratch: str = "", parts: str = "") -> ClientApp:
    """Return the ClientApp.

    A node whose configuration names an ``agent`` passes every message on to it; other nodes are
    those of Flower's simulation.

    Args:
        predictions: Folder that clients of a simulation write their predictions to; empty where
            they make none.
        scratch: Folder that all processes of a simulation share; empty where each finds it by the
            environment.
        parts: Folder of all clients' parts; empty where the configuration says it, or the first
            process makes them.
    """
    workers: list[WorkerClients] = []
    places = (predictions, scratch, parts)

    def find_client(context: Context, ticket: Ticket) -> ClientApi:
        if "agent" in context.node_config:
            return RemoteClient(agent_socket(context), keys_of_run(context))
        # Imported at the first message: torch stays out of the processes that only load the app.
        from retexo_fl.client.factory import WorkerClients

        if not workers:
            workers.append(WorkerClients(*(Path(place) if place else None for place in places)))
        return workers[0].find(
            _run_config(context),
            job=ticket.job,
            client=client_index(context),
            run_id=context.run_id,
        )

    return build_client_app(find_client, _AppByName(places))


class _AppByName(ClientApp):
    """Pickles as the call that makes it, once in each process.

    Flower's simulation pickles the ClientApp with every message. Copied by value it would be a new
    one each time, whose clients had to be made anew.
    """

    def __init__(self, places: tuple[str, str, str]) -> None:
        super().__init__()
        self._places = places

    def __reduce__(self) -> tuple[Callable[..., ClientApp], tuple[Any, ...]]:
        return _app_of_process, self._places


@cache
def _app_of_process(*places: str) -> ClientApp:
    return make_client_app(*places)


def agent_socket(context: Context) -> Path:
    """Return where the agent of a Flower node is reached.

    Raises:
        ConfigurationError: The node's ``agent`` is no absolute path.
    """
    path = context.node_config["agent"]
    if not isinstance(path, str) or not path.startswith("/"):
        raise ConfigurationError(
            f"node-config: agent is {path!r}; expected the absolute path of the agent's socket"
        )
    return Path(path)


def _run_config(context: Context) -> RunConfig:
    return _config_of(*((key, value, type(value)) for key, value in keys_of_run(context).items()))


# All clients of a process have the same, and each message brings it.
@lru_cache(maxsize=2)
def _config_of(*keys: tuple[str, Scalar, type]) -> RunConfig:
    # The agent reads its configuration itself.
    from retexo_fl.config import make_config

    return make_config({key: value for key, value, _ in keys})


def keys_of_run(context: Context) -> dict[str, Scalar]:
    """Return Flower's run configuration without the name of a profile, which the server follows."""
    return {key: value for key, value in context.run_config.items() if key != "profile"}
