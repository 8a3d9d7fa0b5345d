"""Predicting: a training of which all stages are done, with another last question than the test.

    hello
    for each stage m:
        publish   every client embeds its nodes with the trained layer m - 1 and sends its vectors
        collect   until every vector has arrived, or the deadline decides
    predict       every client writes the last layer's predictions of its nodes, and forgets

The server gets counts. What is predicted, of which node, stays with the client.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flwr.serverapp import Grid

from retexo_fl.client.answers import judged_types, sum_facts
from retexo_fl.client.api import (
    MODEL_DIGITS,
    PREDICTION_PREFIX,
    PredictAnswer,
    PredictRequest,
)
from retexo_fl.config import RunConfig
from retexo_fl.federation.asking import (
    Ask,
    Messenger,
    OpenExchange,
    Round,
    Silence,
    WaitPolicy,
    Watch,
    Who,
    members,
)
from retexo_fl.federation.greeting import Federation
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.opening import Joined, open_attempt
from retexo_fl.federation.rounds.exchange import Exchanged
from retexo_fl.federation.trained_model import TrainedModel
from retexo_fl.federation.training import Follower, Training
from retexo_fl.ledger import TrafficLedger
from retexo_fl.methods.lazy.script import lazy
from retexo_fl.run_log.events import (
    Answered,
    Event,
    ExchangeClosed,
    Predicted,
    PredictionStarted,
)
from retexo_fl.training.recipe import objective_of
from retexo_fl.training.selection import Score, add_answer
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.tally import Tally, tallies_by_type
from retexo_fl.units import clients_named, lacks_named
from retexo_fl.updates import UpdateCodec, update_codec

logger = logging.getLogger(__name__)

#: An event for each answer would be most of the work with many clients.
_BETWEEN_EVENTS_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionOutcome:
    """The server's result of an inference.

    Attributes:
        job: Name of the job, which clients note beside their files.
        answers: What each client wrote, by client index; under masks, what all wrote together.
        missing: Vectors that exchanges were closed without.
        ledger: Bytes that moved.
        counts_right: Whether answers are right or wrong: not so of numbers.
        metric: Name and, by use of nodes, value of the run's metric, where it is another than
            accuracy: None where there are no such nodes, or they leave it undefined.
        types: Where several types have labels, by name the same of each by use of nodes.
    """

    job: str
    answers: Mapping[Who, PredictAnswer]
    missing: int
    ledger: TrafficLedger
    counts_right: bool = True
    metric: Mapping[str, Any] | None = None
    types: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return the outcome as JSON."""
        return {
            "nodes": {members(who)[0]: answer.nodes for who, answer in self.answers.items()},
            "labelled": {
                use: {
                    "nodes": sum(getattr(a, use) for a in self.answers.values()),
                    "right": self._right(use),
                }
                for use in ("train", "validation", "test")
            },
            **({} if self.metric is None else {"metric": dict(self.metric)}),
            **({"types": dict(self.types)} if self.types else {}),
            "missing_rows": self.missing,
            "bytes": self.ledger.totals(),
        }

    def _right(self, use: str) -> int | None:
        if not self.counts_right:
            return None
        counts: list[int] = [getattr(a, f"{use}_correct") for a in self.answers.values()]
        return sum(counts)


class _Prediction(Training):
    """Predicts with the layers of its job, which are all there.

    Attributes:
        answers: What each client wrote, once it is over.
    """

    answers: Mapping[Who, PredictAnswer]

    def __init__(self, loop: PredictionLoop, joined: Joined, codec: UpdateCodec) -> None:
        super().__init__(loop.config, joined, codec=codec, follower=loop)
        self._loop = loop

    @property
    def stages(self) -> range:
        """All of them: predictions are made layer by layer, however the layers were trained."""
        return range(self._loop.model.shape.stages)

    def finish(self) -> None:
        """Have clients predict; they may forget the job then."""
        self.answers = self.joined.rounds.carry_out(self._predicted())
        self.follower.tested(self.config, self.joined.job.untold)

    def _predicted(self) -> Round[dict[Who, PredictAnswer]]:
        loop, clients = self._loop, self.joined.clients
        request = PredictRequest(
            ticket=self.joined.job.ticket(self.stages[-1]),
            weights=loop.model.weights[-1],
            form=loop.form,
            label_facts=loop.model.label_facts,
            set_name=loop.set_name,
        )
        answers = yield Ask(
            requests=dict.fromkeys(clients.hellos, request),
            sums=replace(
                sum_facts(
                    self.config,
                    clients.classes,
                    types=judged_types(self.config, loop.model.shape.relations),
                ),
                predicts_some=loop.model.shape.relations is not None,
            ),
            stage=request.ticket.stage,
            purpose="predict",
            ends=True,
        )
        return dict(answers)


@dataclass(slots=True, kw_only=True)
class PredictionLoop(Follower):
    """One inference.

    Attributes:
        grid: The way to the clients.
        config: That of the run, with the clients and the policies of this inference.
        model: The trained layers.
        form: What clients write: ``csv``, ``parquet`` or ``npz``.
        tell: Callback for every event.
        set_name: Of the folder that each client writes to, below its own for predictions; empty for
            that itself.
    """

    grid: Grid
    config: RunConfig
    model: TrainedModel
    form: str
    tell: Callable[[Event], None]
    set_name: str = ""
    _job: JobState = field(init=False)
    _step: tuple[int, str] = field(init=False, default=(-1, ""))
    _answers: int = field(init=False, default=0)
    _told_at_s: float = field(init=False, default=0.0)

    def run(self) -> PredictionOutcome:
        """Run all exchanges, then have every client predict.

        Raises:
            PartitionError: The clients' parts do not belong together or do not fit the model.
            ExchangeIncomplete: Vectors were missing at the deadline and ``missing-peers`` is
                ``wait``.
            RetexoError: A client's own named failure, or a client did not answer in time.
        """
        digits = self.model.digest[:MODEL_DIGITS]
        name = f"{PREDICTION_PREFIX}{digits}{secrets.token_hex(6 - MODEL_DIGITS // 2)}"
        self._job, codec = self.model.job(name), update_codec()
        messenger = Messenger(
            self.grid,
            ledger=self._job.ledger,
            policy=WaitPolicy.for_all(self.config),
            on_answer=self._note_answer,
            on_silence=_note_silence,
        )
        joined = open_attempt(
            messenger,
            self.config,
            self._job,
            self._shape_of,
            to_train=False,
            codec=codec,
            watch=Watch(on_wait=_note_open),
        )
        prediction = _Prediction(self, joined, codec)
        self.tell(
            PredictionStarted(
                clients=self.config.clients,
                stages=len(prediction.stages),
                bytes_payload=self._moved_bytes,
            )
        )
        for _ in lazy(prediction):
            pass
        answers = prediction.answers
        nodes = sum(answer.nodes for answer in answers.values())
        self.tell(Predicted(nodes=nodes, bytes_payload=self._moved_bytes))
        return PredictionOutcome(
            job=name,
            answers=answers,
            missing=sum(self._job.missing.values()),
            ledger=self._job.ledger,
            counts_right=self.config.goal.counts_right,
            metric=self._metric(answers),
            types=self._of_types(answers),
        )

    def _shape_of(self, federation: Federation, config: RunConfig) -> ModelShape:
        del config
        self.model.check_fits(
            recipe=federation.recipe,
            features=federation.features,
            classes=federation.classes,
            edge_features=federation.edge_features,
            is_structural=federation.is_structural,
            relations=federation.relations,
            source="clients",
        )
        has_train = bool(federation.participants.training)
        self.model.check_train_nodes(are_there=has_train, source="clients")
        return self.model.shape

    def exchanged(self, stage: int, exchanged: Exchanged, *, along: bool = False) -> None:
        """Report how an exchange ended; none goes along with what follows it."""
        del along
        self._job.missing[stage] = exchanged.missing
        self.tell(
            ExchangeClosed(
                stage=stage,
                vectors=exchanged.vectors,
                missing=exchanged.missing,
                bytes_payload=self._moved_bytes,
            )
        )

    def _metric(self, answers: Mapping[Who, PredictAnswer]) -> dict[str, Any] | None:
        """Return the metric over all clients, whose sums are added in their order."""
        name = self.config.metric_name
        metric = objective_of(self.config).metric(self.model.label_facts)
        if metric is None:
            return None
        found: dict[str, Any] = {"name": name}
        for use in ("validation", "test"):
            total = Tally()
            for answer in answers.values():
                sums = getattr(answer, f"{use}_metric").array()
                total = add_answer(total, Tally(count=getattr(answer, use), metric_sums=sums))
            found[use] = Score.of(total, metric).metric
        return found

    def _of_types(self, answers: Mapping[Who, PredictAnswer]) -> dict[str, Any]:
        """Return of each type with labels how its nodes were judged, where there are several."""
        relations = self.model.shape.relations
        if relations is None or not (types := judged_types(self.config, relations)):
            return {}
        metric = objective_of(self.config).metric(self.model.label_facts)
        found: dict[str, Any] = {relations.types[kind]: {} for kind in relations.with_labels}
        for use in ("validation", "test"):
            totals = [Tally()] * types
            for answer in answers.values():
                sums = getattr(answer, f"{use}_types").array()
                if sums.size:
                    each = tallies_by_type(sums, types)
                    totals = [add_answer(*pair) for pair in zip(totals, each, strict=True)]
            for facts, total in zip(found.values(), totals, strict=True):
                right = total.correct if self.config.goal.counts_right else None
                facts[use] = {"nodes": total.count, "right": right}
                if metric is not None:
                    value = Score.of(total, metric).metric if total.count else None
                    facts[use]["metric"] = value
        return found

    def _note_answer(self, stage: int, purpose: str) -> None:
        """Count the answers of a step, and report some of them."""
        if self._step != (stage, purpose):
            self._step, self._answers = (stage, purpose), 0
        self._answers += 1
        if stage >= self.model.shape.stages:
            # Of columns on their way; what is shown are exchanges of stages.
            return
        now = time.monotonic()
        if purpose in {"publish", "predict"} and now - self._told_at_s >= _BETWEEN_EVENTS_S:
            self._told_at_s = now
            self.tell(
                Answered(
                    stage=stage,
                    step=purpose,
                    answers=self._answers,
                    bytes_payload=self._moved_bytes,
                )
            )

    @property
    def _moved_bytes(self) -> int:
        return self._job.ledger.sum().payload


def _note_silence(silence: Silence) -> None:
    logger.warning("%s waits for %s", silence.question.purpose, clients_named(silence.clients))


def _note_open(exchange: OpenExchange) -> None:
    logger.warning("exchange %d waits for %s", exchange.stage, lacks_named(exchange.lacks))
