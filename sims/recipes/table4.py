"""RETEXO, table 4: what the delay of the network costs, and its rate.

The published seconds hold computing and network; here the network is modelled and stands alone. To
compare them, the delays that a training of the published size waits for one after the other are
added to the published seconds without a delay.

Standard training passes vectors twice forward in each round: to train, and to validate the weights
that came of it. The second pass stands apart, since sampled training of the original validates on
one machine, where no network is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from itertools import product
from statistics import fmean
from typing import Final

from sims.catalogue import Setting
from sims.charts import draw_bars
from sims.large_graphs import LARGE, ROUNDS
from sims.outcome import Axes, Cell, Check, Draw, Figures, Outcome, Row
from sims.paper import QUICK, SMALL, at_hand, described, keys_for
from sims.published import TABLE_4, TABLE_4_MS, Seconds
from sims.sweep import Column, Sweep
from sims.times import computing_s, delays, network_time
from sims.variants import LAZY, STANDARD, Variant, bns

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
#: Links that delay and do nothing else, in seconds.
DELAYS_S: Final[Mapping[str, float]] = {f"{ms} ms": ms / 1000 for ms in TABLE_4_MS}
NETWORK: Final = "modelled: network"
COMPUTING: Final = "measured: computing of a client"
WITH_VALIDATION: Final = "modelled: network with the validation of each round"


COLUMNS: Final = (
    Column(NETWORK, "s", lambda trained: network_time(trained).total_s),
    Column(WITH_VALIDATION, "s", lambda trained: network_time(trained).with_validation_s),
)


def run(setting: Setting) -> Outcome:
    """Train every algorithm over every kind of link."""
    links = QUICK_LINKS if setting.quick else tuple(LINKS)
    sweep = Sweep(setting, SEED)
    sweep.train(
        {
            (dataset, link, name): keys_for(
                setting, dataset, MODEL, **VARIANTS[name], clients=CLIENTS, links=LINKS[link]
            )
            for dataset in at_hand(setting, setting.few(DATASETS))
            for name, link in product(VARIANTS, links)
        }
    )
    return Outcome(
        title=f"RETEXO, table 4: modelled seconds of the network, {MODEL}, {CLIENTS} clients",
        setting=described(
            setting,
            {**SMALL, "model": MODEL, "clients": CLIENTS},
            sweep,
            reference="standard training of ours",
            network="modelled, exact; exchanges and rounds, without greeting and test",
            computing="measured, all clients one after the other, on average a client",
            beside_published="the published seconds at 0 ms, and the delays that our training of "
            "the published layers and rounds waits for: standard with the validation of each round "
            "(its second pass), bns without (the original's does not use the network)",
        ),
        rows=[
            *(row for column in COLUMNS for row in sweep.rows([column], last="standard")),
            *_computing(sweep),
        ],
    )


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    keys = {**SMALL, **QUICK} if quick else SMALL
    there = _there(figures)
    return [
        check
        for name in there
        for check in (
            *(_delay_check(figures, name, variant, keys) for variant in VARIANTS),
            _second_pass_check(figures, name),
            _bluetooth_check(figures, name),
        )
    ]


def _there(figures: Figures) -> list[str]:
    return [name for name in DATASETS if f"{NETWORK}, {name}, 0 ms, lazy" in figures]


def _delay_check(figures: Figures, dataset: str, variant: str, keys: Mapping[str, object]) -> Check:
    many = delays(
        str(VARIANTS[variant]["algorithm"]),
        layers=int(str(keys["layers"])),
        rounds=int(str(keys["rounds"])),
    )
    expected = {NETWORK: many.total_s, WITH_VALIDATION: many.with_validation_s}
    found = {
        (measure, name): row.ours
        for measure, name in product(expected, DELAYS_S)
        if (row := figures.get(f"{measure}, {dataset}, {name}, {variant}")) is not None
    }
    return Check(
        line=f"{dataset}, {variant}: a delay costs as often as messages wait for each other: "
        f"{expected[NETWORK]:,.0f} times, {expected[WITH_VALIDATION]:,.0f} with validation",
        holds=all(
            math.isclose(seconds, expected[measure] * DELAYS_S[name], abs_tol=1e-6)
            for (measure, name), seconds in found.items()
        ),
    )


def _second_pass_check(figures: Figures, dataset: str) -> Check:
    def seconds(measure: str, variant: str) -> float:
        return figures[f"{measure}, {dataset}, 200 ms, {variant}"].ours

    lazy, standard = (seconds(WITH_VALIDATION, name) for name in ("lazy", "standard"))
    alone = seconds(NETWORK, "standard")
    return Check(
        line=f"{dataset}: at 200 ms standard training waits longer than lazy training once its "
        f"second pass is counted ({standard:.1f} s, {lazy:.1f} s; {alone:.1f} s without)",
        holds=alone < standard and lazy < standard,
    )


def _bluetooth_check(figures: Figures, dataset: str) -> Check:
    lazy, standard = (
        figures[f"{WITH_VALIDATION}, {dataset}, bluetooth, {name}"].ours
        for name in ("lazy", "standard")
    )
    return Check(
        line=f"{dataset}: over Bluetooth lazy training waits less than standard training "
        f"({lazy:,.0f} s, {standard:,.0f} s)",
        holds=lazy < standard,
    )


def published_beside(figures: Figures) -> list[Cell]:
    """Return the whole table beside what our messages make of its seconds without a delay."""
    del figures  # the delays follow from layers and rounds
    return [
        cell
        for (dataset, variant), seconds in TABLE_4.items()
        for cell in _published_line(dataset, variant, seconds)
    ]


def _published_line(dataset: str, variant: str, seconds: tuple[Seconds, ...]) -> list[Cell]:
    algorithm = str(VARIANTS[variant]["algorithm"])
    many = delays(algorithm, layers=LARGE[dataset].layers, rounds=ROUNDS)
    passes = many.message_passing_s + (many.validation_s if algorithm == "standard" else 0)
    first, *_, last = seconds
    waits = passes + many.aggregation_s
    cells = []
    for ms, published in zip(TABLE_4_MS, seconds, strict=True):
        how = f"at 0 ms and {waits:,.0f} delays, {passes:,.0f} of them in message passing"
        for name, figure, start, count in (
            ("in all", published.total, first.total, waits),
            ("message passing", published.passing, first.passing, passes),
        ):
            cells.append(
                Cell(
                    name=f"{dataset}, {variant}, {ms} ms, {name}",
                    unit="s",
                    published=figure,
                    ours=start + count * ms / 1000 if ms else None,
                    how=how if ms else "taken over",
                )
            )
    most_ms = TABLE_4_MS[-1]
    return [
        *cells,
        Cell(
            name=f"{dataset}, {variant}, added by {most_ms} ms",
            unit="s",
            published=round(last.total - first.total, 1),
            ours=waits * most_ms / 1000,
            how=f"{waits:,.0f} delays",
        ),
    ]


def _computing(sweep: Sweep) -> list[Row]:
    """Return measured times: one for each algorithm, since links take no part in them."""
    seconds: dict[str, list[float]] = {}
    for (dataset, _, variant), (trained,) in sweep.found.items():
        name = f"{COMPUTING}, {dataset}, {variant}"
        seconds.setdefault(name, []).append(computing_s(trained))
    return [Row.of(name, seconds[name], unit="s") for name in sorted(seconds)]


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws each graph."""
    return [partial(_draw, figures, dataset) for dataset in _there(figures)]


def _draw(figures: Figures, dataset: str, axes: Axes) -> None:
    def of(link: str, variant: str) -> str:
        return f"{NETWORK}, {dataset}, {link}, {variant}"

    shown = [link for link in LINKS if link != "0 ms" and of(link, "lazy") in figures]
    series = {
        variant: [figures[of(link, variant)].values for link in shown] for variant in VARIANTS
    }
    draw_bars(axes, shown, series)
    measured = fmean(
        value
        for variant in VARIANTS
        for value in figures[f"{COMPUTING}, {dataset}, {variant}"].values
    )
    axes.set_yscale("log")
    axes.set_title(f"{dataset}; measured computing of a client: {measured:.1f} s", fontsize=9)
    axes.set_ylabel("modelled seconds of the network")
