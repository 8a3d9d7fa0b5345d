"""What a last layer that is solved for demands of other keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from retexo_fl.config.goals import AUTO
from retexo_fl.config.value_forms import shown
from retexo_fl.errors import ConfigurationError

#: By key, the values that go with it, the one to expect first.
_FITTING: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "algorithm": ("lazy",),
        "task": ("classes",),
        "loss": ("cross-entropy", AUTO),
        "aggregator": ("mean",),
        "class-weights": ("none",),
        "local-steps": (1,),
        # Sums are asked for once: who misses that has no later round to catch up in.
        "min-clients": (0,),
    }
)


def misfits_of_ridge(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys that a last layer which is solved for does not go with."""
    return (key for key, fitting in _FITTING.items() if values[key] not in fitting)


def check_ridge(values: Mapping[str, Any]) -> None:
    """Check what a last layer that is solved for cannot do.

    Raises:
        ConfigurationError: Two keys contradict each other; the message names both.
    """
    if values["solver"] == "rounds":
        return
    for key in misfits_of_ridge(values):
        raise ConfigurationError(
            f"solver: {values['solver']} does not go with {key} {shown(values[key])}; expected "
            f"rounds, or {key} {_FITTING[key][0]}"
        )
