"""RETEXO, figure 7 and appendix A.1: bytes of message passing beside all bytes.

Two clients train for the same number of rounds a layer by three algorithms. Once vectors are
written densely, which is what the closed forms count, and once losslessly, the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from retexo_fl.graph import load_dataset
from sims.catalogue import Setting
from sims.charts import put_legend_below
from sims.outcome import Check, Outcome, Row
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import NOT_AT_HAND
from sims.trained import Trained
from sims.trainings import Trainings
from sims.variants import LAZY, STANDARD, Variant, bns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_FLOAT_BYTES: Final = 4
#: The number of a sampled vector, which the receiver tells the owner in every round.
_NUMBER_BYTES: Final = 8


class Case(NamedTuple):
    """One training."""

    dataset: str
    variant: str
    codec: str


def run(setting: Setting) -> Outcome:
    """Train every algorithm on every graph with both codecs."""
    datasets = at_hand(setting, DATASETS[:1] if setting.quick else DATASETS)
    trainings = Trainings(setting.kept)
    cases = [Case(*values) for values in product(datasets, VARIANTS, CODECS)]
    keys = {case: _keys(setting, case) for case in cases}
    found = trainings.all(keys)
    widths = {name: _input_width(setting, name) for name in datasets}
    forms = {
        case: closed_form(keys[case], found[case], inputs=widths[case.dataset]) for case in cases
    }
    return Outcome(
        title=f"RETEXO, figure 7: message passing beside all bytes, {MODEL}, two clients",
        setting=described(
            setting,
            {**SMALL, "model": MODEL},
            [SEED],
            trainings,
            reference="closed forms of appendix A.1, with the clients' boundary nodes",
            volume="payload, every byte once, at its sender; evaluation left out",
            published=NOT_AT_HAND["fig7"],
        ),
        rows=[row for dataset in datasets for row in _rows(dataset, found, forms)],
        checks=tuple(_checks(found, forms)),
        draw=lambda axes: _draw(datasets[0], found, axes),
        beside=tuple(partial(_draw, dataset, found) for dataset in datasets[1:]),
    )


def _keys(setting: Setting, case: Case) -> dict[str, Any]:
    variant = VARIANTS[case.variant]
    keys = keys_for(setting, case.dataset, model=MODEL, algorithm=str(variant["algorithm"]))
    return {**keys, **variant, "codec": case.codec, "seed": SEED}


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


def _rows(dataset: str, found: Mapping[Case, Trained], forms: Mapping[Case, int]) -> list[Row]:
    rows = []
    for codec, variant in product(CODECS, VARIANTS):
        case, lazy = Case(dataset, variant, codec), Case(dataset, "lazy", codec)
        name = f"{dataset}, {variant}, {codec}"
        form = forms[case] / 1e6 if codec == "dense" else None
        ratio = forms[case] / forms[lazy] if codec == "dense" else None
        passed, total = found[case].boundary(), found[case].bytes()
        rows += [
            Row(metric=f"message passing, {name}", unit="MB", ours=passed / 1e6, reference=form),
            Row(metric=f"all bytes, {name}", unit="MB", ours=total / 1e6),
            Row(metric=f"message passing of all bytes, {name}", unit="share", ours=passed / total),
            Row(
                metric=f"message passing against lazy's, {name}",
                unit="times",
                ours=passed / found[lazy].boundary(),
                reference=ratio,
            ),
        ]
    return rows


def _checks(found: Mapping[Case, Trained], forms: Mapping[Case, int]) -> list[Check]:
    return [
        Check(
            line=f"{case.dataset}, {case.variant}: {trained.boundary('raw'):,} dense bytes of "
            f"message passing, {forms[case]:,} by the closed form",
            holds=trained.boundary("raw") == forms[case],
        )
        for case, trained in found.items()
        if case.codec == "dense"
    ]


def _draw(dataset: str, found: Mapping[Case, Trained], axes: Axes) -> None:
    names = list(product(CODECS, VARIANTS))
    for number, (codec, variant) in enumerate(names):
        trained = found[Case(dataset, variant, codec)]
        first = number == 0
        axes.bar(
            number - 0.2,
            trained.boundary() / 1e6,
            0.36,
            color="#4c78a8",
            label="message passing" if first else None,
        )
        axes.bar(
            number + 0.2,
            trained.bytes() / 1e6,
            0.36,
            color="#bab0ac",
            label="all bytes" if first else None,
        )
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), [f"{variant}\n{codec}" for codec, variant in names])
    axes.tick_params(axis="x", labelsize=7)
    axes.set_title(dataset, fontsize=9)
    axes.set_ylabel("MB, every byte once")
    put_legend_below(axes)
