"""What a server may ask of a client whose owner has said nothing, or something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl import process_memory
from retexo_fl.agent import admission
from retexo_fl.agent.admission import admit, question_limits
from retexo_fl.agent.limits import Limits
from retexo_fl.algorithms import ALGORITHMS
from retexo_fl.answer_book import AnswerBook
from retexo_fl.client.memory_estimate import training_bytes
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import default_values, make_config
from retexo_fl.errors import ConfigurationError, LocalProtocolError
from retexo_fl.graph import GraphPartition
from retexo_fl.process_memory import available_bytes
from retexo_fl.training.stage_model import ModelShape

ANY_ALGORITHM = tuple(ALGORITHMS)
DROP: dict[str, Any] = {"algorithm": "drop", "sampler": "full"}
UPDATES = Limits(allow_algorithms=ANY_ALGORITHM)
ROWS: dict[str, Any] = {"second-rows": "none", "basis": "supervised", "row-dp": 2.0}


@pytest.fixture(scope="module")
def part() -> GraphPartition:
    """Return the second of two, of the digits, with 180 train nodes."""
    return with_train_nodes(
        make_parts(make_config({"clients": 2, "split": "random-unstratified:0.2/0.1/0.7"}))[1], 180
    )


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "available_cores", lambda: 2)


def with_train_nodes(part: GraphPartition, count: int) -> GraphPartition:
    mask = np.zeros_like(part.train_mask)
    mask[np.flatnonzero(part.train_mask)[:count]] = True
    return replace(part, train_mask=mask)


def test_owners_who_say_nothing_take_the_defaults_of_a_run(part: GraphPartition) -> None:
    assert admit(default_values(), part, Limits()) == make_config({})


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        ({"loss": "torch.nn.functional:cross_entropy"}, None),
        ({"rounds": 1000}, Limits()),
        ({"rounds": 1, "last-rounds": 2}, Limits(most_rounds=2)),
        (
            {"clients": 4, "secure-aggregation": "masked"},
            Limits(require_secure_aggregation=True, least_clients=4),
        ),
        ({"clients": 4}, Limits(least_clients=5)),
        ({"second-rows": "none"}, Limits(most_rows="none")),
        ({"second-rows": "none"}, Limits(most_rows="class")),
        ({"second-rows": "class"}, Limits(most_rows="class")),
        (DROP, replace(UPDATES, most_rows="none", max_row_epsilon=1.0)),
        (ROWS, Limits(most_rows="none", max_row_epsilon=2.0)),
        ({}, Limits(least_train_nodes=180)),
        ({"devices": "cpu"}, Limits(allow_devices="cuda:0")),
        ({"threads": 2}, Limits()),
        *(
            pytest.param(*given, marks=pytest.mark.devices)
            for given in (
                ({**DROP, "batch-nodes": 10}, UPDATES),
                ({**DROP, "batch-nodes": 170}, UPDATES),
                ({**DROP, "batch-nodes": 1}, replace(UPDATES, least_train_nodes=1)),
                (DROP, UPDATES),
                ({"devices": "cpu:2"}, Limits()),
                ({"devices": "cuda:3,cpu"}, Limits()),
                ({"devices": "cuda:0"}, Limits(allow_devices="cuda:0,cpu:2")),
            )
        ),
    ],
)
def test_what_is_allowed_is_what_is_trained(
    part: GraphPartition, asked: Mapping[str, Any], limits: Limits | None
) -> None:
    if limits is None:
        limits = Limits(allow_plugins=(asked["loss"],))
    assert admit(asked, part, limits) == make_config(asked)


@pytest.mark.devices
@pytest.mark.parametrize(
    ("own", "allowed", "asked", "used"),
    [
        ("", "auto", "cpu:2", "cpu:2"),
        ("cpu:3", "auto", "cpu:2", "cpu:3"),
        # What the owner has chosen counts, whatever a run says.
        ("cpu", "auto", "cpu:8", "cpu"),
        ("", "auto", "auto", "auto"),
        ("", "cpu:1", "auto", "cpu"),
    ],
)
def test_what_the_machines_owner_says_wins_over_the_run(
    part: GraphPartition, own: str, allowed: str, asked: str, used: str
) -> None:
    limits = Limits(devices=own, allow_devices=allowed)
    assert admit({"devices": asked}, part, limits).devices == used


def test_workers_that_do_not_fit_into_memory_are_not_thought_of(part: GraphPartition) -> None:
    for mib, used in ((4096.0, "auto"), (320.0, "cpu")):
        limits = Limits(most_memory_mib=mib)
        assert admit({"devices": "auto"}, part, limits).devices == used


def test_a_client_without_train_nodes_is_admitted_with_zeros(part: GraphPartition) -> None:
    admit({}, with_train_nodes(part, 0), Limits())
    for count, keys in ((9, {}), (0, {"algorithm": "standard"})):
        with pytest.raises(ConfigurationError, match=f"update .* {count} train nodes; expected"):
            admit(keys, with_train_nodes(part, count), UPDATES)
    admit({}, with_train_nodes(part, 1), Limits(least_train_nodes=1))


def test_predictions_are_held_to_the_same_limits(part: GraphPartition) -> None:
    # Of how a model was trained the server may say anything: its clients are others.
    of_central = {"algorithm": "central", "clients": 2}
    with pytest.raises(ConfigurationError, match="central trains on one client"):
        admit(of_central, part, UPDATES)
    assert admit(of_central, part, UPDATES, predicts=True).algorithm == "central"
    # A job that is called a prediction trains, if the server asks it to.
    for keys in ({"algorithm": "standard"}, {"loss": "os:fork"}):
        with pytest.raises(ConfigurationError, match="^client 1: (algorithm|loss)"):
            admit(keys, part, Limits(), predicts=True)


# ---- memory -------------------------------------------------------------------------------------


def test_the_estimate_is_the_formula_of_the_documents() -> None:
    # docs/edge.md: 50,000 nodes, 16 features, hidden 16.
    config = make_config({"dataset": "synthetic:nodes=2000,edges=4000,features=16", "clients": 1})
    (part,) = make_parts(config)
    nodes, entries = part.num_inner, len(part.indices)
    of_rows = 300e6 + 4 * (6 * nodes * (16 + 64) + 70 * nodes + 13 * entries)
    assert of_rows < training_bytes(config, part) < 1.02 * of_rows


def test_the_estimate_grows_with_what_a_training_holds(part: GraphPartition) -> None:
    def takes(**keys: Any) -> float:
        return training_bytes(make_config({k.replace("_", "-"): v for k, v in keys.items()}), part)

    plain = takes()
    assert takes(dtype="float64") - 300e6 == pytest.approx(2 * (plain - 300e6))
    assert takes(devices="cpu:2") == pytest.approx(plain + 2 * 160e6)
    assert takes(layers=4, algorithm="standard") > takes(layers=4)
    assert takes(model="gat", heads=8) > takes(model="gat", heads=1)


def test_a_control_group_bounds_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "groups" / "system.slice" / "retexo-agent.service"
    group.mkdir(parents=True)
    named = tmp_path / "cgroup"
    named.write_text("0::/system.slice/retexo-agent.service\n")
    monkeypatch.setattr(process_memory, "_CONTROL_GROUP", named)
    monkeypatch.setattr(process_memory, "_CONTROL_GROUPS", tmp_path / "groups")
    (group / "memory.max").write_text("max\n")
    whole = available_bytes()
    assert whole > 2**27
    (group.parent / "memory.max").write_text(f"{2**27}\n")
    assert available_bytes() == 2**27
    (group / "memory.max").write_text(f"{2**20}\n")
    assert available_bytes() == 2**20
    named.unlink()
    assert available_bytes() == whole


# ---- questions ----------------------------------------------------------------------------------


def book_of(stages: int, most_rounds: int, **keys: Any) -> AnswerBook:
    """Return the book of a job that has answered nothing."""
    book = AnswerBook()
    config = make_config({name.replace("_", "-"): value for name, value in keys.items()})
    shape = ModelShape.of(config, inputs=4, classes=2)
    book.limit(question_limits(config, shape, stages=stages, most_rounds=most_rounds))
    return book


def ask(book: AnswerBook, question: str, *place: int, weights: bytes = b"w") -> None:
    attempt, stage, number = place
    book.enter(question, (attempt, stage, number, 0), weights, client=3)


def test_a_round_that_is_asked_with_other_weights_is_another_one() -> None:
    """A later attempt may ask for it; it counts as often as it differs."""
    book = book_of(2, 2)
    ask(book, "train.layer", 1, 0, 1)
    ask(book, "train.layer", 2, 0, 1)
    ask(book, "train.layer", 3, 0, 1, weights=b"v")
    for stage in (0, 1, 1):
        ask(book, "train.layer", 4, stage, 1)
    for number, weights in ((1, b"u"), (2, b"w")):
        with pytest.raises(LocalProtocolError, match="^client 3: stage 0: .* more than 2 updates"):
            ask(book, "train.layer", 5, 0, number, weights=weights)
    # What was given once may be asked for again, as after a restart of the server.
    ask(book, "train.layer", 5, 0, 1, weights=b"v")


def test_judgements_are_counted_like_updates() -> None:
    book = book_of(1, 1)
    for question in ("evaluate.layer validation", "evaluate.layer test", "train.layer"):
        for _ in range(2):
            ask(book, question, 1, 0, 1)
    for question in ("evaluate.layer validation", "evaluate.layer test"):
        with pytest.raises(LocalProtocolError, match="client 3: stage 0: .* than 2 evaluations"):
            ask(book, question, 1, 0, 2)


def test_what_is_no_question_about_nodes_is_not_counted() -> None:
    book = book_of(1, 1)
    for number in range(5):
        ask(book, "query.labels", 1, 7, number)


def test_sums_of_features_are_asked_for_as_often_as_a_basis_takes() -> None:
    book = book_of(2, 9, basis="supervised", basis_blocks=2)
    for attempt in (1, 2):
        ask(book, "query.basis", attempt, 0, 0)
        ask(book, "query.basis", attempt, 0, 1)
        ask(book, "query.basis", attempt, 0, 2)
    for stage in (0, 1):
        with pytest.raises(LocalProtocolError, match="client 3: .*more than 3 sums .*basis-blocks"):
            ask(book, "query.basis", 3, stage, 1, weights=b"v")
    ask(book, "query.basis", 3, 0, 2)
    with pytest.raises(LocalProtocolError, match="more than 0 sums of features"):
        ask(book_of(2, 9), "query.basis", 1, 0, 0)


def test_sums_of_products_are_asked_for_once_and_of_one_basis() -> None:
    book = book_of(2, 9, solver="ridge")
    for attempt in (1, 1, 2):
        ask(book, "query.gram", attempt, 1, 0)
    with pytest.raises(LocalProtocolError, match="client 3: .*products more often than 1 time;"):
        ask(book, "query.gram", 3, 1, 0, weights=b"v")
    with pytest.raises(LocalProtocolError, match="products more often than 0 times"):
        ask(book_of(2, 9), "query.gram", 1, 1, 0)


def test_rounds_of_candidates_count(part: GraphPartition) -> None:
    asked = {"rounds": 10, "candidates": "auto"}
    assert admit(asked, part, Limits(most_rounds=21)).rounds == 10
    with pytest.raises(ConfigurationError, match="candidates: auto may take a layer 20 rounds; ex"):
        admit(asked, part, Limits(most_rounds=20))
    # Where nothing can be tried, nothing is counted.
    admit({**asked, "local-steps": 2}, part, Limits(most_rounds=10))
