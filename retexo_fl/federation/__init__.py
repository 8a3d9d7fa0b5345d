"""The Flower side: strategy, server loop, message handlers, checkpoints.

The two factories import what they need when they are called, so that a ClientApp's process does not
load the server's half, nor torch.
"""

from __future__ import annotations

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp


def make_server_app() -> ServerApp:
    """Return the ServerApp that trains by lazy message passing."""
    from retexo_fl.federation import server_app

    return server_app.make_server_app()


def make_client_app() -> ClientApp:
    """Return the ClientApp that answers for one client."""
    from retexo_fl.federation import client_app

    return client_app.make_client_app()


__all__ = ["make_client_app", "make_server_app"]
