"""What is done with a layout's edges where no rule is chosen."""

from __future__ import annotations

from dataclasses import replace

from retexo_fl.graph.sources.reading import Reading


def as_loaders_read(reading: Reading) -> Reading:
    """Return how a published layout is read: as the loaders of its publishers read it.

    Of edges without direction those that are there several times, or both ways, are one, and self
    loops are left out; how many is said. Where a rule is chosen it stays as it is.
    """
    rules = reading.rules
    if rules.directed or not rules.is_strict:
        return reading
    return replace(reading, rules=replace(rules, merge="max", self_loops="drop"))
