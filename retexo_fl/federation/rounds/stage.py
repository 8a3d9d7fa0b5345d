"""The rounds of one stage: weights out, sums in, one optimizer step; validation and test."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from retexo_fl.client.answers import judged_nodes, judged_types, sum_facts
from retexo_fl.client.api import (
    EvaluateRequest,
    Request,
    Ticket,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.config import RunConfig
from retexo_fl.errors import TrainingDiverged
from retexo_fl.federation.aggregators import RoundFacts, make_aggregator
from retexo_fl.federation.asking import Answers, Ask, Round, Who, members, named
from retexo_fl.federation.greeting import Participants
from retexo_fl.federation.optimizers import ServerOptimizer, make_optimizer
from retexo_fl.federation.rounds.checked_answers import cached_rows, check_own
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.federation.rounds.stage_state import StageOutcome, StageState
from retexo_fl.run_log.cached_rows import CachedRows
from retexo_fl.run_log.events import TriedCandidate
from retexo_fl.training.recipe import objective_of
from retexo_fl.training.selection import BestWeights, Score, add_answer
from retexo_fl.training.tally import Tally, tallies_by_type
from retexo_fl.units import format_counted
from retexo_fl.updates import UpdateCodec, UpdateKey
from retexo_fl.updates.zeros import Groups

logger = logging.getLogger(__name__)

#: Under a robust aggregator steps reach updates so many times as large as the clients' median.
_MOST_MEDIANS: Final = 8


class StageTraining:
    """One stage while it is trained.

    Args:
        config: What to train.
        ticket: Names the stage.
        state: Where an earlier attempt left it.
        clients: All clients.
        participants: Who takes part in what.
        codec: Of updates and weights on their way.
        label_facts: What clients are to know of all clients' labels.

    Attributes:
        ticket: Names the stage.
        begun: Rounds of the stage that were trained as something else, before.
        candidate: As what it is trained (:mod:`~retexo_fl.training.candidates`).
        rival: The best of what it was trained as before.
        round: Rounds that are done.
        loss: Mean training loss of the last round, None before the first, or where it is not known.
        best: The best weights so far.
        absent: Clients whose answers the last round was closed without, ascending.
        summed: How many clients' updates its masked sum is of; None where sums are not masked.
        cut: How many of their values were too large for the grid, and cut.
        report_sums: Of all clients, after the test; may be empty.
        by_type: Where several types of nodes have labels, of each how its test nodes were judged.
        own_figures: By client, its own figure of the test, where they were asked for.
        cached: What mini-batches of the attempt have read by caches, known after the test.
    """

    def __init__(
        self,
        config: RunConfig,
        ticket: Ticket,
        state: StageState,
        *,
        clients: Clients,
        participants: Participants,
        codec: UpdateCodec,
        label_facts: tuple[float, ...] = (),
    ) -> None:
        self.ticket = ticket
        self.begun = state.begun
        self.candidate = state.candidate
        self.round = state.round
        self.loss = state.loss
        self.best: BestWeights = state.best
        self.absent = state.absent
        self.summed: int | None = state.summed
        self.cut: int | None = state.cut
        self.report_sums: np.ndarray = np.zeros(0)
        self.by_type: tuple[Score, ...] = ()
        self.own_figures: dict[int, float] = {}
        self.cached = CachedRows()
        self._config = config
        self._clients = clients
        self._participants = participants
        self._label_facts = label_facts
        self._codec = codec
        #: What the next round's updates are encoded by.
        self._steps = state.steps
        self._held = state.held
        if self._held is None and state.round == state.begun and clients.most_held:
            # Clients compute them as the server did; one that cannot asks for them.
            self._held = state.weights.copy()
        self.rival = state.rival
        self._train_accuracy = state.train_accuracy
        self._types = judged_types(config, clients.relations)
        self._sum_facts = sum_facts(
            config, clients.classes, types=self._types, update=len(state.weights)
        )
        self._metric = objective_of(config).metric(label_facts)
        self._counts_right = config.goal.counts_right
        if not self._steps:
            self._steps = codec.first_steps(
                len(state.weights),
                most_train=clients.most_train,
                terms=len(participants.training),
            )
        self._optimizer: ServerOptimizer = make_optimizer(config, state.weights)
        self._optimizer.load_state(state.optimizer)
        self._aggregator = make_aggregator(
            config.aggregator, takes_uncounted=clients.exchange_in_rounds
        )
        #: But for the number of the round.
        self._round_facts = RoundFacts(
            seed=config.seed,
            stage=ticket.stage,
            number=0,
            size=len(state.weights),
            dtype=str(state.weights.dtype),
        )

    @property
    def weights(self) -> np.ndarray:
        """(P,) weights after the last round."""
        return self._optimizer.weights

    @property
    def training_clients(self) -> tuple[int, ...]:
        """Clients that train, ascending."""
        return self._participants.training

    def begin_whole(self) -> None:
        """Have the weights that it starts from sent whole: clients cannot compute them."""
        if self.round == self.begun:
            self._held = None

    def go_on_from(self, weights: np.ndarray) -> None:
        """Have (P,) weights take the place of those after the last round."""
        if not np.array_equal(weights, self.weights):
            np.copyto(self.weights, weights)

    def train(self, weights: np.ndarray | None = None) -> Round[Score]:
        """Train one round; return the validation of the weights that were sent out.

        Hands the updates in client order to the aggregator: ``mean`` sums them and divides once, a
        robust one looks at each client's mean update. Then takes one optimizer step. Only clients
        with train nodes return an update; the others with validation nodes evaluate. Under masks,
        all of a cohort return one, and the round gets their sum.

        Args:
            weights: (P,) what training goes on from, in place of the weights after the last round,
                unless None.

        Raises:
            TrainingDiverged: The new weights, or a loss, are not finite.
            RemoteProtocolError: A client's counts are not those that its hello promised.
        """
        number = self.round + 1
        if weights is not None:
            self.go_on_from(weights)
        sent, coded = self._outgoing()
        answers = yield from self._ask(
            lambda form: self._train_requests(form, number), sent, coded, purpose="train"
        )
        self._aggregator.start(replace(self._round_facts, number=number))
        validation, examples, loss_sum, correct = Tally(), 0, 0.0, 0
        measured: list[np.ndarray] = []
        answered: set[int] = set()
        is_sum = False
        for who, answer in answers:
            answered.update(members(who))
            is_sum = not isinstance(who, int)
            if isinstance(answer, TrainAnswer):
                measured.append(self._add_update(who, number, answer))
                examples += answer.examples
                loss_sum += answer.loss_sum
                correct += answer.correct or 0
            validation = add_answer(validation, judged_nodes(answer))
        loss = loss_sum / examples
        self._optimizer.step(self._aggregator.finish(), loss, sent)
        if not _is_finite(self._optimizer):
            raise TrainingDiverged(
                f"stage {self.ticket.stage}, round {number}: the weights are not finite "
                "after the optimizer's step; lower learning-rate"
            )
        if self._sum_facts.counts_train:
            self._train_accuracy = correct / examples
        score = replace(self._score(validation), train_accuracy=self._train_accuracy)
        if number > self.begun + 1:
            self.best.offer(sent, number - 1, score)
        if is_sum:
            self._note_sum(answered, measured)
        if measured:
            self._steps = self._codec.steps(self._largest(np.stack(measured)), self._steps)
        # Clients reveal nothing of train nodes without noise.
        self.round, self.loss = number, None if self._config.update_dp else loss
        self.absent = tuple(sorted({*self._participants.asked} - answered))
        return score

    def _note_sum(self, answered: set[int], measured: list[np.ndarray]) -> None:
        """Note whose updates a masked round added up, and how much of them was cut."""
        self.summed = len(answered.intersection(self.training_clients))
        self.cut = int(sum(one[-1] for one in measured))
        if self.cut > self._codec.cut_share * (len(self.weights) * self.summed):
            logger.warning(
                "stage %d, round %d: %s of %s exceeded what their steps reach and were cut; the "
                "next round's steps reach them",
                self.ticket.stage,
                self.round + 1,
                format_counted(self.cut, "value"),
                format_counted(self.summed, "client"),
            )

    def evaluate(self, weights: np.ndarray, nodes: str) -> Round[Score]:
        """Evaluate (P,) weights on the ``validation`` or ``test`` nodes of all clients.

        The test ends the job, so clients without test nodes are asked too.
        """
        coded = self._named(weights)
        answers = yield from self._ask(
            lambda form: self._evaluate_requests(form, nodes),
            weights,
            coded,
            purpose="evaluate",
            ends=nodes == "test",
        )
        found = self._judged(answers, nodes)
        of_all = objective_of(self._config).report_length(self._clients.classes)
        self.report_sums, of_types = np.split(found.report_sums, [of_all])
        if of_types.size:
            self.by_type = tuple(map(self._score, tallies_by_type(of_types, self._types)))
        return self._score(found)

    def validate_last(self) -> Round[Score]:
        """Validate the weights after the last round, and offer them as the best."""
        sent, coded = self._outgoing()
        answers = yield from self._ask(
            lambda form: self._evaluate_requests(form, "validation"),
            sent,
            coded,
            purpose="evaluate",
        )
        judged = self._score(self._judged(answers, "validation"))
        score = replace(judged, train_accuracy=self._train_accuracy)
        self.best.offer(sent, self.round, score)
        return score

    def _judged(self, answers: Answers, nodes: str) -> Tally:
        """Add up, in client order, how the ``validation`` or ``test`` nodes were judged."""
        found = Tally()
        for who, answer in answers:
            check_own(who, answer, nodes=nodes)
            found = add_answer(found, judged_nodes(answer))
            if answer.own:
                self.own_figures[members(who)[0]] = answer.own[0]
            if answer.cached:
                self.cached += cached_rows(who, answer, facts=self._sum_facts, nodes=nodes)
        return found

    def state(self) -> StageState:
        """Return the stage's state."""
        return StageState(
            round=self.round,
            loss=self.loss,
            best=self.best,
            weights=self.weights,
            optimizer=self._optimizer.state(),
            absent=self.absent,
            summed=self.summed,
            cut=self.cut,
            steps=self._steps,
            held=self._held,
            train_accuracy=self._train_accuracy,
            candidate=self.candidate,
            begun=self.begun,
            rival=self.rival,
        )

    def outcome(self) -> StageOutcome:
        """Return what the stage leaves, after its last weights were validated.

        That is the best of all that it was trained as.
        """
        score = self.best.score
        assert self.best.weights is not None
        assert score is not None
        tried = TriedCandidate(
            name=self.candidate,
            rounds=self.round - self.begun,
            val_accuracy=score.accuracy,
            val_metric=score.metric,
            train_accuracy=score.train_accuracy,
        )
        own = StageOutcome(
            stage=self.ticket.stage,
            rounds=self.round,
            best_round=self.best.round_number,
            score=score,
            weights=self.best.weights,
            candidate=self.candidate,
            tried=(tried,),
        )
        return own.best_of(self.rival)

    def _outgoing(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights after the last round as clients get them, and as sent."""
        # The optimizer's own array changes with its step.
        exact = self.weights.copy()
        coded = self._codec.weights.encode(exact, self._held)
        return self._codec.weights.decode(coded, self._held), coded

    def _largest(self, measured: np.ndarray) -> np.ndarray:
        """Return what the next steps must reach, of (clients, measures) of this round's updates.

        Where the aggregator does not believe a single client, neither may one make everybody's
        steps coarse.
        """
        largest: np.ndarray = measured.max(axis=0)
        if self._aggregator.needs == "each":
            largest = np.minimum(largest, _MOST_MEDIANS * np.median(measured, axis=0))
        return largest

    def _named(self, weights: np.ndarray) -> np.ndarray:
        """Return selected weights as they are sent: whole, if clients hold them no more."""
        best = self.best
        is_best = best.weights is not None and np.array_equal(best.weights, weights)
        # After the test clients forget the job: then all could not be asked again, as where they
        # exchange in rounds.
        if self._clients.exchange_in_rounds or not is_best:
            return self._whole(weights)
        is_held = self.round - best.round_number < self._clients.most_held
        return self._codec.weights.encode(weights, weights if is_held else None)

    def _whole(self, weights: np.ndarray) -> np.ndarray:
        return self._codec.weights.encode(weights, None)

    def _ask(
        self,
        requests: Callable[[np.ndarray], dict[int, Request[object]]],
        sent: np.ndarray,
        coded: np.ndarray,
        *,
        purpose: str,
        ends: bool = False,
    ) -> Round[Answers]:
        """Ask with coded weights; with whole ones, those that could not decode them."""
        changes = self._clients.most_held > 0
        answers = yield Ask(
            requests=requests(coded),
            stage=self.ticket.stage,
            purpose=purpose,
            counted=frozenset(self.training_clients) if purpose == "train" else None,
            sums=self._sum_facts,
            again=(lambda: requests(self._whole(sent))) if changes else None,
            all_again=self._clients.exchange_in_rounds,
            ends=ends,
        )
        if changes:
            self._held = sent
        return answers

    def _evaluate_requests(self, coded: np.ndarray, nodes: str) -> dict[int, Request[object]]:
        ticket, is_test = replace(self.ticket, round=self.round), nodes == "test"
        request = EvaluateRequest(
            ticket=ticket,
            weights=coded,
            nodes=nodes,
            last=is_test and not self._clients.end_apart,
            label_facts=self._label_facts,
        )
        asked = self._participants.everyone if is_test else self._participants.validation
        return dict.fromkeys(asked, request)

    def _train_requests(self, coded: np.ndarray, number: int) -> dict[int, Request[object]]:
        ticket = replace(self.ticket, round=number)
        facts = self._label_facts
        train = TrainRequest(
            ticket=ticket, weights=coded, steps=self._steps or None, label_facts=facts
        )
        evaluate = EvaluateRequest(
            ticket=ticket, weights=coded, nodes="validation", label_facts=facts
        )
        updating = self._participants.updating
        return {c: train if c in updating else evaluate for c in self._participants.asked}

    def _add_update(self, who: Who, number: int, answer: TrainAnswer) -> np.ndarray:
        """Hand an update, or a sum, to the aggregator; return what the codec measures of it."""
        client = members(who)[0]
        coded = answer.update_sum
        with named(who):
            update = self._codec.decode_update(coded, self._key(number, client), self._steps)
        if isinstance(update, Groups):
            self._aggregator.add(client, update, answer.examples)
            return np.zeros(0, update.dtype)
        if coded.dtype.kind == "i":
            update = update.astype(self.weights.dtype)
        self._aggregator.add(client, update, answer.examples)
        return self._codec.measure(update, coded)

    def _key(self, number: int, client: int) -> UpdateKey:
        return UpdateKey(
            seed=self._config.seed,
            job=self.ticket.job,
            stage=self.ticket.stage,
            round=number,
            client=client,
        )

    def _score(self, found: Tally) -> Score:
        return Score.of(found, self._metric, counts_right=self._counts_right)


def _is_finite(optimizer: ServerOptimizer) -> bool:
    # The sum is finite only if every term is; it needs no temporary of the weights' size.
    total = float(optimizer.weights.sum(dtype="float64"))
    return total - total == 0.0
