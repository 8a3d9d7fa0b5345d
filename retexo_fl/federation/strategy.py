"""The Flower strategy of one stage: sums in, an averaged gradient, one optimizer step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from retexo_fl.agent.api import EvaluateRequest, PeerTraffic, Ticket, TrainAnswer, TrainRequest
from retexo_fl.errors import TrainingDiverged
from retexo_fl.federation import checked_answers, records
from retexo_fl.federation.aggregators import Aggregator, RoundFacts
from retexo_fl.federation.exchange_loop import count_exchanged
from retexo_fl.federation.messenger import Messenger
from retexo_fl.federation.optimizers import ServerOptimizer
from retexo_fl.training.metrics import Metric
from retexo_fl.training.selection import Score, ScoreSums
from retexo_fl.units import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Participants:
    """Client indices by what they hold, each ascending.

    Attributes:
        training: Clients with train nodes: only they train, and return updates.
        validation: Clients with validation nodes; those that do not train are asked to evaluate
            the weights of every round, which costs no update.
        everyone: All clients.
    """

    training: tuple[int, ...]
    validation: tuple[int, ...]
    everyone: tuple[int, ...]

    @property
    def asked(self) -> tuple[int, ...]:
        """Clients that a round asks for anything, ascending."""
        return tuple(sorted({*self.training, *self.validation}))


class LazyMessagePassing(Strategy):
    """Trains the layer of one stage; a round passes no messages between clients.

    Hooks are Flower's own. ``aggregate_train`` returns the next weights with the round's loss and
    the validation of the weights that were sent out. The loop over rounds and stages is
    :mod:`retexo_fl.federation.server_loop`'s, since Flower's ``start`` knows neither resuming nor
    selection of the best weights.

    Source: RETEXO (Kolluri et al.), section 3.1.
    """

    def __init__(
        self,
        ticket: Ticket,
        participants: Participants,
        *,
        messenger: Messenger,
        aggregator: Aggregator,
        optimizer: ServerOptimizer,
        seed: int,
        metric: Metric | None = None,
    ) -> None:
        self._ticket = ticket
        self._participants = participants
        self._messenger = messenger
        self._aggregator = aggregator
        self._optimizer = optimizer
        self._seed = seed
        self._metric = metric
        #: What the present question evaluates.
        self._nodes = "validation"
        #: Clients that are not asked, because they have yet to catch up with the exchange.
        self.behind: Set[int] = frozenset()
        #: A round may be of some of a client's train nodes.
        self.in_batches = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the weights to every client that trains or validates, in client order."""
        del config, grid
        self._nodes = "validation"
        ticket, weights = replace(self._ticket, round=server_round), records.weights_of(arrays)
        training = self._present(self._participants.training)
        validating = self._present(
            sorted({*self._participants.validation} - {*self._participants.training})
        )
        train = TrainRequest(ticket=ticket, weights=weights)
        evaluate = EvaluateRequest(ticket=ticket, weights=weights, nodes="validation")
        addressed = [
            *zip(training, self._messenger.messages(training, train), strict=True),
            *zip(validating, self._evaluations(validating, evaluate), strict=True),
        ]
        return [message for _, message in sorted(addressed, key=lambda pair: pair[0])]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Sum the updates in the order given, divide once, take one optimizer step.

        Args:
            server_round: Round of the stage.
            replies: In client order; of fewer clients than were asked where the round was closed
                without some.

        Raises:
            TrainingDiverged: The new weights, or a loss, are not finite.
            RemoteProtocolError: A client's counts are not those that its hello promised.
        """
        self._aggregator.start(self._round_facts(server_round))
        validation, examples, loss_sum = ScoreSums(), 0, 0.0
        training = {*self._participants.training}
        for reply in replies:
            client = self._messenger.client_of(reply)
            if client in training:
                update = checked_answers.read_update(
                    self._messenger.promise_of(client), reply, in_batches=self.in_batches
                )
                self._count(client, update.training_traffic, "train")
                self._count(client, update.validation_traffic, "evaluate")
                self._aggregator.add(client, update.update_sum, update.examples)
                examples += update.examples
                loss_sum += update.loss_sum
                _add_validated(validation, update)
            else:
                self._add_evaluated(validation, client, reply)
        self._optimizer.step(self._aggregator.finish())
        if not _is_finite(self._optimizer):
            raise TrainingDiverged(
                f"stage {self._ticket.stage}, round {server_round}: the weights are not finite "
                "after the optimizer's step; lower learning-rate"
            )
        metrics = _score_record(validation.score(self._metric), "validation-")
        metrics["loss"] = loss_sum / examples
        return records.weights_record(self._optimizer.weights), metrics

    def _round_facts(self, server_round: int) -> RoundFacts:
        weights = self._optimizer.weights
        return RoundFacts(
            seed=self._seed,
            stage=self._ticket.stage,
            number=server_round,
            size=len(weights),
            dtype=str(weights.dtype),
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the weights to clients with validation nodes, or to all for the test.

        Args:
            server_round: Round for the ticket.
            arrays: The weights.
            config: ``nodes``: ``validation`` (the default) or ``test``. The test ends the job, so
                clients without test nodes are told too.
            grid: Not used.
        """
        del grid
        self._nodes = nodes = str(config.get("nodes", "validation"))
        asked = self._participants
        request = EvaluateRequest(
            ticket=replace(self._ticket, round=server_round),
            weights=records.weights_of(arrays),
            nodes=nodes,
            last=nodes == "test",
        )
        evaluating = asked.everyone if nodes == "test" else asked.validation
        return self._evaluations(self._present(evaluating), request)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord:
        """Add up counts and sums: ``examples``, ``loss-sum``, ``correct`` and maybe ``metric``."""
        del server_round
        sums = ScoreSums()
        for reply in replies:
            self._add_evaluated(sums, self._messenger.client_of(reply), reply)
        return _score_record(sums.score(self._metric), "")

    def summary(self) -> None:
        """Log what is about to be trained."""
        logger.info(
            "stage %d: %s trained by %s",
            self._ticket.stage,
            counted(len(self._optimizer.weights), "weight"),
            counted(len(self._participants.training), "client"),
        )

    def _present(self, clients: Iterable[int]) -> list[int]:
        return [client for client in clients if client not in self.behind]

    def _evaluations(self, clients: Iterable[int], request: EvaluateRequest) -> list[Message]:
        return self._messenger.messages(clients, request)

    def _add_evaluated(self, sums: ScoreSums, client: int, reply: Message) -> None:
        promise = self._messenger.promise_of(client)
        answer = checked_answers.read_evaluated(promise, reply, nodes=self._nodes)
        self._count(client, answer.traffic, "evaluate")
        sums.add(answer.examples, answer.correct, answer.loss_sum, answer.metric)

    def _count(self, client: int, traffic: PeerTraffic, purpose: str) -> None:
        """Enter what a client and its peers exchanged inside a round."""
        if traffic == PeerTraffic():
            return
        for direction, moved in (("out", traffic.sent), ("in", traffic.received)):
            count_exchanged(
                self._messenger.ledger,
                self._ticket,
                client,
                moved,
                direction=direction,
                purpose=purpose,
            )


def _add_validated(sums: ScoreSums, update: TrainAnswer) -> None:
    sums.add(
        update.validation_examples,
        update.validation_correct,
        update.validation_loss_sum,
        update.validation_metric,
    )


def _score_record(score: Score, prefix: str) -> MetricRecord:
    metrics = MetricRecord()
    metrics[f"{prefix}examples"] = score.count
    metrics[f"{prefix}correct"] = score.correct
    metrics[f"{prefix}loss-sum"] = score.loss_sum
    if score.metric is not None:
        metrics[f"{prefix}metric"] = score.metric
    return metrics


def read_score(metrics: MetricRecord, prefix: str) -> Score:
    """Read what ``aggregate_train`` (prefix ``validation-``) and ``aggregate_evaluate`` return."""
    metric = f"{prefix}metric"
    return Score(
        count=cast(int, metrics[f"{prefix}examples"]),
        correct=cast(int, metrics[f"{prefix}correct"]),
        loss_sum=cast(float, metrics[f"{prefix}loss-sum"]),
        metric=cast(float, metrics[metric]) if metric in metrics else None,
    )


def _is_finite(optimizer: ServerOptimizer) -> bool:
    # The sum is finite only if every term is; it needs no temporary of the weights' size.
    total = float(optimizer.weights.sum(dtype="float64"))
    return total - total == 0.0
