"""Link prediction at 85/5/10: ten clients beside one, and beside the published figures of VGAE.

Edges are split by a hash of their ends, so that shares hold on average. The settings are the
defaults, with up to 200 rounds a layer; they were chosen by validation on Cora.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Final

from retexo_fl.config import Scalar
from sims.catalogue import Setting
from sims.link_scores import AVERAGE_PRECISION, ROC_AUC, WHOLE_GRAPH, train_links
from sims.outcome import Axes, Cell, Check, Draw, Figures, Outcome
from sims.published import LINK_PREDICTION, LinkScore
from sims.sweep import MOVED, Column, Sweep, Value

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
METRICS: Final = ("AUC", "AP")
SEEDS: Final = (0, 1, 2)
#: By how much ten random clients may be worse than one, and one than the published figures.
ALLOWED: Final = 0.01


def _whole_graph(metric: str) -> Value:
    return lambda trained: float(trained.result[WHOLE_GRAPH][metric])


COLUMNS: Final = (
    Column("AUC", "share", _whole_graph(ROC_AUC)),
    Column("AP", "share", _whole_graph(AVERAGE_PRECISION)),
    Column(
        "AUC of the clients",
        "share",
        lambda trained: float(trained.result["metric"]["value"]),
        is_compared=False,
    ),
    MOVED._replace(is_compared=False),
    Column(
        "moved between clients",
        "MB",
        lambda trained: trained.result["bytes"]["payload"]["boundary"] / 1e6,
        is_compared=False,
    ),
)


def run(setting: Setting) -> Outcome:
    """Train every case with every seed."""
    settings = {**SETTINGS, **({"hidden": 16, "rounds": 3} if setting.quick else {})}
    sweep = Sweep(setting, SEEDS)
    sweep.train(
        {
            (graph, name): {
                **settings,
                **clients,
                "dataset": graph,
                "data-dir": setting.folder_with(graph),
            }
            for graph in setting.few(GRAPHS)
            for name, clients in CLIENTS.items()
        },
        train_links,
    )
    return Outcome(
        title="Links of three citation graphs, 85/5/10, by GCN trained layer by layer",
        setting={
            **settings,
            "seeds": list(sweep.seeds),
            "reference": "one client",
            "judged": "held-out edges beside as many pairs without an edge: drawn uniformly in the "
            "whole graph, or (of the clients) among pairs of which a client knows both nodes",
        },
        rows=sweep.rows(COLUMNS, last="one client"),
    )


def _there(figures: Figures) -> list[str]:
    return [graph for graph in GRAPHS if f"AUC, {graph}, one client" in figures]


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    lines = []
    for graph, metric in product(_there(figures), METRICS):
        alone, *others = (figures[f"{metric}, {graph}, {clients}"].ours for clients in CLIENTS)
        lost = {
            clients: alone - score for clients, score in zip(list(CLIENTS)[1:], others, strict=True)
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
    return [
        Cell(
            name=f"{metric}, {graph}, {method}",
            unit="share",
            published=_published(LINK_PREDICTION[graph, method], metric),
            ours=figures[f"{metric}, {graph}, {clients}"].ours,
            how=clients,
        )
        for graph, method, metric, clients in product(
            _there(figures), ("GAE", "VGAE"), METRICS, CLIENTS
        )
    ]


def _published(score: LinkScore, metric: str) -> float:
    return score.auc if metric == "AUC" else score.ap


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws the AUC of all clients beside the published one."""
    return [partial(_draw, figures)]


def _draw(figures: Figures, axes: Axes) -> None:
    graphs = _there(figures)
    for place, clients in enumerate(CLIENTS):
        heights = [figures[f"AUC, {graph}, {clients}"].ours for graph in graphs]
        places = [at + (place - 1) * 0.2 for at in range(len(graphs))]
        axes.plot(places, heights, "o", label=clients)
    for at, graph in enumerate(graphs):
        for method, style in (("GAE", "--"), ("VGAE", "-")):
            height = LINK_PREDICTION[graph, method].auc
            axes.plot([at - 0.3, at + 0.3], [height] * 2, style, color="grey", linewidth=1)
    axes.set_xticks(range(len(graphs)), graphs)
    axes.set_ylabel("AUC, mean of seeds (lines: GAE dashed, VGAE)")
    axes.legend(fontsize=7)
