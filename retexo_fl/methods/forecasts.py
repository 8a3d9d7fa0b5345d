"""What each algorithm says of itself before a run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from retexo_fl.config import RunConfig
from retexo_fl.methods.lazy.forecast import LazyForecast
from retexo_fl.methods.propagation.forecast import PropagationForecast
from retexo_fl.methods.whole.forecast import (
    BnsForecast,
    CentralForecast,
    DropForecast,
    StandardForecast,
)
from retexo_fl.training.volume import Forecast

LAZY: Final = LazyForecast()
STANDARD: Final = StandardForecast()
FORECASTS: Final[Mapping[str, Forecast]] = MappingProxyType(
    {
        "lazy": LAZY,
        "standard": STANDARD,
        "bns": BnsForecast(),
        "drop": DropForecast(),
        "central": CentralForecast(),
        "propagation": PropagationForecast(),
    }
)


def forecast_of(config: RunConfig) -> Forecast:
    """Return that of a run's algorithm."""
    return FORECASTS[config.algorithm]
