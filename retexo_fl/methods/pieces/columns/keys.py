"""What columns of the edges demand of other keys, where nodes have no features."""

from __future__ import annotations

from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError


def check_structure(config: RunConfig) -> None:
    """Check that all clients take part in every step: what one lacks, its peers lack, too.

    Raises:
        ConfigurationError: Some may stay away.
    """
    if config.structure == "degrees" or not config.traits.trains:
        return
    if config.structure == "labels" and config.goal.output != "class":
        raise ConfigurationError(
            "structure: labels counts train nodes of each class, and nodes have no classes here; "
            "expected columns or degrees, or task classes"
        )
    for key, given, expected in (
        ("missing-peers", config.missing_peers, "wait"),
        ("min-clients", config.min_clients, 0),
    ):
        if given != expected:
            raise ConfigurationError(
                f"{key}: {given} does not go with structure {config.structure}, which all "
                f"clients make together since nodes have no features; expected {expected}, or "
                "structure degrees"
            )
