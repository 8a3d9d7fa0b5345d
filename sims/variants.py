"""The algorithms as recipes list them: a name, and the keys that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from retexo_fl.config import Scalar

Variant = Mapping[str, Scalar]

LAZY: Final[Variant] = MappingProxyType({"algorithm": "lazy"})
STANDARD: Final[Variant] = MappingProxyType({"algorithm": "standard"})
DROP: Final[Variant] = MappingProxyType({"algorithm": "drop"})


def bns(rate: float, *, scaling: str = "inverse") -> Variant:
    """Return boundary sampling at a rate; ``scaling`` as the key ``boundary-scaling``."""
    return {"algorithm": "bns", "boundary-rate": rate, "boundary-scaling": scaling}
