"""Goals that users have: rare classes, several labels, numbers, and a bank's directed transfers.

Each is trained centrally, layer by layer over clients, and with edges between clients dropped. What
is free is chosen by the metric on validation nodes: by the first seed, in each way of its own (but
once for lazy training, whose weights do not depend on the partitioner); how the bank's tables are
read by all seeds of lazy training, for all ways.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

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
from sims.outcome import Axes, Cell, Check, Draw, Figures, Outcome, Row
from sims.published import TOLOKERS
from sims.sweep import MOVED, Column, Place, Sweep, Value
from sims.trained import Trained
from sims.trainings import How, Keys

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
PLACES: Final[Sequence[Place]] = [(name, way) for name, goal in GOALS.items() for way in goal.ways]
#: The second layer of a graph; dropped edges, but for the branches'.
LEFT_OUT_QUICK: Final = frozenset(
    (name, way)
    for name, way in PLACES
    if name == "tolokers, sage" or way in ("drop, random", "drop, louvain")
)


def run(setting: Setting) -> Outcome:
    """Train every goal in every way, by what validates best."""
    places = [place for place in PLACES if not (setting.quick and place in LEFT_OUT_QUICK)]
    sweep = Sweep(setting, SEEDS)
    with tempfile.TemporaryDirectory(prefix="retexo-sims-") as folder:
        write_derived_graphs(setting, Path(folder))
        choice = _Choice(setting, derived=folder)
        chosen = {place: choice.chosen(*place) for place in places}
        for place, candidate in chosen.items():
            name, way = place
            sweep.train({place: choice.keys(name, way, candidate)}, GOALS[name].how)
        means = [mean_alone({**choice.shared(YEARS), "seed": seed}) for seed in sweep.seeds]
        judged = [row for place in places for row in choice.rows(*place)]
    return Outcome(
        title="Goals that users have: lazy and central training, and edges dropped",
        setting={
            "seeds": list(sweep.seeds),
            "trained at commit": sweep.commits,
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
        rows=[
            *(
                row
                for place in places
                for row in sweep.rows(_columns(place[0]), last="central", places=[place])
            ),
            *(
                Row.of(
                    f"{metric}, {YEARS}, {MEAN}",
                    [mean[metric] for mean in means],
                    unit=_unit(metric),
                )
                for metric in GOALS[YEARS].metrics
            ),
            *judged,
        ],
    )


class _Choice:
    """Chooses among candidates by what validates best."""

    def __init__(self, setting: Setting, *, derived: str) -> None:
        self._setting = setting
        self._derived = derived

    def chosen(self, name: str, way: str) -> str:
        """Return the candidate that a goal is trained by in a way."""
        goal = GOALS[name]
        judged = self._judged(goal.like or name, goal.judges.get(way, way))
        sign = -1 if goal.metrics[0] == RMSE else 1
        return max(judged.found, key=lambda place: sign * judged.mean(place, _validated))[-1]

    def rows(self, name: str, way: str) -> list[Row]:
        """Return what chose by candidate; nothing where another way or goal judges."""
        goal = GOALS[name]
        if goal.like or goal.judges.get(way, way) != way:
            return []
        metric = goal.metrics[0]
        return self._judged(name, way).rows(
            [Column(f"validation {metric}", _unit(metric), _validated)]
        )

    def keys(self, name: str, way: str, candidate: str) -> Keys:
        """Return the configuration of a goal in a way by a candidate."""
        goal = GOALS[name]
        keys = {**self.shared(name), **goal.candidates[candidate], **goal.ways[way]}
        return {**keys, **QUICK} if self._setting.quick else keys

    def shared(self, name: str) -> Keys:
        """Return what all trainings of a goal have in common."""
        keys = {**GOALS[name].keys, "metric": GOALS[name].metrics[0]}
        if "dataset" not in keys:
            return keys
        dataset = str(keys["dataset"])
        place = self._derived if dataset in DERIVED else self._setting.folder_with(dataset)
        return {**keys, "data-dir": place}

    def _judged(self, name: str, way: str) -> Sweep:
        goal = GOALS[name]
        judged = Sweep(self._setting, goal.judging_seeds)
        candidates = self._setting.few(list(goal.candidates))
        judged.train({(name, way, one): self.keys(name, way, one) for one in candidates}, goal.how)
        return judged


def _validated(trained: Trained) -> float:
    return float(trained.result["stages"][-1]["metric"]["value"])


def _score(metric: str) -> Value:
    return lambda trained: float(trained.result[SCORES][metric])


def _columns(name: str) -> list[Column]:
    return [
        *(Column(metric, _unit(metric), _score(metric)) for metric in GOALS[name].metrics),
        MOVED._replace(is_compared=False),
    ]


def _unit(metric: str) -> str:
    return "years" if metric == RMSE else "share"


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


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws goals over ten clients, and the bank's."""
    there = [name for name in GOALS if f"{GOALS[name].metrics[0]}, {name}, central" in figures]
    banks = (BANK, FEW_LABELS)
    return [
        partial(_draw, figures, [name for name in there if name not in banks]),
        partial(_draw, figures, banks),
    ]


def _draw(figures: Figures, names: Sequence[str], axes: Axes) -> None:
    """Draw what is a share: of the year's error its R²."""
    shown = {name: R2 if name == YEARS else ROC_AUC for name in names}
    series = {
        way: [figures[f"{metric}, {name}, {way}"].values for name, metric in shown.items()]
        for way in GOALS[names[0]].ways
        if f"{shown[names[0]]}, {names[0]}, {way}" in figures
    }
    draw_bars(axes, [f"{name}\n{metric}" for name, metric in shown.items()], series)
    focus(axes, [value for groups in series.values() for values in groups for value in values])
    axes.set_ylabel("test (dots: seeds)")
