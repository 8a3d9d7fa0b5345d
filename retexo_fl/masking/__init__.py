"""Sums of which a server that follows the protocol learns nothing but the sum."""

from __future__ import annotations

from typing import Final

#: What users are told where sums are masked; docs/masked-sums.md says against whom it holds.
MASKED: Final = (
    "secure-aggregation masked: a server that follows the protocol sees sums over cohorts alone"
)
