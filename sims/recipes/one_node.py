"""As many clients as nodes: the fully distributed case that RETEXO's authors could not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sims.catalogue import Setting
from sims.charts import COLORS
from sims.outcome import Check, Outcome, Row
from sims.paper import described
from sims.trained import Trained
from sims.trainings import Trainings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


def run(setting: Setting) -> Outcome:
    """Train once with a client for each node, and once with two."""
    trainings = Trainings(setting.kept)
    keys = _graph(setting)
    nodes = QUICK_NODES if setting.quick else NODES
    found = trainings.all(
        {
            "two": {**keys, "clients": 2, "partitioner": "random"},
            "single": {**keys, "clients": nodes, "partitioner": "one-node"},
        }
    )
    return Outcome(
        title=f"{keys['dataset'].partition(':')[0]}: {nodes:,} clients of one node each",
        setting=described(
            setting,
            {**keys, "clients": nodes},
            [SEED],
            trainings,
            reference="the same training with two clients",
            volume="payload, every byte once, at its sender; evaluation left out",
            seconds="measured, of all clients one after the other in one process",
        ),
        rows=_rows(found["single"], found["two"]),
        checks=_checks(found["single"], found["two"]),
        draw=lambda axes: _draw(axes, found["single"], found["two"]),
    )


def _graph(setting: Setting) -> dict[str, Any]:
    shared = {**SETTINGS, "seed": SEED}
    if setting.quick:
        return {**shared, "dataset": QUICK_GRAPH, "rounds": 3, "hidden": 16}
    return {**shared, "dataset": "cora", "data-dir": setting.folder_with("cora")}


def _rows(single: Trained, two: Trained) -> list[Row]:
    rows = [
        Row(metric="test accuracy", unit="share", ours=single.accuracy, reference=two.accuracy),
        Row(
            metric="clients that return updates",
            unit="clients",
            ours=_trainers(single),
            reference=_trainers(two),
        ),
        Row(
            metric="vectors in an exchange",
            unit="vectors",
            ours=single.vectors,
            reference=two.vectors,
        ),
    ]
    rows += [
        Row(
            metric=f"moved, {kind}",
            unit="MB",
            ours=single.bytes(kinds=(kind,)) / 1e6,
            reference=two.bytes(kinds=(kind,)) / 1e6,
        )
        for kind in KINDS
    ]
    return [
        *rows,
        Row(
            metric="bytes at a client, sent and received, on average",
            unit="MB",
            ours=single.at_clients() / single.clients / 1e6,
            reference=two.at_clients() / two.clients / 1e6,
        ),
        Row(
            metric="time of the whole training",
            unit="s",
            ours=single.seconds["total"],
            reference=two.seconds["total"],
        ),
    ]


def _trainers(trained: Trained) -> float:
    return float(sum(row["train"] > 0 for row in trained.result["client_table"]))


def _checks(single: Trained, two: Trained) -> tuple[Check, ...]:
    difference = abs(single.accuracy - two.accuracy)
    return (
        Check(
            line=f"test accuracies differ by {difference:.4f}, at most {ALLOWED:g}",
            holds=difference <= ALLOWED,
        ),
        Check(
            line="every client trained or passed vectors on, and none was left out",
            holds=single.result["missing_rows"] == 0,
        ),
    )


def _draw(axes: Axes, single: Trained, two: Trained) -> None:
    for number, (name, trained) in enumerate((("one node each", single), ("two clients", two))):
        places = [place + (number - 0.5) * 0.4 for place in range(len(KINDS))]
        values = [trained.bytes(kinds=(kind,)) / 1e6 for kind in KINDS]
        label = f"{name}: accuracy {trained.accuracy:.3f}"
        axes.bar(places, values, 0.38, color=COLORS[number], label=label)
    axes.set_xticks(range(len(KINDS)), [kind.replace("_", " ") for kind in KINDS])
    axes.set_yscale("log")
    axes.set_ylabel("MB, every byte once")
    axes.legend(fontsize=8)
