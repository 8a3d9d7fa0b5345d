"""RETEXO, figure 3: where the time of a training goes.

Computing is measured, in one process where the clients take turns; the network is modelled, in
virtual time. The two are never added: they stand in columns, and in axes, of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sims.catalogue import Setting
from sims.charts import COLORS, put_legend_below
from sims.outcome import Check, Figures, Outcome, Row, figures_of
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import NOT_AT_HAND
from sims.times import NetworkTime, computing_s, network_time
from sims.trained import Trained
from sims.trainings import Trainings
from sims.variants import LAZY, STANDARD, Variant, bns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PURPOSE: Final = "time of computing, message passing and aggregation: RETEXO, figure 3"

DATASETS: Final = ("cora", "pubmed")
MODELS: Final = ("gcn", "sage")
VARIANTS: Final[Mapping[str, Variant]] = {
    "lazy": LAZY,
    "bns 0.1": bns(0.1),
    "standard": STANDARD,
}
#: A wired network between sites. Chosen; the paper's figure names none.
LINKS: Final = "rate:100mbit/delay:5ms"
CLIENTS: Final = 4
SEEDS: Final = (0,)
COMPUTING: Final = "measured: computing of a client"
PASSING: Final = "modelled: message passing"
AGGREGATION: Final = "modelled: aggregation"


class Case(NamedTuple):
    """One training."""

    dataset: str
    model: str
    variant: str
    seed: int


class Times(NamedTuple):
    """Seconds of one training: measured, and modelled."""

    computing_s: float
    network: NetworkTime


#: Of all seeds, by graph, layer and algorithm.
Cells = Mapping[tuple[str, str, str], list[Times]]


def run(setting: Setting) -> Outcome:
    """Train every algorithm over modelled links."""
    datasets = at_hand(setting, DATASETS[:1] if setting.quick else DATASETS)
    models = MODELS[1:] if setting.quick else MODELS
    seeds = SEEDS[:1] if setting.quick else SEEDS
    trainings = Trainings(setting.kept)
    places = list(product(datasets, models, VARIANTS))
    cases = [Case(*place, seed) for seed in seeds for place in places]
    found = trainings.all({case: _keys(setting, case) for case in cases})
    cells = {place: [_times(found[Case(*place, seed)]) for seed in seeds] for place in places}
    rows = [row for place in places for row in _rows(place, cells)]
    return Outcome(
        title=f"RETEXO, figure 3: where the time goes, {CLIENTS} clients",
        setting=described(
            setting,
            {**SMALL, "clients": CLIENTS, "links": LINKS},
            seeds,
            trainings,
            reference="standard training of ours",
            computing="measured, all clients one after the other, on average a client",
            network="modelled: message passing is exchanges and waiting for clients in rounds, "
            "aggregation is waiting for the server",
            published=NOT_AT_HAND["fig3"],
        ),
        rows=rows,
        checks=tuple(checks_from(figures_of(rows), quick=setting.quick)),
        draw=lambda axes: _draw_computing(axes, cells),
        beside=(lambda axes: _draw_network(axes, cells),),
    )


def _keys(setting: Setting, case: Case) -> dict[str, Any]:
    variant = VARIANTS[case.variant]
    keys = keys_for(setting, case.dataset, model=case.model, algorithm=str(variant["algorithm"]))
    return {**keys, **variant, "clients": CLIENTS, "links": LINKS, "seed": case.seed}


def _times(trained: Trained) -> Times:
    return Times(computing_s=computing_s(trained), network=network_time(trained))


def _rows(place: tuple[str, str, str], cells: Cells) -> list[Row]:
    dataset, model, _ = place
    standard = cells[dataset, model, "standard"]
    parts: Mapping[str, Callable[[Times], float]] = {
        COMPUTING: lambda times: times.computing_s,
        PASSING: lambda times: times.network.message_passing_s,
        AGGREGATION: lambda times: times.network.aggregation_s,
    }
    return [
        Row.of(
            _metric(part, place),
            [seconds(times) for times in cells[place]],
            unit="s",
            reference=fmean(seconds(times) for times in standard),
        )
        for part, seconds in parts.items()
    ]


#: Updates are sent without their zeros, which are not the same in both.
_ALIKE: Final = 0.05


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold; with few rounds computing is mostly a first evaluation."""
    places = [
        (dataset, model)
        for dataset, model in product(DATASETS, MODELS)
        if _metric(PASSING, (dataset, model, "lazy")) in figures
    ]
    lines = [line for place in places for line in _passing_checks(figures, *place)]
    return lines if quick else [*lines, *(_computing_check(figures, *place) for place in places)]


def _passing_checks(figures: Figures, dataset: str, model: str) -> list[Check]:
    def seconds(part: str, variant: str) -> float:
        return figures[_metric(part, (dataset, model, variant))].ours

    lazy, bns, standard = (seconds(PASSING, name) for name in VARIANTS)
    waits = [seconds(AGGREGATION, name) for name in VARIANTS]
    return [
        Check(
            line=f"{dataset}, {model}: lazy training waits less for message passing than BNS(0.1) "
            f"and standard training ({lazy:.3f} s, {bns:.3f} s, {standard:.3f} s)",
            holds=lazy < min(bns, standard),
        ),
        Check(
            line=f"{dataset}, {model}: lazy training, in more rounds of smaller layers, waits no "
            f"less for the server; BNS(0.1) waits as long as standard training ({waits[0]:.3f} s, "
            f"{waits[1]:.3f} s, {waits[2]:.3f} s)",
            holds=waits[0] > waits[2] and math.isclose(waits[1], waits[2], rel_tol=_ALIKE),
        ),
    ]


def _computing_check(figures: Figures, dataset: str, model: str) -> Check:
    lazy, standard = (
        figures[_metric(COMPUTING, (dataset, model, name))].ours for name in ("lazy", "standard")
    )
    return Check(
        line=f"{dataset}, {model}: lazy training computes less than standard training "
        f"({lazy:.2f} s, {standard:.2f} s)",
        holds=lazy < standard,
    )


def _metric(part: str, place: tuple[str, str, str]) -> str:
    return f"{part}, {', '.join(place)}"


def _draw_computing(axes: Axes, cells: Cells) -> None:
    values = [fmean(times.computing_s for times in each) for each in cells.values()]
    axes.bar(range(len(cells)), values, color=COLORS[0], label="computing")
    _name(axes, cells)
    axes.set_title("measured", fontsize=9)


def _draw_network(axes: Axes, cells: Cells) -> None:
    passing = [fmean(t.network.message_passing_s for t in each) for each in cells.values()]
    reduced = [fmean(t.network.aggregation_s for t in each) for each in cells.values()]
    places = range(len(cells))
    axes.bar(places, reduced, color=COLORS[6], label="aggregation")
    axes.bar(places, passing, bottom=reduced, color=COLORS[3], label="message passing")
    _name(axes, cells)
    axes.set_title(f"modelled: {LINKS}", fontsize=9)


def _name(axes: Axes, cells: Cells) -> None:
    names = ["\n".join(place) for place in cells]
    axes.set_xticks(range(len(names)), names, fontsize=6)
    axes.set_ylabel("seconds")
    put_legend_below(axes)
