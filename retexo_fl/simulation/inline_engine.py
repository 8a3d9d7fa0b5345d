"""The in-process engine: the ServerApp and ClientApp of a run in one process, started at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from retexo_fl.channels import Channel, MemoryChannel, SharingChannel, SpoolChannel
from retexo_fl.client.api import ClientApi
from retexo_fl.config import RunConfig, config_values
from retexo_fl.federation.client_handlers import build_client_app, in_simulation
from retexo_fl.federation.server_app import Listener, make_server_app
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.methods.clients import exchange_in_rounds
from retexo_fl.run_log.events import Event
from retexo_fl.run_log.profile import ChosenProfile
from retexo_fl.simulation.heap import SELDOM_COLLECTED, return_freed_memory
from retexo_fl.simulation.inline_grid import InlineGrid
from retexo_fl.simulation.interleaved import Watcher, no_watch
from retexo_fl.simulation.interleaved_clients import InterleavedClients
from retexo_fl.simulation.links import read_links
from retexo_fl.simulation.modelled_channel import ModelledChannel
from retexo_fl.simulation.virtual_network import VirtualNetwork

if TYPE_CHECKING:
    from retexo_fl.client.client import GraphClient
    from retexo_fl.federation.prediction_app import PredictionTask

    _Finds = Callable[[str, int], GraphClient]


def run_inline(
    config: RunConfig,
    parts: list[GraphPartition],
    listeners: Sequence[Listener] = (),
    *,
    folder: Path | None = None,
    profile: ChosenProfile | None = None,
    overwrite: bool = False,
) -> None:
    """Train on ``parts`` in this process.

    Args:
        config: The configuration; ``clients`` equals the number of parts.
        parts: One for each client.
        listeners: Called with every event of the run.
        folder: Keeps rows that cross, in place of memory; it is removed at the end.
        profile: Of the run, to be shown and noted.
        overwrite: As in :func:`.run_training`.

    Raises:
        RetexoError: Any named failure of the run.
    """
    from retexo_fl.client.factory import InProcessClients

    return_freed_memory(config.clients)
    network = make_network(config)
    channel = make_channel(network, folder)
    clients = InProcessClients(parts, config, channel=channel, folder=folder)
    try:
        with SELDOM_COLLECTED:
            run_clients(
                config,
                clients.find,
                listeners,
                network=network,
                profile=profile,
                overwrite=overwrite,
            )
    finally:
        clients.close()


def make_network(config: RunConfig) -> VirtualNetwork | None:
    """Return the network that a run's ``links`` describe; None where they are ideal.

    Raises:
        ConfigurationError: ``links`` names a file that cannot be used.
    """
    if config.links == "ideal":
        return None
    links = read_links(config.links, clients=config.clients)
    return VirtualNetwork(links, clients=config.clients, seed=config.seed)


def make_channel(network: VirtualNetwork | None, folder: Path | None = None) -> Channel:
    """Return a channel for the clients of this process, whose blocks pass over the network.

    Args:
        network: From :func:`make_network`.
        folder: Keeps the blocks, in place of memory.
    """
    if folder is not None:
        kept: Channel = SpoolChannel(folder / "spool")
    else:
        kept = SharingChannel() if network is None else MemoryChannel()
    return kept if network is None else ModelledChannel(kept, network)


def run_clients(
    config: RunConfig,
    find: Callable[[str, int], ClientApi],
    listeners: Sequence[Listener] = (),
    *,
    network: VirtualNetwork | None = None,
    profile: ChosenProfile | None = None,
    overwrite: bool = False,
) -> None:
    """Train in this process with clients that the caller makes.

    Args:
        config: The configuration; ``clients`` is their number.
        find: Returns a client by job and index; called at every message.
        listeners: Called with every event of the run.
        network: From :func:`make_network`, with clients whose channel is of :func:`make_channel`.
        profile: Of the run, to be shown and noted.
        overwrite: As in :func:`.run_training`.

    Raises:
        ConfigurationError: ``links`` is not ideal, and there is no network.
        RetexoError: Any other named failure of the run.
    """
    if exchange_in_rounds(config, predicts=False):
        watch: Watcher = no_watch if network is None else network.exchange
        find = InterleavedClients(find, config.clients, codec=config.codec, watch=watch).find
    app = make_server_app(listeners, profile=profile, overwrite=overwrite)
    _serve(app, config, find, network)


def predict_inline(
    config: RunConfig,
    parts: list[GraphPartition],
    task: PredictionTask,
    *,
    predictions: Path,
    listeners: Sequence[Callable[[Event], None]] = (),
    watching: Callable[[_Finds], Callable[[str, int], ClientApi]] = lambda find: find,
) -> None:
    """Predict the nodes of ``parts`` in this process.

    Args:
        config: The configuration; ``clients`` equals the number of parts.
        parts: One for each client.
        task: What to predict with; its folder gets the events and the outcome.
        predictions: Existing folder that the clients write to.
        listeners: Called with every event of the inference.
        watching: Returns what finds the same clients, for callers that look at what is asked.

    Raises:
        RetexoError: Any named failure.
    """
    from retexo_fl.client.factory import InProcessClients
    from retexo_fl.federation.prediction_app import make_prediction_app

    clients = InProcessClients(parts, config, predictions=predictions)
    _serve(make_prediction_app(task, listeners), config, watching(clients.find))


def _serve(
    server_app: ServerApp,
    config: RunConfig,
    find: Callable[[str, int], ClientApi],
    network: VirtualNetwork | None = None,
) -> None:
    """Run a ServerApp to its end, with all clients in this process."""
    values = config_values(config)
    app = build_client_app(in_simulation(find))
    grid = InlineGrid(app, config.clients, values, network=network)
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(values)
    )
    serve: Callable[[Grid, Context], None] = server_app
    serve(grid, context)
