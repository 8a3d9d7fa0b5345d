"""RETEXO, table 3: what sampling of boundary nodes costs, with and without scaling.

The original divides sampled rows by the rate, as sums and means need. Attention does not: it sees
inputs a hundred times as large. Both are trained here, on Amazon Computers, which stands in for
Reddit and Products.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Final

from sims.catalogue import Setting
from sims.charts import draw_bars
from sims.outcome import Axes, Cell, Check, Draw, Figures, Outcome, Row
from sims.paper import SMALL, at_hand, described, keys_for, missing_note
from sims.published import TABLE_3
from sims.sweep import ACCURACY, Place, Sweep
from sims.variants import LAZY, STANDARD, Variant, bns

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
#: Least share of lazy training's accuracy that sampled GraphSAGE keeps, scaled or not.
SAGE_KEEPS: Final = 0.95
#: What scaling costs GAT at the rate 0.01, at least, as a share of lazy training's accuracy.
SCALING_COSTS: Final = 0.2
KEPT: Final = "accuracy against lazy's of the same seed"


def run(setting: Setting) -> Outcome:
    """Train every variant of both layers."""
    wanted = QUICK_DATASETS if setting.quick else DATASETS
    sweep = Sweep(setting, SEEDS)
    sweep.train(
        {
            (dataset, model, variant): keys_for(setting, dataset, model, clients=CLIENTS, **keys)
            for dataset, model in product(at_hand(setting, wanted), MODELS)
            for variant, keys in VARIANTS.items()
        }
    )
    return Outcome(
        title=f"RETEXO, table 3: accuracy under boundary sampling, {CLIENTS} clients",
        setting=described(
            setting,
            {**SMALL, "clients": CLIENTS},
            sweep,
            reference="standard training of ours",
            not_at_hand=missing_note(setting, wanted),
        ),
        rows=[row for place in sweep.found for row in _rows(sweep, place)],
    )


def _rows(sweep: Sweep, place: Place) -> list[Row]:
    ours, lazy = (sweep.values(at, ACCURACY.value) for at in (place, (*place[:-1], "lazy")))
    kept = [one / other for one, other in zip(ours, lazy, strict=True)]
    return [
        sweep.row(place, ACCURACY, (*place[:-1], "standard")),
        Row.of(f"{KEPT}, {', '.join(place)}", kept, unit="share"),
    ]


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold, the same for any size."""
    del quick
    return [check for name in _there(figures) for check in _dataset_checks(figures, name)]


def _there(figures: Figures) -> list[str]:
    names = (*DATASETS, *QUICK_DATASETS)
    return [name for name in names if f"test accuracy, {name}, gat, lazy" in figures]


def _dataset_checks(figures: Figures, dataset: str) -> list[Check]:
    def kept(model: str, variant: str) -> float:
        return figures[f"{KEPT}, {dataset}, {model}, {variant}"].ours

    sampled = [name for name in VARIANTS if name.startswith("bns")]
    least = min(kept("sage", name) for name in sampled)
    scaled, unscaled = kept("gat", "bns 0.01, scaled"), kept("gat", "bns 0.01, unscaled")
    return [
        Check(
            line=f"{dataset}: scaling costs GAT at the rate 0.01 at least {SCALING_COSTS:.0%} of "
            f"lazy training's accuracy (kept: {scaled:.3f} scaled, {unscaled:.3f} unscaled)",
            holds=unscaled - scaled >= SCALING_COSTS,
        ),
        Check(
            line=f"{dataset}: GraphSAGE keeps {SAGE_KEEPS:.0%} of lazy training's accuracy at "
            f"every rate, scaled or not (least: {least:.3f})",
            holds=least >= SAGE_KEEPS,
        ),
        Check(
            line=f"{dataset}: lazy training loses less of either layer's accuracy than scaled "
            "sampling at the rate 0.01",
            holds=max(kept(model, "bns 0.01, scaled") for model in MODELS) < 1,
        ),
    ]


def published_beside(figures: Figures) -> list[Cell]:
    """Return the whole table: GAT, scaled as the original does, beside ours on another graph."""
    cells = []
    for dataset, (published, variant) in product(_there(figures), TABLE_3):
        ours = f"{dataset}, gat, {variant}{', scaled' if variant.startswith('bns') else ''}"
        lazy = TABLE_3[published, "lazy"]
        cells += [
            Cell(
                name=f"{published}, {variant}",
                unit="micro-F1",
                published=TABLE_3[published, variant],
                ours=figures[f"test accuracy, {ours}"].ours,
                how=dataset,
            ),
            Cell(
                name=f"{published}, {variant}, of lazy's",
                unit="share",
                published=round(TABLE_3[published, variant] / lazy, 4),
                ours=figures[f"{KEPT}, {ours}"].ours,
                how=dataset,
            ),
        ]
    return cells


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws the accuracies of the first graph."""
    return [partial(_draw, figures, _there(figures)[0])]


def _draw(figures: Figures, dataset: str, axes: Axes) -> None:
    groups = [name.replace(", ", "\n") for name in VARIANTS]
    series = {
        model: [figures[f"test accuracy, {dataset}, {model}, {name}"].values for name in VARIANTS]
        for model in MODELS
    }
    draw_bars(axes, groups, series)
    axes.set_title(dataset, fontsize=9)
    axes.set_ylim(0, 1)
    axes.set_ylabel("test accuracy (dots: seeds)")
