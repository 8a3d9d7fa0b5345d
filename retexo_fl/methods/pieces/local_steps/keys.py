"""What several local steps, and SCAFFOLD, demand of other keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retexo_fl.config.value_forms import shown
from retexo_fl.errors import ConfigurationError


def check_local_steps(values: Mapping[str, Any]) -> None:
    """Check what only one local step, or only several, can do.

    Raises:
        ConfigurationError: Two keys contradict each other; the message names both.
    """
    steps = values["local-steps"]
    if values["optimizer"] != "adam" and steps > 1:
        raise ConfigurationError(
            f"optimizer: {values['optimizer']} does not go with local-steps {steps}, which send "
            "changes of the weights; expected local-steps 1, or server-optimizer"
        )
    if values["server-optimizer"] != "mean" and steps == 1:
        raise ConfigurationError(
            f"server-optimizer: {values['server-optimizer']} does not go with local-steps 1, which "
            "sends gradients; expected local-steps above 1, or optimizer"
        )
    for key, unset in (("proximal-mu", 0), ("local-correction", "none")):
        if values[key] != unset and steps == 1:
            raise ConfigurationError(
                f"{key}: {values[key]} changes nothing with local-steps 1, which sends gradients; "
                f"expected {unset}, or local-steps above 1"
            )
    if values["local-correction"] == "scaffold":
        _check_scaffold(values)


def _check_scaffold(values: Mapping[str, Any]) -> None:
    """Check what the server must be able to read off a change of the weights."""
    for key, expected, why in (
        ("local-optimizer", "sgd", "whose steps are not multiples of gradients"),
        ("proximal-mu", 0, "whose pull would count as a gradient"),
        ("aggregator", "mean", "since corrections are means in any case"),
        ("weight-bits", 32, "which sends all clients the same"),
    ):
        if values[key] != expected:
            raise ConfigurationError(
                f"local-correction: scaffold does not go with {key} {shown(values[key])}, {why}; "
                f"expected {key} {expected}, or local-correction none"
            )
