from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.channels import Channel, MemoryChannel, SharingChannel, SpoolChannel
from retexo_fl.client.api import (
    CollectRequest,
    EvaluateRequest,
    HelloRequest,
    PredictRequest,
    PublishRequest,
    Ticket,
    TrainRequest,
    chain_digest,
)
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import FolderStore, MemoryStore
from retexo_fl.config import RunConfig, make_config
from retexo_fl.errors import (
    LocalProtocolError,
    PartitionError,
)
from retexo_fl.graph import GraphPartition
from retexo_fl.ledger import Traffic
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.training.rounds import run_alone
from retexo_fl.training.stage_model import ModelShape, initial_weights
from tests.support.edge_lists import cut_edges, with_cut_edges

CONFIG = make_config({"clients": 2, "hidden": 8, "model": "gcn"})
FIRST = Ticket(job="job-1", attempt=1, weights_digest=chain_digest(b"", None))


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(CONFIG)


@pytest.fixture(params=[MemoryChannel, SharingChannel])
def channel(request: pytest.FixtureRequest) -> Channel:
    """Clients do not know which one they have."""
    made: Channel = request.param()
    return made


def pair(
    parts: list[GraphPartition], config: RunConfig = CONFIG, channel: Channel | None = None
) -> list[LazyClient]:
    channel = channel or MemoryChannel()
    return [
        LazyClient(part, config, job="job-1", channel=channel, store=MemoryStore())
        for part in parts
    ]


def exchange(clients: list[LazyClient], ticket: Ticket = FIRST) -> None:
    for client in clients:
        client.publish(PublishRequest(ticket=ticket))
    for client in clients:
        assert client.collect(CollectRequest(ticket=ticket)).complete


def weights(config: RunConfig = CONFIG, stage: int = 0) -> np.ndarray:
    shape = ModelShape.of(config, inputs=64, classes=10)
    return initial_weights(shape, stage, seed=0)


def test_hello_tells_sizes(parts: list[GraphPartition]) -> None:
    answers = [client.ask(HelloRequest(ticket=FIRST)) for client in pair(parts)]
    assert [answer.client for answer in answers] == [0, 1]
    assert sum(answer.nodes for answer in answers) == 1797
    assert {(a.features, a.classes, a.num_clients) for a in answers} == {(64, 10, 2)}
    assert answers[0].vectors_out == answers[1].vectors_in > 0


def test_publishing_again_moves_nothing(parts: list[GraphPartition], channel: Channel) -> None:
    client = pair(parts, channel=channel)[0]
    first = client.publish(PublishRequest(ticket=FIRST))
    again = client.publish(PublishRequest(ticket=FIRST))
    assert first.traffic.boundary.payload > 0
    assert again.traffic.boundary.payload == 0
    assert again.vectors == first.vectors


def test_collect_says_what_is_missing_until_it_is_there(
    parts: list[GraphPartition], channel: Channel
) -> None:
    one, other = pair(parts, channel=channel)
    one.publish(PublishRequest(ticket=FIRST))
    waiting = one.collect(CollectRequest(ticket=FIRST))
    assert (waiting.complete, waiting.missing_peers) == (False, 1)
    assert waiting.missing == one.ask(HelloRequest(ticket=FIRST)).vectors_in
    other.publish(PublishRequest(ticket=FIRST))
    assert one.collect(CollectRequest(ticket=FIRST)).complete


def test_what_arrives_after_closing_is_ignored(parts: list[GraphPartition]) -> None:
    ticket = Ticket(job="job-1", attempt=1, round=1, weights_digest=FIRST.weights_digest)
    late, never = pair(parts), pair(parts)
    for clients in (late, never):
        clients[0].publish(PublishRequest(ticket=FIRST))
        clients[0].collect(CollectRequest(ticket=FIRST, close=True))
    late[1].publish(PublishRequest(ticket=FIRST))
    updates = [
        c[0].train_layer(TrainRequest(ticket=ticket, weights=weights())) for c in (late, never)
    ]
    np.testing.assert_array_equal(updates[0].update_sum, updates[1].update_sum)


def test_vectors_of_another_partitioning_are_refused(
    parts: list[GraphPartition], channel: Channel
) -> None:
    other = make_parts(make_config({"clients": 2, "seed": 1}))
    mixed = [
        LazyClient(part, CONFIG, job="job-1", channel=channel, store=MemoryStore())
        for part in (parts[0], other[1])
    ]
    for client in mixed:
        client.publish(PublishRequest(ticket=FIRST))
    with pytest.raises(PartitionError, match="^client 0 .* client 1"):
        mixed[0].collect(CollectRequest(ticket=FIRST))


def test_an_edge_listed_by_one_end_is_refused_alike_by_both(
    parts: list[GraphPartition], channel: Channel
) -> None:
    edges = cut_edges(parts[1])
    clients = pair([parts[0], with_cut_edges(parts[1], edges[1:])], channel=channel)
    for client in clients:
        client.publish(PublishRequest(ticket=FIRST))
    said = f"client 0 .*{len(edges)} edges .*client 1.* {len(edges) - 1};"
    for client in clients:
        with pytest.raises(PartitionError, match=f"^{said}"):
            client.collect(CollectRequest(ticket=FIRST))


def test_a_client_that_lists_no_edge_refuses_those_of_another(
    parts: list[GraphPartition], channel: Channel
) -> None:
    alone = with_cut_edges(parts[1], [])
    clients = pair([parts[0], alone], channel=channel)
    clients[1].publish(PublishRequest(ticket=FIRST))
    assert clients[1].collect(CollectRequest(ticket=FIRST)).complete
    clients[0].publish(PublishRequest(ticket=FIRST))
    assert not clients[0].collect(CollectRequest(ticket=FIRST)).complete
    with pytest.raises(PartitionError, match="^client 0 .*edges .*client 1.* none;"):
        clients[1].collect(CollectRequest(ticket=FIRST))


def test_a_client_may_move_to_another_process_between_messages(
    parts: list[GraphPartition], tmp_path: Path
) -> None:
    """A new object for every message, sharing only folders, answers as one that stays."""

    def moved(index: int) -> LazyClient:
        return LazyClient(
            parts[index],
            CONFIG,
            job="job-1",
            channel=SpoolChannel(tmp_path / "spool"),
            store=FolderStore(tmp_path / str(index)),
        )

    staying = pair(parts)
    exchange(staying)
    for index in (0, 1):
        moved(index).publish(PublishRequest(ticket=FIRST))
    for index in (0, 1):
        assert moved(index).collect(CollectRequest(ticket=FIRST)).complete
    selected = weights()
    digest = chain_digest(FIRST.weights_digest, selected)
    second = Ticket(job="job-1", attempt=1, stage=1, weights_digest=digest)
    publish = PublishRequest(ticket=second, previous_digest=FIRST.weights_digest, weights=selected)
    for index in (0, 1):
        moved(index).publish(publish)
        staying[index].publish(publish)
    for index in (0, 1):
        assert moved(index).collect(CollectRequest(ticket=second)).complete
        assert staying[index].collect(CollectRequest(ticket=second)).complete
    train = TrainRequest(ticket=second, weights=weights(stage=1))
    for index in (0, 1):
        one, other = moved(index).train_layer(train), staying[index].train_layer(train)
        np.testing.assert_array_equal(one.update_sum, other.update_sum)
        assert one.loss_sum == other.loss_sum


def test_what_came_is_told_once_by_whichever_process(
    parts: list[GraphPartition], tmp_path: Path
) -> None:
    channel = SpoolChannel(tmp_path / "spool")
    one, other = (
        LazyClient(part, CONFIG, job="job-1", channel=channel, store=FolderStore(tmp_path / name))
        for part, name in zip(parts[:2], "ab", strict=True)
    )
    for client in (one, other):
        client.publish(PublishRequest(ticket=FIRST))
    moved = LazyClient(
        parts[0], CONFIG, job="job-1", channel=channel, store=FolderStore(tmp_path / "a")
    )
    told = [client.collect(CollectRequest(ticket=FIRST)).traffic for client in (one, moved, one)]
    assert told[0].boundary.messages == 1
    assert told[1:] == [Traffic(), Traffic()]
    # The next attempt has accounts of its own, and other processes.
    again = LazyClient(
        parts[0], CONFIG, job="job-1", channel=channel, store=FolderStore(tmp_path / "a")
    )
    second = replace(FIRST, attempt=2)
    assert again.collect(CollectRequest(ticket=second)).traffic == told[0]


def test_last_evaluation_forgets_the_job(parts: list[GraphPartition], tmp_path: Path) -> None:
    channel, store = SpoolChannel(tmp_path / "spool"), FolderStore(tmp_path / "store")
    one = LazyClient(parts[0], CONFIG, job="job-1", channel=channel, store=store)
    other = LazyClient(parts[1], CONFIG, job="job-1", channel=channel, store=MemoryStore())
    exchange([one, other])
    answer = one.evaluate_layer(
        EvaluateRequest(ticket=FIRST, weights=weights(), nodes="test", last=True)
    )
    assert answer.examples == one.ask(HelloRequest(ticket=FIRST)).test
    assert not (tmp_path / "spool" / "job-1" / "0").exists()
    assert (tmp_path / "spool" / "job-1" / "1").exists()


def test_predict_writes_all_inner_nodes_and_forgets_the_job(
    parts: list[GraphPartition], tmp_path: Path
) -> None:
    config = make_config({"clients": 2, "hidden": 8, "model": "gcn", "layers": 1})
    store = FolderStore(tmp_path / "store")
    channel = MemoryChannel()
    one = LazyClient(
        parts[0], config, job="job-1", channel=channel, store=store, predictions=tmp_path
    )
    other = LazyClient(parts[1], config, job="job-1", channel=channel, store=MemoryStore())
    exchange([one, other])
    last = weights(config)
    test = one.evaluate_layer(EvaluateRequest(ticket=FIRST, weights=last, nodes="test"))
    answer = one.predict(PredictRequest(ticket=FIRST, weights=last, form="npz"))
    assert (answer.test, answer.test_correct) == (test.examples, test.correct)
    with np.load(tmp_path / "predictions-0.npz") as found:
        assert answer.nodes == len(found["key"]) == parts[0].num_inner
        # Keys are whole numbers, and ascend as such.
        order = np.argsort(parts[0].node_keys.astype(int))
        np.testing.assert_array_equal(found["key"], parts[0].node_keys[order])
        rows = np.flatnonzero(parts[0].test_mask[order])
        right = found["class"][rows] == parts[0].labels[order][rows]
    assert int(right.sum()) == test.correct
    assert not (tmp_path / "store").exists()
    with pytest.raises(LocalProtocolError, match="^stage 0: .*expected .*folder"):
        other.predict(PredictRequest(ticket=FIRST, weights=last, form="npz"))


def test_predictions_of_a_stage_before_the_last_are_refused(
    parts: list[GraphPartition], tmp_path: Path
) -> None:
    client = LazyClient(
        parts[0],
        CONFIG,
        job="job-1",
        channel=MemoryChannel(),
        store=MemoryStore(),
        predictions=tmp_path,
    )
    client.publish(PublishRequest(ticket=FIRST))
    client.collect(CollectRequest(ticket=FIRST, close=True))
    with pytest.raises(LocalProtocolError, match="stage 0: .* expected the last stage"):
        client.predict(PredictRequest(ticket=FIRST, weights=weights(), form="csv"))
    assert list(tmp_path.iterdir()) == []


def test_without_exchanges_in_rounds_an_answer_is_one_step(parts: list[GraphPartition]) -> None:
    clients = pair(parts)
    exchange(clients)
    ticket = replace(FIRST, round=1)
    train = TrainRequest(ticket=ticket, weights=weights())
    judge = EvaluateRequest(ticket=ticket, weights=weights(), nodes="validation")
    client = clients[0]
    stepped = client.finished(train, run_alone(client.train_steps(train)), {})
    assert np.array_equal(stepped.update_sum, client.ask(train).update_sum)
    assert run_alone(client.evaluate_steps(judge)) == client.ask(judge)
    assert client.stages == CONFIG.layers
