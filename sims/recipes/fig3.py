"""RETEXO, figure 3: where the time of a training goes.

Computing is measured, in one process where the clients take turns; the network is modelled, in
virtual time. The two are never added: they stand in columns, and in axes, of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Final

from sims.catalogue import Setting
from sims.charts import COLORS, put_legend_below
from sims.outcome import Axes, Check, Draw, Figures, Outcome
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import NOT_AT_HAND
from sims.sweep import Column, Place, Sweep
from sims.times import computing_s, network_time
from sims.trainings import Keys
from sims.variants import LAZY, STANDARD, Variant, bns

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


COLUMNS: Final = (
    Column(COMPUTING, "s", computing_s),
    Column(PASSING, "s", lambda trained: network_time(trained).message_passing_s),
    Column(AGGREGATION, "s", lambda trained: network_time(trained).aggregation_s),
)


def run(setting: Setting) -> Outcome:
    """Train every algorithm over modelled links."""
    datasets = at_hand(setting, setting.few(DATASETS))
    models = MODELS[1:] if setting.quick else MODELS
    more: Keys = {"clients": CLIENTS, "links": LINKS}
    sweep = Sweep(setting, SEEDS)
    sweep.train(
        {
            (dataset, model, name): keys_for(setting, dataset, model, **VARIANTS[name], **more)
            for dataset, model, name in product(datasets, models, VARIANTS)
        }
    )
    return Outcome(
        title=f"RETEXO, figure 3: where the time goes, {CLIENTS} clients",
        setting=described(
            setting,
            {**SMALL, **more},
            sweep,
            reference="standard training of ours",
            computing="measured, all clients one after the other, on average a client",
            network="modelled: message passing is exchanges and waiting for clients in rounds, "
            "aggregation is waiting for the server",
            published=NOT_AT_HAND["fig3"],
        ),
        rows=sweep.rows(COLUMNS, last="standard"),
    )


#: Updates are sent without their zeros, which are not the same in both.
_ALIKE: Final = 0.05


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold; with few rounds computing is mostly a first evaluation."""
    places = list(dict.fromkeys((dataset, model) for dataset, model, _ in _places(figures)))
    lines = [line for place in places for line in _passing_checks(figures, *place)]
    return lines if quick else [*lines, *(_computing_check(figures, *place) for place in places)]


def _places(figures: Figures) -> list[tuple[str, str, str]]:
    return [
        place
        for place in product(DATASETS, MODELS, VARIANTS)
        if _metric(COMPUTING, place) in figures
    ]


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


def _metric(part: str, place: Place) -> str:
    return ", ".join((part, *place))


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws measured and modelled seconds, each in axes of their own."""
    return [
        partial(_draw, figures, "measured", {"computing": (COMPUTING, 0)}),
        partial(
            _draw,
            figures,
            f"modelled: {LINKS}",
            {"aggregation": (AGGREGATION, 6), "message passing": (PASSING, 3)},
        ),
    ]


def _draw(figures: Figures, title: str, parts: Mapping[str, tuple[str, int]], axes: Axes) -> None:
    """Draw parts above each other, given by label with their columns and colours."""
    places = _places(figures)
    bottoms = [0.0] * len(places)
    for label, (part, color) in parts.items():
        heights = [figures[_metric(part, place)].ours for place in places]
        axes.bar(range(len(places)), heights, bottom=bottoms, color=COLORS[color], label=label)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_xticks(range(len(places)), ["\n".join(place) for place in places], fontsize=6)
    axes.set_title(title, fontsize=9)
    axes.set_ylabel("seconds")
    put_legend_below(axes)
