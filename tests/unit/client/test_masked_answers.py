"""Answers as whole numbers: what their sums say, and which numbers cannot be added."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from retexo_fl.client.answers import SumFacts, sum_facts
from retexo_fl.client.api import (
    BasisAnswer,
    BasisRequest,
    CountsAnswer,
    CountsRequest,
    EvaluateAnswer,
    EvaluateRequest,
    GramAnswer,
    GramRequest,
    LabelsAnswer,
    LabelsRequest,
    PredictAnswer,
    PredictRequest,
    Request,
    SparseSums,
    Ticket,
    TrainAnswer,
    TrainRequest,
    purpose_of,
)
from retexo_fl.client.masked_answers import (
    COUNTER,
    answer_of_sum,
    form_of,
    numbers_of,
)
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError, RemoteProtocolError, TrainingDiverged
from retexo_fl.masking.step import SharedStep
from retexo_fl.training.label_facts import digits_of, number_of_digits
from retexo_fl.training.metrics import LogLoss
from retexo_fl.updates.masked import MaskedUpdates

TICKET = Ticket(job="job-0123456789ab", attempt=1, round=1)
CLIENTS, MOST = 3, 2**31 - 1
WEIGHTS = np.zeros(300)
STEP = SharedStep(40, -3)
STEPS = MaskedUpdates().first_steps(300, most_train=50, terms=CLIENTS)
REAL = SumFacts(update=300, metric=3, report=4, classes=2, label_sums=2)
COUNTS = replace(REAL, metric_counts=True, report_counts=True)


def trained(client: int) -> TrainAnswer:
    rng = np.random.default_rng(client)
    return TrainAnswer(
        update_sum=rng.integers(-99, 99, 300),
        examples=4 + client,
        loss_sum=1.5 * client,
        validation_examples=client,
        validation_loss_sum=2.25,
        validation_correct=2,
        validation_metric=SparseSums.of(np.array([1.0, 0.0, client])),
    )


def judged(client: int) -> EvaluateAnswer:
    return EvaluateAnswer(
        examples=7 * client,
        loss_sum=0.375,
        correct=client,
        metric=SparseSums.of(np.array([2.0, client, 0.0])),
        report=SparseSums.of(np.arange(4.0)) if client else SparseSums(),
    )


def asked_to_judge(nodes: str) -> EvaluateRequest:
    return EvaluateRequest(ticket=TICKET, weights=WEIGHTS, nodes=nodes)


def added(request: Request[Any], lengths: SumFacts, answers: list[Any], beside: np.ndarray) -> Any:
    form = form_of(request, lengths)
    total = form.zeros()
    if isinstance(request, TrainRequest):
        answers = [replace(a, update_sum=np.concatenate([a.update_sum, beside])) for a in answers]
    for answer in answers:
        found = numbers_of(request, answer, form, lengths, terms=CLIENTS)
        assert found.form == form
        total.add(found)
    return answer_of_sum(request, total, lengths)


@pytest.mark.parametrize("lengths", [REAL, COUNTS], ids=["sums", "counts"])
def test_the_sum_of_updates_says_what_clients_say_together(lengths: SumFacts) -> None:
    request = TrainRequest(ticket=TICKET, weights=WEIGHTS, steps=STEPS)
    answers = [trained(client) for client in range(CLIENTS)]
    beside = np.array([3, 2**40, 1])
    found = added(request, lengths, answers, beside)
    updates = np.sum([answer.update_sum for answer in answers], axis=0)
    assert found.update_sum.tolist() == [*updates.tolist(), *(CLIENTS * beside).tolist()]
    assert (found.examples, found.validation_examples, found.validation_correct) == (15, 3, 6)
    assert (found.loss_sum, found.validation_loss_sum) == (4.5, 6.75)
    assert found.validation_metric.array().tolist() == [3, 0, 3]


@pytest.mark.parametrize("lengths", [REAL, COUNTS], ids=["sums", "counts"])
def test_the_sum_of_judgements_says_what_clients_say_together(lengths: SumFacts) -> None:
    answers = [judged(client) for client in range(CLIENTS)]
    found = added(asked_to_judge("test"), lengths, answers, np.zeros(0))
    assert (found.examples, found.loss_sum, found.correct) == (21, 1.125, 3)
    assert found.metric.array().tolist() == [6, 3, 0]
    assert found.report.array().tolist() == [0, 2, 4, 6]
    # Of validation nodes there is no report; of no nodes nothing.
    plain = [replace(answer, report=SparseSums()) for answer in answers]
    found = added(asked_to_judge("validation"), lengths, plain, np.zeros(0))
    assert found.report == SparseSums()
    none = replace(judged(0), metric=SparseSums(), report=SparseSums())
    found = added(asked_to_judge("test"), lengths, [none] * 3, np.zeros(0))
    assert (found.metric, found.report) == (SparseSums(), SparseSums())


def test_who_has_read_nothing_by_a_cache_adds_zeros_to_what_others_have() -> None:
    facts = replace(REAL, counts_cached=True)
    answers = [judged(client) for client in range(CLIENTS)]
    told = [replace(answers[0], cached=(2, 5, 1, 2**50, 0)), *answers[1:]]
    found = added(asked_to_judge("test"), facts, told, np.zeros(0))
    assert found.cached == (2.0, 5.0, 1.0, 2.0**50, 0.0)
    asked = {nodes: form_of(asked_to_judge(nodes), facts) for nodes in ("test", "validation")}
    assert asked["test"].wide - form_of(asked_to_judge("test"), REAL).wide == 5
    assert asked["validation"] == form_of(asked_to_judge("validation"), REAL)


def test_the_sums_of_labels_predictions_features_and_products_likewise() -> None:
    labels = [LabelsAnswer(uses=(1, 2, 3, 4, 5, c), sums=(0.5, -c)) for c in range(CLIENTS)]
    found = added(LabelsRequest(ticket=TICKET), REAL, labels, np.zeros(0))
    assert found == LabelsAnswer(uses=(3, 6, 9, 12, 15, 3), sums=(1.5, -3.0))
    of_parts = CountsAnswer(
        nodes=2**40, train=1, validation=2, test=3, vectors_out=2**33, vectors_in=5
    )
    found = added(CountsRequest(ticket=TICKET), SumFacts(), [of_parts] * 3, np.zeros(0))
    assert found == CountsAnswer(
        nodes=3 * 2**40, train=3, validation=6, test=9, vectors_out=3 * 2**33, vectors_in=15
    )
    counts: dict[str, Any] = {
        "train": 2,
        "train_correct": 1,
        "validation": 3,
        "validation_correct": 2,
    }
    metrics: dict[str, Any] = {
        name: SparseSums.of(np.ones(3)) for name in ("validation_metric", "test_metric")
    }
    predicted = PredictAnswer(nodes=9, **counts, test=4, test_correct=0, **metrics)
    asked = PredictRequest(ticket=TICKET, weights=WEIGHTS, form="csv", set_name="set")
    found = added(asked, REAL, [predicted] * 3, np.zeros(0))
    assert (found.nodes, found.validation_correct, found.test, found.test_correct) == (27, 6, 12, 0)
    assert found.test_metric.array().tolist() == [3, 3, 3]
    features = BasisAnswer(sums=np.linspace(-1, 1, 300), examples=5, squares=(2.0, 3.5))
    found = added(BasisRequest(ticket=TICKET), REAL, [features] * 3, np.zeros(0))
    np.testing.assert_allclose(found.sums, 3 * features.sums, atol=3 * 2.0**-29)
    assert (found.examples, found.squares) == (15, (6.0, 10.5))
    products = GramAnswer(sums=STEP.unit * np.arange(300.0), examples=5)
    found = added(GramRequest(ticket=TICKET, steps=STEP.told), REAL, [products] * 3, np.zeros(0))
    assert found.sums.tolist() == (3 * products.sums).tolist()


@pytest.mark.parametrize(
    ("uses", "cut"), [(MOST, MOST), (MOST + 1, MOST), (2**60, MOST), (0, 0), (-1, 0)]
)
def test_a_count_is_from_none_to_all_that_there_are(uses: int, cut: int) -> None:
    request, answer = LabelsRequest(ticket=TICKET), LabelsAnswer(uses=(uses, *[1] * 5))
    lengths = SumFacts(classes=2)
    form = form_of(request, lengths)
    found = numbers_of(request, answer, form, lengths, terms=3)
    assert (found.counts[0], found.wide[-1]) == (cut, uses != cut)


def test_a_metric_that_says_it_counts_and_does_not_is_counted_as_cut() -> None:
    wrong = replace(judged(1), metric=SparseSums.of(np.array([0.5, np.nan, 0.0])))
    with pytest.raises(TrainingDiverged, match=r"evaluate\.layer: 6 values of all clients"):
        added(asked_to_judge("test"), COUNTS, [wrong] * 3, np.zeros(0))


def test_an_answer_that_could_not_be_computed_is_zeros_and_counted() -> None:
    request = TrainRequest(ticket=TICKET, weights=WEIGHTS, steps=STEPS)
    form = form_of(request, REAL)
    found = numbers_of(request, None, form, REAL, terms=CLIENTS)
    assert found.form == form
    assert [array.any() for array in (found.narrow, found.counts, found.wide[:-1])] == [False] * 3
    with pytest.raises(
        TrainingDiverged, match=r"train\.layer: 1 value of all clients could not be"
    ):
        answer_of_sum(request, found, REAL)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**42 / 3 + 1, -(2.0**42) / 3])
def test_a_loss_that_a_sum_cannot_hold_is_cut_and_counted(value: float) -> None:
    """Of three clients each has a third of what 62 bits hold in parts of 2**-20."""
    wrong = replace(judged(1), loss_sum=value)
    fits = replace(judged(1), loss_sum=2.0**42 / 3 - 1)
    added(asked_to_judge("test"), REAL, [fits] * 3, np.zeros(0))
    with pytest.raises(TrainingDiverged, match=r"evaluate\.layer: 1 value of all clients could"):
        added(asked_to_judge("test"), REAL, [fits, wrong, fits], np.zeros(0))


def test_sums_of_features_that_a_sum_cannot_hold_are_cut_and_counted() -> None:
    """Of three clients each has a third of what 62 bits hold in parts of 2**-28."""
    facts = SumFacts(update=1)
    request, third = BasisRequest(ticket=TICKET), 2.0**34 / 3
    told = [BasisAnswer(sums=np.array([third * share]), examples=1) for share in (0.99, 1.01)]
    assert added(request, facts, [replace(told[0], squares=(0.0, 0.0))] * 3, np.zeros(0)).sums > 0
    with pytest.raises(TrainingDiverged, match=r"query\.basis: 3 values of all clients could not"):
        added(request, facts, [replace(told[1], squares=(0.0, 0.0))] * 3, np.zeros(0))


def test_a_sum_below_zero_counts_nothing() -> None:
    request, lengths = LabelsRequest(ticket=TICKET), SumFacts(classes=2)
    form = form_of(request, lengths)
    answer = LabelsAnswer(uses=(0, 0, 0, 0, 0, 1))
    total = numbers_of(request, answer, form, lengths, terms=3)
    total.counts[2] = 2**COUNTER.bits - 1
    with pytest.raises(RemoteProtocolError, match="masked sum has -1 uses; expected a count"):
        answer_of_sum(request, total, lengths)


def test_each_use_is_a_purpose_of_its_own() -> None:
    requests = [asked_to_judge("test"), asked_to_judge("validation")]
    assert len({*map(purpose_of, requests)}) == 2


class Untold(LogLoss):
    """A metric that does not say how many sums it has."""

    def length(self, outputs: int) -> None:  # type: ignore[override]
        del outputs


def below_none(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -functional.cross_entropy(logits, labels, reduction="sum")


def test_under_masks_a_metric_says_how_many_sums_it_has() -> None:
    config = make_config({"metric": f"{__name__}:Untold"})
    assert sum_facts(config, 5).metric is None
    masked = replace(config, secure_aggregation="masked")
    with pytest.raises(ConfigurationError, match=r"^metric: .*Untold does not say how many sums"):
        sum_facts(masked, 5)


def test_a_loss_of_ones_own_may_be_below_0() -> None:
    assert sum_facts(make_config({}), 5).least_loss == 0
    assert sum_facts(make_config({"loss": f"{__name__}:below_none"}), 5).least_loss == -math.inf


def test_digits_of_sums_are_one_whole_number() -> None:
    facts = SumFacts(classes=1, label_sums=4, label_words=3)
    request = LabelsRequest(ticket=TICKET)
    answers = [LabelsAnswer(uses=(1, 2, 3), sums=digits_of(2**n - 1)) for n in (70, 90, 90)]
    found = added(request, facts, answers, np.zeros(0))
    assert number_of_digits(found.sums) == 2**70 + 2**91 - 3
    assert found.uses == (3, 6, 9)


def test_lengths_are_those_of_the_runs_task_and_metric() -> None:
    def lengths(**keys: Any) -> SumFacts:
        config = make_config({key.replace("_", "-"): value for key, value in keys.items()})
        return sum_facts(config, 5, update=7)

    plain = SumFacts(update=7, report=25, classes=5, report_counts=True)
    assert lengths() == plain
    assert lengths(metric="macro-f1") == replace(plain, metric=15, metric_counts=True)
    assert lengths(metric="log-loss") == replace(plain, metric=2)
    numbers = lengths(task="regression", metric="rmse")
    assert (numbers.metric, numbers.report, numbers.report_counts) == (6, 6, False)
    assert numbers.label_sums > 0
