"""Graphs that are made, not collected: any size, any homophily, from a seed."""

from retexo_fl.graph.sources.synthetic.make import make_synthetic
from retexo_fl.graph.sources.synthetic.spec import (
    PRESETS,
    SYNTHETIC,
    SyntheticSpec,
    is_synthetic,
    parse_synthetic,
)

__all__ = [
    "PRESETS",
    "SYNTHETIC",
    "SyntheticSpec",
    "is_synthetic",
    "make_synthetic",
    "parse_synthetic",
]
