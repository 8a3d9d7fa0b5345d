"""The project file of a Flower app."""

from __future__ import annotations


def bundle_project(server: str = "other:app", client: str = "other:app", config: str = "") -> str:
    """Return a ``pyproject.toml`` with all that Flower demands of one.

    Args:
        server: Where the ServerApp is, as ``module:attribute``; likewise ``client``.
        client: Where the ClientApp is.
        config: Its table ``tool.flwr.app.config``.
    """
    return f"""
[project]
name = "other"
version = "0.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "{server}"
clientapp = "{client}"

{config}"""
