"""Two agents' services in one process: what is asked twice, at once, or of a killed agent."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import multiprocessing
import os
import time
import traceback
import weakref
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent import jobs as jobs_module
from retexo_fl.agent import service as service_module
from retexo_fl.agent import wire
from retexo_fl.agent.job import AgentJob
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.client.api import (
    CollectRequest,
    EvaluateRequest,
    HelloRequest,
    PublishRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.peering import relay_request
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import FolderStore
from retexo_fl.config import make_config
from retexo_fl.errors import (
    ChannelUnavailable,
    ConfigurationError,
    ExchangeIncomplete,
    LocalProtocolError,
    RemoteProtocolError,
    StaleAttempt,
)
from retexo_fl.exchange.parcels import STREAM_BYTES, Parcel, ParcelKind
from retexo_fl.graph import BoundaryPlan, GraphPartition
from retexo_fl.ledger import TrafficLedger
from retexo_fl.simulation.interleaved_clients import InterleavedClients
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.updates import weights_name
from tests.support.agent_ends import FIRST, JOB, LAZY, ROUND, Ends, ends, read_announcement
from tests.support.forked_workers import forked_workers  # noqa: F401 - a fixture
from tests.support.limits import PERMISSIVE_LIMITS
from tests.support.peer_networks import until
from tests.unit.graph.test_edge_values import small_parts


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config(LAZY))


def in_process(parts: list[GraphPartition], **keys: Any) -> list[TrainAnswer]:
    config = make_config({**LAZY, **keys})
    clients = InProcessClients(parts, config)
    find: Any = clients.find
    if config.traits.exchanges_in_rounds:
        find = InterleavedClients(find, 2).find
    found = [find(JOB, client) for client in (0, 1)]
    for client in found:
        client.ask(PublishRequest(ticket=FIRST))
    for client in found:
        assert client.ask(CollectRequest(ticket=FIRST)).complete
    shape = ModelShape.of(config, inputs=64, classes=10)
    weights = Schedule(shape=shape).initial(0, seed=0)
    return [client.ask(TrainRequest(ticket=ROUND, weights=weights)) for client in found]


def test_the_log_says_what_a_layer_does_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "retexo_fl.agent"):
        asyncio.run(_hello(tmp_path, small_parts(), model="sage-pool"))
    told = [message for message in caplog.messages if "not used" in message]
    assert told == ["model sage-pool: weights and attributes of edges not used"]
    assert f"begun job={JOB} attempt=1 algorithm=lazy model=sage-pool" in caplog.messages


async def _hello(root: Path, parts: list[GraphPartition], **keys: Any) -> None:
    with ends(root, parts, **keys) as both:
        await both.ask(0, HelloRequest(ticket=Ticket(job=JOB, attempt=1)))


def assert_same_rounds(one: list[TrainAnswer], other: list[TrainAnswer]) -> None:
    for first, second in zip(one, other, strict=True):
        assert first.update_sum.tobytes() == second.update_sum.tobytes()
        assert replace(first, update_sum=np.empty(0)).training_traffic == second.training_traffic
        for name in ("loss_sum", "validation_loss_sum", "examples", "validation_traffic"):
            assert getattr(first, name) == getattr(second, name), name


@pytest.mark.parametrize(
    "keys",
    [
        *({"algorithm": algorithm} for algorithm in ("lazy", "standard", "bns", "drop")),
        pytest.param(
            {"algorithm": "drop", "sampler": "neighbour", "fanouts": "4/3", "local-steps": 2},
            marks=pytest.mark.devices,
        ),
    ],
)
def test_agents_answer_as_clients_of_one_process_do(
    tmp_path: Path, parts: list[GraphPartition], keys: dict[str, Any]
) -> None:
    async def train(both: Ends) -> list[TrainAnswer]:
        await both.exchange()
        return await both.both(TrainRequest(ticket=ROUND, weights=both.weights()))

    with ends(tmp_path, parts, **keys) as both:
        answers = asyncio.run(train(both))
    assert_same_rounds(answers, in_process(parts, **keys))


def test_the_server_hears_the_bytes_of_an_exchange_once(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    async def run(both: Ends) -> list[Any]:
        await both.both(HelloRequest(ticket=FIRST))
        published = await both.both(PublishRequest(ticket=FIRST))
        again = await both.both(PublishRequest(ticket=FIRST))
        assert published == again
        collected = [await both.ask(c, CollectRequest(ticket=FIRST, wait_s=20.0)) for c in (0, 1)]
        # The sum of the attempt each time: an answer that is lost takes nothing with it.
        assert await both.both(CollectRequest(ticket=FIRST)) == collected
        assert published[0].traffic == collected[1].traffic
        assert published[1].traffic == collected[0].traffic
        return published

    with ends(tmp_path, parts) as both:
        published = asyncio.run(run(both))
    clients = InProcessClients(parts, make_config(LAZY))
    for client in (0, 1):
        assert clients.find(JOB, client).publish(PublishRequest(ticket=FIRST)) == published[client]
        text = (tmp_path / str(client) / "traffic" / f"{JOB}.csv").read_text()
        ledger = TrafficLedger.from_csv(text.splitlines())
        sent = ledger.sum(direction="out", peer=1 - client, kind="boundary")
        assert sent == published[client].traffic.boundary


def test_bytes_of_a_lost_answer_are_told_again_after_a_kill(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    collect = CollectRequest(ticket=FIRST, wait_s=20.0)

    async def exchange(both: Ends) -> Any:
        await both.exchange()
        return await both.both(collect)

    with ends(tmp_path, parts) as both:
        collected = asyncio.run(exchange(both))
    with ends(tmp_path, parts) as again:
        assert asyncio.run(again.both(collect)) == collected
    assert [answer.traffic.boundary.messages for answer in collected] == [1, 1]


def test_a_block_lost_to_a_power_cut_is_sent_when_asked_for(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    async def publish(both: Ends) -> None:
        await both.both(HelloRequest(ticket=Ticket(job=JOB, attempt=FIRST.attempt)))
        await both.ask(0, PublishRequest(ticket=FIRST))

    async def publish_other(again: Ends) -> list[Any]:
        await again.ask(1, PublishRequest(ticket=FIRST))
        # The server asks everybody, again and again; nobody is asked to publish a second time.
        asked = CollectRequest(ticket=FIRST, wait_s=20.0)
        return [await again.ask(client, asked) for client in (0, 1)]

    # No network yet: nothing is delivered before the power goes.
    first = Ends(tmp_path, parts, LAZY)
    asyncio.run(publish(first))
    for service in first.services:
        service.close()
    (block,) = (tmp_path / "0" / "depot" / "outbox").glob("*/*/*.frames")
    block.write_bytes(b"")
    with ends(tmp_path, parts) as again:
        answers = asyncio.run(publish_other(again))
    assert all(answer.complete for answer in answers)


def test_a_question_that_is_asked_twice_is_computed_once(
    tmp_path: Path, parts: list[GraphPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    from retexo_fl.training.layer_trainer import LayerTrainer

    counted = itertools.count()
    update = LayerTrainer.update

    def counting(*args: Any, **keys: Any) -> Any:
        next(counted)
        return update(*args, **keys)

    monkeypatch.setattr(LayerTrainer, "update", counting)

    async def run(both: Ends) -> None:
        await both.exchange()
        asked = TrainRequest(ticket=ROUND, weights=both.weights())
        answers = await asyncio.gather(*(both.ask(0, asked) for _ in range(5)))
        answers.append(await both.ask(0, asked))
        assert len({answer.update_sum.tobytes() for answer in answers}) == 1
        assert next(counted) == 1
        await both.ask(0, replace(asked, ticket=replace(ROUND, round=2)))
        assert next(counted) == 3

    with ends(tmp_path, parts) as both:
        asyncio.run(run(both))


@pytest.mark.parametrize("algorithm", ["lazy", "standard"])
def test_an_agent_that_is_made_again_goes_on(
    tmp_path: Path,
    parts: list[GraphPartition],
    algorithm: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ends(tmp_path, parts, algorithm=algorithm) as both:
        asyncio.run(both.exchange())
    with (
        caplog.at_level(logging.INFO, "retexo_fl.agent"),
        ends(tmp_path, parts, algorithm=algorithm) as again,
    ):
        assert caplog.messages.count(f"restored job={JOB} attempt=1") == 2
        asked = TrainRequest(ticket=ROUND, weights=again.weights())
        answers = asyncio.run(again.both(asked))
    assert_same_rounds(answers, in_process(parts, algorithm=algorithm))


def test_a_round_cut_off_is_computed_again_from_what_peers_sent(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    """Client 1 ends its round; client 0 is lost in the middle and begins again."""

    async def alone(both: Ends) -> None:
        await both.exchange()
        asked = TrainRequest(ticket=ROUND, weights=both.weights())
        running = asyncio.ensure_future(both.ask(0, asked))
        await both.ask(1, asked)
        await asyncio.wait({running})

    with ends(tmp_path, parts, algorithm="bns") as both:
        asyncio.run(alone(both))
    with ends(tmp_path, parts, algorithm="bns") as again:
        asked = TrainRequest(ticket=ROUND, weights=again.weights())
        answer = asyncio.run(again.ask(0, asked))
    expected = in_process(parts, algorithm="bns")[0]
    assert_same_rounds([answer], [expected])


def test_a_later_message_ends_a_round_that_waits(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    async def run(both: Ends) -> None:
        await both.exchange()
        asked = TrainRequest(ticket=ROUND, weights=both.weights())
        waiting = await both.begin(0, asked)
        await both.ask(0, HelloRequest(ticket=Ticket(job=JOB, attempt=2)))
        with pytest.raises(StaleAttempt, match="client 0: round 1, forward-1: superseded"):
            await waiting
        with pytest.raises(StaleAttempt, match="attempt 1 was superseded by attempt 2"):
            await both.ask(0, asked)

    with ends(tmp_path, parts, algorithm="standard") as both:
        asyncio.run(run(both))


def test_a_wait_for_what_has_not_arrived_ends_with_a_later_message(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    async def run(both: Ends) -> None:
        await both.both(HelloRequest(ticket=Ticket(job=JOB, attempt=1)))
        await both.ask(0, PublishRequest(ticket=FIRST))
        waiting = asyncio.ensure_future(both.ask(0, CollectRequest(ticket=FIRST, wait_s=25.0)))
        (job,) = both.jobs[0].running
        await until(lambda: job.message == "collect")
        from_peer = BoundaryPlan.from_partition(parts[0]).peer(1).receive.count
        assert job.awaited() == {1: (1, from_peer * 64 * 4)}
        await asyncio.wait_for(both.ask(0, HelloRequest(ticket=replace(FIRST, attempt=2))), 15)
        assert not (await waiting).complete

    with ends(tmp_path, parts) as both:
        asyncio.run(run(both))


def test_an_exchange_is_closed_when_its_time_is_over_and_not_before(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    async def collect(both: Ends, attempt: int, wait_s: float) -> Any:
        first = replace(FIRST, attempt=attempt)
        await both.both(HelloRequest(ticket=Ticket(job=JOB, attempt=attempt)))
        await both.ask(0, PublishRequest(ticket=first))
        asked = CollectRequest(ticket=first, wait_s=wait_s, close=True)
        waiting = asyncio.ensure_future(both.ask(0, asked))
        if wait_s > 1:
            await until(lambda: both.jobs[0].running[0].message == "collect")
            # It has looked, and would be found closed after a kill.
            await asyncio.sleep(0.15)
            store = FolderStore(both.root / "0" / "jobs" / JOB / "store")
            assert store.missing_peers(0, FIRST.weights_digest) is None
            await both.ask(1, PublishRequest(ticket=first))
        found = await waiting
        train = TrainRequest(ticket=replace(first, round=1), weights=both.weights())
        assert (await both.ask(0, train)).examples
        return found

    for folder, wait_s in (("early", 0.2), ("late", 25.0)):
        with ends(tmp_path / folder, parts, **{"missing-peers": "drop"}) as both:
            assert asyncio.run(collect(both, 1, wait_s)).missing_peers == (wait_s < 1)


def test_a_message_of_an_earlier_attempt_ends_nothing(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    async def run(both: Ends) -> None:
        await both.exchange()
        later = replace(ROUND, attempt=2)
        asked = TrainRequest(ticket=later, weights=both.weights())
        waiting = await both.begin(0, asked)
        with pytest.raises(StaleAttempt, match="attempt 1 was superseded by attempt 2"):
            await both.ask(0, replace(asked, ticket=ROUND))
        await both.ask(1, asked)
        await waiting

    with ends(tmp_path, parts, algorithm="standard") as both:
        asyncio.run(asyncio.wait_for(run(both), 100))


def test_who_waits_for_an_agent_that_stops_is_told_nothing_final(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    async def run(both: Ends) -> None:
        await both.exchange()
        asked = TrainRequest(ticket=ROUND, weights=both.weights())
        waiting = await both.begin(0, asked)
        both.services[0].close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with ends(tmp_path, parts, algorithm="standard") as both:
        asyncio.run(asyncio.wait_for(run(both), 100))


def test_a_job_that_is_forgotten_while_it_computes_ends_by_name(
    tmp_path: Path, parts: list[GraphPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = AgentJob.answer

    with ends(tmp_path, parts, layers=1) as both:

        def forgetting(job: AgentJob, request: wire.Request) -> Any:
            answer = evaluate(job, request)
            both.jobs[0].forget(job.name)
            return answer

        asyncio.run(both.exchange())
        monkeypatch.setattr(AgentJob, "answer", forgetting)
        last = EvaluateRequest(ticket=ROUND, weights=both.weights(), nodes="test", last=True)
        with pytest.raises(StaleAttempt, match=f"client 0: job {JOB} .* `retexo run --resume`"):
            asyncio.run(both.ask(0, last))
        assert not (tmp_path / "0" / "jobs" / JOB).exists()


def test_a_peer_that_stays_away_is_named(tmp_path: Path, parts: list[GraphPartition]) -> None:
    async def run(both: Ends) -> None:
        await both.exchange()
        asked = TrainRequest(ticket=ROUND, weights=both.weights())
        with pytest.raises(ExchangeIncomplete, match="client 0: .* clients 1 .*message-timeout-s"):
            await both.ask(0, asked)

    with ends(tmp_path, parts, algorithm="standard", **{"message-timeout-s": 0.3}) as both:
        asyncio.run(run(both))


def test_two_jobs_do_not_wait_for_each_other(tmp_path: Path, parts: list[GraphPartition]) -> None:
    other = replace(FIRST, job="job-ffffffffffff")

    async def run(both: Ends) -> None:
        await both.exchange()
        await both.both(HelloRequest(ticket=other))
        await both.both(PublishRequest(ticket=other))
        for client in (0, 1):
            await both.ask(client, CollectRequest(ticket=other, wait_s=20.0))
        one = TrainRequest(ticket=ROUND, weights=both.weights())
        two = replace(one, ticket=replace(other, round=1))
        waiting = [await both.begin(0, one), await both.begin(1, two)]
        await both.ask(0, two)
        await both.ask(1, one)
        await asyncio.gather(*waiting)

    with ends(tmp_path, parts, algorithm="standard") as both:
        asyncio.run(asyncio.wait_for(run(both), 100))


def test_blocks_of_a_round_are_dropped_when_the_next_begins(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    async def run(both: Ends) -> None:
        await both.exchange()
        kept = []
        # More of them than exchanges may be open at once.
        for number in range(1, 10):
            asked = TrainRequest(ticket=replace(FIRST, round=number), weights=both.weights())
            await both.both(asked)
            kept.append(sorted(path.name for path in tmp_path.rglob("*.frames")))
        assert len(kept[0]) == len(kept[1]) == len(kept[2]) == 4 + 4 * 3
        assert len(set(kept[1]) & set(kept[2])) == 1

    with ends(tmp_path, parts, algorithm="standard") as both:
        asyncio.run(run(both))


def test_the_last_answer_outlives_the_job(tmp_path: Path, parts: list[GraphPartition]) -> None:
    last = EvaluateRequest(ticket=ROUND, weights=np.empty(0), nodes="test", last=True)

    async def end(both: Ends) -> Any:
        await both.exchange()
        return await both.ask(0, replace(last, weights=both.weights()))

    with ends(tmp_path, parts, layers=1) as both:
        answer = asyncio.run(end(both))
        asked = replace(last, weights=both.weights())
        assert not (tmp_path / "0" / "jobs" / JOB / "store").exists()
        assert list((tmp_path / "0" / "depot").rglob("*.frames")) == []
    # As if the process had ended before it was dropped.
    store = tmp_path / "0" / "jobs" / JOB / "store"
    store.mkdir()
    with ends(tmp_path, parts, layers=1) as again:
        assert not store.exists()
        assert asyncio.run(again.ask(0, asked)) == answer
        with pytest.raises(StaleAttempt, match=f"client 0: .*attempt 1 of job {JOB}.* attempt 1;"):
            asyncio.run(again.ask(0, HelloRequest(ticket=FIRST)))
        asyncio.run(again.ask(0, HelloRequest(ticket=replace(FIRST, attempt=2))))


def test_a_job_ends_only_once_its_peers_have_its_last_vectors(
    tmp_path: Path, parts: list[GraphPartition], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 1's disk takes nothing for a moment, in which client 0 has all that it needs."""
    full, refused = asyncio.Event(), []
    begin = BlockDepot.begin

    def beginning(depot: BlockDepot, *arguments: Any) -> int | None:
        if depot.client == 1 and full.is_set():
            refused.append(arguments)
            raise ChannelUnavailable("no room")
        return begin(depot, *arguments)

    monkeypatch.setattr(BlockDepot, "begin", beginning)

    async def run(both: Ends) -> None:
        await both.exchange()
        trained = await both.both(TrainRequest(ticket=ROUND, weights=both.weights()))
        last = EvaluateRequest(ticket=ROUND, weights=both.weights(), nodes="test", last=True)
        full.set()
        answers = [asyncio.ensure_future(both.ask(client, last)) for client in (0, 1)]
        await until(lambda: bool(refused))
        assert not any(answer.done() for answer in answers)
        full.clear()
        told = [answer.traffic for answer in await asyncio.gather(*answers)]
        for client in (0, 1):
            # The account of its bytes stays, with those of the moment.
            text = (tmp_path / str(client) / "traffic" / f"{JOB}.csv").read_text()
            ledger = TrafficLedger.from_csv(text.splitlines())
            sent = ledger.sum(direction="out", purpose="evaluate", kind="boundary").payload
            parts_of_it = (trained[client].validation_traffic, told[client])
            assert sent == sum(part.sent.boundary.payload for part in parts_of_it) > 0

    with ends(tmp_path, parts, algorithm="standard", **{"message-timeout-s": 15.0}) as both:
        asyncio.run(asyncio.wait_for(run(both), 100))


def test_an_agent_that_lacks_weights_goes_on(tmp_path: Path, parts: list[GraphPartition]) -> None:
    async def end(both: Ends) -> None:
        # What it had no weights for is none of the updates that its owner allows.
        both.jobs[0]._limits = replace(PERMISSIVE_LIMITS, most_rounds=1)
        await both.exchange()
        weights = both.weights()
        last = EvaluateRequest(ticket=ROUND, weights=weights, nodes="test", last=True)
        unknown = np.frombuffer(weights_name(weights + 1), np.uint8)
        assert (await both.ask(0, replace(last, weights=unknown))).lacks_weights
        first = np.frombuffer(weights_name(weights), np.uint8)
        train = TrainRequest(ticket=ROUND, weights=first)
        assert (await both.ask(0, replace(train, weights=unknown))).lacks_weights
        assert (await both.ask(0, train)).examples
        answer = await both.ask(0, replace(last, weights=first))
        assert answer.examples
        assert answer.lacks_weights is None

    with ends(tmp_path, parts, layers=1, rounds=1, **{"weight-bits": 8}) as both:
        asyncio.run(end(both))
        # The job is over only now.
        with pytest.raises(StaleAttempt):
            asyncio.run(both.ask(0, HelloRequest(ticket=FIRST)))


def test_no_attempt_comes_that_no_later_one_could_follow(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    """Neither begins a job, nor goes on with one, nor begins one again that has ended."""

    async def run(both: Ends) -> None:
        for attempt in (2**48, 1001):
            far = HelloRequest(ticket=Ticket(job=JOB, attempt=attempt))
            with pytest.raises(LocalProtocolError, match=rf"{attempt} of job .* at most 1000, "):
                await both.ask(0, far)
        assert not [*tmp_path.rglob("job.json")]
        # This client was away for so many.
        await both.ask(0, HelloRequest(ticket=Ticket(job=JOB, attempt=1000)))
        for attempt in (2**48, 2001):
            far = HelloRequest(ticket=Ticket(job=JOB, attempt=attempt))
            with pytest.raises(LocalProtocolError, match=rf"{attempt} of job .* at most 2000, "):
                await both.ask(0, far)
        await both.ask(0, HelloRequest(ticket=Ticket(job=JOB, attempt=1001)))
        with pytest.raises(LocalProtocolError, match=rf"{2**48} of job .* at most 2001, "):
            await both.ask(0, HelloRequest(ticket=Ticket(job=JOB, attempt=2**48)))
        await both.ask(0, HelloRequest(ticket=Ticket(job=JOB, attempt=1002)))

    with ends(tmp_path, parts) as both:
        asyncio.run(run(both))


def test_a_job_ends_in_its_last_attempt(tmp_path: Path, parts: list[GraphPartition]) -> None:
    third = replace(ROUND, attempt=3)

    async def end(both: Ends) -> None:
        await both.exchange()
        await both.ask(0, HelloRequest(ticket=replace(FIRST, attempt=3)))
        last = EvaluateRequest(ticket=third, weights=both.weights(), nodes="test", last=True)
        await both.ask(0, last)

    with ends(tmp_path, parts, layers=1) as both:
        asyncio.run(end(both))
        with pytest.raises(StaleAttempt, match=f"client 0: .*attempt 2 of job {JOB}.* attempt 3;"):
            asyncio.run(both.ask(0, HelloRequest(ticket=replace(FIRST, attempt=2))))


def test_parcels_are_taken_only_where_the_run_has_a_relay(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    opening = Parcel(kind=ParcelKind.OPEN, stream=bytes(STREAM_BYTES), sequence=0).to_bytes()
    asked = relay_request(FIRST, 0, [(1, opening)])

    async def ask(both: Ends) -> int:
        relay = both.services[0]._peering.relay
        await both.ask(0, HelloRequest(ticket=FIRST))
        try:
            await both.ask(0, asked)
        finally:
            num_streams = len(relay._streams)
            assert bool(num_streams) == both.config.relay
        return num_streams

    with ends(tmp_path / "with", parts, relay=True, engine="deployment") as both:
        assert asyncio.run(ask(both)) == 1
    with (
        ends(tmp_path / "without", parts, engine="deployment") as both,
        pytest.raises(RemoteProtocolError, match="expected none with relay = false"),
    ):
        asyncio.run(ask(both))


def test_a_job_keeps_its_configuration(tmp_path: Path, parts: list[GraphPartition]) -> None:
    with ends(tmp_path, parts) as both:
        asyncio.run(both.ask(0, HelloRequest(ticket=FIRST)))
        asyncio.run(both.ask(0, HelloRequest(ticket=FIRST), resume="somewhere"))
    with (
        ends(tmp_path, parts) as again,
        pytest.raises(ConfigurationError, match=f"seed: got 3; expected 0, .*{JOB}"),
    ):
        asyncio.run(again.ask(0, HelloRequest(ticket=FIRST), seed=3))


@pytest.mark.devices
@pytest.mark.usefixtures("forked_workers")
def test_a_job_resumed_on_other_devices_gives_the_same_bits(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    keys = {"model": "gat", "heads": 2}
    before = set(multiprocessing.active_children())

    async def train(both: Ends, attempt: int, devices: str) -> TrainAnswer:
        ticket = replace(ROUND, attempt=attempt)
        asked = TrainRequest(ticket=ticket, weights=both.weights())
        answer: TrainAnswer = await both.ask(0, asked, devices=devices)
        return answer

    with ends(tmp_path, parts, **keys, devices="cpu:2") as both:
        asyncio.run(both.exchange())
        first = asyncio.run(train(both, 1, "cpu:2"))
        (job,) = both.jobs[0].running
        second = asyncio.run(train(both, 2, "cpu:1"))
        # Told of before the later attempt came, and whole after that: it changes nothing.
        asked = PublishRequest(ticket=FIRST)
        data = b"".join(wire.encode_request(asked, {**both.values, "devices": "cpu:2"}))
        announced, body = read_announcement(data)
        with pytest.raises(StaleAttempt):
            asyncio.run(both.services[0].answer(announced.with_body(body)))
        assert job.client._made._config.devices == "cpu:1"
        for jobs in both.jobs:
            jobs.forget(JOB)
    assert_same_rounds([first], [second])
    assert set(multiprocessing.active_children()) <= before


def test_old_jobs_make_room(tmp_path: Path, parts: list[GraphPartition]) -> None:
    names = [f"job-{number:012x}" for number in range(18)]
    with ends(tmp_path, parts) as both:
        # The first is asked once more in time: others were used longer ago.
        for name in (*names[:16], names[0], *names[16:]):
            asyncio.run(both.ask(0, HelloRequest(ticket=replace(FIRST, job=name))))
        found = sorted(path.name for path in (tmp_path / "0" / "jobs").iterdir())
        assert found == [names[0], *names[3:]]
        assert asyncio.run(both.services[0].forget(names[5]))
        assert not asyncio.run(both.services[0].forget(names[5]))
        assert not asyncio.run(both.services[0].forget("../0"))
    assert len(list((tmp_path / "0" / "jobs").iterdir())) == 15


def test_idle_jobs_make_room(tmp_path: Path, parts: list[GraphPartition]) -> None:
    with ends(tmp_path, parts) as both:
        asyncio.run(both.ask(0, HelloRequest(ticket=FIRST)))
        file = tmp_path / "0" / "jobs" / JOB / "job.json"
        months_ago = time.time() - 61 * 86_400
        os.utime(file, (months_ago, months_ago))
        asyncio.run(both.ask(0, HelloRequest(ticket=replace(FIRST, job="job-ffffffffffff"))))
        assert not file.exists()


def test_a_damaged_job_does_not_keep_the_agent_from_starting(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    with ends(tmp_path, parts) as both:
        asyncio.run(both.ask(0, HelloRequest(ticket=FIRST)))
    (tmp_path / "0" / "jobs" / JOB / "job.json").write_text("{")
    with ends(tmp_path, parts) as again:
        with pytest.raises(LocalProtocolError, match=f"{JOB} is unknown .* `retexo run --resume`"):
            asyncio.run(again.ask(0, PublishRequest(ticket=FIRST)))
        assert asyncio.run(again.ask(0, HelloRequest(ticket=replace(FIRST, attempt=2)))).client == 0
        asyncio.run(again.ask(0, PublishRequest(ticket=replace(FIRST, attempt=2))))


@pytest.mark.parametrize("by", ["answer", "forget"])
def test_what_a_job_took_is_free_once_it_is_over(
    tmp_path: Path, parts: list[GraphPartition], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    returned: list[bool] = []

    async def end(both: Ends) -> None:
        await both.exchange()
        reference = weakref.ref(both.jobs[0].running[0])
        returned.clear()
        if by == "answer":
            last = EvaluateRequest(ticket=ROUND, weights=both.weights(), nodes="test", last=True)
            await both.ask(0, last)
        else:
            assert await both.services[0].forget(JOB)
        await until(lambda: bool(returned))
        assert reference() is None

    monkeypatch.setattr(jobs_module, "return_unused", lambda: returned.append(True))
    # What knows itself is found by nobody else.
    gc.disable()
    try:
        with ends(tmp_path, parts, layers=1) as both:
            asyncio.run(end(both))
    finally:
        gc.enable()


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_call_took_is_free_once_its_caller_is_told(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Also where the thread does not get on: two questions would take the memory of one."""

    class SlowToReturn(Future[Any]):
        def set_result(self, result: Any) -> None:
            super().set_result(result)
            time.sleep(0.5)

        def set_exception(self, exception: BaseException | None) -> None:
            super().set_exception(exception)
            time.sleep(0.5)

    class Question:
        def answered(self) -> None:
            if fails:
                raise RemoteProtocolError("no such question")

    async def ask() -> Any:
        question = Question()
        try:
            await compute.run(question.answered)
        except RemoteProtocolError as error:
            traceback.clear_frames(error.__traceback__)
        reference = weakref.ref(question)
        del question
        return reference()

    monkeypatch.setattr(service_module, "Future", SlowToReturn)
    compute = service_module.ComputeThread()
    assert asyncio.run(ask()) is None
