"""What a last layer that is solved for demands of other keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retexo_fl.config.goals import AUTO
from retexo_fl.config.value_forms import shown
from retexo_fl.errors import ConfigurationError


def check_ridge(values: Mapping[str, Any]) -> None:
    """Check what a last layer that is solved for cannot do.

    Raises:
        ConfigurationError: Two keys contradict each other; the message names both.
    """
    if values["solver"] == "rounds":
        return
    expected = {
        "algorithm": ("lazy",),
        "task": ("classes",),
        "loss": ("cross-entropy", AUTO),
        "aggregator": ("mean",),
        "class-weights": ("none",),
        "local-steps": (1,),
        # Sums are asked for once: who misses that has no later round to catch up in.
        "min-clients": (0,),
    }
    for key, fitting in expected.items():
        if values[key] not in fitting:
            raise ConfigurationError(
                f"solver: {values['solver']} does not go with {key} {shown(values[key])}; expected "
                f"rounds, or {key} {fitting[0]}"
            )
