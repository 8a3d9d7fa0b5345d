"""RETEXO, figure 6: accuracy against the bytes that it took.

Each training gives one curve: validation accuracy after each round, over the bytes that clients
have sent and received until then. Layer by layer, the curve drops where the next layer begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sims.catalogue import Setting
from sims.charts import COLORS
from sims.curves import accuracy_curve, bytes_until
from sims.outcome import Outcome, Row
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import NOT_AT_HAND
from sims.trained import Trained
from sims.trainings import Trainings
from sims.variants import DROP, LAZY, STANDARD, Variant, bns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PURPOSE: Final = "accuracy against bytes moved, of four algorithms: RETEXO, figure 6"

DATASETS: Final = ("cora", "pubmed")
MODEL: Final = "sage"
VARIANTS: Final[Mapping[str, Variant]] = {
    "lazy": LAZY,
    "standard": STANDARD,
    "bns 0.1": bns(0.1),
    "bns 0.01": bns(0.01),
    "drop": DROP,
}
SEEDS: Final = (0,)
#: A curve has arrived when it is this close to the best validation accuracy of standard training.
CLOSE: Final = 0.01


class Case(NamedTuple):
    """One training."""

    dataset: str
    variant: str
    seed: int


def run(setting: Setting) -> Outcome:
    """Train every algorithm on every graph."""
    datasets = at_hand(setting, DATASETS[:1] if setting.quick else DATASETS)
    seeds = SEEDS[:1] if setting.quick else SEEDS
    trainings = Trainings(setting.kept)
    cases = [Case(*values) for values in product(datasets, VARIANTS, seeds)]
    found = trainings.all({case: _keys(setting, case) for case in cases})
    return Outcome(
        title=f"RETEXO, figure 6: accuracy against bytes moved, {MODEL}, two clients",
        setting=described(
            setting,
            {**SMALL, "model": MODEL},
            seeds,
            trainings,
            reference="standard training of ours",
            volume="payload of exchanges, weights and updates; a vector counted at both ends",
            published=NOT_AT_HAND["fig6"],
        ),
        rows=[row for pair in product(datasets, VARIANTS) for row in _rows(*pair, found, seeds)],
        draw=lambda axes: _draw(axes, datasets[0], found),
        beside=tuple(partial(_draw_of, dataset, found) for dataset in datasets[1:]),
    )


def _keys(setting: Setting, case: Case) -> dict[str, Any]:
    variant = VARIANTS[case.variant]
    keys = keys_for(setting, case.dataset, model=MODEL, algorithm=str(variant["algorithm"]))
    return {**keys, **variant, "seed": case.seed}


def _rows(
    dataset: str, variant: str, found: Mapping[Case, Trained], seeds: tuple[int, ...]
) -> list[Row]:
    ours = [found[Case(dataset, variant, seed)] for seed in seeds]
    standard = [found[Case(dataset, "standard", seed)] for seed in seeds]
    name = f"{dataset}, {variant}"
    rows = [
        Row.of(
            f"test accuracy, {name}",
            [one.accuracy for one in ours],
            unit="share",
            reference=Row.of("", [one.accuracy for one in standard], unit="").ours,
        ),
        Row.of(
            f"moved in all, {name}",
            [one.at_clients() / 1e6 for one in ours],
            unit="MB",
            reference=Row.of("", [one.at_clients() / 1e6 for one in standard], unit="").ours,
        ),
    ]
    return rows + _arrivals(name, ours, standard)


def _arrivals(name: str, ours: list[Trained], standard: list[Trained]) -> list[Row]:
    """Return the MB until a curve is close to standard training's best; none if one never is."""
    until = []
    for one, other in zip(ours, standard, strict=True):
        best = max(point.accuracy for point in accuracy_curve(other))
        until.append(bytes_until(accuracy_curve(one), best - CLOSE))
    arrived = [value for value in until if value is not None]
    if len(arrived) < len(until):
        return []
    return [Row.of(f"moved until within {CLOSE:g} of standard's best, {name}", arrived, unit="MB")]


def _draw_of(dataset: str, found: Mapping[Case, Trained], axes: Axes) -> None:
    _draw(axes, dataset, found)


def _draw(axes: Axes, dataset: str, found: Mapping[Case, Trained]) -> None:
    for number, variant in enumerate(VARIANTS):
        curve = accuracy_curve(found[Case(dataset, variant, 0)])
        axes.plot(
            [point.megabytes for point in curve],
            [point.accuracy for point in curve],
            color=COLORS[number],
            linewidth=1.2,
            label=variant,
        )
    axes.set_xscale("log")
    axes.set_title(f"{dataset}, seed 0", fontsize=9)
    axes.set_xlabel("MB sent and received at clients")
    axes.set_ylabel("validation accuracy")
    axes.legend(fontsize=8, loc="lower right")
