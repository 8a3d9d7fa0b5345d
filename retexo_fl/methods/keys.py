"""What a training by an algorithm demands of other keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retexo_fl.algorithms import ALGORITHMS
from retexo_fl.errors import ConfigurationError, RunDirectoryError
from retexo_fl.methods.pieces.noise.keys import check_noise

if TYPE_CHECKING:
    from retexo_fl.config import RunConfig


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
    check_noise(values)
    if not ALGORITHMS[name].exchanges_in_rounds:
        return
    demanded: dict[str, object] = {
        "local-steps": 1,
        "aggregator": "mean",
        "missing-peers": "wait",
        "min-clients": 0,
    }
    if name == "bns" and values.get("boundary-plan") != "auto":
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


def trains_full_batches(values: Mapping[str, Any]) -> bool:
    """Return whether one pass over all layers and rows is a round, of which nothing is split."""
    is_whole = ALGORITHMS[values["algorithm"]].end_to_end
    return is_whole and values.get("sampler", "none") == "none"


def check_extended(config: RunConfig, run: Path) -> None:
    """Refuse more rounds for a run without any.

    Args:
        config: Of the run.
        run: Its directory.

    Raises:
        RunDirectoryError: It had none.
    """
    if not config.has_rounds:
        raise RunDirectoryError(
            f"extend: the run in {run} was solved without rounds (algorithm {config.algorithm}, "
            f"solver {config.solver}); expected one that was trained in rounds"
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
    if trains_full_batches(values) and devices not in {"cpu", "auto"}:
        others = ", or a sampler" if algorithm.takes_samplers else ""
        raise ConfigurationError(
            f"devices: {devices!r} has no mini-batches to share with algorithm {name} and sampler "
            f"'none'; expected 'cpu' or 'auto'{others}"
        )
