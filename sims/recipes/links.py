"""Link prediction at 85/5/10: ten clients beside one, and beside the published figures of VGAE.

Edges are split by a hash of their ends, so that shares hold on average. The settings are the
defaults, with up to 200 rounds a layer; they were chosen by validation on Cora.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple

from retexo_fl.config import Scalar
from sims.catalogue import Setting
from sims.link_scores import AVERAGE_PRECISION, ROC_AUC, WHOLE_GRAPH, train_links
from sims.outcome import Cell, Check, Figures, Outcome, Row, figures_of
from sims.published import LINK_PREDICTION, LinkScore
from sims.trained import Trained
from sims.trainings import Trainings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PURPOSE: Final = "link prediction on Cora, Citeseer and PubMed, on one client and on ten"

SETTINGS: Final[Mapping[str, Scalar]] = {
    "task": "links",
    "split": "random:0.85/0.05/0.1",
    "model": "gcn",
    "hidden": 64,
    "rounds": 200,
    "patience": 30,
}
GRAPHS: Final = ("cora", "citeseer", "pubmed")
#: By name, clients and how nodes are assigned to them.
CLIENTS: Final[Mapping[str, Mapping[str, Scalar]]] = {
    "one client": {"clients": 1},
    "ten random clients": {"clients": 10},
    "ten Louvain clients": {"clients": 10, "partitioner": "louvain"},
}
METRICS: Final = {ROC_AUC: "AUC", AVERAGE_PRECISION: "AP"}
SEEDS: Final = (0, 1, 2)
#: By how much ten random clients may be worse than one, and one than the published figures.
ALLOWED: Final = 0.01


class Case(NamedTuple):
    """One cell of the table."""

    graph: str
    clients: str


def run(setting: Setting) -> Outcome:
    """Train every case with every seed."""
    seeds = SEEDS[:1] if setting.quick else SEEDS
    graphs = GRAPHS[:1] if setting.quick else GRAPHS
    more = {"hidden": 16, "rounds": 3} if setting.quick else {}
    cases = [Case(*case) for case in product(graphs, CLIENTS)]
    wanted = {
        (case, seed): {
            **SETTINGS,
            **more,
            **CLIENTS[case.clients],
            "dataset": case.graph,
            "data-dir": setting.folder_with(case.graph),
            "seed": seed,
        }
        for case in cases
        for seed in seeds
    }
    trainings = Trainings(setting.kept)
    trained = trainings.all(wanted, train_links)
    found = {case: [trained[case, seed] for seed in seeds] for case in cases}
    rows = [row for case in cases for row in _rows(case, found[case], found)]
    return Outcome(
        title="Links of three citation graphs, 85/5/10, by GCN trained layer by layer",
        setting={
            **SETTINGS,
            **more,
            "seeds": list(seeds),
            "reference": "one client",
            "judged": "held-out edges beside as many pairs without an edge: drawn uniformly in the "
            "whole graph, or (of the clients) among pairs of which a client knows both nodes",
        },
        rows=rows,
        checks=tuple(checks_from(figures_of(rows), quick=setting.quick)),
        published=tuple(published_beside(figures_of(rows))),
        draw=lambda axes: _draw(axes, found),
    )


def _rows(case: Case, found: list[Trained], all_found: Mapping[Case, list[Trained]]) -> list[Row]:
    alone = all_found[case._replace(clients="one client")]
    rows = [
        Row.of(
            _named(name, case),
            _scores(found, metric),
            unit="share",
            reference=fmean(_scores(alone, metric)),
        )
        for metric, name in METRICS.items()
    ]
    of_clients = [float(one.result["metric"]["value"]) for one in found]
    moved = [one.result["bytes"]["payload"]["total"] / 1e6 for one in found]
    between = [one.result["bytes"]["payload"]["boundary"] / 1e6 for one in found]
    return [
        *rows,
        Row.of(f"AUC of the clients, {_of(case)}", of_clients, unit="share"),
        Row.of(f"moved, {_of(case)}", moved, unit="MB"),
        Row.of(f"moved between clients, {_of(case)}", between, unit="MB"),
    ]


def _scores(found: list[Trained], metric: str) -> list[float]:
    return [float(one.result[WHOLE_GRAPH][metric]) for one in found]


def _named(metric: str, case: Case) -> str:
    return f"{metric}, {_of(case)}"


def _of(case: Case) -> str:
    return f"{case.graph}, {case.clients}"


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    graphs = GRAPHS[:1] if quick else GRAPHS
    lines = []
    for graph, metric in product(graphs, METRICS.values()):
        alone = figures[_named(metric, Case(graph, "one client"))].ours
        lost = {
            clients: alone - figures[_named(metric, Case(graph, clients))].ours
            for clients in list(CLIENTS)[1:]
        }
        listed = ", ".join(f"{clients} {loss:+.4f}" for clients, loss in lost.items())
        lines.append(
            Check(
                line=f"{graph}: ten random clients lose at most {ALLOWED:g} of {metric} against "
                f"one ({listed})",
                holds=quick or lost["ten random clients"] <= ALLOWED,
            )
        )
        published = getattr(LINK_PREDICTION[graph, "VGAE"], metric.lower())
        lines.append(
            Check(
                line=f"{graph}: one client is at most {ALLOWED:g} below the {metric} published of "
                f"VGAE ({alone:.4f}, {published:.3f})",
                holds=quick or alone >= published - ALLOWED,
            )
        )
    return lines


def published_beside(figures: Figures) -> list[Cell]:
    """Return the published figures beside ours."""
    graphs = [g for g in GRAPHS if _named("AUC", Case(g, "one client")) in figures]
    return [
        Cell(
            name=f"{metric}, {graph}, {method}",
            unit="share",
            published=_published(LINK_PREDICTION[graph, method], metric),
            ours=figures[_named(metric, Case(graph, clients))].ours,
            how=clients,
        )
        for graph, method, metric, clients in product(
            graphs, ("GAE", "VGAE"), METRICS.values(), CLIENTS
        )
    ]


def _published(score: LinkScore, metric: str) -> float:
    return score.auc if metric == "AUC" else score.ap


def _draw(axes: Axes, found: Mapping[Case, list[Trained]]) -> None:
    graphs = list(dict.fromkeys(case.graph for case in found))
    for place, clients in enumerate(CLIENTS):
        heights = [fmean(_scores(found[Case(graph, clients)], ROC_AUC)) for graph in graphs]
        places = [at + (place - 1) * 0.2 for at in range(len(graphs))]
        axes.plot(places, heights, "o", label=clients)
    for at, graph in enumerate(graphs):
        for method, style in (("GAE", "--"), ("VGAE", "-")):
            height = LINK_PREDICTION[graph, method].auc
            axes.plot([at - 0.3, at + 0.3], [height] * 2, style, color="grey", linewidth=1)
    axes.set_xticks(range(len(graphs)), graphs)
    axes.set_ylabel("AUC, mean of seeds (lines: GAE dashed, VGAE)")
    axes.legend(fontsize=7)
