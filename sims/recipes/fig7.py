"""RETEXO, figure 7 and appendix A.1: bytes of message passing beside all bytes.

Two clients train for the same number of rounds a layer by three algorithms. Once vectors are
written densely, which is what the closed forms count, and once losslessly, the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from retexo_fl.graph import load_dataset
from sims.catalogue import Setting
from sims.charts import draw_bars
from sims.outcome import Axes, Check, Draw, Figures, Outcome, Row
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import NOT_AT_HAND
from sims.sweep import Place, Sweep
from sims.trained import Trained
from sims.trainings import Keys
from sims.variants import LAZY, STANDARD, Variant, bns

PURPOSE: Final = "bytes of message passing beside all bytes: RETEXO, figure 7 and appendix A.1"

DATASETS: Final = ("cora", "pubmed", "facebook_page_page")
MODEL: Final = "sage"
RATE: Final = 0.1
VARIANTS: Final[Mapping[str, Variant]] = {
    "lazy": LAZY,
    "bns 0.1": bns(RATE),
    "standard": STANDARD,
}
CODECS: Final = ("dense", "lossless")
SEED: Final = 0
PASSING: Final = "message passing"
ALL: Final = "all bytes"
_FLOAT_BYTES: Final = 4
#: The number of a sampled vector, which the receiver tells the owner in every round.
_NUMBER_BYTES: Final = 8


def run(setting: Setting) -> Outcome:
    """Train every algorithm on every graph with both codecs."""
    datasets = at_hand(setting, setting.few(DATASETS))
    keys: dict[Place, Keys] = {
        (dataset, name, codec): keys_for(setting, dataset, MODEL, **VARIANTS[name], codec=codec)
        for dataset, codec, name in product(datasets, CODECS, VARIANTS)
    }
    sweep = Sweep(setting, SEED)
    sweep.train(keys)
    widths = {name: _input_width(setting, name) for name in datasets}
    forms = {
        place: closed_form(keys[place], trained, inputs=widths[place[0]])
        for place, (trained,) in sweep.found.items()
    }
    return Outcome(
        title=f"RETEXO, figure 7: message passing beside all bytes, {MODEL}, two clients",
        setting=described(
            setting,
            {**SMALL, "model": MODEL},
            sweep,
            reference="closed forms of appendix A.1, with the clients' boundary nodes",
            volume="payload, every byte once, at its sender; evaluation left out",
            published=NOT_AT_HAND["fig7"],
        ),
        rows=[row for place in forms for row in _rows(sweep, place, forms)],
    )


def closed_form(keys: Mapping[str, Any], trained: Trained, *, inputs: int) -> int:
    """Return the bytes of dense message passing between two clients of a two-layer model.

    Lazy ``V (H_0 + H_1)``, standard ``V (H_0 + 2 R H_1)``, sampled ``V H_0`` and in every round
    ``k`` vectors of each client forward and backward, with their numbers.

    Args:
        keys: The configuration.
        trained: Tells the vectors of an exchange.
        inputs: H_0, width of the input features.

    Source: RETEXO, appendix A.1. Counted once, at the sender; the paper counts both ends.
    """
    hidden, rounds = int(keys["hidden"]), int(keys["rounds"])
    vectors = [int(row["boundary_vectors_out"]) for row in trained.result["client_table"]]
    features = sum(vectors) * inputs * _FLOAT_BYTES
    if keys["algorithm"] == "lazy":
        return features + sum(vectors) * hidden * _FLOAT_BYTES
    if keys["algorithm"] == "standard":
        return features + sum(vectors) * 2 * rounds * hidden * _FLOAT_BYTES
    sampled = sum(max(1, int(float(keys["boundary-rate"]) * count)) for count in vectors)
    return features + rounds * sampled * (2 * hidden * _FLOAT_BYTES + _NUMBER_BYTES)


def _input_width(setting: Setting, dataset: str) -> int:
    graph = load_dataset(dataset, data_dir=Path(setting.folder_with(dataset)))
    return int(graph.features.shape[1])


def _rows(sweep: Sweep, place: Place, forms: Mapping[Place, int]) -> list[Row]:
    dataset, _, codec = place
    name, lazy = ", ".join(place), (dataset, "lazy", codec)
    is_dense = codec == "dense"
    ((ours,), (least,)) = sweep.found[place], sweep.found[lazy]
    passed, total = ours.boundary(), ours.bytes()
    return [
        Row(
            metric=f"{PASSING}, {name}",
            unit="MB",
            ours=passed / 1e6,
            reference=forms[place] / 1e6 if is_dense else None,
        ),
        Row(metric=f"{ALL}, {name}", unit="MB", ours=total / 1e6),
        Row(metric=f"message passing of all bytes, {name}", unit="share", ours=passed / total),
        Row(
            metric=f"message passing against lazy's, {name}",
            unit="times",
            ours=passed / least.boundary(),
            reference=forms[place] / forms[lazy] if is_dense else None,
        ),
    ]


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold, the same for any size."""
    del quick
    dense = {
        (dataset, name): figures[f"{PASSING}, {dataset}, {name}, dense"]
        for dataset in _there(figures)
        for name in VARIANTS
    }
    return [
        Check(
            line=f"{dataset}, {name}: {row.ours * 1e6:,.0f} dense bytes of message passing, "
            f"{(row.reference or 0) * 1e6:,.0f} by the closed form",
            holds=row.ours == row.reference,
        )
        for (dataset, name), row in dense.items()
    ]


def _there(figures: Figures) -> list[str]:
    return [name for name in DATASETS if f"{PASSING}, {name}, lazy, dense" in figures]


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws each graph."""
    return [partial(_draw, figures, dataset) for dataset in _there(figures)]


def _draw(figures: Figures, dataset: str, axes: Axes) -> None:
    names = list(product(CODECS, VARIANTS))
    series = {
        metric: [figures[f"{metric}, {dataset}, {name}, {codec}"].values for codec, name in names]
        for metric in (PASSING, ALL)
    }
    draw_bars(axes, [f"{variant}\n{codec}" for codec, variant in names], series)
    axes.set_yscale("log")
    axes.set_title(dataset, fontsize=9)
    axes.set_ylabel("MB, every byte once")
