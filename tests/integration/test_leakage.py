"""Attacks that an audit plays reach what they must on planted graphs, and a guess without it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import retexo_fl
from retexo_fl.api.settling import Asked, settled
from retexo_fl.client.api import TrainRequest
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.run_memory import GraphSize
from retexo_fl.errors import ConfigurationError, TrainingDiverged
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.leakage import audit as audits
from retexo_fl.leakage.audit import audit
from retexo_fl.leakage.counted import bare_rows
from retexo_fl.leakage.figures import Finding, Leakage
from retexo_fl.leakage.influence import play_influence
from retexo_fl.leakage.memory import kept_bytes, predicting_bytes
from retexo_fl.leakage.page import render
from retexo_fl.leakage.peer_attacks import dense, play_on_active_peer
from retexo_fl.leakage.product_members import members_from_products
from retexo_fl.leakage.scores import (
    auc,
    drawn_limit,
    found_at_few_alarms,
    guess_limit,
    precision_at,
)
from retexo_fl.leakage.server_attacks import play_on_server
from retexo_fl.leakage.watch import Products, Watch
from retexo_fl.simulation.inline_engine import run_clients
from retexo_fl.training.ridge import gram_sums
from retexo_fl.updates import UpdateKey
from retexo_fl.updates.masked import MaskedUpdates, NoisedUpdates
from tests.support.cli import TINY, CommandLine
from tests.support.planted import planted
from tests.support.typed_graphs import bank

KEYS: dict[str, Any] = {
    **{"model": "gcn", "layers": 2, "hidden": 32, "dropout": 0.0, "rounds": 2},
    **{"partitioner": "attribute:owner", "split": "random:0.25/0.25/0.5"},
}

CLIP = 0.5


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


@pytest.mark.system
def test_peers_find_planted_edges_by_rows_and_not_by_what_crosses_once() -> None:
    graph = planted(clients=3, each=120, features=20)
    found = audited(graph, clients=3, row_bits=8)
    links = found_in(found, "edges inside a part, from rows")
    active = found_in(found, "edges inside a part, from rows beside faint ones")
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
    # A peer that sends next to nothing reads others' neighbours better.
    assert active.clear >= 0.95
    assert active.by["test figure"] > 0
    assert active.by[found_by_rows] > active.by["honest"][found_by_rows] + 0.1
    assert active.cut == 0.5
    assert once.by[found_by_rows] < 0.05
    # A class here is no more than what a part is: it tells no edge either.
    classes = found_in(found, "edges inside a part, --second-rows class")
    assert abs(classes.by[found_by_rows] - once.by[found_by_rows]) <= 0.05
    ways = {"as asked", "no edges across", "second-rows class", "second-rows none"}
    assert ways == found.accuracy.keys()
    assert any("ROC AUC" in warning for warning in found.warnings)


@pytest.mark.slow
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


@pytest.mark.system
def test_of_small_clients_the_server_reads_all_and_of_their_sum_nothing() -> None:
    graph = planted(clients=120, each=12, features=20, across=False)
    found = audited(graph, clients=120, cohort_size=60, model="sage", hidden=16, layers=1)
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
    # Of clients of so few candidates many are tried, since the area over one's is off by .2.
    assert members.by["clients"] > 80
    assert members.by["standard_error"] < 0.03
    assert members.clear >= 0.95
    # What a sum of so few train nodes tells: test_members_of_sums.py has more of them.
    assert members.masked is not None
    assert 0.55 <= members.masked <= 0.65
    (warning,) = (warning for warning in found.warnings if "train nodes" in warning)
    assert re.match(r"\d+ of 120 clients have fewer than 10 train nodes", warning)
    assert any("no two clients see edges" in reason for reason in found.not_played)


def test_of_masked_sums_no_few_train_nodes_are_warned_of() -> None:
    graph = planted(clients=4, each=8, features=4, across=False)
    found = audited(graph, clients=4, layers=1, secure_aggregation="masked")
    assert found.is_masked
    assert not any("train nodes" in warning for warning in found.warnings)


def test_noise_is_played_as_the_server_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The same noise each time: the area over so few candidates has an error of .03.
    monkeypatch.setattr("retexo_fl.client.factory.secret_in", lambda path: bytes(32))
    monkeypatch.setattr("retexo_fl.federation.job_state.secrets.token_hex", lambda size: "0" * 12)
    graph = planted(clients=4, each=80, features=256, across=False)
    keys = {"clients": 4, "model": "sage", "layers": 1, "hidden": 16}
    found = audited(graph, **keys, secure_aggregation="masked", update_dp=0.3)
    members = found_in(found, "membership, from an update")
    # Of four clients a sum tells members, masked or not.
    assert members.clear >= 0.95
    assert members.by["masked_without_noise"] >= 0.95
    assert members.masked is not None
    assert 0.45 <= members.masked <= 0.55
    noised = {one.attack: one for one in found.findings if "masked_without_noise" in one.by}
    assert noised.keys() == {ATTACKS[letter] for letter in "lrmu"}
    for one in noised.values():
        assert "one sum a layer of 2 noised ones in all" in one.note
    # A guess is of what sums tell without noise.
    labels = noised[ATTACKS["l"]]
    assert labels.guess == labels.by["masked_without_noise"]


def test_products_for_a_regression_are_the_row_of_a_single_train_node() -> None:
    graph = planted(clients=12, each=6, features=16, across=False)
    found = audited(graph, clients=12, profile="one-shot")
    labels, rows = (
        found_in(found, f"{what}, from products for a regression") for what in ("labels", "rows")
    )
    assert labels.clear == 1.0
    # Of the few train nodes of a cohort it tells more than what all clients together have.
    assert labels.guess <= 0.6 < of_size(labels, "1")["masked"] < 1.0
    assert of_size(rows, "1") == {"clear": 1.0, "masked": 0.0}
    assert rows.guess == 0.0


def test_noised_products_are_played_as_the_server_reads_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The same noise each time.
    monkeypatch.setattr("retexo_fl.client.factory.secret_in", lambda path: bytes(32))
    monkeypatch.setattr("retexo_fl.federation.job_state.secrets.token_hex", lambda size: "0" * 12)
    graph = planted(clients=12, each=6, features=16, across=False)
    keys = {"clients": 12, "profile": "one-shot", "update_dp": 1.0, "update_dp_clip": 1.0}
    found = audited(graph, **keys)
    assert found.is_masked
    labels, rows = (
        found_in(found, f"{what}, from products for a regression") for what in ("labels", "rows")
    )
    # Of one train node a client's own sums are its row in the column of its class.
    assert of_size(labels, "1")["clear"] == 1.0
    assert of_size(rows, "1") == {"clear": 1.0, "masked": 0.0}
    for one in (labels, rows):
        assert "Played on one noised sum, whose" in one.note
    # Without noise lengths of sums tell more of a cohort than of all clients; with it, less.
    assert labels.guess <= 0.6 < labels.by["masked_without_noise"]
    assert labels.masked is not None
    assert labels.masked < labels.by["masked_without_noise"] - 0.05


def test_noised_products_hide_of_whom_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    # The same noise each time.
    monkeypatch.setattr("retexo_fl.client.factory.secret_in", lambda path: bytes(32))
    monkeypatch.setattr("retexo_fl.federation.job_state.secrets.token_hex", lambda size: "0" * 12)
    graph = planted(clients=4, each=80, features=64, across=False)
    keys = {"clients": 4, "profile": "one-shot", "update_dp": 0.3, "update_dp_clip": 1.0}
    members = found_in(audited(graph, **keys), ATTACKS["n"])
    assert members.by["clients"] == 4
    assert members.clear >= 0.95
    # A sum has 2,272 values, and 80 train nodes.
    assert members.by["masked_without_noise"] >= 0.95
    assert members.masked is not None
    assert 0.45 <= members.masked <= 0.55


def test_members_are_found_in_sums_of_theirs_alone() -> None:
    generator = np.random.default_rng(0)
    products, unrelated = {}, {}
    for client in range(6):
        rows, labels = generator.standard_normal((80, 12)), generator.integers(0, 3, 80)
        sums, of_last = (gram_sums(rows[i], labels[i], 3) for i in (slice(20), slice(60, None)))
        products[client] = Products(
            sums=sums,
            rows=rows[:20],
            labels=labels[:20],
            others=rows[20:60],
            other_labels=labels[20:60],
        )
        unrelated[client] = replace(products[client], sums=of_last)

    def found(of: dict[int, Products]) -> Finding:
        watch = cast("Watch", SimpleNamespace(products=of, together=lambda client: range(6)))
        one = members_from_products(watch, 3, seed=0)
        assert one is not None
        return one

    own, other = found(products), found(unrelated)
    assert own.chance == other.chance
    assert own.chance is not None
    assert other.masked is not None
    assert own.masked is not None
    assert other.masked < own.chance < own.masked
    # 130 values of 20 train nodes, and of 120.
    assert own.clear >= 0.95
    assert 0.7 <= own.masked <= own.clear - 0.1
    assert other.clear == pytest.approx(0.5, abs=0.06)
    assert other.masked == pytest.approx(0.5, abs=0.06)
    assert members_from_products(cast("Watch", SimpleNamespace(products={})), 3, seed=0) is None


#: With fewer questions than an audit asks.
FEW_QUESTIONS = "retexo_fl.leakage.influence._QUESTIONS"


@pytest.mark.parametrize(
    "keys",
    [
        {"secure_aggregation": "masked"},
        pytest.param({"update_dp": 8.0}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_row_that_is_changed_between_predictions_tells_links_by_three_layers(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    monkeypatch.setattr(FEW_QUESTIONS, 6)
    graph = planted(clients=3, each=40, features=16)
    leakage = audited(graph, **{"clients": 3, "layers": 3, "hidden": 16, "rounds": 1, **keys})
    found = found_in(leakage, "edges inside a part, from repeated predictions")
    assert 0.95 <= found.clear <= 1.0
    assert found.chance is not None
    assert 0.5 < found.chance < 0.75
    assert found.by["exchanges"] == 3
    assert found.by["predictions"] == 7
    assert found.cut == 0.5


@pytest.mark.parametrize(("layers", "reached"), [(3, 1.0), (2, 0.5)])
def test_of_rows_that_change_a_peer_leaves_out_what_its_own_edges_explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: int, reached: float
) -> None:
    monkeypatch.setattr(FEW_QUESTIONS, 6)
    # Of two clients there is no third one whose edges the peer does not know.
    graph = planted(clients=2, each=40, features=16)
    keys = {**KEYS, "clients": 2, "layers": layers, "rounds": 1}
    options = {key.replace("-", "_"): value for key, value in keys.items()}
    run = retexo_fl.run(graph=graph, out=tmp_path / "run", profile="retexo", quiet=True, **options)
    asked = Asked(values=keys, profile="retexo", graph=graph)
    config = settled(asked)
    found, why = play_influence(config, run.path, asked.load(config).parts, quiet=True)
    assert not why
    assert found is not None
    # Two layers tell nothing beyond edges that the peer knows: no other row changes.
    assert found.clear == reached
    assert found.chance is not None
    assert (found.clear > found.chance) == (layers == 3)


def test_a_peer_cannot_choose_rows_of_nodes_without_features() -> None:
    graph = planted(clients=3, each=20, features=4)
    del graph["x"]
    found = audited(graph, clients=3, layers=3, rounds=1)
    assert not any("repeated predictions" in one.attack for one in found.findings)
    told = [reason for reason in found.not_played if "no features that a peer could" in reason]
    assert [reason.partition(":")[0] for reason in told] == [
        "edges from repeated predictions",
        "edges from rows beside faint ones",
    ]


def test_of_masked_sums_an_audit_plays_what_the_server_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, dict[int, np.ndarray]] = {"masked": {}, "noised": {}}
    read = {"masked": MaskedUpdates(), "noised": NoisedUpdates(CLIP)}
    watches: list[Watch] = []
    how = "masked"
    summed, played = MaskedSums.summed, play_on_server

    def noted(self: MaskedSums, request: Any, answers: Any, facts: Any) -> Any:
        if isinstance(request, TrainRequest) and request.ticket.round == 1:
            for cohort in self.cohorts:
                _, answer = summed(replace(self, cohorts=(cohort,)), request, answers, facts)
                key = UpdateKey(seed=0, job=request.ticket.job, stage=0, round=1, client=0)
                total = read[how].decode_update(answer.update_sum, key, request.steps or b"")
                assert isinstance(total, np.ndarray)
                # Of an audit's first training alone, which is the one as asked.
                opened[how] = dict.fromkeys(cohort.members, total) | opened[how]
        return summed(self, request, answers, facts)

    def watched(watch: Watch, *args: Any, **keys: Any) -> Any:
        watches.append(watch)
        return played(watch, *args, **keys)

    monkeypatch.setattr(MaskedSums, "summed", noted)
    monkeypatch.setattr("retexo_fl.leakage.audit.play_on_server", watched)
    # Who has train nodes, and who has others, decides of cohorts, too.
    graph = planted(clients=9, each=6, features=8, across=False)
    keys = {"clients": 9, "cohort_size": 3, "model": "sage", "layers": 1, "hidden": 8}
    options = {key.replace("-", "_"): value for key, value in KEYS.items()}
    masked = {**options, **keys, "secure_aggregation": "masked", "profile": "retexo"}
    retexo_fl.run(graph=graph, out=tmp_path / "run", quiet=True, **masked)
    # Played in the clear: what is opened differs by the grid of masked numbers alone.
    audited(graph, **keys, secure_aggregation="masked")
    how = "noised"
    audited(graph, **keys, update_dp=4.0, update_dp_clip=CLIP)
    clear, noised, without_noise = watches
    for watch, sums, near in ((clear, opened["masked"], 1e-5), (noised, opened["noised"], 1e-9)):
        assert sorted(sums) == list(range(9))
        assert len({total.tobytes() for total in sums.values()}) == 2
        first = watch.rounds[0][0]
        for client, total in sums.items():
            assert first.total_of(watch.together(client)) == pytest.approx(total, abs=near)
    assert without_noise.rounds[0][0].total_of(range(9)) != pytest.approx(
        noised.rounds[0][0].total_of(range(9)), abs=1e-3
    )


def test_of_too_few_clients_for_masks_an_audit_says_so() -> None:
    found = audited(planted(clients=2, each=20, features=4), clients=2)
    assert any("masked sums: 2 clients; expected 3" in reason for reason in found.not_played)
    for one in found.findings:
        assert one.masked is None or one.attack == ATTACKS["s"]
        assert all(row["masked"] is None for row in one.by.get("by_train_nodes", []))
    assert "labels, from a first update" in render(found)


def test_a_comparison_that_diverges_does_not_end_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = audits._train

    def diverges(*args: Any, **keys: Any) -> float:
        if args[3].name == "rows-class":
            raise TrainingDiverged("round 1: loss is no number")
        return trained(*args, **keys)

    monkeypatch.setattr(audits, "_train", diverges)
    found = audited(planted(clients=3, each=20, features=4), clients=3)
    told = "edges from rows with --second-rows class: round 1: loss is no number"
    assert told in found.not_played
    assert "second-rows none" in found.accuracy
    assert "second-rows class" not in found.accuracy


def test_an_active_peer_reads_exchanges_in_which_all_took_part(tmp_path: Path) -> None:
    graph = planted(clients=2, each=60, features=8)
    values = {**KEYS, "clients": 2, "out": str(tmp_path / "run")}
    asked = Asked(values=values, profile="retexo", graph=graph)
    config = settled(asked)
    parts = asked.load(config).parts
    watch = Watch(config, keeps_updates=False)
    run_clients(config, watch.watching(InProcessClients(parts, config).find))
    whole = dict(watch.crossed)
    partly = {**whole, 9: {1: whole[0][1]}}
    found, other = (play_on_active_peer(0, of, of, parts, seed=0) for of in (whole, partly))
    assert found is not None
    assert found == other


@pytest.mark.slow
def test_of_two_layers_or_rows_that_cross_once_it_is_said_why_predictions_are_not_played() -> None:
    graph = planted(clients=3, each=20, features=4)
    two = audited(graph, clients=3)
    assert any("repeated predictions: with 2 layers" in reason for reason in two.not_played)
    once = audited(graph, clients=3, layers=3, second_rows="none")
    assert any("rows cross once" in reason for reason in once.not_played)
    assert not any("with 3 layers" in warning for warning in once.warnings)


def test_an_audit_that_does_not_fit_is_refused_before_it_trains(retexo: CommandLine) -> None:
    told = retexo.refused("leakage", "--dataset", "synthetic:nodes=100000000", "--clients", "3")
    assert told.startswith("memory: an audit takes about")


def test_memory_is_of_what_is_kept(tmp_path: Path) -> None:
    graph = planted(clients=3, each=300, features=200)
    values = {**KEYS, "clients": 3, "layers": 3, "out": str(tmp_path / "run")}
    asked = Asked(values=values, profile="retexo", graph=graph)
    config = settled(asked)
    parts = asked.load(config).parts
    watch = Watch(config, keeps_updates=True)
    clients = InProcessClients(parts, config)
    run_clients(config, watch.watching(clients.find))
    inputs = [
        one for of in (watch.crossed, watch.inputs) for by in of.values() for one in by.values()
    ]
    kept = sum(rows.numpy().nbytes for one in inputs for rows in (one.own, one.received))
    estimated = kept_bytes(config, GraphSize.of(parts))
    assert kept <= estimated <= 2 * kept
    crossed = [one for by in watch.crossed.values() for one in by.values()]
    predicted = sum(rows.numpy().nbytes for one in crossed for rows in (one.own, one.received))
    third = watch.crossed[2].values()
    predicted += sum(rows.numpy().nbytes for one in third for rows in (one.own, one.received))
    predicted += 2 * max(dense(one.received).nbytes for one in third)
    assert predicted <= predicting_bytes(config, GraphSize.of(parts)) <= 2 * predicted
    fewer = settled(replace(asked, values={**asked.values, "layers": 2}))
    assert predicting_bytes(fewer, GraphSize.of(parts)) == 0


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
    "k": "edges inside a part, --second-rows class",
    "c": "single rows under a cover",
    "a": "edges inside a part, from rows beside faint ones",
    "p": "labels, from products for a regression",
    "q": "rows, from products for a regression",
    "n": "membership, from products for a regression",
}
OTHER_LABELS: dict[str, Any] = {
    "regression": lambda of: {**of, "y": np.linspace(-1, 1, len(of["y"]))},
    "multi-label": lambda of: {**of, "y": np.eye(3, dtype=np.int8)[of["y"]]},
}


@pytest.mark.parametrize(
    ("keys", "played"),
    [
        ({"model": "sage", "profile": "lean"}, "lfrmuseaokc"),
        ({"model": "gin"}, "lmuseaokc"),
        ({"model": "gat"}, "luseaok"),
        pytest.param(
            {"model": "dir-sage", "edges_are": "directed"}, "lrmuseaok", marks=pytest.mark.slow
        ),
        ({"model": "gcn", "profile": "one-shot"}, "fpqnseac"),
        ({"model": "sage", "local_steps": 2}, "seaokc"),
        ({"model": "sage", "task": "regression"}, "seaoc"),
        pytest.param({"model": "sage", "task": "multi-label"}, "seaoc", marks=pytest.mark.slow),
        ({"model": "sage", "task": "links", "split": "random:0.7/0.1/0.2"}, "sea"),
        pytest.param(
            {"model": "gcn", "boundary_plan": "cover", "aggregator": "median"},
            "lrmuseac",
            marks=pytest.mark.slow,
        ),
        ({"model": "rel-sage"}, "lrmusea"),
        ({"model": "rel-sage", "unlabelled_types": "refined"}, "lmusea"),
        ({"model": "rel-sage", "profile": "lean", "basis_rows": "far"}, "lfmusea"),
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
    assert ("p" in played) or "products" in why or "updates" in why
    links = keys.get("task") == "links"
    assert f"repeated predictions: {'not played over links' if links else 'with 2 layers'}" in why
    assert ("o" in played) or "second-rows: none does not go with" in why
    assert ("k" in played) or "second-rows: class does not go with" in why


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


def test_a_guess_exceeds_its_limit_in_5_of_100_audits() -> None:
    generator = np.random.default_rng(0)
    counts = [(2, 3), (10, 20), (30, 4)]
    limit = guess_limit(counts)
    groups = [
        (generator.normal(size=n), generator.normal(at, size=m)) for at, (n, m) in enumerate(counts)
    ]
    drawn = drawn_limit(groups, generator)
    exceeded = np.zeros(2)
    for _ in range(2000):
        guessed = [
            (scores[:n], scores[n:])
            for group, (n, _) in zip(groups, counts, strict=True)
            for scores in [generator.permutation(np.concatenate(group))]
        ]
        exceeded[0] += np.mean([auc(*one) for one in guessed]) > limit
        exceeded[1] += auc(*map(np.concatenate, zip(*guessed, strict=True))) > drawn
    assert exceeded / 2000 == pytest.approx(0.05, abs=0.02)
    # Where scores and shares of true ones differ by group alone, a guess does well.
    high, low = generator.normal(9, size=20), generator.normal(size=20)
    assert drawn_limit([(high[:18], high[18:]), (low[:2], low[2:])], generator) > 0.85
    # Of two and two candidates nothing is above guessing.
    assert guess_limit([(2, 2)]) == 1.0


def test_verdicts_are_of_what_the_server_reads() -> None:
    finding = Finding(
        attack="members",
        reader="server",
        measure="ROC AUC",
        guess=0.5,
        clear=0.9,
        masked=0.52,
        chance=0.55,
    )
    rows = Finding(
        attack="edges", reader="peers", measure="ROC AUC", guess=0.5, clear=0.95, cut=0.89
    )
    found = Leakage(
        config={},
        dataset="",
        is_masked=True,
        findings=(finding, rows, replace(finding, attack="labels", chance=None)),
        accuracy={},
        warnings=(),
        not_played=(),
    )
    limit = "guessing, which exceeds 0.55 in 5 of 100 audits"
    more = "edges: 0.95 is 0.06 more than by edges across alone"
    assert found.verdicts() == [f"members: 0.52 masked is not above {limit}", more]
    clear = replace(found, is_masked=False)
    assert clear.verdicts() == [f"members: 0.90 is above {limit}", more]
    assert f">{more}.</p>" in render(clear)


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_plays_a_run_and_writes_what_it_found(
    retexo: CommandLine, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "audit"
    options = ("--clients", "2", "--profile", "retexo", "--layers", "1")
    retexo.done("run", "--out", run, *options, *TINY)
    shown = retexo.done("leakage", run, "--out", out, "--quiet")
    assert "labels, from a first update" in shown
    assert re.search(r"^verdict: membership, from an update: 0\.\d\d is (not )?above", shown, re.M)
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
