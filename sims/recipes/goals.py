"""Goals that users have: rare classes, several labels, numbers, and a bank's directed transfers.

Each is trained centrally, layer by layer over clients, and with edges between clients dropped. What
is free is chosen by the metric on validation nodes: by the first seed, in each way of its own (but
once for lazy training, whose weights do not depend on the partitioner); how the bank's tables are
read by all seeds of lazy training, for all ways.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from sims.catalogue import Setting
from sims.charts import draw_bars, focus
from sims.goal_graphs import ATTRIBUTES, INPUTS, LABELS, SOURCE, YEARS, write_derived_graphs
from sims.goal_scores import (
    AVERAGE_PRECISION,
    FEW,
    MACRO_F1,
    R2,
    RMSE,
    ROC_AUC,
    SCORES,
    mean_alone,
    train_on_bank,
    train_on_few_labels,
    train_scored,
)
from sims.outcome import Cell, Check, Figures, Outcome, Row, figures_of
from sims.published import TOLOKERS
from sims.trained import Trained
from sims.trainings import How, Keys, Trainings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PURPOSE: Final = "rare classes, several labels, numbers, a bank: lazy, central, edges dropped"

#: Of splits, weights and banks; on Tolokers, whose split is the published first one, of weights.
SEEDS: Final = (0, 1, 2)
QUICK: Final[Keys] = MappingProxyType({"rounds": 10, "hidden": 16})

#: By name, how a graph is split and what becomes of edges between clients.
Ways = Mapping[str, Keys]
_CENTRAL: Final[Keys] = {"algorithm": "central", "clients": 1}
_LOUVAIN: Final[Keys] = {"clients": 10, "partitioner": "louvain"}
_DROP: Final[Keys] = {"algorithm": "drop"}
_BY_BRANCH: Final[Keys] = {"clients": 3, "partitioner": "attribute:branch"}
TEN_CLIENTS: Final[Ways] = {
    "lazy, random": {"clients": 10},
    "lazy, louvain": _LOUVAIN,
    "drop, random": {"clients": 10, **_DROP},
    "drop, louvain": {**_LOUVAIN, **_DROP},
    "central": _CENTRAL,
}
BRANCHES: Final[Ways] = {
    "lazy, branches": _BY_BRANCH,
    "drop, branches": {**_BY_BRANCH, **_DROP},
    "central": _CENTRAL,
}


def _optimizers(rounds: int) -> Mapping[str, Keys]:
    """Return two ways to train, Adam's with so many rounds."""
    return {
        "L-BFGS": {"optimizer": "lbfgs", "rounds": 60, "dropout": 0.0, "weight-decay": 5e-4},
        "Adam": {"optimizer": "adam", "rounds": rounds, "dropout": 0.0, "weight-decay": 0.0},
    }


#: How the bank's transfers are read, and whether fraud counts for more.
READINGS: Final[Mapping[str, Keys]] = {
    f"{model}, class weights {weights}": {
        "model": model,
        "edges-are": "directed" if model.startswith("dir-") else "undirected",
        "merge-edges": "sum",
        "class-weights": weights,
        "rounds": 150,
    }
    for model, weights in product(("sage", "dir-sage", "gcn", "dir-gcn"), ("balanced", "none"))
}


class Goal(NamedTuple):
    """What is to be learnt of a graph.

    Attributes:
        keys: Of all its trainings.
        metrics: The first selects.
        candidates: What is chosen among, by name.
        ways: How it is trained.
        judges: The way whose validation chooses for another one, by the other's name.
        judging_seeds: Of the trainings that choose.
        how: What trains.
        like: The goal whose choices it takes; nothing where it has its own.
    """

    keys: Keys
    metrics: tuple[str, str]
    candidates: Mapping[str, Keys]
    ways: Ways = TEN_CLIENTS
    judges: Mapping[str, str] = MappingProxyType({"lazy, louvain": "lazy, random"})
    judging_seeds: tuple[int, ...] = SEEDS[:1]
    how: How = train_scored
    like: str = ""


_SHARES: Final = "random:0.5/0.2/0.3"
_RANKED: Final = (ROC_AUC, AVERAGE_PRECISION)
_TOLOKERS: Final[Keys] = {"dataset": "tolokers", "split": "published", "hidden": 256}
_OF_SOURCE: Final[Keys] = {"model": "sage", "split": _SHARES, "hidden": 64}
_OF_BANK: Final = Goal(
    {"split": _SHARES},
    # ROC AUC is at its ceiling here, and tells readings hardly apart.
    (AVERAGE_PRECISION, ROC_AUC),
    READINGS,
    BRANCHES,
    # One bank's validation nodes hold 20 frauds.
    judges=dict.fromkeys(BRANCHES, "lazy, branches"),
    judging_seeds=SEEDS,
    how=train_on_bank,
)
BANK: Final = "bank"
FEW_LABELS: Final = "bank, few labels"
GOALS: Final[Mapping[str, Goal]] = {
    "tolokers, gcn": Goal({**_TOLOKERS, "model": "gcn"}, _RANKED, _optimizers(300)),
    "tolokers, sage": Goal({**_TOLOKERS, "model": "sage"}, _RANKED, _optimizers(300)),
    ATTRIBUTES: Goal(
        {**_OF_SOURCE, "dataset": ATTRIBUTES, "task": "multi-label"},
        (ROC_AUC, MACRO_F1),
        _optimizers(100),
    ),
    YEARS: Goal(
        {**_OF_SOURCE, "dataset": YEARS, "task": "regression"}, (RMSE, R2), _optimizers(100)
    ),
    BANK: _OF_BANK,
    FEW_LABELS: _OF_BANK._replace(keys={}, how=train_on_few_labels, like=BANK),
}
DERIVED: Final = frozenset({ATTRIBUTES, YEARS})
#: The goal's baseline without a model.
MEAN: Final = "mean of train nodes"
#: How well fraud is ranked with all labels, at least, and what lazy training may lose there.
LEAST_ON_BANK: Final = 0.97
ALLOWED_ON_BANK: Final = 0.01
#: What lazy training may lose elsewhere, and differ by partitioner, in units of the metric.
ALLOWED: Final = 0.02
SAME: Final = 0.01

#: A goal and a way.
Place = tuple[str, str]
PLACES: Final[Sequence[Place]] = [(name, way) for name, goal in GOALS.items() for way in goal.ways]
#: The second layer of a graph; dropped edges, but for the branches'.
LEFT_OUT_QUICK: Final = frozenset(
    (name, way)
    for name, way in PLACES
    if name == "tolokers, sage" or way in ("drop, random", "drop, louvain")
)


def run(setting: Setting) -> Outcome:
    """Train every goal in every way, by what validates best."""
    seeds = SEEDS[:1] if setting.quick else SEEDS
    places = [place for place in PLACES if not (setting.quick and place in LEFT_OUT_QUICK)]
    trained = list(dict(places))
    with tempfile.TemporaryDirectory(prefix="retexo-sims-") as folder:
        write_derived_graphs(setting, Path(folder))
        training = _Training(setting, seeds, derived=folder)
        found = {place: training.trained(*place) for place in places}
        means = [training.mean_alone(YEARS, seed) for seed in seeds]
        judged = {place: training.judged(*place) for place in places if not GOALS[place[0]].like}
        chosen = {place: training.chosen(*place) for place in places}
    rows = [row for place in places for row in _rows(place, found)]
    rows += [
        Row.of(f"{metric}, {YEARS}, {MEAN}", [mean[metric] for mean in means], unit=_unit(metric))
        for metric in GOALS[YEARS].metrics
    ]
    figures = figures_of(rows)
    return Outcome(
        title="Goals that users have: lazy and central training, and edges dropped",
        setting={
            "seeds": list(seeds),
            "trained at commit": training.commits,
            "reference": "central, the same seeds; of a validation metric, none",
            **{name: dict(goal.keys) for name, goal in GOALS.items() if goal.keys},
            "chosen": "; ".join(f"{', '.join(place)}: {name}" for place, name in chosen.items()),
            **{
                f"candidates, {name}": dict(goal.candidates)
                for name, goal in GOALS.items()
                if not goal.like
            },
            f"labels of {ATTRIBUTES}": f"of {SOURCE}: {', '.join(LABELS)}; -1 where a profile does "
            f"not say. Inputs are the codes of {' and '.join(INPUTS)}",
            f"numbers of {YEARS}": f"of {SOURCE}: the year of graduation, which no input tells",
            FEW_LABELS: f"labels of {FEW} of the accounts to train and validate; all others test",
        },
        rows=[*rows, *_validation_rows(judged)],
        published=tuple(published_beside(figures)),
        checks=tuple(checks_from(figures, quick=setting.quick)),
        draw=lambda axes: _draw(axes, found, [n for n in trained if n not in (BANK, FEW_LABELS)]),
        beside=(lambda axes: _draw(axes, found, [BANK, FEW_LABELS]),),
    )


class _Training:
    """Chooses among candidates, and trains with all seeds."""

    def __init__(self, setting: Setting, seeds: Sequence[int], *, derived: str) -> None:
        self._trainings = Trainings(setting.kept)
        self._setting = setting
        self._seeds = seeds
        self._derived = derived

    @property
    def commits(self) -> str:
        """Of the code that trained."""
        return self._trainings.commits

    def trained(self, name: str, way: str) -> list[Trained]:
        """Return the trainings of all seeds by what was chosen."""
        return self._all(name, way, self.chosen(name, way), self._seeds)

    def chosen(self, name: str, way: str) -> str:
        """Return the candidate that a goal is trained by in a way."""
        goal = GOALS[name]
        judged = self.judged(goal.like or name, goal.judges.get(way, way))
        sign = -1 if goal.metrics[0] == RMSE else 1
        return max(judged, key=lambda candidate: sign * fmean(judged[candidate]))

    def judged(self, name: str, way: str) -> dict[str, list[float]]:
        """Return the metric on validation nodes by candidate; nothing where another way judges."""
        goal = GOALS[name]
        if goal.judges.get(way, way) != way:
            return {}
        seeds = [seed for seed in goal.judging_seeds if seed in self._seeds]
        most = 1 if self._setting.quick else None
        return {
            candidate: [
                float(one.result["stages"][-1]["metric"]["value"])
                for one in self._all(name, way, candidate, seeds)
            ]
            for candidate in list(goal.candidates)[:most]
        }

    def mean_alone(self, name: str, seed: int) -> Mapping[str, float]:
        """Return the metrics of a regression's baseline."""
        return mean_alone({**self._keys(name), "seed": seed})

    def _all(self, name: str, way: str, candidate: str, seeds: Sequence[int]) -> list[Trained]:
        goal = GOALS[name]
        keys = {**self._keys(name), **goal.candidates[candidate], **goal.ways[way]}
        if self._setting.quick:
            keys |= QUICK
        done = self._trainings.all({seed: {**keys, "seed": seed} for seed in seeds}, goal.how)
        return [done[seed] for seed in seeds]

    def _keys(self, name: str) -> Keys:
        keys = {**GOALS[name].keys, "metric": GOALS[name].metrics[0]}
        if "dataset" not in keys:
            return keys
        dataset = str(keys["dataset"])
        place = self._derived if dataset in DERIVED else self._setting.folder_with(dataset)
        return {**keys, "data-dir": place}


def _rows(place: Place, found: Mapping[Place, Sequence[Trained]]) -> list[Row]:
    name, way = place
    central = found[name, "central"]
    return [
        *(
            Row.of(
                f"{metric}, {name}, {way}",
                _scores(found[place], metric),
                unit=_unit(metric),
                reference=fmean(_scores(central, metric)),
            )
            for metric in GOALS[name].metrics
        ),
        Row.of(
            f"moved, {name}, {way}",
            [one.result["bytes"]["payload"]["total"] / 1e6 for one in found[place]],
            unit="MB",
        ),
    ]


def _scores(trained: Sequence[Trained], metric: str) -> list[float]:
    return [float(one.result[SCORES][metric]) for one in trained]


def _unit(metric: str) -> str:
    return "years" if metric == RMSE else "share"


def _validation_rows(judged: Mapping[Place, Mapping[str, list[float]]]) -> list[Row]:
    return [
        Row.of(
            f"validation {GOALS[name].metrics[0]}, {name}, {way}, {candidate}",
            values,
            unit=_unit(GOALS[name].metrics[0]),
        )
        for (name, way), candidates in judged.items()
        for candidate, values in candidates.items()
    ]


def published_beside(figures: Figures) -> list[Cell]:
    """Return the published figures on Tolokers, each beside central training of its model."""
    rows = {model: figures.get(f"{ROC_AUC}, tolokers, {model}, central") for model in TOLOKERS}
    return [
        Cell(
            name=f"{ROC_AUC}, tolokers, {model}",
            unit="share",
            published=score.mean,
            sd=score.sd,
            ours=None if (row := rows[model]) is None else row.ours,
            how="central, two layers without skip connections or normalisation; one split",
        )
        for model, score in TOLOKERS.items()
    ]


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    lines = [_mean_check(figures)]
    if quick:
        return lines
    named = [name for name, goal in GOALS.items() if goal.ways is TEN_CLIENTS]
    return [*lines, *(line for name in named for line in _lines(figures, name)), *_bank(figures)]


def _mean_check(figures: Figures) -> Check:
    ours, mean = (figures[f"{RMSE}, {YEARS}, {way}"].ours for way in ("lazy, random", MEAN))
    return Check(
        line=f"{YEARS}: lazy training errs less than the mean ({ours:.3f}, {mean:.3f} years)",
        holds=ours < mean,
    )


def _lines(figures: Figures, name: str) -> list[Check]:
    metric = GOALS[name].metrics[0]
    sign = -1 if metric == RMSE else 1
    of = {way: sign * figures[f"{metric}, {name}, {way}"].ours for way in TEN_CLIENTS}
    apart = abs(of["lazy, random"] - of["lazy, louvain"])
    lost = of["central"] - min(of["lazy, random"], of["lazy, louvain"])
    dropped = of["lazy, random"] - of["drop, random"]
    return [
        Check(
            line=f"{name}: {metric} of lazy training is the same by random and Louvain clients "
            f"(apart: {apart:.4f}, allowed: {SAME:g})",
            holds=apart <= SAME,
        ),
        Check(
            line=f"{name}: lazy training loses at most {ALLOWED:g} {metric} against central "
            f"({lost:+.4f})",
            holds=lost <= ALLOWED,
        ),
        Check(
            line=f"{name}: dropping the edges between random clients costs {metric} "
            f"({dropped:+.4f} against lazy)",
            holds=dropped > 0,
        ),
    ]


def _bank(figures: Figures) -> list[Check]:
    of = {way: figures[f"{ROC_AUC}, {BANK}, {way}"].ours for way in BRANCHES}
    lazy, lost = of["lazy, branches"], of["central"] - of["lazy, branches"]
    return [
        Check(
            line=f"{BANK}: {ROC_AUC} of the branches is at least {LEAST_ON_BANK:g} ({lazy:.4f})",
            holds=lazy >= LEAST_ON_BANK,
        ),
        Check(
            line=f"{BANK}: the branches lose at most {ALLOWED_ON_BANK:g} {ROC_AUC} against central "
            f"training ({lost:+.4f})",
            holds=lost <= ALLOWED_ON_BANK,
        ),
        Check(
            line=f"{BANK}: dropping the edges between branches costs {ROC_AUC} "
            f"({lazy - of['drop, branches']:+.4f} against lazy)",
            holds=of["drop, branches"] < lazy,
        ),
    ]


def _draw(axes: Axes, found: Mapping[Place, Sequence[Trained]], names: Sequence[str]) -> None:
    """Draw what is a share: of the year's error its R²."""
    ways = [way for way in GOALS[names[0]].ways if (names[0], way) in found]
    shown = {name: R2 if name == YEARS else ROC_AUC for name in names}
    series = {way: [_scores(found[name, way], shown[name]) for name in names] for way in ways}
    draw_bars(axes, [f"{name}\n{metric}" for name, metric in shown.items()], series)
    focus(axes, [value for groups in series.values() for values in groups for value in values])
    axes.set_ylabel("test (dots: seeds)")
