"""The training algorithms by name, and what sets them apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from retexo_fl.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What the parts of a training ask about its algorithm.

    Attributes:
        end_to_end: All layers are one stage, trained together and without heads in between.
        exchanges_in_rounds: Clients pass embeddings and gradients in every round, so that all take
            part in every round, and an engine must run them side by side.
        drops_edges: Edges between clients are ignored.
    """

    end_to_end: bool
    exchanges_in_rounds: bool = False
    drops_edges: bool = False


ALGORITHMS: Final[Mapping[str, Algorithm]] = MappingProxyType(
    {
        "lazy": Algorithm(end_to_end=False),
        "standard": Algorithm(end_to_end=True, exchanges_in_rounds=True),
        "bns": Algorithm(end_to_end=True, exchanges_in_rounds=True),
        "drop": Algorithm(end_to_end=True, drops_edges=True),
        "central": Algorithm(end_to_end=True),
    }
)


def check_algorithm(values: Mapping[str, Any]) -> None:
    """Check what training by an algorithm demands of other keys; predicting demands nothing.

    Args:
        values: A configuration by kebab-case keys, each allowed by itself.

    Raises:
        ConfigurationError: A key does not go with ``algorithm``; the message names both.
    """
    name = values["algorithm"]
    if name == "central" and values["clients"] != 1:
        raise ConfigurationError(
            f"clients: {values['clients']}, but algorithm central trains on one client; expected 1"
        )
    if not ALGORITHMS[name].exchanges_in_rounds:
        return
    demanded: dict[str, object] = {
        "local-steps": 1,
        "aggregator": "mean",
        "missing-peers": "wait",
        "min-clients": 0,
    }
    if name == "bns":
        demanded["boundary-plan"] = "rows"
    for key, expected in demanded.items():
        if values.get(key, expected) != expected:
            raise ConfigurationError(
                f"{key}: {values[key]!r} does not go with algorithm {name}, whose clients exchange "
                f"in every round; expected {expected!r}"
            )
    if values.get("engine") == "flower":
        raise ConfigurationError(
            f"engine: 'flower' does not go with algorithm {name}, whose clients exchange in every "
            "round; expected 'inline' or 'deployment'"
        )
