"""What label propagation demands of other keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from retexo_fl.config.goals import AUTO
from retexo_fl.config.value_forms import shown
from retexo_fl.errors import ConfigurationError

_NAME: Final = "propagation"
#: What a key may be, and why it may be nothing else.
_FITTING: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "task": (("classes",), "where each label is one class"),
    "model": (("gcn", "sage"), "of which it takes the sums over neighbours"),
    "solver": (("rounds",), "since nothing is solved for"),
    "basis": (("none",), "since features are not read"),
    "loss": (("cross-entropy", AUTO), "since nothing is trained"),
    "class-weights": (("none",), "since nothing is trained"),
    "local-steps": ((1,), "since nothing is trained"),
    "optimizer": (("adam",), "since nothing is trained"),
    "aggregator": (("mean",), "since nothing is trained"),
    "warm-start": ((False,), "since nothing is trained"),
    "update-bits": ((32,), "since nothing is trained"),
    "weight-bits": ((32,), "since nothing is trained"),
    "devices": (("cpu", AUTO), "since nothing is trained"),
    # All are judged once, after the last step: who misses that has no later round to catch up in.
    "min-clients": ((0,), "since all clients are asked once"),
}


def check_propagation(values: Mapping[str, Any]) -> None:
    """Check what label propagation cannot do.

    Raises:
        ConfigurationError: Two keys contradict each other; the message names both.
    """
    if values["algorithm"] != _NAME:
        return
    for key, (fitting, why) in _FITTING.items():
        if values[key] not in fitting:
            raise ConfigurationError(
                f"algorithm: {_NAME} does not go with {key} {shown(values[key])}, {why}; expected "
                f"{key} {str(fitting[0]).lower()}, or algorithm lazy"
            )
