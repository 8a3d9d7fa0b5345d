"""Sums of which a server learns nothing but the sum, whatever it asks."""

from __future__ import annotations

from typing import Final

#: The line for users where sums are masked; docs/masked-sums.md says against whom it holds.
MASKED: Final = "secure-aggregation masked: the server sees sums over cohorts alone"
