"""The lines of recipes hold on the written results, and fail on figures that contradict them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sims.catalogue import RECIPES, load_recipe
from sims.outcome import Check, Figures, Row, figures_of, rows_of
from sims.results_files import markdown, restated

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).resolve().parents[3] / "sims" / "results"
Facts = dict[str, object]

#: By recipe: figures that are made wrong, and a part of the line that must fail then.
WRONG = [
    ("fig3", {"modelled: message passing, cora, sage, lazy": 9.0}, "waits less"),
    ("fig3", {"modelled: aggregation, pubmed, gcn, bns 0.1": 8.0}, "as long as standard"),
    ("fig3", {"measured: computing of a client, cora, gcn, lazy": 4.0}, "computes less"),
    ("fig6", {"moved in all, cora, lazy": 1300.0}, "moves more than dropping"),
    ("fig6", {"test accuracy, pubmed, lazy": 0.85}, "less accurate"),
    ("fig6", {"moved until within 0.01 of standard's best, cora, lazy": 460.0}, "fewer bytes"),
    ("fig8", {"test accuracy, cora, 6 clients, lazy": 0.83}, "less accurate"),
    ("fig8", {"test accuracy, cora, 24 clients, standard": 0.852}, "changes neither accuracy"),
    ("fig8", {"bytes at a client, cora, 24 clients, lazy": 650.0}, "a client moves less"),
    ("fig8", {"gamma, dense bytes, cora, 4 clients": 1.9}, "off equation 2"),
    ("fig8", {"B, boundary nodes of a client, cora, 24 clients": 3000.0}, "rises and falls"),
    ("gamma", {"smaller graph, measured: gamma, reddit, 8 clients, sage": 190.0}, "off equation"),
    ("gamma", {"full size, by formula: gamma, products, 4 clients, sage": 340.0}, "the published"),
    ("gamma_real", {"gamma by equation 2, fb100_union8, 24 clients": 89.0}, "falls from 16"),
    ("gamma_real", {"gamma by equation 2, amazon_computers, 2 clients": 30.0}, "than with 2"),
    (
        "gamma_real",
        {"B, boundary nodes of a client, fb100_berkeley13, 4 clients": 9000.0},
        "rises and falls with B",
    ),
    ("goals", {"roc-auc, bank, lazy, branches": 0.96}, "is at least 0.97"),
    ("goals", {"roc-auc, bank, lazy, branches": 0.98}, "branches lose at most"),
    ("goals", {"roc-auc, bank, drop, branches": 1.0}, "edges between branches costs"),
    ("goals", {"rmse, berkeley13-years, lazy, random": 2.0}, "errs less than the mean"),
    ("goals", {"roc-auc, tolokers, sage, lazy, louvain": 0.7}, "sage: roc-auc of lazy training"),
    ("goals", {"rmse, berkeley13-years, central": 0.4}, "years: lazy training loses at most"),
    ("goals", {"rmse, berkeley13-years, drop, random": 0.4}, "years: dropping the edges"),
    ("lean", {"test accuracy, cora, gcn, lean": 0.84}, "cora, gcn: lean is at most"),
    ("lean", {"moved, cora, gcn, lean": 20.0}, "cora, gcn, lean: at most 2.5 MB"),
    ("lean", {"time in one process, pubmed, sage, lean": 99.0}, "takes no longer"),
    ("leakage", {"links found, rows once, cora, louvain": 0.3}, "louvain: with rows that cross"),
    ("leakage", {"links found, classes, cora, louvain": 0.3}, "louvain: with classes peers find"),
    ("leakage", {"labels right, masked, facebook, random": 1.0}, "masks leave of labels less"),
    ("local_steps", {"test accuracy, metis, 50 rounds, 1 local steps": 0.80}, "trains the same"),
    ("local_steps", {"moved, random, 5 rounds, 10 local steps": 60.0}, "bytes of a round"),
    ("local_steps", {"test accuracy, random, 5 rounds, 10 local steps": 0.80}, "lose at most"),
    ("local_steps", {"test accuracy, louvain, 50 rounds, 10 local steps": 0.86}, "communities"),
    (
        "local_steps",
        {
            "test accuracy, metis, 50 rounds, 10 local steps by FedProx": 0.80,
            "test accuracy, metis, 50 rounds, 10 local steps by SCAFFOLD": 0.80,
        },
        "on metis parts FedProx or SCAFFOLD",
    ),
    (
        "local_steps",
        {
            "test accuracy, louvain, 50 rounds, 10 local steps by FedProx": 0.84,
            "test accuracy, louvain, 50 rounds, 10 local steps by SCAFFOLD": 0.84,
        },
        "on louvain parts FedProx or SCAFFOLD",
    ),
    ("openfgl", {"global score, citeseer, metis, lazy, 1 step": 0.70}, "than central"),
    ("openfgl", {"global score, pubmed, random, drop, 1 step": 0.90}, "costs accuracy"),
    ("openfgl", {"moved, cora, louvain, lazy, 1 step": 700.0}, "moves more"),
    ("openfgl", {"local score, cora, louvain, drop, 3 steps": 0.70}, "local score"),
    ("rivals", {"test accuracy, cora, dirichlet 10000, lean": 0.79}, "10000: lean is at least as"),
    ("rivals", {"moved, citeseer, dirichlet 10, lean": 30.0}, "500 times fewer bytes"),
    ("rivals", {"moved, pubmed, louvain, one-shot": 30.0}, "louvain: lean and one-shot move"),
    ("rivals", {"test accuracy, citeseer, louvain, fedavg": 0.8}, "louvain: lean is more accurate"),
    ("rivals", {"test accuracy, cora, metis, alone": 0.9}, "metis: lean is more accurate than"),
    ("rivals", {"test accuracy, pubmed, metis, chosen": 0.86}, "metis: what validation chooses"),
    ("scaling", {"exponent of processor time in clients": 1.2}, "processor time grows as clients"),
    ("scaling", {"exponent of bytes, all in nodes": 0.8}, "bytes, all grows as nodes to"),
    ("scaling", {"exponent of memory at most in nodes of a client": 1.2}, "memory at most grows"),
    ("section47", {"boundary, exchange before layer 1, lossless": 600.0}, "nearly all bytes"),
    ("section47", {"model, layer 0, updates up": 585.0}, "four bytes each"),
    ("section47", {"test accuracy, dense": 0.5}, "same accuracy"),
    ("table2", {"lazy minus standard, same seed, cora, sage": -0.02}, "cora, sage"),
    (
        "table3",
        {
            "accuracy against lazy's of the same seed, amazon_computers, gat, "
            "bns 0.01, unscaled": 0.5
        },
        "scaling costs GAT",
    ),
    (
        "table3",
        {"accuracy against lazy's of the same seed, amazon_computers, sage, bns 0.1, scaled": 0.9},
        "GraphSAGE keeps",
    ),
    (
        "table3",
        {"accuracy against lazy's of the same seed, amazon_computers, sage, bns 0.01, scaled": 1.1},
        "loses less",
    ),
    ("table4", {"modelled: network, cora, 100 ms, lazy": 41.0}, "a delay costs"),
    (
        "table4",
        {"modelled: network with the validation of each round, cora, 200 ms, standard": 80.8},
        "second pass",
    ),
    (
        "table4",
        {"modelled: network with the validation of each round, cora, bluetooth, lazy": 9999.0},
        "over Bluetooth",
    ),
]


def facts_of(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def lines_of(name: str, figures: Figures, *, quick: bool = False) -> list[Check]:
    checks_from: Callable[..., list[Check]] = vars(load_recipe(name))["checks_from"]
    return checks_from(figures, quick=quick)


def figures_in(name: str) -> dict[str, Row]:
    return dict(figures_of(rows_of(facts_of(name)["rows"])))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "wrong", "line"), WRONG)
def test_a_result_that_contradicts_a_line_fails_it(
    name: str, wrong: dict[str, float], line: str
) -> None:
    figures = figures_in(name)
    assert [check.text for check in lines_of(name, figures) if not check.holds] == []
    for metric, value in wrong.items():
        figures[metric] = replace(figures[metric], ours=value)
    failing = [check.line for check in lines_of(name, figures) if not check.holds]
    assert any(line in each for each in failing), failing


def test_table_2_forgives_what_another_lazy_setting_brings_back() -> None:
    figures = figures_in("table2")
    cell = "facebook_page_page, gcn"
    for change in ("300 rounds a layer", "three layers"):
        metric = f"micro-F1, {cell}, lazy with {change}"
        row = figures[metric]
        assert row.spread is not None
        worse = [value - 0.05 for value in row.spread.values]
        figures[metric] = Row.of(metric, worse, unit=row.unit)
    assert [
        check.line.split(":")[0] for check in lines_of("table2", figures) if not check.holds
    ] == [cell]


def test_few_rounds_may_lose_more_but_not_anything() -> None:
    metric = "lazy minus standard, same seed, cora, gcn"
    figures = {metric: Row(metric=metric, unit="share", ours=-0.02)}
    figures |= {"micro-F1, cora, gcn, lazy": Row(metric="", unit="share", ours=0.8)}
    assert [check.holds for check in lines_of("table2", figures)] == [False]
    assert [check.holds for check in lines_of("table2", figures, quick=True)] == [True]
    figures[metric] = replace(figures[metric], ours=-0.04)
    assert [check.holds for check in lines_of("table2", figures, quick=True)] == [False]


@pytest.mark.parametrize("name", RECIPES)
def test_written_results_are_what_code_makes_of_their_figures(name: str) -> None:
    facts = facts_of(name)
    assert restated(facts, load_recipe(name)) == facts
    text = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert text == markdown(facts)
    cells = facts["published"]
    assert isinstance(cells, list)
    assert text.count("\n") > len(cells)
