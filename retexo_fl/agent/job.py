"""One training at a resident agent: its client, what it must keep, and what it has answered."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import torch

from retexo_fl.agent import wire
from retexo_fl.agent.admission import question_limits
from retexo_fl.agent.carrier_path import CarrierPath
from retexo_fl.agent.gate import JobGate
from retexo_fl.agent.limits import Limits
from retexo_fl.agent.peer_traffic import PeerTrafficBook
from retexo_fl.agent.predictions import PredictionSets
from retexo_fl.answer_book import AnswerBook
from retexo_fl.channels import BlockKey, Channel
from retexo_fl.channels.gate import Gate
from retexo_fl.client.api import (
    PREDICTION_PREFIX,
    CollectAnswer,
    CollectRequest,
    EvaluateAnswer,
    EvaluateRequest,
    PredictAnswer,
    PredictRequest,
    PublishAnswer,
    PublishRequest,
    TrainAnswer,
    TrainRequest,
    is_lacking,
    purpose_of,
)
from retexo_fl.client.graph_sizes import count_sizes
from retexo_fl.client.inner_exchanges import RoundMessage, RoundRunner
from retexo_fl.client.part import note_unused_edges
from retexo_fl.client.rounds import AnyAnswer, TrainingClient
from retexo_fl.client.store import FolderStore
from retexo_fl.client.vector_carrier import ExchangeId, VectorCarrier
from retexo_fl.config import RunConfig
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.named import layer_class
from retexo_fl.ledger import Traffic
from retexo_fl.methods.clients import client_class, exchange_in_rounds
from retexo_fl.methods.forecasts import forecast_of
from retexo_fl.training.rounds import Steps

Answer = TypeVar("Answer")

#: In rounds that exchange, the account of peers is written so often at most.
_WRITE_EVERY_S: Final = 5.0


class JobDepot(Channel, Protocol):
    """What a job needs of the depot."""

    def admit_job(self, job: str, gate: Gate) -> None:
        """Let blocks of a job arrive from now on."""
        ...

    def drop_blocks(self, job: str, keys: Iterable[BlockKey]) -> None:
        """Drop blocks of rounds that are over."""
        ...


class AgentDepot(JobDepot, Protocol):
    """What an agent needs of the depot of blocks."""

    def forget_job(self, job: str, client: int) -> None:
        """Drop everything of a job."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFolders:
    """Where a job keeps what.

    Attributes:
        store: Folder of what its client keeps.
        answers: What its client has answered.
        traffic: File of its bytes by peer.
        predictions: Of the client; None where it makes none.
    """

    store: Path
    answers: AnswerBook
    traffic: Path
    predictions: PredictionSets | None


class AgentJob:
    """One job that is under way; its methods are called in the compute thread.

    Attributes:
        name: Of the job.
        config: It trains with.
        is_open: Its server may still settle keys that follow from all clients' graph: nothing was
            asked but who the client is and what it counts.
        answers: What it has answered.
        stage: Of the last message; likewise ``round`` and ``message``.
        state: ``waiting`` for a message, ``computing``, or ``exchanging`` with peers.
        asked_at: Unix time of the last message.
        book: Bytes by peer.
    """

    def __init__(  # noqa: PLR0913 - a job has so much
        self,
        name: str,
        config: RunConfig,
        partition: GraphPartition,
        depot: JobDepot,
        *,
        folders: JobFolders,
        limits: Limits,
        carrier: CarrierPath | None = None,
        is_open: bool = False,
    ) -> None:
        self.name, self.is_open = name, is_open
        self.config = config
        self.stage, self.round, self.message = -1, 0, ""
        self.state, self.asked_at = "waiting", time.time()
        self._depot = depot
        self._partition = partition
        self.book = PeerTrafficBook(folders.traffic, partition.client)
        self.answers = folders.answers
        kept = FolderStore(folders.store, durable=True, book=self.answers)
        predicts = name.startswith(PREDICTION_PREFIX)
        self._sets = folders.predictions if predicts else None
        #: Whether its rounds and evaluations exchange.
        self.exchanges_in_rounds = exchange_in_rounds(config, predicts=predicts)
        self.client: TrainingClient = client_class(config, predicts=predicts)(
            partition,
            config,
            job=name,
            channel=depot,
            store=kept,
            # Whoever has the job drops it, once its last answer is on disk.
            on_forget=lambda: None,
            predictions=None if self._sets is None else self._sets.folder,
        )
        note_unused_edges(config.model, [partition])
        for mailbox in self.client.crossing.mailboxes:
            mailbox.watch = self._enter_block
        self.client.crossing.count = self.book.exchanged
        self._datagrams = self._open_port(carrier, folders.store)
        self._gate = JobGate(
            name,
            self.client.crossing.plan_before,
            config,
            self.client.shape,
            first=self.client.crossing.first_digest,
            clients=partition.num_clients,
            # Before a refinement, or a floor, nothing crosses.
            stages=min(self.client.stages, self.client.shape.stages),
        )
        if limits.tell_sizes:
            self.client.count_sizes = partial(count_sizes, partition, config)
        self.client.counts_cached &= limits.tell_sizes
        if not is_open:
            depot.admit_job(name, self._gate)
        self.answers.limit(
            question_limits(
                config,
                self.client.shape,
                stages=self.client.stages,
                most_rounds=limits.most_rounds,
                predicts=predicts,
            )
        )
        self._kept: dict[str, tuple[bytes, wire.Parts]] = {}
        self._round_message: RoundMessage | None = None
        #: What went to and came from peers in it, by purpose, place, peer and way.
        self._round_entered: set[tuple[str, int, int, str]] = set()
        self._round_keys: list[set[BlockKey]] = []
        self._round_exchanges: list[set[ExchangeId]] = []
        self._written_at = 0.0
        #: Stages and digests of exchanges whose vectors are certain to be in the outbox.
        self._sent: set[tuple[int, bytes]] = set()

    def close_keys(self) -> None:
        """Keep the keys that it has from now on; peers' blocks may come."""
        self.is_open = False
        self._depot.admit_job(self.name, self._gate)

    @property
    def training(self) -> dict[str, str]:
        """What it is a job of, by names of keys."""
        return {"algorithm": self.config.algorithm, "model": self.config.model}

    @property
    def attempt(self) -> int:
        """The highest that was seen."""
        return self.answers.attempt

    # ---- answers ------------------------------------------------------------------------------

    def begin(self, request: wire.Request) -> None:
        """Take note of a message.

        Raises:
            StaleAttempt: A later attempt was seen.
            LocalProtocolError: As :meth:`.AnswerBook.check` and :meth:`.AnswerBook.begin`.
            CheckpointError: As :meth:`.AnswerBook.begin`.
        """
        ticket, client = request.ticket, self._partition.client
        self.answers.check(purpose_of(request.asked), ticket.stage, client=client)
        self.answers.begin(ticket.job, ticket.attempt, client=client)
        # Another job may have set its own.
        torch.set_num_threads(self.config.threads)
        self.stage, self.round, self.message = ticket.stage, ticket.round, request.message
        self.asked_at = time.time()

    def answer(self, request: wire.Request) -> object:
        """Answer a message that needs no peer.

        Raises:
            LocalProtocolError: It is not one for a client.
        """
        match request.asked:
            case PublishRequest() as asked:
                return self._publish(asked)
            case CollectRequest() as asked:
                return self.collect(asked)
            case PredictRequest() as asked:
                return self._predict(asked)
            case asked:
                return self.client.ask(asked)

    def kept(self, request: wire.Request) -> wire.Parts | None:
        """Return what was answered to the same question, if it was the last of its kind."""
        identity, parts = self._kept.get(request.message, (b"", []))
        return parts if identity == request.identity else None

    def keep(self, request: wire.Request, parts: wire.Parts) -> None:
        """Keep an answer for repeats; what has arrived is looked up anew each time."""
        if request.message == "keys":
            # Answers under earlier keys do not add up with those of others.
            self._kept.clear()
        if request.message != "collect":
            self._kept[request.message] = (request.identity, parts)

    def _predict(self, request: PredictRequest) -> PredictAnswer:
        answer = self.client.ask(request)
        if self._sets is not None and request.set_name and not is_lacking(answer):
            self._sets.note(request)
        return answer

    def _publish(self, request: PublishRequest) -> PublishAnswer:
        answer = self.client.ask(request)
        if not answer.lacks_weights:
            self.book.write()
            self._sent.add((request.ticket.stage, request.ticket.weights_digest))
        return answer

    def collect(self, request: CollectRequest) -> CollectAnswer:
        """Say what has arrived, without waiting."""
        ticket = request.ticket
        if (ticket.stage, ticket.weights_digest) not in self._sent:
            # An earlier process published; whether that outlived its end is not known.
            self.client.crossing.send_again(ticket)
            self._sent.add((ticket.stage, ticket.weights_digest))
        answer = self.client.ask(replace(request, wait_s=0.0))
        self.book.write()
        return answer

    # ---- rounds that exchange -----------------------------------------------------------------

    def train_runner(self, request: TrainRequest) -> RoundRunner[TrainAnswer]:
        """Begin a round."""
        return self._runner(request, self.client.train_steps(request))

    def evaluate_runner(self, request: EvaluateRequest) -> RoundRunner[EvaluateAnswer]:
        """Begin an evaluation."""
        return self._runner(request, self.client.evaluate_steps(request))

    def finished(
        self, request: TrainRequest | EvaluateRequest, runner: RoundRunner[AnyAnswer]
    ) -> AnyAnswer:
        """Return a round's answer, with what crossed for it."""
        return self.client.finished(request, runner.answer, runner.moved)

    def end_round(self) -> None:
        """Put the account of peers on disk, if that was not done recently."""
        now = time.monotonic()
        if now - self._written_at > _WRITE_EVERY_S:
            self._written_at = now
            self.book.write()

    def awaited(self) -> Mapping[int, tuple[int, int]]:
        """Return, by peer, the blocks and bytes not received yet of the stage's exchange.

        Bytes are those of the dense vectors; what is coded is shorter.
        """
        if self.stage < 0 or self.message not in {"publish", "collect"}:
            return {}
        width = self.client.shape.exchange_width(self.stage)
        row_bytes = width * (8 if self.config.dtype == "float64" else 4)
        return {
            peer.peer: (1, peer.receive.count * row_bytes)
            for peer in self.client.crossing.plan_before(self.stage).senders
            if not self.book.has_block(self.stage, peer.peer, "in")
        }

    def untaken(self, runner: RoundRunner[Answer]) -> list[int]:
        """Return the peers that have not taken all datagrams of a round."""
        return [] if self._datagrams is None else self._datagrams.untaken(runner.exchanges)

    def _open_port(self, carrier: CarrierPath | None, folder: Path) -> VectorCarrier | None:
        """Let vectors go as datagrams, where the agent takes them and the codec rounds them."""
        if carrier is None or not self.client.crossing.mailbox.is_rounded:
            return None
        port = carrier.open_job(
            folder,
            clients=self._partition.num_clients,
            all_needed=self.config.missing_peers == "wait",
            times=forecast_of(self.config).rounds_alike(self.config),
            unadded=self._why_unadded(),
        )
        self.client.crossing.mailbox.datagrams = port
        return port

    def _enter_block(self, stage: int, peer: int, traffic: Traffic, way: str) -> None:
        """Enter what an exchange has sent or received, once, whatever processes it took."""
        if not self.book.has_block(stage, peer, way):
            self.book.enter_block(self.attempt, stage, peer, traffic, way=way)

    def _why_unadded(self) -> str:
        """Return why no vector is added to another on arrival, and what to do; or nothing."""
        plan, config = self.client.crossing.plan, self.config
        if self.exchanges_in_rounds and plan.num_added_back:
            return ""
        if config.missing_peers != "wait":
            return (
                f"missing-peers = {config.missing_peers} keeps peers' vectors apart; TCP costs less"
            )
        if plan.num_added:
            return ""
        if config.boundary_plan == "rows" and layer_class(config.model).sums_messages:
            return "the plan of rows sends no sums; run with --boundary-plan cover, or over TCP"
        return "with this model and part no sum is over several peers; TCP costs less"

    def _runner(
        self, request: TrainRequest | EvaluateRequest, steps: Steps[Answer]
    ) -> RoundRunner[Answer]:
        message = RoundMessage.of(request, codec=self.config.codec)
        if message != self._round_message:
            # A restarted round needs what its peers sent; a later one does not.
            over = set().union(*self._round_keys)
            if self._datagrams is not None:
                over |= self._datagrams.drop(set().union(*self._round_exchanges))
            self._depot.drop_blocks(self.name, over)
            self._gate.forget(over)
            self._round_message, self._round_keys, self._round_exchanges = message, [], []
            self._round_entered.clear()
        ticket = request.ticket

        def watch(purpose: str, peer: int, traffic: Traffic, way: str) -> None:
            entry = (purpose, runner.number, peer, way)
            if entry in self._round_entered:
                # Asked again, under new keys.
                return
            self._round_entered.add(entry)
            self.book.enter(ticket.attempt, ticket.stage, peer, traffic, purpose=purpose, way=way)

        runner = RoundRunner(
            steps,
            message,
            self._partition.client,
            self._depot,
            watch=watch,
            datagrams=self._datagrams,
        )
        self._round_keys.append(runner.keys)
        self._round_exchanges.append(runner.exchanges)
        return runner
