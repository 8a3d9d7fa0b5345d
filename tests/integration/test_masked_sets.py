"""What a server that asks as it likes learns of one client: nothing beside its cohort's sums.

Each attack has once told one client's counts, exactly. The clients are real, and so are their
owners' keys; the server asks each by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.channels import MemoryChannel
from retexo_fl.client import schema
from retexo_fl.client.answers import sum_facts
from retexo_fl.client.api import (
    QUESTIONS,
    CollectAnswer,
    CollectRequest,
    PublishAnswer,
    PublishRequest,
    Request,
    chain_digest,
)
from retexo_fl.client.client import GraphClient
from retexo_fl.client.moved import moved_length
from retexo_fl.client.part import ClientPart, without_peers
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.config import RunConfig, config_values, make_config
from retexo_fl.errors import (
    AgreementError,
    ExchangeIncomplete,
    LocalProtocolError,
    PartitionError,
    RemoteProtocolError,
    SecureAggregationRefused,
    TrainingDiverged,
)
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.graph import GraphPartition
from retexo_fl.ledger import Traffic
from retexo_fl.masking.agreement import Agreement, Cohort, simulated
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.training.layer_trainer import LayerTrainer
from tests.support import adversary
from tests.support.adversary import Adversary

CLIENTS, VICTIM = 8, 3
OTHERS = tuple(client for client in range(CLIENTS) if client != VICTIM)


@pytest.fixture
def server(tmp_path: Path) -> Adversary:
    found = Adversary.in_one_process(tmp_path, CLIENTS)
    found.meet()
    return found


def reads(whole: np.ndarray, less: np.ndarray, of_victim: np.ndarray) -> bool:
    """Say whether two sums differ by what the victim counts."""
    return np.array_equal((whole - less)[: len(of_victim)], of_victim)


def test_the_sum_over_all_is_what_they_count(server: Adversary) -> None:
    """Else nothing below would be shown."""
    everyone = [server.class_counts(client) for client in range(CLIENTS)]
    found = server.asked(server.labels(), range(CLIENTS))
    assert found.tolist() == np.sum(everyone, axis=0).tolist()
    for use, request in (
        ("train", server.train()),
        ("validation", server.evaluate("validation")),
        ("test", server.evaluate("test")),
    ):
        total = sum(server.nodes(client, use) for client in range(CLIENTS))
        assert server.asked(request, range(CLIENTS))[0] == total > 0


def test_a1_another_attempt_is_over_the_same_clients(server: Adversary) -> None:
    whole = server.asked(server.labels(), range(CLIENTS))
    server.greet(2)
    with pytest.raises(SecureAggregationRefused, match="the owners agreed on clients 0, 1, 2, 3"):
        server.hand_out(2, OTHERS)
    server.meet(2)
    less = server.asked(server.labels(attempt=2), OTHERS)
    assert not reads(whole, less, server.class_counts(VICTIM))


@pytest.mark.parametrize(
    "values",
    [
        {"mask-asked": b"\xf7"},
        {"mask-opens": True},
        {"mask-trial": 1},
        {"mask-beside": True},
    ],
)
@pytest.mark.parametrize("kind", ["train.layer", "evaluate.layer", "query.labels"])
def test_a2_to_a5_a_server_says_neither_who_is_asked_nor_what_is_opened(
    server: Adversary, kind: str, values: dict[str, Any]
) -> None:
    requests = {
        "train.layer": server.train(),
        "evaluate.layer": server.evaluate("test"),
        "query.labels": server.labels(),
    }
    told, array = schema.flatten(requests[kind])
    assert schema.rebuild(type(requests[kind]), told, array).ticket == requests[kind].ticket
    with pytest.raises(RemoteProtocolError, match=next(iter(values))):
        schema.rebuild(type(requests[kind]), told | values, array)


def test_a2_a4_a6_a7_nobody_is_asked_to_open_anything() -> None:
    assert not any(name in QUESTIONS for name in ("open", "finish"))
    told = {item.name for question in QUESTIONS.values() for item in fields(question.answer)}
    assert "shares" not in told


PURPOSES: dict[str, Callable[[Adversary, int], Request[Any]]] = {
    "counts": lambda server, number: server.part_counts(number=number),
    "labels": lambda server, number: server.labels(number=number),
    "train": lambda server, number: server.train(number=number),
    "validation": lambda server, number: server.evaluate("validation", number=number),
    "test": lambda server, number: server.evaluate("test", number=number),
}


@pytest.mark.parametrize(("first", "then"), [*combinations(PURPOSES, 2), ("train", "train")])
def test_a3_a5_other_purposes_and_rounds_are_over_the_same_clients(
    server: Adversary, first: str, then: str
) -> None:
    """Of the others alone any question tells noise, whatever was asked of all."""
    server.asked(PURPOSES[first](server, 1), range(CLIENTS))
    less = server.asked(PURPOSES[then](server, 2), OTHERS)
    counted = {
        "labels": np.sum([server.class_counts(client) for client in OTHERS], axis=0),
        "counts": np.array([sum(server.parts[client].num_inner for client in OTHERS)]),
        **{
            use: np.array([sum(server.nodes(client, use) for client in OTHERS)])
            for use in ("train", "validation", "test")
        },
    }
    assert less[: len(counted[then])].tolist() != counted[then].tolist()


def test_a4_a_question_that_is_repeated_has_the_same_bytes_or_is_refused(
    server: Adversary,
) -> None:
    first = server.ask(server.train(number=2), range(CLIENTS))
    again = server.ask(server.train(number=2), OTHERS)
    assert all(again[client].beside == first[client].beside for client in OTHERS)
    assert all(np.array_equal(again[c].numbers, first[c].numbers) for c in OTHERS)
    server.weights = server.weights + np.float32(1)
    for request in (server.train(number=2), server.train(number=1)):
        with pytest.raises(SecureAggregationRefused, match="this or a later sum was answered"):
            server.ask(request, OTHERS)


def test_a6_every_client_has_masks_with_all_of_its_cohort(server: Adversary) -> None:
    """So that of no set of others the answers add up to what they count."""
    request = server.labels()
    answers = server.ask(request, range(CLIENTS))
    for size in range(1, CLIENTS):
        for some in combinations(range(CLIENTS), size):
            found = server.counts(request, [answers[client] for client in some])
            counted = np.sum([server.class_counts(client) for client in some], axis=0)
            assert found.tolist() != counted.tolist(), some
    with pytest.raises(AgreementError, match="has 68 clients; expected 65 at most"):
        Agreement(cohorts=(Cohort(members=tuple(range(68)), uses=frozenset()),), seed=bytes(32))
    roles = dict.fromkeys(range(68), frozenset({"train", "nodes"}))
    assert max(len(cohort.members) for cohort in simulated(roles, seed=0).cohorts) <= 6


def test_a7_nothing_that_a_server_may_choose_decides_whom_masks_are_with(
    server: Adversary,
) -> None:
    """It once drew who opens a sum by numbering its trials."""
    for number in range(1, 9):
        request = server.labels(number=number)
        answers = server.ask(request, range(CLIENTS))
        for client in range(CLIENTS):
            rest = [answer for other, answer in answers.items() if other != client]
            counted = sum(server.class_counts(other) for other in range(CLIENTS) if other != client)
            assert server.counts(request, rest).tolist() != np.asarray(counted).tolist()


@pytest.mark.parametrize("uses", ["", "test", "test validation"])
def test_to_sums_of_other_uses_all_of_a_cohort_add_zeros(tmp_path: Path, uses: str) -> None:
    """Even where only some of them lack nodes of that use: the server could tell these apart."""
    server = Adversary.in_one_process(tmp_path, CLIENTS)
    server.meet(uses=uses)
    labels = server.asked(server.labels(), range(CLIENTS)).reshape(3, -1).sum(axis=1)
    request = server.train()
    found = {
        "train": server.asked(request, range(CLIENTS))[0],
        "validation": server.asked(server.evaluate("validation"), range(CLIENTS))[0],
        "test": server.asked(server.evaluate("test"), range(CLIENTS))[0],
    }
    nodes, *parts = server.asked(server.part_counts(), range(CLIENTS))[:4]
    assert nodes == 0
    for use, counted, of_parts in zip(found, labels, parts, strict=True):
        total = sum(server.nodes(client, use) for client in range(CLIENTS))
        assert found[use] == counted == of_parts == (total if use in uses else 0), use
    assert not server.update(request, range(CLIENTS)).any()


def broken(*given: Any, **named: Any) -> Any:
    raise MemoryError(f"the data: {given}{named}")


@pytest.mark.parametrize("kind", PURPOSES)
@pytest.mark.parametrize("way", ["values", "computing"])
def test_a8_nothing_is_refused_by_what_a_client_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, way: str
) -> None:
    """Refusals told whose count is above a bound: 68 questions, the whole class histogram."""
    server = Adversary.in_one_process(tmp_path, CLIENTS)
    server.meet()
    if way == "values":
        # Their products are no finite numbers.
        server.weights = np.full_like(server.weights, 3e38)
    if way == "computing":
        monkeypatch.setattr(LayerTrainer, "update", broken)
        monkeypatch.setattr(LayerTrainer, "evaluate", broken)
        monkeypatch.setattr(ClientPart, "class_counts", broken)
        monkeypatch.setattr(GraphClient, "_told_counts", broken)
    request = PURPOSES[kind](server, 1)
    answers = server.ask(request, range(CLIENTS))
    assert len({(len(a.numbers), len(a.beside), a.lacks_weights) for a in answers.values()}) == 1
    lengths = sum_facts(server.config, 3, update=len(server.weights) if kind == "train" else 0)
    whole = MaskedSums(cohorts=server.agreement.cohorts)
    if way == "values" and kind in {"counts", "labels"}:
        whole.summed(request, answers, lengths)
        return
    with pytest.raises(
        TrainingDiverged, match=r"[1-9]\d* values? of all clients could not be"
    ) as told:
        whole.summed(request, answers, lengths)
    assert "the data" not in str(told.value)


def test_a8_a_part_that_does_not_fit_is_named_without_its_edges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(config: RunConfig) -> list[GraphPartition]:
        return [without_peers(p) if p.client == VICTIM else p for p in make_parts(config)]

    monkeypatch.setattr(adversary, "make_parts", made)
    server = Adversary.in_one_process(tmp_path, CLIENTS)
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    ticket = server.ticket()
    for client in server.clients:
        client.ask(PublishRequest(ticket=ticket))
    with pytest.raises(PartitionError) as told:
        server.clients[VICTIM].ask(CollectRequest(ticket=ticket))
    sentence = "its part and a peer's do not fit together; the log of its agent says where"
    assert str(told.value) == sentence
    assert "lists none; an edge must stand in both parts" in caplog.text


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_a8_rows_that_are_not_finite_are_sent_and_counted(tmp_path: Path, value: float) -> None:
    server = Adversary.in_one_process(tmp_path, CLIENTS, {"layers": 2})
    server.meet()
    first, weights = server.ticket(), np.full_like(server.weights, value)
    digest = chain_digest(first.weights_digest, weights)
    ticket = replace(first, stage=1, weights_digest=digest)
    asked = PublishRequest(ticket=ticket, previous_digest=first.weights_digest, weights=weights)
    assert {*map(repr, (client.ask(asked) for client in server.clients))} == {repr(PublishAnswer())}
    told = {
        c: client.ask(CollectRequest(ticket=ticket)).moved
        for c, client in enumerate(server.clients)
    }
    ((_, moved),) = MaskedSums(cohorts=server.agreement.cohorts).moved(CollectRequest, told)
    assert moved.cut > 0


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_a8_values_of_an_update_that_are_not_finite_are_counted_as_cut(tmp_path: Path) -> None:
    """Each local step leads 10**4 times as far as the one before it; the last one too far."""
    steps = {"local-steps": 11, "local-optimizer": "sgd", "local-learning-rate": 10.0}
    server = Adversary.in_one_process(tmp_path, CLIENTS, {**steps, "proximal-mu": 1000.0})
    server.meet()
    answers = server.ask(server.train(), server.everyone)
    cut = server.added(server.train(), answers.values()).signed()[1][-1]
    # Of updates that could not be computed there were one for each client.
    assert CLIENTS < cut <= CLIENTS * len(server.weights)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"local-learning-rate": 1e-2},
        {"dropout": 0.5},
        {"feature-normalisation": "row"},
        {"seed": 1},
        {"threads": 2},
        {"proximal-mu": 0.5},
        # It says where a client computes, which is its own to say.
        {"devices": "cpu"},
    ],
)
def test_a11_a_client_with_another_configuration_is_in_no_sum(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    """All but one with a step of nothing, the sum over all was that one's."""
    steps = {"local-steps": 2, "local-optimizer": "sgd", "local-learning-rate": 1e-30}
    server = Adversary.in_one_process(tmp_path, CLIENTS, steps, of_one={VICTIM: keys})
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    everyone = np.sum([server.class_counts(client) for client in range(CLIENTS)], axis=0)
    is_bound = bool(keys.keys() - {"devices"})
    found = server.asked(server.labels(), range(CLIENTS))
    assert np.array_equal(found, everyone) != is_bound
    # Nor does it send its peers other rows, whichever name the server has for them.
    other = make_config({**config_values(server.config), **keys})
    for first in (server.first(), server.first(other)):
        request = PublishRequest(ticket=server.ticket(digest=first))
        if is_bound and first == server.first():
            with pytest.raises(LocalProtocolError, match="this client's configuration or agr"):
                server.clients[VICTIM].ask(request)
        else:
            server.clients[VICTIM].ask(request)
    for client in OTHERS:
        server.clients[client].ask(PublishRequest(ticket=server.ticket()))
    for client in OTHERS:
        told = server.clients[client].ask(CollectRequest(ticket=server.ticket()))
        assert told.complete == (not is_bound or VICTIM not in server.parts[client].peers)


@pytest.mark.parametrize("codec", ["lossless", "fixed"])
def test_a12_bytes_vectors_and_rounding_are_told_in_a_sum_over_the_cohort_or_not_at_all(
    tmp_path: Path, codec: str
) -> None:
    """A row costs 4 bytes beyond a threshold of the server's choice: it counted rows by them."""
    server = Adversary.in_one_process(tmp_path, CLIENTS, {"codec": codec})
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    ticket = server.ticket()
    assert {*(c.ask(PublishRequest(ticket=ticket)) for c in server.clients)} == {PublishAnswer()}
    answers = [client.ask(CollectRequest(ticket=ticket)) for client in server.clients]
    told = {client: answer.moved for client, answer in enumerate(answers)}
    assert all(a == CollectAnswer(complete=True, moved=told[c]) for c, a in enumerate(answers))
    assert {len(content or b"") for content in told.values()} == {
        8 + 8 * moved_length(CollectRequest)
    }
    whole = MaskedSums(cohorts=server.agreement.cohorts)
    ((members, moved),) = whole.moved(CollectRequest, told)
    both = moved.by_purpose["exchange"]
    assert members == tuple(range(CLIENTS))
    assert (moved.vectors, both.sent, both.received) == in_the_clear(server)
    # The others' alone is noise: one of 19 numbers is below 0.
    less = MaskedSums(cohorts=(Cohort(members=OTHERS, uses=frozenset()),))
    with pytest.raises(RemoteProtocolError, match="add up to less than 0"):
        next(less.moved(CollectRequest, told))
    assert server.clients[VICTIM].ask(CollectRequest(ticket=ticket)).moved == told[VICTIM]


def in_the_clear(server: Adversary) -> tuple[int, Traffic, Traffic]:
    """Return vectors and bytes that the same parts exchange without masks."""
    config = replace(server.config, secure_aggregation="none")
    channel, ticket = MemoryChannel(), server.ticket()
    ticket = replace(ticket, weights_digest=chain_digest(b"", None))
    clients = [
        LazyClient(part, config, job=ticket.job, channel=channel, store=MemoryStore())
        for part in server.parts
    ]
    sent = [client.ask(PublishRequest(ticket=ticket)) for client in clients]
    come = [client.ask(CollectRequest(ticket=ticket)) for client in clients]
    vectors = sum(answer.vectors for answer in sent)
    assert vectors > 0
    left = sum((answer.traffic for answer in sent), start=Traffic())
    return vectors, left, sum((answer.traffic for answer in come), start=Traffic())


def test_a13_a_client_that_lacks_vectors_answers_no_sum(tmp_path: Path) -> None:
    """Two jobs whose exchanges differ by one client's vectors differed by what those do."""
    server = Adversary.in_one_process(tmp_path, CLIENTS)
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    ticket = server.ticket()
    for client in OTHERS:
        server.clients[client].ask(PublishRequest(ticket=ticket))
    lacking = [client for client in OTHERS if VICTIM in server.parts[client].peers]
    assert lacking
    for client in lacking:
        asked = server.clients[client]
        with pytest.raises(SecureAggregationRefused, match="to train without vectors of some"):
            asked.ask(CollectRequest(ticket=ticket, close=True))
        assert not asked.ask(CollectRequest(ticket=ticket)).complete
        with pytest.raises(ExchangeIncomplete):
            asked.ask(server.train())
    server.clients[VICTIM].ask(PublishRequest(ticket=ticket))
    assert all(
        client.ask(CollectRequest(ticket=ticket, close=True)).complete for client in server.clients
    )
    server.ask(server.train(), range(CLIENTS))
