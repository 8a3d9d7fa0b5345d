"""Rounds against local steps: what federated averaging of a layer saves, and what it costs.

One local step sends gradients, and any split of the graph trains the weights of one client. Several
send changes of weights: fewer rounds move fewer bytes, but clients whose nodes differ pull the
average apart, and the partition matters. Where it does, other ways of taking these steps are tried;
what is free in each is chosen by the validation accuracy after most rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

from retexo_fl.config import Scalar
from sims.catalogue import Setting
from sims.outcome import Axes, Check, Draw, Figures, Outcome
from sims.sweep import ACCURACY, Column, Place, Sweep
from sims.trainings import Keys

PURPOSE: Final = "accuracy and bytes over rounds, local steps and partitioners"

SETTINGS: Final[Mapping[str, Scalar]] = {
    "dataset": "cora",
    "clients": 10,
    "split": "random-unstratified:0.2/0.1/0.7",
    "model": "gcn",
    "hidden": 64,
    "learning-rate": 0.01,
    "local-optimizer": "adam",
    "local-learning-rate": 0.01,
    "dropout": 0.3,
    "weight-decay": 5e-4,
}
_SGD_RATES: Final = (0.1, 0.3, 1.0)


def _sgd(rate: float, **more: Scalar) -> dict[str, Scalar]:
    return {"local-optimizer": "sgd", "local-learning-rate": rate, **more}


#: By name, ways of taking local steps: candidates for what is free in each.
METHODS: Final[Mapping[str, Mapping[str, Mapping[str, Scalar]]]] = {
    "FedProx": {f"mu {mu:g}": {"proximal-mu": mu} for mu in (0.01, 0.1, 1.0)},
    "SGD": {f"step {rate:g}": _sgd(rate) for rate in _SGD_RATES},
    "SCAFFOLD": {
        f"step {rate:g}": _sgd(rate, **{"local-correction": "scaffold"}) for rate in _SGD_RATES
    },
}
#: What the lines are about.
REMEDIES: Final = ("FedProx", "SCAFFOLD")
#: Partitioners whose clients differ.
APART: Final = ("metis", "louvain")
PARTITIONERS: Final = {"random": "o", "metis": "s", "louvain": "^"}
STEPS: Final = {1: "#4c78a8", 2: "#f58518", 5: "#54a24b", 10: "#e45756"}
ROUNDS: Final = (5, 10, 20, 50)
QUICK_ROUNDS: Final = (1, 2)
QUICK_STEPS: Final = (1, 2)
SEEDS: Final = (0, 1, 2)
#: By how much one local step may differ between partitioners: sums are taken in other orders.
SAME: Final = 0.005
#: By how much local steps may change the bytes of as many rounds.
SAME_BYTES: Final = 0.02
#: What few rounds of many steps may lose on random parts.
ALLOWED: Final = 0.01
#: Share of what many steps lose that a remedy may lose.
LEFT: Final = 0.5


class Case(NamedTuple):
    """One cell of the table; ``method`` as in :data:`METHODS`, or empty."""

    partitioner: str
    rounds: int
    steps: int
    method: str = ""

    @property
    def place(self) -> Place:
        """As rows name it."""
        steps = f"{self.steps} local steps{f' by {self.method}' if self.method else ''}"
        return (self.partitioner, f"{self.rounds} rounds", steps)

    def keys(self, setting: Setting, candidate: str = "") -> Keys:
        """Return the configuration, with a candidate for what is free in the method."""
        return {
            **SETTINGS,
            "data-dir": setting.folder_with("cora"),
            **({"hidden": 16} if setting.quick else {}),
            "partitioner": self.partitioner,
            "rounds": self.rounds,
            "local-steps": self.steps,
            **(METHODS[self.method][candidate] if self.method else {}),
        }


def run(setting: Setting) -> Outcome:
    """Train every case with every seed."""
    rounds = QUICK_ROUNDS if setting.quick else ROUNDS
    steps = QUICK_STEPS if setting.quick else tuple(STEPS)
    most, sweep = max(rounds), Sweep(setting, SEEDS)
    cases = [Case(*values) for values in product(PARTITIONERS, rounds, steps)]
    sweep.train({case.place: case.keys(setting) for case in cases})
    chosen, validated, shown = [], [], []
    for partitioner, method in product(APART, METHODS):
        case = Case(partitioner, most, max(steps), method)
        candidates = {(*case.place, name): case.keys(setting, name) for name in METHODS[method]}
        sweep.train(candidates)
        validated += sweep.rows([VALIDATION], places=candidates)
        best = max(candidates, key=lambda place: sweep.mean(place, VALIDATION.value))
        chosen.append(f"{partitioner} {method} {best[-1]}")
        for fewer in rounds:
            shown.append(case._replace(rounds=fewer))
            sweep.train({shown[-1].place: shown[-1].keys(setting, best[-1])})
    shown.sort(key=lambda case: (APART.index(case.partitioner), case.rounds))
    return Outcome(
        title="Cora over ten clients: rounds and local steps",
        setting={
            **SETTINGS,
            "seeds": list(sweep.seeds),
            "reference": f"the same partitioner with {most} rounds of 1 local step; of a "
            "validation accuracy, none",
            "chosen": f"by validation accuracy after {most} rounds, mean of seeds: "
            + "; ".join(chosen),
        },
        rows=[
            *(
                sweep.row(case.place, column, Case(case.partitioner, most, 1).place)
                for case in [*cases, *shown]
                for column in COLUMNS
            ),
            *validated,
        ],
    )


def moved_bytes(result: Mapping[str, Any]) -> float:
    """Return payload of all kinds, updates with their zeros: those of many steps have others."""
    moved = result["bytes"]
    return float(
        moved["payload"]["total"] - moved["payload"]["updates_up"] + moved["raw"]["updates_up"]
    )


MOVED: Final = Column("moved", "MB", lambda trained: moved_bytes(trained.result) / 1e6)
COLUMNS: Final = (ACCURACY, MOVED)
VALIDATION: Final = Column(
    "validation accuracy", "share", lambda trained: float(trained.result["val_accuracy"])
)


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    rounds, steps = (QUICK_ROUNDS, QUICK_STEPS) if quick else (ROUNDS, tuple(STEPS))
    alone = [[_accuracy(figures, Case(p, r, 1)) for p in PARTITIONERS] for r in rounds]
    apart = max(max(each) - min(each) for each in alone)
    changes = [
        abs(_moved(figures, Case(p, r, s)) / _moved(figures, Case(p, r, 1)) - 1)
        for p, r, s in product(PARTITIONERS, rounds, steps)
    ]
    lines = [
        Check(
            line=f"one local step trains the same by any partitioner (apart: {apart:.4f}, allowed: "
            f"{SAME:g})",
            holds=apart <= SAME,
        ),
        Check(
            line=f"local steps do not change the bytes of a round by more than {SAME_BYTES:.0%} "
            f"(most: {max(changes):.2%})",
            holds=max(changes) <= SAME_BYTES,
        ),
    ]
    if quick:
        return lines
    return [*lines, *_drift_checks(figures), *(_remedy_check(figures, p) for p in APART)]


def _drift_checks(figures: Figures) -> list[Check]:
    few, many = min(ROUNDS), max(ROUNDS)
    whole, short = Case("random", many, 1), Case("random", few, max(STEPS))
    lost = _accuracy(figures, whole) - _accuracy(figures, short)
    saved = _moved(figures, whole) / _moved(figures, short)
    drifts = {
        p: _accuracy(figures, Case(p, many, 1)) - _accuracy(figures, Case(p, many, max(STEPS)))
        for p in PARTITIONERS
    }
    listed = ", ".join(f"{p} {drift:.3f}" for p, drift in drifts.items())
    return [
        Check(
            line=f"on random parts {few} rounds of {max(STEPS)} steps lose at most {ALLOWED:g} "
            f"against {many} rounds of one ({lost:.4f}), for {saved:.1f} times fewer bytes",
            holds=lost <= ALLOWED and saved > 1,
        ),
        Check(
            line=f"{max(STEPS)} steps in each of {many} rounds cost more accuracy where parts "
            f"follow communities than on random ones ({listed})",
            holds=min(drifts["metis"], drifts["louvain"]) > drifts["random"] + ALLOWED,
        ),
    ]


def _remedy_check(figures: Figures, partitioner: str) -> Check:
    """Return whether FedProx or SCAFFOLD loses little of what many steps lose."""
    whole, many = Case(partitioner, max(ROUNDS), 1), Case(partitioner, max(ROUNDS), max(STEPS))
    accuracy = _accuracy(figures, whole)
    lost = accuracy - _accuracy(figures, many)
    left = {m: accuracy - _accuracy(figures, many._replace(method=m)) for m in REMEDIES}
    listed = ", ".join(f"{method} {loss:.3f}" for method, loss in left.items())
    return Check(
        line=f"on {partitioner} parts FedProx or SCAFFOLD loses at most {LEFT:g} of what "
        f"{max(STEPS)} steps lose in {max(ROUNDS)} rounds ({lost:.3f}; {listed})",
        holds=min(left.values()) <= LEFT * lost,
    )


def _accuracy(figures: Figures, case: Case) -> float:
    return figures[_named(ACCURACY, case)].ours


def _moved(figures: Figures, case: Case) -> float:
    return figures[_named(MOVED, case)].ours


def _named(column: Column, case: Case) -> str:
    return ", ".join((column.metric, *case.place))


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws accuracy over bytes, a line for each partitioner and number of steps."""
    return [partial(_draw, figures)]


def _draw(figures: Figures, axes: Axes) -> None:
    for (partitioner, marker), (steps, color) in product(PARTITIONERS.items(), STEPS.items()):
        cases = [Case(partitioner, rounds, steps) for rounds in (*QUICK_ROUNDS, *ROUNDS)]
        there = [case for case in cases if _named(MOVED, case) in figures]
        if there:
            axes.plot(
                [_moved(figures, case) for case in there],
                [_accuracy(figures, case) for case in there],
                marker=marker,
                color=color,
                linewidth=1,
                label=f"{partitioner}, {steps} step{'s' if steps > 1 else ''}",
            )
    axes.set_xscale("log")
    axes.set_xlabel("MB moved, all kinds (points: rounds)")
    axes.set_ylabel("test accuracy, mean of seeds")
    axes.legend(fontsize=7, ncols=3, loc="lower right")
