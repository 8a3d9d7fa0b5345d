"""The keys of a run that follow from its graph, once all clients' parts have been counted.

Where all parts are on one machine, it counts them; in a deployment clients report them. Both
settle the same keys from the same counts.
"""

from __future__ import annotations

from typing import Protocol

from retexo_fl.config import RunConfig, Scalar, config_values, make_config
from retexo_fl.config.profiles import END_TO_END, FITTED, Fitting, GraphFacts, fitted_values
from retexo_fl.layers.base import GraphLayer
from retexo_fl.layers.named import layer_class
from retexo_fl.training.shorter_plan import PlanCounts, shorter_plan
from retexo_fl.units import counted


class GraphCounts(PlanCounts, Protocol):
    """What all clients together have, and would send."""

    @property
    def facts(self) -> GraphFacts:
        """What a profile is fitted to."""
        ...

    @property
    def edge_features(self) -> int:
        """Attributes of each edge."""
        ...


def is_left(config: RunConfig, fitting: Fitting) -> bool:
    """Return whether anything of a run follows from its graph."""
    return _fits(config, fitting) or config.boundary_plan == "auto"


def fit(config: RunConfig, fitting: Fitting, counts: GraphCounts) -> tuple[RunConfig, str]:
    """Fit what nobody chose to the graph; return that, and what was fitted to what.

    Args:
        config: Of the run, with the keys of its profile.
        fitting: What is left.
        counts: Of the graph.

    Returns:
        The configuration, and words; none where nothing is fitted.
    """
    told: list[str] = []
    if _fits(config, fitting):
        fitted = _fitted(config, fitting, counts.facts)
        config = make_config({**config_values(config), **fitted})
        told.append(_words(fitted, counts.facts))
        if config.second_rows != "full" and "basis-rows" in fitted:
            told.append(
                f"no basis of sums, since second-rows {config.second_rows} keeps links inside "
                "parts back"
            )
    if config.boundary_plan == "auto":
        kind = shorter_plan(
            config,
            counts,
            features=counts.facts.features,
            classes=counts.facts.classes,
            edge_features=counts.edge_features,
        )
        config = make_config({**config_values(config), "boundary-plan": kind})
        if kind == "cover":
            told.append("boundary-plan cover, in fewer bytes than rows")
    return config, "; ".join(told)


def _fits(config: RunConfig, fitting: Fitting) -> bool:
    if fitting.profile == END_TO_END and not config.goal.few_nodes_studied:
        return False
    return fitting.profile in FITTED


def _fitted(config: RunConfig, fitting: Fitting, facts: GraphFacts) -> dict[str, Scalar]:
    layer = layer_class(config.model)
    takes_sums = layer.fixed_width(1) is not None
    values = fitted_values(
        fitting.profile,
        facts,
        takes_sums=takes_sums,
        is_linear=takes_sums and layer.start_as is not GraphLayer.start_as,
        is_typed=layer.directions == "typed",
    )
    if config.second_rows != "full":
        # What crosses first would follow from links inside a part.
        values = {key: "own" if key == "basis-rows" else of for key, of in values.items()}
    return {key: value for key, value in values.items() if key not in fitting.chosen}


def _words(fitted: dict[str, Scalar], facts: GraphFacts) -> str:
    keys = ", ".join(f"{key} {value}" for key, value in fitted.items()) or "as it is"
    return (
        f"{keys} ({counted(facts.train_nodes, 'train node')}, "
        f"{counted(facts.features, 'feature')} with {facts.entries_per_row:.3g} entries in a row, "
        f"mean degree {facts.degree:.3g})"
    )
