"""From what is asked for to one configuration: what wins, what is counted, what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import retexo_fl
from retexo_fl.api.settling import Asked, masked_if_possible, settled
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.config.profiles import PROFILES
from retexo_fl.errors import ConfigurationError
from retexo_fl.graph import write_partitions


def test_what_is_said_last_wins(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("rounds = 7\nhidden = 24\n")
    lean = PROFILES["lean"]
    assert lean["rounds"] not in {7, 200}
    config = settled(Asked(values={"hidden": 12}, file=file, profile="lean"))
    assert (config.rounds, config.hidden, config.patience) == (7, 12, lean["patience"])
    plain = settled(Asked())
    assert (plain.rounds, plain.hidden) == (make_config({}).rounds, make_config({}).hidden)


def test_there_are_as_many_clients_as_parts_where_nobody_says(tmp_path: Path) -> None:
    parts = make_parts(make_config({"clients": 3}))
    write_partitions(parts, tmp_path / "parts")
    handed = settled(Asked(parts=parts))
    assert (handed.clients, handed.graph_name) == (3, "parts")
    assert settled(Asked(values={"partitions": str(tmp_path / "parts")})).clients == 3
    named: Any = SimpleNamespace(name="cities")
    assert settled(Asked(graph=named, values={"clients": 4})).dataset == "cities"
    for name in ("", 3):
        assert settled(Asked(graph=SimpleNamespace(name=name))).dataset == "graph"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"graph": 1, "values": {"dataset": "digits"}}, "dataset: cannot be given with graph"),
        ({"graph": 1, "values": {"nodes": "n.csv"}}, "nodes: cannot be given with graph"),
        ({"parts": [1], "values": {"partitioner": "metis"}}, "partitioner: .* parts, which are"),
        ({"parts": [1], "values": {"split": "random:0.5/0.2/0.3"}}, "split: cannot be given"),
        ({"parts": [1], "values": {"partitions": "p"}}, "partitions: cannot be given with parts"),
        (
            {"values": {"partitions": "p", "dataset": "digits"}},
            "dataset: cannot be given with partitions",
        ),
        (
            {"values": {"nodes": "n.csv", "edges": "e.csv", "data-dir": "d"}},
            "data-dir: cannot be given with nodes and edges",
        ),
        ({"values": {"engine": "deployment"}}, "clients: missing; expected how many"),
        ({"values": {"algorithm": "central", "clients": 2}}, "clients: .*central"),
    ],
)
def test_what_contradicts_each_other_is_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        settled(Asked(**asked))


def test_edges_of_parts_are_split_when_they_are_trained_on() -> None:
    split = "random:0.5/0.2/0.3"
    values = {"task": "links", "model": "gcn", "split": split}
    parts = make_parts(make_config({"clients": 2}))
    assert settled(Asked(parts=parts, values=values)).split == split


def test_a_file_names_no_run_to_resume(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('resume = "run"\n')
    with pytest.raises(ConfigurationError, match="resume: expected on the command line only"):
        settled(Asked(file=file))


def test_sums_are_masked_where_nobody_chose_and_it_can_be_done() -> None:
    config = make_config({"clients": 4})
    masked, told = masked_if_possible(config, {})
    assert masked.secure_aggregation == "masked"
    assert told.startswith("secure-aggregation masked: ")
    chosen = {"secure-aggregation": "none"}
    assert masked_if_possible(config, chosen) == (config, "")
    few = make_config({"clients": 2})
    kept, told = masked_if_possible(few, {"clients": 2}, seen="summary")
    assert kept == few
    assert told.startswith("secure-aggregation none: the server sees each client's summary (masked")


SMALL: dict[str, Any] = {
    **{"dataset": "synthetic:nodes=60,edges=120,classes=3,features=9", "model": "gcn"},
    **{"clients": 3, "hidden": 4, "rounds": 4, "split": "random:0.4/0.3/0.3"},
}
KEEPS, LEAVES = "--profile lean keeps it", "lean does not go with it"


@pytest.mark.parametrize(
    ("keys", "chosen", "advice"),
    [
        ({"optimizer": "sgd"}, "optimizer = sgd was", KEEPS),
        # Lean training without the key is what it is compared with.
        ({"codec": "dense"}, "codec = dense was", LEAVES),
        (
            {"optimizer": "sgd", "warm_start": False},
            "warm-start = false and optimizer = sgd were",
            KEEPS,
        ),
        (
            {"optimizer": "sgd", "dropout": 0.5, "learning_rate": 1, "warm_start": False},
            "warm-start = false, optimizer = sgd, learning-rate = 1.0 and 1 more were",
            KEEPS,
        ),
        # Without it there is nothing to compare with.
        ({"task": "links", "split": None}, "task = links was", LEAVES),
    ],
)
def test_a_plan_says_why_lean_training_was_left_and_what_it_would_move(
    keys: dict[str, Any], chosen: str, advice: str
) -> None:
    lean = retexo_fl.plan(**SMALL)["profiles"]["lean"]["payload_at_most"]
    told = retexo_fl.plan(**SMALL | keys)["profile"]
    assert told["why"] == f"since {chosen} chosen"
    assert told["advice"] == advice
    assert told["payload_at_most"] > lean
    assert told.get("lean_at_most") == (None if "task" in keys else lean)
