"""RETEXO, table 4: what the delay of the network costs, and its rate.

The published seconds hold computing and network; here the network is modelled and stands alone. To
compare them, what a delay of 200 ms adds to each round of lazy training stands beside the same
difference of the published figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sims.catalogue import Setting
from sims.charts import COLORS, put_legend_below
from sims.outcome import Outcome, Row
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import NOT_AT_HAND, TABLE_4_S
from sims.times import computing_s, network_time
from sims.trained import Trained
from sims.trainings import Trainings
from sims.variants import LAZY, STANDARD, Variant, bns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PURPOSE: Final = "time over slow links, modelled: RETEXO, table 4"

DATASETS: Final = ("cora",)
MODEL: Final = "sage"
#: As the paper: a delay before each message. Then two links that are slow as well.
LINKS: Final[Mapping[str, str]] = {
    "0 ms": "ideal",
    "50 ms": "wan-50ms",
    "100 ms": "wan-100ms",
    "200 ms": "wan-200ms",
    "bluetooth": "bluetooth",
    "4g": "4g",
}
QUICK_LINKS: Final = ("0 ms", "200 ms", "bluetooth")
VARIANTS: Final[Mapping[str, Variant]] = {
    "lazy": LAZY,
    "bns 0.1": bns(0.1),
    "standard": STANDARD,
}
CLIENTS: Final = 4
SEED: Final = 0
#: Rounds of the published trainings: 200 for each layer.
PUBLISHED_ROUNDS: Final[Mapping[str, int]] = {"reddit": 4 * 200, "products": 3 * 200}


class Case(NamedTuple):
    """One training."""

    dataset: str
    variant: str
    links: str


def run(setting: Setting) -> Outcome:
    """Train every algorithm over every kind of link."""
    datasets = at_hand(setting, DATASETS[:1] if setting.quick else DATASETS)
    links = QUICK_LINKS if setting.quick else tuple(LINKS)
    trainings = Trainings(setting.kept)
    cases = [Case(*values) for values in product(datasets, VARIANTS, links)]
    found = trainings.all({case: _keys(setting, case) for case in cases})
    return Outcome(
        title=f"RETEXO, table 4: modelled seconds of the network, {MODEL}, {CLIENTS} clients",
        setting=described(
            setting,
            {**SMALL, "model": MODEL, "clients": CLIENTS},
            [SEED],
            trainings,
            reference="standard training of ours; of seconds a round, RETEXO's lazy training",
            network="modelled, exact; exchanges and rounds, without greeting and evaluation",
            computing="measured, all clients one after the other, on average a client",
            published=NOT_AT_HAND["table4"],
        ),
        rows=[*_rows(found, links), *_added(found, datasets), *_computing(found)],
        draw=lambda axes: _draw(datasets[0], links, found, axes),
        beside=tuple(partial(_draw, dataset, links, found) for dataset in datasets[1:]),
    )


def _keys(setting: Setting, case: Case) -> dict[str, Any]:
    variant = VARIANTS[case.variant]
    keys = keys_for(setting, case.dataset, model=MODEL, algorithm=str(variant["algorithm"]))
    links = LINKS[case.links]
    return {**keys, **variant, "clients": CLIENTS, "links": links, "seed": SEED}


def _rows(found: Mapping[Case, Trained], links: tuple[str, ...]) -> list[Row]:
    return [
        Row(
            metric=f"modelled: network, {case.dataset}, {case.links}, {case.variant}",
            unit="s",
            ours=network_time(trained).total_s,
            reference=network_time(found[case._replace(variant="standard")]).total_s,
        )
        for case, trained in found.items()
        if case.links in links
    ]


def _added(found: Mapping[Case, Trained], datasets: list[str]) -> list[Row]:
    """Return what 200 ms add to a round of lazy training, beside what they added in the paper."""
    rows = []
    for dataset, (published, rounds) in product(datasets, PUBLISHED_ROUNDS.items()):
        trained = found[Case(dataset, "lazy", "200 ms")]
        added_s = TABLE_4_S[published, "lazy", 200] - TABLE_4_S[published, "lazy", 0]
        rows.append(
            Row(
                metric=f"modelled: added by 200 ms to a round, {dataset} (RETEXO: {published})",
                unit="s",
                ours=network_time(trained).aggregation_s / len(trained.history),
                reference=added_s / rounds,
            )
        )
    return rows


def _computing(found: Mapping[Case, Trained]) -> list[Row]:
    """Return measured times: one for each algorithm, since links take no part in them."""
    names = sorted({(case.dataset, case.variant) for case in found})
    return [
        Row.of(
            f"measured: computing of a client, {dataset}, {variant}",
            [
                computing_s(trained)
                for case, trained in found.items()
                if (case.dataset, case.variant) == (dataset, variant)
            ],
            unit="s",
        )
        for dataset, variant in names
    ]


def _draw(dataset: str, links: tuple[str, ...], found: Mapping[Case, Trained], axes: Axes) -> None:
    shown = [name for name in links if name != "0 ms"]
    width = 0.8 / len(VARIANTS)
    for number, variant in enumerate(VARIANTS):
        values = [network_time(found[Case(dataset, variant, name)]).total_s for name in shown]
        places = [place + (number - 1) * width for place in range(len(shown))]
        axes.bar(places, values, width * 0.92, color=COLORS[number], label=variant)
    measured = fmean(
        computing_s(trained) for case, trained in found.items() if case.dataset == dataset
    )
    axes.set_xticks(range(len(shown)), shown)
    axes.set_yscale("log")
    axes.set_title(f"{dataset}; measured computing of a client: {measured:.1f} s", fontsize=9)
    axes.set_ylabel("modelled seconds of the network")
    put_legend_below(axes)
