"""Attacks that an audit plays reach what they must on planted graphs, and a guess without it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retexo_fl
from retexo_fl.api.settling import Asked, settled
from retexo_fl.errors import ConfigurationError
from retexo_fl.leakage.audit import audit
from retexo_fl.leakage.counted import bare_rows
from retexo_fl.leakage.figures import Finding, Leakage
from retexo_fl.leakage.scores import auc, found_at_few_alarms, precision_at
from tests.support.cli import TINY, CommandLine
from tests.support.typed_graphs import bank

KEYS: dict[str, Any] = {
    **{"model": "gcn", "layers": 2, "hidden": 32, "dropout": 0.0, "rounds": 2},
    **{"partitioner": "attribute:owner", "split": "random:0.25/0.25/0.5"},
}


def planted(*, clients: int, each: int, features: int, across: bool = True) -> dict[str, Any]:
    """Return a graph of random rows, labels and edges: nothing but rows tells an inner edge."""
    generator = np.random.default_rng(7)
    owner = np.repeat(np.arange(clients), each)
    edges = []
    for client in range(clients):
        # A ring: every node has two inner edges, and one to each other client.
        order = generator.permutation(np.flatnonzero(owner == client))
        edges.append(np.stack([order, np.roll(order, 1)]))
        for other in range(client if across else 0):
            ends = [generator.permutation(np.flatnonzero(owner == c)) for c in (client, other)]
            edges.append(np.stack(ends))
    return {
        "x": generator.standard_normal((len(owner), features)).astype(np.float32),
        "edge_index": np.concatenate(edges, axis=1),
        "y": generator.integers(0, 3, len(owner)),
        "owner": owner,
    }


def audited(graph: object, **values: Any) -> Leakage:
    profile = values.pop("profile", "retexo")
    keys = {key.replace("_", "-"): value for key, value in {**KEYS, **values}.items()}
    asked = Asked(values=keys, profile=profile, graph=graph)
    return audit(asked, tell=lambda _: None, quiet=True)


def found_in(leakage: Leakage, attack: str) -> Finding:
    (one,) = (found for found in leakage.findings if found.attack == attack)
    return one


def of_size(finding: Finding, train_nodes: str) -> dict[str, float]:
    (row,) = (row for row in finding.by["by_train_nodes"] if row["train_nodes"] == train_nodes)
    return {"clear": row["clear"], "masked": row["masked"]}


# ---- peers ---------------------------------------------------------------------------------------


def test_peers_find_planted_edges_by_rows_and_not_by_what_crosses_once() -> None:
    graph = planted(clients=3, each=120, features=20)
    found = audited(graph, clients=3, row_bits=8)
    links = found_in(found, "edges inside a part, from rows")
    once = found_in(found, "edges inside a part, --second-rows none")
    assert links.by["attackers"] == once.by["attackers"] == 3
    assert links.clear >= 0.95
    assert links.by["two_together"]["auc, rows"] >= 0.95
    assert links.cut is not None
    # Edges across are the same for all nodes here: they tell nothing.
    assert links.cut == 0.5
    assert abs(once.clear - links.cut) <= 0.05
    assert abs(once.by["two_together"]["auc, rows"] - 0.5) <= 0.05
    found_by_rows = "found at 1 % false alarms, rows"
    assert links.by[found_by_rows] > 0.5
    assert once.by[found_by_rows] < 0.05
    assert {"as asked", "no edges across", "second-rows none"} == found.accuracy.keys()
    assert any("ROC AUC" in warning for warning in found.warnings)


def test_what_a_peer_gets_is_what_crossed_and_not_what_its_owner_has() -> None:
    # Rows of two bits tell less than those of eight, though their owner has the same.
    graph = planted(clients=2, each=60, features=20)
    fine, coarse = (
        found_in(
            audited(graph, clients=2, row_bits=bits),
            "edges inside a part, from rows",
        ).clear
        for bits in (8, 2)
    )
    assert coarse < fine - 0.02


# ---- the server ----------------------------------------------------------------------------------


def test_of_small_clients_the_server_reads_all_and_of_their_sum_nothing() -> None:
    graph = planted(clients=120, each=8, features=16, across=False)
    found = audited(graph, clients=120, model="sage", hidden=16, layers=1)
    labels, rows = (
        of_size(found_in(found, attack), "1")
        for attack in ("labels, from a first update", "a row read, from a first update")
    )
    assert labels["clear"] == 1.0
    # A guess knows how many nodes there are of three classes.
    assert labels["masked"] <= 0.6
    assert rows["clear"] >= 0.99
    assert rows["masked"] <= 0.5
    members = found_in(found, "membership, from an update")
    assert members.by["clients"] == 20
    assert members.clear >= 0.95
    assert members.masked is not None
    assert 0.4 <= members.masked <= 0.6
    (warning,) = (warning for warning in found.warnings if "train nodes" in warning)
    assert re.match(r"\d+ of 120 clients have fewer than 10 train nodes", warning)
    assert any("no two clients see edges" in reason for reason in found.not_played)


def test_of_masked_sums_no_few_train_nodes_are_warned_of() -> None:
    graph = planted(clients=4, each=8, features=4, across=False)
    found = audited(graph, clients=4, layers=1, secure_aggregation="masked")
    assert found.is_masked
    assert not any("train nodes" in warning for warning in found.warnings)
    noised = audited(graph, clients=4, layers=1, secure_aggregation="masked", update_dp=4.0)
    assert [reason for reason in noised.not_played if reason.startswith("noise (update-dp 4)")]
    assert noised.accuracy == found.accuracy


def test_sums_for_a_basis_are_the_features_of_a_single_train_node() -> None:
    graph = planted(clients=12, each=6, features=16, across=False)
    keys = {"clients": 12, "basis": "supervised", "basis_blocks": 2, "basis_rows": "own"}
    found = audited(graph, **keys)
    single = of_size(found_in(found, "features, from sums for a basis"), "1")
    assert single["clear"] == pytest.approx(1.0, abs=1e-6)
    assert single["masked"] < 0.6


def test_watching_changes_nothing(tmp_path: Path) -> None:
    graph = planted(clients=3, each=20, features=4)
    keys = {"clients": 3, **KEYS}
    run = retexo_fl.run(
        graph=graph,
        out=tmp_path / "run",
        profile="retexo",
        quiet=True,
        **{key.replace("-", "_"): value for key, value in keys.items()},
    )
    assert audited(graph, clients=3).accuracy["as asked"] == run.result.test_accuracy


#: Letters of the attacks below, of those that were played.
ATTACKS = {
    "l": "labels, from a first update",
    "f": "features, from sums for a basis",
    "r": "a row read, from a first update",
    "m": "membership, from an update",
    "u": "an update, by leaving its client out",
    "s": "features of one client alone",
    "e": "edges inside a part, from rows",
    "o": "edges inside a part, --second-rows none",
    "c": "single rows under a cover",
}
OTHER_LABELS: dict[str, Any] = {
    "regression": lambda of: {**of, "y": np.linspace(-1, 1, len(of["y"]))},
    "multi-label": lambda of: {**of, "y": np.eye(3, dtype=np.int8)[of["y"]]},
}


@pytest.mark.parametrize(
    ("keys", "played"),
    [
        ({"model": "sage", "profile": "lean"}, "lfrmuseoc"),
        ({"model": "gin"}, "lmuseoc"),
        ({"model": "gat"}, "luseo"),
        ({"model": "dir-sage", "edges_are": "directed"}, "lrmuseo"),
        ({"model": "gcn", "profile": "one-shot"}, "fsec"),
        ({"model": "sage", "local_steps": 2}, "seoc"),
        ({"model": "sage", "task": "regression"}, "seoc"),
        ({"model": "sage", "task": "multi-label"}, "seoc"),
        ({"model": "sage", "task": "links", "split": "random:0.7/0.1/0.2"}, "se"),
        ({"model": "gcn", "boundary_plan": "cover", "aggregator": "median"}, "lrmusec"),
        ({"model": "rel-sage"}, "lrmuse"),
    ],
)
def test_what_is_played_on_each_kind_of_training_and_why_not_the_rest(
    keys: dict[str, Any], played: str
) -> None:
    keys = {"clients": 3, "hidden": 8, "partitioner": "random", **keys}
    graph = bank() if keys["model"] == "rel-sage" else planted(clients=3, each=20, features=6)
    graph = OTHER_LABELS.get(keys.get("task", ""), dict)(graph)
    found = audited(graph, **keys)
    assert {one.attack for one in found.findings} == {ATTACKS[letter] for letter in played}
    why = " ".join(found.not_played)
    assert ("l" in played) or "updates" in why
    assert ("o" in played) or "second-rows: none does not go with" in why


# ---- counted -------------------------------------------------------------------------------------


def test_rows_under_a_cover_are_counted_and_solved_for() -> None:
    graph = planted(clients=3, each=20, features=4)
    asked = Asked(values={**KEYS, "clients": 3}, profile="retexo", graph=graph)
    found = bare_rows(asked.load(settled(asked)).parts)
    assert found is not None
    # Every node has one edge to each client: a cover is of rows, and sums of one.
    assert found.clear == 1.0


# ---- scores --------------------------------------------------------------------------------------


def test_scores_of_attacks() -> None:
    true, false = np.array([0.9, 0.8, 0.2]), np.array([0.7, 0.1, 0.1, 0.1])
    assert auc(true, false) == pytest.approx(11 / 12)
    assert auc(np.ones(5), np.ones(9)) == 0.5
    assert found_at_few_alarms(true, false) == pytest.approx(2 / 3)
    # Of three best two are right, each false one standing for one.
    assert precision_at(true, false, times=1) == pytest.approx(2 / 3)
    # One that stands for ten comes after the two right ones, and is too many.
    assert precision_at(true, false, times=10) == 1.0
    # Who says the same of all finds nothing.
    assert precision_at(np.ones(3), np.ones(9), times=1) == 0.0


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_plays_a_run_and_writes_what_it_found(
    retexo: CommandLine, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "audit"
    options = ("--clients", "2", "--profile", "retexo", "--layers", "1")
    retexo.done("run", "--out", run, *options, *TINY)
    shown = retexo.done("leakage", run, "--out", out, "--quiet")
    assert "labels, from a first update" in shown
    written = json.loads((out / "leakage.json").read_text(encoding="utf-8"))
    page = (out / "leakage.html").read_text(encoding="utf-8")
    assert written["version"] == 1
    assert written["config"]["rounds"] == "2"
    for finding in written["findings"]:
        assert finding["attack"] in page
    assert "--overwrite" in retexo.refused("leakage", run, "--out", out, "--quiet")
    profile = retexo.refused("leakage", run, "--profile", "lean")
    assert profile.startswith("profile: cannot be given with a run")


def test_a_plan_warns_of_few_train_nodes_unless_sums_are_masked(retexo: CommandLine) -> None:
    told = "have fewer than 10 train nodes"
    few = ("plan", "--clients", "50")
    assert told in retexo.done(*few)
    assert told not in retexo.done(*few, "--secure-aggregation", "masked")
    assert told not in retexo.done("plan", "--clients", "3")


def test_a_run_is_warned_of_what_its_plan_warns_of_once(
    retexo: CommandLine, tmp_path: Path
) -> None:
    run, told = tmp_path / "run", "have fewer than 10 train nodes"
    options = ("--clients", "50", "--profile", "retexo", "--layers", "1", *TINY)
    retexo.done("run", "--out", run, *options)
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    (warning,) = (one for one in result["warnings"] if told in one)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["event"] for line in lines if told in line] == ["start"]
    assert (run / "report.html").read_text(encoding="utf-8").count(told) == 1
    assert retexo("run", "--out", tmp_path / "shown", *options).err.count(told) == 1
    planned = json.loads(retexo.done("plan", "--clients", "50", "--json"))
    assert warning in planned["warnings"]
    retexo.done("run", "--out", tmp_path / "masked", *options, "--secure-aggregation", "masked")
    assert told not in (tmp_path / "masked" / "result.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("nowhere",), "expected a folder of parts"),
        (("--algorithm", "standard"), "expected lazy"),
        (("--clients", "1"), "expected 2 or more"),
    ],
)
def test_what_cannot_be_audited_is_one_line(
    retexo: CommandLine, options: tuple[str, ...], told: str
) -> None:
    assert told in retexo.refused("leakage", *options)


def test_a_deployment_is_not_trained_here() -> None:
    with pytest.raises(ConfigurationError, match="deployment"):
        audited(None, clients=2, engine="deployment")
