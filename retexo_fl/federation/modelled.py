"""What a grid may tell of a network that it models: no other grid has anything to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from flwr.serverapp import Grid

from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError


@runtime_checkable
class ModelsNetwork(Protocol):
    """A grid whose messages take virtual time."""

    def modelled_network(self) -> Mapping[str, Any] | None:
        """Return modelled seconds so far, as ``network`` of ``result.json``; None if ideal."""
        ...


def network_facts(grid: Grid) -> Mapping[str, Any] | None:
    """Return what the grid modelled of the network; None where it models none."""
    return grid.modelled_network() if isinstance(grid, ModelsNetwork) else None


def check_links(grid: Grid, config: RunConfig) -> None:
    """Refuse links that nobody would model.

    Raises:
        ConfigurationError: ``links`` is not ideal, and the grid's network is as it is.
    """
    if config.links != "ideal" and network_facts(grid) is None:
        raise ConfigurationError(
            f"links: {config.links!r} is modelled by the in-process engine only; expected ideal"
        )
