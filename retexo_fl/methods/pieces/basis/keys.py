"""What a basis of the features demands of other keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retexo_fl.errors import ConfigurationError


def check_basis(values: Mapping[str, Any]) -> None:
    """Check what a basis does not go with.

    Raises:
        ConfigurationError: Two keys contradict each other; the message names both.
    """
    if values["basis"] != "none" and values["algorithm"] != "lazy":
        raise ConfigurationError(
            f"basis: {values['basis']} does not go with algorithm {values['algorithm']}; expected "
            "none, or algorithm lazy"
        )
    if values["basis"] != "none" and values["basis-blocks"] == 1 and values["solver"] == "rounds":
        raise ConfigurationError(
            "basis-blocks: 1 does not go with solver rounds, since the scale of coordinates "
            "follows from later blocks; expected 2 to 64, or solver ridge"
        )
