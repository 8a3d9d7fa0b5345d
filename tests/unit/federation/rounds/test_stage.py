"""A stage's rounds without any network: what they ask, and what they make of answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retexo_fl.client.api import (
    CountsAnswer,
    EvaluateAnswer,
    EvaluateRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.config import make_config
from retexo_fl.errors import RemoteProtocolError, TrainingDiverged
from retexo_fl.federation.asking import Ask, Round, WaitPolicy
from retexo_fl.federation.greeting import Participants
from retexo_fl.federation.rounds.checked_answers import checked
from retexo_fl.federation.rounds.clients import Clients, MaskedClients
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.rounds.stage_state import StageOutcome, StageState
from retexo_fl.ledger import TrafficLedger
from retexo_fl.masking.agreement import USES, Cohort
from retexo_fl.run_log.events import TriedCandidate
from retexo_fl.training.selection import Score
from retexo_fl.updates import PlainUpdates
from tests.support.promises import hello_of

TICKET = Ticket(job="job-0123456789ab", attempt=1, stage=1, weights_digest=bytes(32))
#: Client 1 has no train node, client 2 no validation node.
HELLOS = {0: hello_of(0), 1: hello_of(1, train=0), 2: hello_of(2, validation=0)}


FACTS: dict[str, Any] = {"hellos": HELLOS, "policy": WaitPolicy(timeout_s=9.0)}
CLIENTS = Clients(ledger=TrafficLedger(), **FACTS)


def stage(
    state: StageState | None = None, *, clients: Clients = CLIENTS, **keys: Any
) -> StageTraining:
    config = make_config({"clients": 3, "local-steps": 2, **keys})
    return StageTraining(
        config,
        TICKET,
        state or StageState.first(np.zeros(2, np.float32)),
        clients=clients,
        participants=Participants(
            training=(0, 2), validation=(0, 1), everyone=(0, 1, 2), updating=(0, 2)
        ),
        codec=PlainUpdates(),
    )


def update(client: int, *values: float, **changes: Any) -> TrainAnswer:
    known = HELLOS[client]
    told: dict[str, Any] = {
        "update_sum": np.array(values, np.float32),
        "examples": known.train,
        "loss_sum": 2.0 * known.train,
        "validation_examples": known.validation,
        "validation_loss_sum": 0.5 * known.validation,
        "validation_correct": known.validation,
    }
    return TrainAnswer(**{**told, **changes})


def judged(client: int, correct: int, nodes: int = 3) -> EvaluateAnswer:
    return EvaluateAnswer(examples=nodes, loss_sum=1.0, correct=correct)


def answered(asking: Round[Score], *answers: tuple[int, Any]) -> tuple[Ask, Score]:
    ask = next(asking)
    with pytest.raises(StopIteration) as end:
        asking.send(iter(answers))
    return ask, end.value.value


def test_a_round_asks_those_who_have_something_to_say() -> None:
    training = stage()
    weights = np.array([1.0, 2.0], np.float32)
    ask = next(training.train(weights))
    assert {client: type(item) for client, item in ask.requests.items()} == {
        0: TrainRequest,
        1: EvaluateRequest,
        2: TrainRequest,
    }
    assert list(ask.requests) == [0, 1, 2]
    assert ask.requests[0] is ask.requests[2]
    assert (ask.stage, ask.purpose, ask.counted) == (1, "train", frozenset({0, 2}))
    assert {item.ticket.round for item in ask.requests.values()} == {1}
    assert list(next(training.evaluate(weights, "validation")).requests) == [0, 1]
    tested = next(training.evaluate(weights, "test"))
    assert tested.ends
    assert list(tested.requests) == [0, 1, 2]
    assert all(item.last for item in tested.requests.values())  # type: ignore[attr-defined]


def test_under_masks_clients_are_told_apart_that_the_job_is_over() -> None:
    """Someone may begin anew in the test: then the cohort is asked again."""
    cohort = Cohort(members=(0, 1, 2), uses=frozenset(USES))
    told = CountsAnswer(nodes=9, train=9, validation=9, test=9, vectors_out=0, vectors_in=0)
    masking = MaskedSums(cohorts=(cohort,), counts={cohort.members: told})
    masked = MaskedClients(ledger=TrafficLedger(), masking=masking, **FACTS)
    tested = next(stage(clients=masked).evaluate(np.zeros(2, np.float32), "test"))
    assert not any(item.last for item in tested.requests.values())  # type: ignore[attr-defined]
    assert tested.ends


def test_a_round_divides_the_sums_once_and_steps() -> None:
    training = stage()
    _, score = answered(
        training.train(), (0, update(0, 8.0, 0.0)), (1, judged(1, 2)), (2, update(2, 0.0, -4.0))
    )
    assert training.weights.tolist() == [1.0, -0.5]
    assert (training.round, training.loss, training.absent) == (1, 2.0, ())
    assert (score.count, score.correct, score.loss_sum) == (6, 5, 2.5)
    # Nothing is known of w(1) before the next round.
    assert training.best.score is None


def test_each_round_validates_the_weights_of_the_one_before() -> None:
    training = stage()
    for correct in (3, 0, 2):
        answers = (0, update(0, 4.0, 4.0)), (1, judged(1, correct)), (2, update(2, 4.0, 4.0))
        before = training.weights.copy()
        answered(training.train(), *answers)
        if correct == 0:
            assert training.best.round_number == 1
            assert training.best.weights is not None
            assert training.best.weights.tolist() == before.tolist()
    assert training.best.round_number == 2
    assert training.outcome().rounds == 3


def test_who_has_not_answered_is_absent() -> None:
    training = stage()
    answered(training.train(), (2, update(2, 4.0, 4.0)))
    assert training.absent == (0, 1)
    assert training.weights.tolist() == [1.0, 1.0]
    assert stage(training.state()).absent == (0, 1)


@pytest.mark.parametrize(
    ("answers", "error", "told"),
    [
        ([(0, {"examples": 5})], RemoteProtocolError, "client 0: num-examples is 5; expected 4"),
        ([(0, {"loss_sum": np.nan})], TrainingDiverged, "client 0: loss-sum is nan"),
        (
            [(0, {"update_sum": np.zeros(3, np.float32)})],
            RemoteProtocolError,
            r"client 0: got a float32 update of shape \(3,\); expected float32 of \(2,\)",
        ),
        (
            [(0, {"update_sum": np.full(2, np.inf, np.float32)}), (2, {})],
            TrainingDiverged,
            "stage 1, round 1: the weights are not finite",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_client(
    answers: list[tuple[int, dict[str, Any]]], error: type[Exception], told: str
) -> None:
    training = stage()
    asking = checked(training.train(), CLIENTS)
    next(asking)
    with pytest.raises(error, match=f"^{told}"):
        asking.send((client, update(client, 1.0, 1.0, **wrong)) for client, wrong in answers)
    assert training.round == 0


def test_right_train_nodes_are_those_of_the_weights_that_were_sent() -> None:
    keys: dict[str, Any] = {"local-steps": 1, "candidates": "auto"}
    training = stage(**keys)
    train = HELLOS[0].train + HELLOS[2].train
    for number, correct in enumerate((1, 2), start=1):
        answers = [
            (0, update(0, 1.0, 2.0, correct=correct)),
            (1, judged(1, 1)),
            (2, update(2, 1.0, 2.0, correct=0)),
        ]
        _, score = answered(training.train(), *answers)
        assert score.train_accuracy == correct / train
        assert training.state().train_accuracy == correct / train
        assert number == training.round
    # They were validated by the same answers.
    assert training.best.round_number == 1
    assert training.best.score is not None
    assert training.best.score.train_accuracy == 2 / train
    # Nobody trains from the last weights: of these it is what was known of those before.
    _, last = answered(training.validate_last(), (0, judged(0, 3)), (1, judged(1, 3)))
    assert last.train_accuracy == 2 / train
    assert training.outcome().score.train_accuracy == 2 / train


@pytest.mark.parametrize(("correct", "said"), [(None, "missing"), (10**6, "1000000"), (-1, "-1")])
def test_right_train_nodes_are_a_count_of_those_there_are(correct: int | None, said: str) -> None:
    keys: dict[str, Any] = {"local-steps": 1, "candidates": "auto"}
    training = stage(**keys)
    told = (0, update(0, 1.0, 2.0, correct=correct))
    with pytest.raises(RemoteProtocolError, match=f"client 0: correct is {said}; expected"):
        answered(checked(training.train(), CLIENTS), told)


def test_without_candidates_right_train_nodes_are_not_counted() -> None:
    training = stage()
    answers = [(0, update(0, 1.0, 2.0)), (1, judged(1, 1)), (2, update(2, 1.0, 2.0))]
    _, score = answered(training.train(), *answers)
    assert score.train_accuracy is None


@pytest.mark.parametrize(("ours", "kept"), [(60, ""), (66, "no own rows")])
def test_what_was_trained_before_is_kept_unless_it_is_clearly_worse(ours: int, kept: str) -> None:
    before = StageOutcome(
        stage=1,
        rounds=5,
        best_round=3,
        score=Score(count=100, correct=60, loss_sum=1.0),
        weights=np.zeros(2, np.float32),
        tried=(TriedCandidate(name="", rounds=5, val_accuracy=0.6),),
    )
    state = StageState.next_candidate("no own rows", np.ones(2, np.float32), before)
    training = stage(replace(state, round=9))
    assert training.begun == 5
    training.best.offer(np.ones(2, np.float32), 8, Score(count=100, correct=ours, loss_sum=1.0))
    outcome = training.outcome()
    assert (outcome.candidate, outcome.rounds) == (kept, 9)
    assert outcome.best_round == (8 if kept else 3)
    assert [(one.name, one.rounds) for one in outcome.tried] == [("", 5), ("no own rows", 4)]
    assert outcome.choice == outcome.tried
    assert before.choice == ()
