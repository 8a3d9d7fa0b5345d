"""RETEXO, table 3: what sampling of boundary nodes costs, with and without scaling.

The original divides sampled rows by the rate, as sums and means need. Attention does not: it sees
inputs a hundred times as large. Both are trained here, on Amazon Computers, which stands in for
Reddit and Products.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sims.catalogue import Setting
from sims.charts import draw_bars
from sims.outcome import Outcome, Row
from sims.paper import SMALL, at_hand, described, keys_for, missing_note
from sims.published import NOT_AT_HAND, TABLE_2, TABLE_3_GAT_RATE_001
from sims.trainings import Trainings
from sims.variants import LAZY, STANDARD, Variant, bns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PURPOSE: Final = "accuracy under sampling of boundary nodes: RETEXO, table 3"

DATASETS: Final = ("amazon_computers", "reddit", "products")
QUICK_DATASETS: Final = ("cora",)
MODELS: Final = ("gat", "sage")
VARIANTS: Final[Mapping[str, Variant]] = {
    "lazy": LAZY,
    "standard": STANDARD,
    "bns 0.1, scaled": bns(0.1),
    "bns 0.1, unscaled": bns(0.1, scaling="none"),
    "bns 0.01, scaled": bns(0.01),
    "bns 0.01, unscaled": bns(0.01, scaling="none"),
}
CLIENTS: Final = 4
SEEDS: Final = (0,)


class Case(NamedTuple):
    """One training."""

    dataset: str
    model: str
    variant: str
    seed: int


#: Test accuracies by graph, layer and variant, in the order of the seeds.
Cells = Mapping[tuple[str, str, str], list[float]]


def run(setting: Setting) -> Outcome:
    """Train every variant of both layers."""
    wanted = QUICK_DATASETS if setting.quick else DATASETS
    datasets = at_hand(setting, wanted)
    seeds = SEEDS[:1] if setting.quick else SEEDS
    trainings = Trainings(setting.kept)
    places = list(product(datasets, MODELS, VARIANTS))
    cases = [Case(*place, seed) for seed in seeds for place in places]
    found = trainings.all({case: _keys(setting, case) for case in cases})
    cells = {place: [found[Case(*place, seed)].accuracy for seed in seeds] for place in places}
    return Outcome(
        title=f"RETEXO, table 3: accuracy under boundary sampling, {CLIENTS} clients",
        setting=described(
            setting,
            {**SMALL, "clients": CLIENTS},
            seeds,
            trainings,
            reference="of shares of lazy's accuracy: RETEXO on Reddit; else standard, ours",
            published=NOT_AT_HAND["table3"],
            not_at_hand=missing_note(setting, wanted),
        ),
        rows=[row for place in places for row in _rows(place, cells)],
        draw=lambda axes: _draw(axes, datasets[0], cells),
    )


def _keys(setting: Setting, case: Case) -> dict[str, Any]:
    variant = VARIANTS[case.variant]
    keys = keys_for(setting, case.dataset, model=case.model, algorithm=str(variant["algorithm"]))
    return {**keys, **variant, "clients": CLIENTS, "seed": case.seed}


def _rows(place: tuple[str, str, str], cells: Cells) -> list[Row]:
    dataset, model, variant = place
    name, lazy = ", ".join(place), cells[dataset, model, "lazy"]
    return [
        Row.of(
            f"test accuracy, {name}",
            cells[place],
            unit="share",
            reference=fmean(cells[dataset, model, "standard"]),
        ),
        Row.of(
            f"accuracy against lazy's of the same seed, {name}",
            [one / other for one, other in zip(cells[place], lazy, strict=True)],
            unit="share",
            reference=_published(model, variant),
        ),
    ]


def _published(model: str, variant: str) -> float | None:
    """Return GAT's accuracy at the rate 0.01 against lazy training's, both on Reddit."""
    if (model, variant) != ("gat", "bns 0.01, scaled"):
        return None
    return TABLE_3_GAT_RATE_001["reddit"] / TABLE_2["reddit", "gat"][1]


def _draw(axes: Axes, dataset: str, cells: Cells) -> None:
    groups = [name.replace(", ", "\n") for name in VARIANTS]
    series = {model: [cells[dataset, model, name] for name in VARIANTS] for model in MODELS}
    draw_bars(axes, groups, series)
    axes.set_title(dataset, fontsize=9)
    axes.set_ylim(0, 1)
    axes.set_ylabel("test accuracy (dots: seeds)")
