"""The Flower strategy of one stage: sums in, an averaged gradient, one optimizer step."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from retexo_fl.agent.api import EvaluateAnswer, EvaluateRequest, Ticket, TrainAnswer, TrainRequest
from retexo_fl.errors import TrainingDiverged
from retexo_fl.federation import records
from retexo_fl.federation.aggregators import Aggregator, RoundFacts
from retexo_fl.federation.messenger import Messenger
from retexo_fl.federation.optimizers import ServerAdam

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

    Source: RETEXO (Kolluri et al.), section 3.1 and algorithm 1.
    """

    def __init__(
        self,
        ticket: Ticket,
        participants: Participants,
        *,
        messenger: Messenger,
        aggregator: Aggregator,
        optimizer: ServerAdam,
        seed: int,
    ) -> None:
        self._ticket = ticket
        self._participants = participants
        self._messenger = messenger
        self._aggregator = aggregator
        self._optimizer = optimizer
        self._seed = seed

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Address the weights to every client that trains or validates, in client order."""
        del config, grid
        ticket, weights = replace(self._ticket, round=server_round), records.weights_of(arrays)
        training = self._participants.training
        validating = sorted({*self._participants.validation} - {*training})
        train = TrainRequest(ticket=ticket, weights=weights)
        evaluate = EvaluateRequest(ticket=ticket, weights=weights, nodes="validation")
        addressed = [
            *zip(training, self._messenger.messages(training, train, records.TRAIN), strict=True),
            *zip(validating, self._evaluations(validating, evaluate), strict=True),
        ]
        return [message for _, message in sorted(addressed, key=lambda pair: pair[0])]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Sum the updates in the order given, divide once, take one optimizer step.

        Raises:
            TrainingDiverged: The new weights are not finite.
        """
        self._aggregator.start(self._round_facts(server_round))
        totals = _Totals()
        training = {*self._participants.training}
        for client, reply in zip(self._participants.asked, replies, strict=True):
            if client in training:
                update = records.read_update(reply)
                self._aggregator.add(client, update.gradient_sum, update.examples)
                totals.add_update(update)
            else:
                totals.add_validation(records.read_evaluated(reply))
        self._optimizer.step(self._aggregator.finish())
        if not _is_finite(self._optimizer):
            raise TrainingDiverged(
                f"stage {self._ticket.stage}, round {server_round}: the weights are not finite "
                "after the optimizer's step; lower learning-rate"
            )
        return records.weights_record(self._optimizer.weights), totals.metrics()

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
        nodes = str(config.get("nodes", "validation"))
        asked = self._participants
        request = EvaluateRequest(
            ticket=replace(self._ticket, round=server_round),
            weights=records.weights_of(arrays),
            nodes=nodes,
            last=nodes == "test",
        )
        return self._evaluations(asked.everyone if nodes == "test" else asked.validation, request)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord:
        """Add up counts and losses: ``examples``, ``loss-sum``, ``correct``."""
        del server_round
        examples, loss_sum, correct = 0, 0.0, 0
        for reply in replies:
            answer = records.read_evaluated(reply)
            examples += answer.examples
            loss_sum += answer.loss_sum
            correct += answer.correct
        return MetricRecord({"examples": examples, "loss-sum": loss_sum, "correct": correct})

    def summary(self) -> None:
        """Log what is about to be trained."""
        logger.info(
            "stage %d: %d weights, %d clients train",
            self._ticket.stage,
            len(self._optimizer.weights),
            len(self._participants.training),
        )

    def _evaluations(self, clients: Iterable[int], request: EvaluateRequest) -> list[Message]:
        return self._messenger.messages(clients, request, records.EVALUATE)


@dataclass(slots=True)
class _Totals:
    examples: int = 0
    loss_sum: float = 0.0
    validation_examples: int = 0
    validation_loss_sum: float = 0.0
    validation_correct: int = 0

    def add_update(self, update: TrainAnswer) -> None:
        self.examples += update.examples
        self.loss_sum += update.loss_sum
        self.validation_examples += update.validation_examples
        self.validation_loss_sum += update.validation_loss_sum
        self.validation_correct += update.validation_correct

    def add_validation(self, answer: EvaluateAnswer) -> None:
        self.validation_examples += answer.examples
        self.validation_loss_sum += answer.loss_sum
        self.validation_correct += answer.correct

    def metrics(self) -> MetricRecord:
        return MetricRecord(
            {
                "loss": self.loss_sum / self.examples,
                "validation-examples": self.validation_examples,
                "validation-loss-sum": self.validation_loss_sum,
                "validation-correct": self.validation_correct,
            }
        )


def _is_finite(optimizer: ServerAdam) -> bool:
    # The sum is finite only if every term is; it needs no temporary of the weights' size.
    total = float(optimizer.weights.sum(dtype="float64"))
    return total - total == 0.0
