"""How the updates of a round become one; an aggregator per file."""

from retexo_fl.federation.aggregators.base import (
    Aggregator,
    CoordinateWise,
    EachUpdate,
    RoundFacts,
)
from retexo_fl.federation.aggregators.catalogue import make_aggregator
from retexo_fl.federation.aggregators.checked import CheckedAggregator
from retexo_fl.federation.aggregators.mean import WeightedMean

__all__ = [
    "Aggregator",
    "CheckedAggregator",
    "CoordinateWise",
    "EachUpdate",
    "RoundFacts",
    "WeightedMean",
    "make_aggregator",
]
