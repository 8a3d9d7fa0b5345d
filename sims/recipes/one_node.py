"""As many clients as nodes: the fully distributed case that RETEXO's authors could not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sims.catalogue import Setting
from sims.charts import draw_bars
from sims.outcome import Axes, Check, Draw, Figures, Outcome, Row, figures_of
from sims.paper import described
from sims.sweep import ACCURACY, Column, Sweep, Value
from sims.trained import Trained

PURPOSE: Final = "Cora over 2,708 clients of one node each, beside two clients"

SETTINGS: Final[Mapping[str, Any]] = {
    "split": "random-unstratified:0.2/0.1/0.7",
    "model": "sage",
    "layers": 2,
    "hidden": 64,
    "rounds": 20,
    "learning-rate": 0.01,
    "dropout": 0.3,
    "weight-decay": 5e-4,
}
NODES: Final = 2708
QUICK_NODES: Final = 120
QUICK_GRAPH: Final = f"synthetic:nodes={QUICK_NODES},features=32,degree=4"
SEED: Final = 0
#: What the same training may differ by when sums are taken in another order.
ALLOWED: Final = 0.01
KINDS: Final = ("boundary", "updates_up", "weights_down")


def _trainers(trained: Trained) -> float:
    return float(sum(row["train"] > 0 for row in trained.result["client_table"]))


def _moved_mb(kind: str) -> Value:
    return lambda trained: trained.bytes(kinds=(kind,)) / 1e6


COLUMNS: Final = (
    ACCURACY,
    Column("clients that return updates", "clients", _trainers),
    Column("vectors in an exchange", "vectors", lambda trained: trained.vectors),
    *(Column(f"moved, {kind}", "MB", _moved_mb(kind)) for kind in KINDS),
    Column(
        "bytes at a client, sent and received, on average",
        "MB",
        lambda trained: trained.at_clients() / trained.clients / 1e6,
    ),
    Column("time of the whole training", "s", lambda trained: trained.seconds["total"]),
)


def run(setting: Setting) -> Outcome:
    """Train once with a client for each node, and once with two."""
    keys = _graph(setting)
    nodes = QUICK_NODES if setting.quick else NODES
    sweep = Sweep(setting, SEED)
    sweep.train(
        {
            ("two",): {**keys, "clients": 2, "partitioner": "random"},
            ("single",): {**keys, "clients": nodes, "partitioner": "one-node"},
        }
    )
    (single,) = sweep.found["single",]
    rows = [
        replace(row, metric=column.metric)
        for column in COLUMNS
        for row in sweep.rows([column], last="two", places=[("single",)])
    ]
    return Outcome(
        title=f"{keys['dataset'].partition(':')[0]}: {nodes:,} clients of one node each",
        setting=described(
            setting,
            {**keys, "clients": nodes},
            sweep,
            reference="the same training with two clients",
            volume="payload, every byte once, at its sender; evaluation left out",
            seconds="measured, of all clients one after the other in one process",
        ),
        rows=rows,
        checks=_checks(rows, single.result["missing_rows"]),
    )


def _graph(setting: Setting) -> dict[str, Any]:
    shared = {**SETTINGS, "seed": SEED}
    if setting.quick:
        return {**shared, "dataset": QUICK_GRAPH, "rounds": 3, "hidden": 16}
    return {**shared, "dataset": "cora", "data-dir": setting.folder_with("cora")}


def _checks(rows: list[Row], missing_rows: int) -> tuple[Check, ...]:
    accuracy = figures_of(rows)["test accuracy"]
    difference = abs(accuracy.ours - _of_two(accuracy))
    return (
        Check(
            line=f"test accuracies differ by {difference:.4f}, at most {ALLOWED:g}",
            holds=difference <= ALLOWED,
        ),
        Check(
            line="every client trained or passed vectors on, and none was left out",
            holds=missing_rows == 0,
        ),
    )


def _of_two(row: Row) -> float:
    assert row.reference is not None
    return row.reference


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws the bytes of both trainings by kind."""
    return [partial(_draw, figures)]


def _draw(figures: Figures, axes: Axes) -> None:
    ways: Mapping[str, Callable[[Row], float]] = {
        "one node each": lambda row: row.ours,
        "two clients": _of_two,
    }
    series = {
        f"{name}: accuracy {of(figures['test accuracy']):.3f}": [
            [of(figures[f"moved, {kind}"])] for kind in KINDS
        ]
        for name, of in ways.items()
    }
    draw_bars(axes, [kind.replace("_", " ") for kind in KINDS], series)
    axes.set_yscale("log")
    axes.set_ylabel("MB, every byte once")
