"""What a training tells on real graphs: attacks of ``retexo leakage``, at random and by Louvain.

Peers that rank edges inside other parts, with full rows, with classes in place of later rows, with
rows that cross once and with none; labels and members from updates in the clear, and of the sums of
cohorts that masks leave; nodes whose row a cover shows as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any, Final

from retexo_fl.api.settling import Asked
from retexo_fl.leakage.audit import audit
from retexo_fl.leakage.peer_attacks import BOTH
from sims.catalogue import Setting
from sims.charts import draw_bars
from sims.kept import Kept, Work
from sims.outcome import Axes, Check, Draw, Figures, Outcome, Row
from sims.paper import at_hand

PURPOSE: Final = "what peers and the server read of ten clients, with each defence off and on"

#: By the name of the graph, its file.
GRAPHS: Final[Mapping[str, str]] = {
    "cora": "cora",
    "facebook": "facebook_page_page",
    "github": "github",
}
PARTITIONERS: Final = ("random", "louvain")
KEYS: Final[Mapping[str, Any]] = {"clients": 10, "model": "gcn", "split": "random:0.2/0.1/0.7"}
SEEDS: Final = (0, 1, 2)
QUICK: Final[Mapping[str, Any]] = {"rounds": 3, "hidden": 16}
FOUND: Final = "found at 1 % false alarms"
#: By how much links found with rows that cross once may exceed those found with none.
ALLOWED: Final = 0.05
#: Ways of rows, as rows name them, and the attack that plays them.
ROWS: Final[Mapping[str, str]] = {
    "full rows": "edges inside a part, from rows",
    "classes": "edges inside a part, --second-rows class",
    "rows once": "edges inside a part, --second-rows none",
}
ACCURACIES: Final[Mapping[str, str]] = {
    "full rows": "as asked",
    "classes": "second-rows class",
    "rows once": "second-rows none",
    "no rows": "no edges across",
}
#: Figures of the server, by name.
OF_SERVER: Final[Mapping[str, str]] = {
    "labels right": "labels, from a first update",
    "members, ROC AUC": "membership, from an update",
}


def run(setting: Setting) -> Outcome:
    """Play the attacks on every graph, partitioner and seed."""
    at_hand(setting, setting.few(tuple(GRAPHS.values())))
    graphs, seeds = setting.few(tuple(GRAPHS)), setting.few(SEEDS)
    kept = Kept(setting.kept)
    places = list(product(graphs, PARTITIONERS, seeds))
    found = kept.all({place: _work(setting, *place) for place in places})
    rows: list[Row] = []
    for graph, partitioner in product(graphs, PARTITIONERS):
        of_seeds = [found[graph, partitioner, seed] for seed in seeds]
        for metric, unit in _metrics(of_seeds[0]):
            values = [float(one[metric]) for one in of_seeds]
            rows.append(Row.of(f"{metric}, {graph}, {partitioner}", values, unit=unit))
    return Outcome(
        title="What ten clients tell each other and the server",
        setting={
            **KEYS,
            **(QUICK if setting.quick else {}),
            "profile": "lean",
            "seeds": list(seeds),
            "trained at commit": kept.commits,
            "found": "links that score above all but 1 % of other pairs: upper bounds",
            "masked": "what the sum over a client's cohort tells, which is what masks leave",
        },
        rows=rows,
    )


def _work(setting: Setting, graph: str, partitioner: str, seed: int) -> Work:
    keys = {**KEYS, "partitioner": partitioner, "seed": seed, "dataset": GRAPHS[graph]}
    keys |= QUICK if setting.quick else {}
    values = {**keys, "data-dir": setting.folder_with(GRAPHS[graph])}
    return Work(f"leakage-{graph}-{partitioner}-{seed}", keys, partial(_played, values))


def _played(values: Mapping[str, Any]) -> dict[str, float]:
    """Return figures by name."""
    found = audit(Asked(values=values), tell=lambda _: None, quiet=True)
    by_attack = {one.attack: one for one in found.findings}
    figures: dict[str, float] = {}
    for rows, attack in ROWS.items():
        by = by_attack[attack].by
        figures[f"links found, {rows}"] = by[f"{FOUND}, {BOTH}"]
        figures[f"ROC AUC of links, {rows}"] = by[f"auc, {BOTH}"]
        figures[f"links found, {rows}, two together"] = by["two_together"][f"{FOUND}, {BOTH}"]
    by = by_attack[ROWS["full rows"]].by
    figures["links found, no rows"] = by[f"{FOUND}, edges across"]
    figures["ROC AUC of links, no rows"] = by["auc, edges across"]
    figures["links found, no rows, two together"] = by["two_together"][f"{FOUND}, edges across"]
    for rows, name in ACCURACIES.items():
        figures[f"test accuracy, {rows}"] = found.accuracy[name]
    for name, attack in OF_SERVER.items():
        one = by_attack[attack]
        assert one.masked is not None, "a server's figure is of sums, too"
        figures |= {f"{name}, in the clear": one.clear, f"{name}, masked": one.masked}
    figures["nodes whose row a cover shows"] = by_attack["single rows under a cover"].clear
    return figures


def _metrics(found: Mapping[str, float]) -> list[tuple[str, str]]:
    return [(metric, "area" if "AUC" in metric else "share") for metric in found]


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    return [] if quick else [line for place in _places(figures) for line in _lines(figures, place)]


def _places(figures: Figures) -> list[str]:
    start = "links found, no rows, "
    return [
        name.removeprefix(start)
        for name in figures
        if name.startswith(start) and "together" not in name
    ]


def _lines(figures: Figures, place: str) -> list[Check]:
    def found(rows: str) -> float:
        return figures[f"links found, {rows}, {place}"].ours

    def served(name: str, how: str) -> float:
        return figures[f"{name}, {how}, {place}"].ours

    none = found("no rows")
    clear, masked = served("labels right", "in the clear"), served("labels right", "masked")
    narrower = {"rows once": "with rows that cross once", "classes": "with classes"}
    return [
        *(
            Check(
                line=f"{place}: {how} peers find at most {ALLOWED:g} more links than with none "
                f"({found(rows):.3f}, {none:.3f})",
                holds=found(rows) - none <= ALLOWED,
            )
            for rows, how in narrower.items()
            if f"links found, {rows}, {place}" in figures
        ),
        Check(
            line=f"{place}: masks leave of labels less than an update tells "
            f"({clear:.3f}, masked {masked:.3f})",
            holds=masked < clear,
        ),
    ]


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws links found, and accuracy."""
    return [partial(_draw, figures, "links found"), partial(_draw, figures, "test accuracy")]


def _draw(figures: Figures, metric: str, axes: Axes) -> None:
    places = _places(figures)
    of_rows = {rows: [f"{metric}, {rows}, {place}" for place in places] for rows in ACCURACIES}
    # Classes were played in some places alone.
    series = {
        rows: [figures[name].values for name in names]
        for rows, names in of_rows.items()
        if figures.keys() >= {*names}
    }
    draw_bars(axes, [place.replace(", ", "\n") for place in places], series)
    axes.set_ylabel(f"{metric} (dots: seeds)")
