"""From a configuration's text to an aggregator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from inspect import isabstract
from types import MappingProxyType
from typing import Final

from flwr.serverapp.strategy import Strategy

from retexo_fl.config import parse_value
from retexo_fl.errors import PluginError
from retexo_fl.federation.aggregators.base import Aggregator
from retexo_fl.federation.aggregators.checked import CheckedAggregator
from retexo_fl.federation.aggregators.flower import FlowerAggregator, check_hooks
from retexo_fl.federation.aggregators.krum import Krum, MultiKrum
from retexo_fl.federation.aggregators.mean import WeightedMean
from retexo_fl.federation.aggregators.median import Median
from retexo_fl.federation.aggregators.norm_clipping import NormClipping
from retexo_fl.federation.aggregators.trimmed_mean import TrimmedMean
from retexo_fl.plugins import load_callable, load_plugin

#: Share at each end that ``trimmed-mean`` leaves out; that of Flower's FedTrimmedAvg.
_DEFAULT_SHARE: Final = Fraction(1, 5)
#: Makes an aggregator of what follows the colon; the configuration has checked it.
_BUILT_IN: Final[Mapping[str, Callable[[str], Aggregator]]] = MappingProxyType(
    {
        "mean": lambda _: WeightedMean(),
        "median": lambda _: Median(),
        "trimmed-mean": lambda share: TrimmedMean(Fraction(share) if share else _DEFAULT_SHARE),
        "krum": lambda count: Krum(int(count)),
        "multi-krum": lambda count: MultiKrum(int(count)),
        "norm-clipping": lambda norm: NormClipping(float(norm) if norm else None),
    }
)
_METHODS: Final = ("start", "add", "finish")


def make_aggregator(name: str, *, takes_uncounted: bool = False) -> CheckedAggregator:
    """Build the aggregator that the configuration calls ``name``.

    Args:
        name: A built-in name with its number, or ``module:attribute``: a factory without
            parameters (such as a class) of an :class:`Aggregator` or of a Flower ``Strategy``,
            whose aggregation is then used.
        takes_uncounted: Updates of clients without train nodes count as well: of algorithms in
            which they pass on the gradients of their peers' losses.

    Raises:
        ConfigurationError: The text is none of these.
        PluginError: The factory cannot be imported or called, or makes something else.
    """
    parse_value("aggregator", name)
    kind, _, number = name.partition(":")
    inner = _BUILT_IN[kind](number) if kind in _BUILT_IN else _loaded(name)
    return CheckedAggregator(name, inner, takes_uncounted=takes_uncounted)


def _loaded(name: str) -> Aggregator:
    """Return what ``module:attribute`` makes."""
    found = load_plugin("aggregator", name)
    if isinstance(found, type) and issubclass(found, Strategy) and not isabstract(found):
        # Before it is made: some need arguments, some warn.
        check_hooks(found)
    made = load_callable("aggregator", name)()
    if isinstance(made, Strategy):
        return FlowerAggregator(made)
    missing = [method for method in _METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise PluginError(
            f"aggregator {name!r}: {type(made).__name__} has no {', '.join(missing)}; expected an "
            "aggregator or a strategy of flwr.serverapp"
        )
    needs = getattr(made, "needs", None)
    if needs not in ("sum", "each"):
        raise PluginError(f"aggregator {name!r}: needs is {needs!r}; expected 'sum' or 'each'")
    least = getattr(made, "least_clients", 1)
    if type(least) is not int or least < 1:
        raise PluginError(
            f"aggregator {name!r}: least_clients is {least!r}; expected a whole number from 1"
        )
    loaded: Aggregator = made
    return loaded
