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
        takes_samplers: Rounds may be of mini-batches, since no client waits for another in one.
        trains: Layers have weights. Without any, rows of classes cross once for each layer.
    """

    end_to_end: bool
    exchanges_in_rounds: bool = False
    drops_edges: bool = False
    takes_samplers: bool = False
    trains: bool = True


ALGORITHMS: Final[Mapping[str, Algorithm]] = MappingProxyType(
    {
        "lazy": Algorithm(end_to_end=False),
        "standard": Algorithm(end_to_end=True, exchanges_in_rounds=True),
        "bns": Algorithm(end_to_end=True, exchanges_in_rounds=True),
        "drop": Algorithm(end_to_end=True, drops_edges=True, takes_samplers=True),
        "central": Algorithm(end_to_end=True, takes_samplers=True),
        "propagation": Algorithm(end_to_end=False, trains=False),
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
    _check_batches(values, name)
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


def _check_batches(values: Mapping[str, Any], name: str) -> None:
    """Check what only trainings by mini-batches, or without them, can do."""
    sampler, devices = values.get("sampler", "none"), values.get("devices", "cpu")
    algorithm = ALGORITHMS[name]
    if values.get("task") == "links" and devices not in {"cpu", "auto"}:
        raise ConfigurationError(
            f"devices: {devices!r} does not go with task links, whose pairs are not shared among "
            "devices; expected 'cpu' or 'auto'"
        )
    if sampler != "none" and not algorithm.takes_samplers:
        raise ConfigurationError(
            f"sampler: {sampler!r} does not go with algorithm {name}, which trains on all rows at "
            "once; expected 'none', or algorithm drop or central"
        )
    if algorithm.end_to_end and sampler == "none" and devices not in {"cpu", "auto"}:
        others = ", or a sampler" if algorithm.takes_samplers else ""
        raise ConfigurationError(
            f"devices: {devices!r} has no mini-batches to share with algorithm {name} and sampler "
            f"'none'; expected 'cpu' or 'auto'{others}"
        )
