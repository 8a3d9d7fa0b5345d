"""Profiles: sets of keys that files and options override."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from retexo_fl.client.preparation import graph_facts, make_parts
from retexo_fl.config import default_values, make_config
from retexo_fl.config.profiles import PROFILES, GraphFacts
from tests.support.cli import CommandLine
from tests.support.data import cora_dir


def written(run: str) -> dict[str, object]:
    return tomllib.loads((Path(run) / "config.toml").read_text())


def facts_of(dataset: str) -> GraphFacts:
    return graph_facts(make_parts(make_config({"dataset": dataset, "clients": 2})))


def test_facts_of_a_graph_are_those_of_its_parts_together() -> None:
    words = "synthetic:nodes=300,edges=4500,classes=2,features=40,words=12,signal=0.5"
    one, five = (
        graph_facts(make_parts(make_config({"dataset": words, "clients": clients})))
        for clients in (1, 5)
    )
    assert one == five
    assert (one.nodes, one.edges, one.features, one.classes) == (300, 4_500, 40, 2)


def test_a_profile_gives_way_to_a_file_and_both_to_options(retexo: CommandLine) -> None:
    Path("keys.toml").write_text("rounds = 3\npatience = 2\nclients = 3\nhidden = 8\n")
    retexo.done(
        *("run", "--profile", "lean", "--config", "keys.toml", "--patience", "0"),
        *("--update-bits", "4", "--out", "run", "--quiet"),
    )
    # The digits have 64 features, all of them of use, and the layer reads and makes as many.
    fitted = {"basis-rows": "sums", "basis-blocks": 7, "boundary-plan": "cover"}
    own = {"rounds": 3, "patience": 0, "update-bits": 4, "clients": 3, "hidden": 8}
    found = {key: value for key, value in written("run").items() if key != "out"}
    assert found == {
        **{key: value for key, value in default_values().items() if key in found},
        **PROFILES["lean"],
        **fitted,
        **own,
    }


def test_what_was_chosen_is_not_fitted(retexo: CommandLine) -> None:
    Path("keys.toml").write_text("basis-blocks = 2\n")
    tiny = ("--rounds", "1", "--hidden", "4", "--profile", "lean")
    retexo.done("run", *tiny, "--config", "keys.toml", "--out", "one", "--quiet")
    assert written("one")["basis-blocks"] == 2
    ended = retexo("run", *tiny, "--basis-blocks", "3", "--basis-rows", "own", "--out", "two")
    assert (written("two")["basis-blocks"], written("two")["basis-rows"]) == (3, "own")
    assert "profile lean, as asked: as it is (" in ended.err


def test_the_profile_is_fitted_to_the_graph(retexo: CommandLine) -> None:
    words = "synthetic:nodes=300,edges=4500,classes=2,features=40,words=12,signal=0.5"
    tiny = ("--dataset", words, "--rounds", "1", "--hidden", "4", "--clients", "2")
    ended = retexo("run", *tiny, "--profile", "lean", "--out", "run")
    assert ended.code == 0
    assert written("run")["basis-rows"] == "choose"
    told = re.search(r"^profile lean, as asked: (.+?) \((.+)\)$", ended.err, re.MULTILINE)
    assert told is not None
    assert told.groups() == (
        "basis-rows choose",
        f"{facts_of(words).train_nodes} train nodes, 40 features with 7.4 entries in a row, "
        "mean degree 30",
    )


def test_few_coordinates_are_not_for_gin(retexo: CommandLine) -> None:
    cora = ("--dataset", "cora", "--data-dir", str(cora_dir()), "--split", "random:0.2/0.1/0.7")
    for model in ("gcn", "sage", "gin", "gat"):
        ended = retexo("plan", "--profile", "lean", "--model", model, *cora)
        told = " ".join(ended.out.split())
        assert ("basis-blocks 3" in told) == (model in {"gcn", "sage"}), told


@pytest.mark.parametrize(
    ("more", "profile"),
    [
        ((), "lean"),
        (("--model", "gcn", "--partitioner", "louvain", "--seed", "3"), "lean"),
        (("--model", "sage-pool"), "retexo"),
        (("--model", "gat", "--optimizer", "lbfgs", "--rounds", "1"), "lean"),
        (("--model", "gin", "--local-steps", "2"), "lean"),
        (("--layers", "3"), "lean"),
        (("--layers", "4"), "retexo"),
        (("--layers", "4", "--model", "gcn"), "lean"),
        (("--algorithm", "standard"), "end-to-end"),
        (("--learning-rate", "0.1"), "retexo"),
        # What lean training has itself, or where it leaves room.
        (("--update-bits", "2", "--sampler", "none", "--optimizer", "lbfgs"), "lean"),
        (("--config", "keys.toml"), "retexo"),
    ],
)
def test_lean_is_the_default_where_all_keys_go_with_it(
    retexo: CommandLine, more: tuple[str, ...], profile: str
) -> None:
    Path("keys.toml").write_text("dropout = 0.1\n")
    graph = "synthetic:nodes=150,edges=600,classes=3,features=24,words=8,signal=0.5"
    tiny = ("run", "--rounds", "1", "--hidden", "8", "--quiet", "--dataset", graph, *more)
    retexo.done(*tiny, "--out", "one")
    retexo.done(*tiny, "--out", "other", "--profile", profile)
    one, other = written("one"), written("other")
    assert one | {"out": ""} == other | {"out": ""}
    of_server = "lbfgs" if one["local-steps"] == 1 else "adam"
    assert one["optimizer"] == (of_server if profile == "lean" else "adam")


def test_a_profile_is_planned_as_it_is_run(retexo: CommandLine) -> None:
    dense = retexo.done("plan", "--profile", "retexo", "--json")
    own = ("--profile", "lean", "--basis-blocks", "2")
    lean = retexo.done("plan", *own, "--basis-rows", "own", "--json")
    assert lean != dense
    # Dense features: sums fit them.
    sums = retexo.done("plan", *own, "--json")
    first = {
        name: json.loads(facts)["plans"]["rows"]["first_exchange"]
        for name, facts in {"dense": dense, "lean": lean, "sums": sums}.items()
    }
    assert first["sums"] == first["dense"] != first["lean"]


def test_what_is_no_profile_is_refused(retexo: CommandLine, tmp_path: Path) -> None:
    told = retexo.refused("run", "--profile", "thin", "--out", "run")
    assert told == "profile: got 'thin'; expected one of retexo, lean, one-shot, end-to-end"
    assert list(tmp_path.iterdir()) == []
    retexo.refused("plan", "--profile", "")


def test_a_resumed_run_has_its_own(retexo: CommandLine, tmp_path: Path) -> None:
    retexo.done("run", "--rounds", "1", "--hidden", "4", "--out", "run", "--quiet")
    (tmp_path / "run" / "result.json").unlink()
    told = retexo.refused("run", "--resume", "run", "--profile", "lean")
    assert told.startswith("profile: cannot be given with --resume")


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_is_a_configuration(name: str) -> None:
    make_config(PROFILES[name])
