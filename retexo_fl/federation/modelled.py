"""What a grid that models a network reports of it; other grids report nothing."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from flwr.serverapp import Grid

from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError
from retexo_fl.run_log.result import Network


@runtime_checkable
class ModelsNetwork(Protocol):
    """A grid whose messages take virtual time."""

    def modelled_network(self) -> Network | None:
        """Return modelled seconds so far; None if ideal."""
        ...


def network_facts(grid: Grid) -> Network | None:
    """Return what the grid modelled of the network; None where it models none."""
    return grid.modelled_network() if isinstance(grid, ModelsNetwork) else None


def check_links(grid: Grid, config: RunConfig) -> None:
    """Refuse links that would not be modelled.

    Raises:
        ConfigurationError: ``links`` is not ideal, and the grid models no network.
    """
    if config.links != "ideal" and network_facts(grid) is None:
        raise ConfigurationError(
            f"links: {config.links!r} is modelled by the in-process engine only; expected ideal"
        )
