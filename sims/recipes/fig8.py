"""RETEXO, figure 8: what more clients do to accuracy and to the bytes of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sims.catalogue import Setting
from sims.charts import ALGORITHM_COLORS, focus, put_legend_below
from sims.outcome import Outcome, Row
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import NOT_AT_HAND
from sims.trained import Trained
from sims.trainings import Trainings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PURPOSE: Final = "accuracy and bytes with 2 to 24 clients: RETEXO, figure 8"

DATASETS: Final = ("cora",)
MODEL: Final = "sage"
CLIENTS: Final = (2, 4, 6, 8, 16, 24)
QUICK_CLIENTS: Final = (2, 4)
ALGORITHMS: Final = ("lazy", "standard")
MARKERS: Final = ("o", "s")
SEEDS: Final = (0, 1)


class Case(NamedTuple):
    """One training."""

    dataset: str
    algorithm: str
    clients: int
    seed: int


#: Trainings of all seeds by graph, algorithm and number of clients.
Lines = Mapping[tuple[str, str, int], list[Trained]]


def run(setting: Setting) -> Outcome:
    """Train both algorithms with every number of clients."""
    datasets = at_hand(setting, DATASETS[:1] if setting.quick else DATASETS)
    seeds = SEEDS[:1] if setting.quick else SEEDS
    numbers = QUICK_CLIENTS if setting.quick else CLIENTS
    trainings = Trainings(setting.kept)
    cases = [Case(*values) for values in product(datasets, ALGORITHMS, numbers, seeds)]
    found = trainings.all({case: _keys(setting, case) for case in cases})
    lines = {
        place: [found[Case(*place, seed)] for seed in seeds]
        for place in product(datasets, ALGORITHMS, numbers)
    }
    return Outcome(
        title=f"RETEXO, figure 8: accuracy and bytes with more clients, {MODEL}",
        setting=described(
            setting,
            {**SMALL, "model": MODEL, "clients": "2 to 24"},
            seeds,
            trainings,
            reference="accuracy and bytes: standard training of ours; gamma: equation 2",
            volume="payload that a client sends and receives, on average over clients",
            published=NOT_AT_HAND["fig8"],
        ),
        rows=_rows(lines),
        draw=lambda axes: _draw_accuracy(axes, lines),
        beside=(lambda axes: _draw_bytes(axes, lines),),
    )


def _keys(setting: Setting, case: Case) -> dict[str, Any]:
    keys = keys_for(setting, case.dataset, model=MODEL, algorithm=case.algorithm)
    return {**keys, "clients": case.clients, "seed": case.seed}


def _per_client(trained: list[Trained]) -> list[float]:
    """Return MB that a client sends and receives, for each seed."""
    return [one.at_clients() / one.clients / 1e6 for one in trained]


def _rows(lines: Lines) -> list[Row]:
    rows = []
    for (dataset, algorithm, clients), ours in lines.items():
        standard = lines[dataset, "standard", clients]
        name = f"{dataset}, {clients} clients, {algorithm}"
        rows += [
            Row.of(
                f"test accuracy, {name}",
                [one.accuracy for one in ours],
                unit="share",
                reference=fmean(one.accuracy for one in standard),
            ),
            Row.of(
                f"bytes at a client, {name}",
                _per_client(ours),
                unit="MB",
                reference=fmean(_per_client(standard)),
            ),
        ]
        if algorithm == "lazy":
            rows.append(_gamma(f"{dataset}, {clients} clients", ours, standard))
    return rows


def _gamma(name: str, lazy: list[Trained], standard: list[Trained]) -> Row:
    pairs = zip(standard, lazy, strict=True)
    return Row.of(
        f"gamma, dense bytes, {name}",
        [one.at_clients("raw") / other.at_clients("raw") for one, other in pairs],
        unit="times",
        reference=fmean(float(one.result["plan"]["gamma"]) for one in lazy),
    )


def _draw_accuracy(axes: Axes, lines: Lines) -> None:
    _draw(axes, lines, lambda ours: [one.accuracy for one in ours])
    focus(axes, [one.accuracy for ours in lines.values() for one in ours])
    axes.set_ylabel("test accuracy, mean of seeds")
    put_legend_below(axes)


def _draw_bytes(axes: Axes, lines: Lines) -> None:
    _draw(axes, lines, _per_client)
    axes.set_yscale("log")
    axes.set_ylabel("MB sent and received at a client")


def _draw(axes: Axes, lines: Lines, values: Any) -> None:
    datasets = sorted({dataset for dataset, _, _ in lines})
    for (dataset, marker), algorithm in product(zip(datasets, MARKERS, strict=False), ALGORITHMS):
        points = [
            (clients, fmean(values(ours)))
            for (of, by, clients), ours in lines.items()
            if (of, by) == (dataset, algorithm)
        ]
        axes.plot(
            *zip(*points, strict=True),
            marker=marker,
            color=ALGORITHM_COLORS[algorithm],
            label=f"{dataset}, {algorithm}",
        )
    axes.set_xlabel("clients")
