"""Sets of keys that go together; each key may be chosen otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from retexo_fl.config.keys import Scalar
from retexo_fl.errors import ConfigurationError

#: By name; ``retexo`` leaves every key at its default: a fixed number of Adam's rounds.
PROFILES: Final[Mapping[str, Mapping[str, Scalar]]] = MappingProxyType(
    {
        "retexo": MappingProxyType({}),
        "lean": MappingProxyType(
            {
                "rounds": 40,
                "patience": 4,
                "dropout": 0.0,
                "optimizer": "lbfgs",
                "warm-start": True,
                "basis": "supervised",
                "basis-blocks": 8,
                "basis-bits": 8,
                "row-bits": 8,
                "update-bits": 8,
                "weight-bits": 8,
            }
        ),
    }
)


def profile_values(name: str) -> Mapping[str, Scalar]:
    """Return the keys of a profile.

    Raises:
        ConfigurationError: There is none of this name.
    """
    if name not in PROFILES:
        raise ConfigurationError(
            f"profile: got {name[:40]!r}; expected one of {', '.join(PROFILES)}"
        )
    return PROFILES[name]
