"""Answers of clients: what they add up, and what their trainers found in that form.

An answer that is sums over nodes declares its fields (:func:`sums_of`), for whoever checks it,
masks it, or reads its sum: counts, with what a hello says of them, and sums, with the unit of which
they are multiples under masks. That follows from the request and from facts that are equal on all
clients (:class:`SumFacts`). How its array travels, codecs know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from retexo_fl.client.api import (
    NUM_CACHED,
    NUM_SIZES,
    BasisRequest,
    ChoiceRequest,
    CountsAnswer,
    CountsRequest,
    EvaluateAnswer,
    EvaluateRequest,
    GramRequest,
    LabelsRequest,
    MaskedAnswer,
    PredictRequest,
    PublishAnswer,
    Request,
    SparseSums,
    StructureRequest,
    TrainAnswer,
    TrainRequest,
    question_of,
)
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError, LocalProtocolError
from retexo_fl.plugins import is_plugin
from retexo_fl.relations import Relations
from retexo_fl.training.recipe import objective_of
from retexo_fl.training.tally import LayerUpdate, Tally

#: Of sums of losses, of squares, and of metrics that do not count.
_UNIT: Final = 2.0**-20

# ---- what is added up ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SumFacts:
    """What is known of the sums of a run before any client answers, equal on all clients.

    Attributes:
        update: Length of the answer's flat array: weights, or sums of features or products.
        metric: Of the metric; 0 without one, None for one that does not say it.
        report: Of the report of the test, with what types add up.
        of_types: Of what these add up where several have labels (:func:`.sums_by_type`), else 0.
        classes: Of the labels; 0 where they are not counted.
        label_sums: That the loss depends on.
        label_words: Words of 64 bits of these, where they are the digits of one whole number.
        metric_counts: The metric's are counts; likewise ``report_counts``.
        in_batches: A round may be of some of a client's train nodes.
        least_loss: Of a node.
        counts_train: Right train nodes are counted in each round.
        counts_cached: Rows that mini-batches have read by caches are counted, and sent at the test.
        predicts_some: Of the nodes those of one type are predicted.
    """

    update: int = 0
    metric: int | None = 0
    report: int | None = 0
    of_types: int | None = 0
    classes: int = 0
    label_sums: int = 0
    label_words: int = 0
    metric_counts: bool = False
    report_counts: bool = False
    in_batches: bool = False
    least_loss: float = 0.0
    counts_train: bool = False
    counts_cached: bool = False
    predicts_some: bool = False


def sum_facts(config: RunConfig, classes: int, *, types: int = 0, update: int = 0) -> SumFacts:
    """Return what is known of the sums of a run.

    Args:
        config: Of the run.
        classes: As in the clients' hellos.
        types: That are judged by themselves (:func:`judged_types`).
        update: Length of the answer's array.

    Raises:
        ConfigurationError: Sums are masked, and the metric does not say how many it has.
    """
    objective = objective_of(config)
    metric, label_facts = objective.metric(), objective.label_facts
    length = 0 if metric is None else metric.length(classes)
    if length is None and config.secure_aggregation == "masked":
        raise ConfigurationError(
            f"metric: {config.metric_name} does not say how many sums it has; expected a method "
            "length, or secure-aggregation none"
        )
    of_types = None if types and length is None else types * (2 + (length or 0))
    counts = metric is not None and metric.counts
    return SumFacts(
        update=update,
        metric=length,
        report=None if of_types is None else objective.report_length(classes) + of_types,
        of_types=of_types,
        classes=classes,
        label_sums=label_facts.num_sums(classes),
        label_words=label_facts.words,
        metric_counts=counts,
        report_counts=config.goal.counts_right and (counts or metric is None or not types),
        in_batches=config.sampler != "none",
        # What is the user's own may be anything.
        least_loss=-math.inf if is_plugin(config.loss) else 0.0,
        counts_train=config.has_candidates,
        counts_cached=config.tells_cached_rows,
    )


def judged_types(config: RunConfig, relations: Relations | None) -> int:
    """Return how many types of nodes are judged by themselves: all with labels, or else none."""
    labelled = () if relations is None or not config.goal.splits_nodes else relations.with_labels
    return len(labelled) if len(labelled) > 1 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A field of an answer that counts.

    Attributes:
        name: Of the field.
        length: How many counts it has; None where that is not known.
        is_list: It is a list of them, also if that has one; else a number, or :class:`.SparseSums`.
        over: Field that counts the nodes which :class:`.SparseSums` are over: of none there are
            none.
        of: Field of the hello that bounds it; empty where no field does.
        least: What it is at least, if the hello has so many; None: as many as the hello.
    """

    name: str
    length: int | None = 1
    is_list: bool = False
    over: str = ""
    of: str = ""
    least: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A field of an answer that adds up what does not count.

    Attributes:
        name: Of the field; likewise ``length``, ``is_list`` and ``over`` as of a :class:`Count`.
        unit: Of which sums are multiples under masks.
        least: What it is at least.
    """

    name: str
    length: int | None = 1
    is_list: bool = False
    over: str = ""
    unit: float = _UNIT
    least: float = -math.inf


Declared: TypeAlias = Count | Sum


def sums_of(request: Request[Any], facts: SumFacts) -> tuple[Declared, ...]:
    """Return the fields of the answer to a request that are added up beside its array.

    In this order they are masked.

    Raises:
        LocalProtocolError: Its answer is no sums.
    """
    declare = _DECLARED.get(type(request))
    if declare is None:
        raise LocalProtocolError(f"{question_of(request).message_type}: is not answered by sums")
    return tuple(declare(request, facts))


def _trained(_: TrainRequest, facts: SumFacts) -> Iterator[Declared]:
    yield Count(name="examples", of="train", least=1 if facts.in_batches else None)
    yield Sum(name="loss_sum", least=facts.least_loss)
    if facts.counts_train:
        yield Count(name="correct", of="train", least=0)
    yield Count(name="validation_examples", of="validation")
    yield Sum(name="validation_loss_sum", least=facts.least_loss)
    yield Count(name="validation_correct", of="validation", least=0)
    metric = Count if facts.metric_counts else Sum
    yield metric(name="validation_metric", length=facts.metric, over="validation_examples")


def _evaluated(request: EvaluateRequest, facts: SumFacts) -> Iterator[Declared]:
    yield Count(name="examples", of=request.nodes)
    yield Sum(name="loss_sum", least=facts.least_loss)
    yield Count(name="correct", of=request.nodes, least=0)
    metric = Count if facts.metric_counts else Sum
    yield metric(name="metric", length=facts.metric, over="examples")
    report = Count if facts.report_counts else Sum
    length = facts.report if request.nodes == "test" else 0
    yield report(name="report", length=length, over="examples")
    if request.nodes == "test" and facts.counts_cached:
        # Bytes are more than counts have bits for.
        yield Sum(name="cached", length=NUM_CACHED, is_list=True, unit=1.0, least=0.0)


def _predicted(_: PredictRequest, facts: SumFacts) -> Iterator[Declared]:
    yield Count(name="nodes", of="nodes", least=0 if facts.predicts_some else None)
    for use in ("train", "validation", "test"):
        yield Count(name=use, of=use)
        yield Count(name=f"{use}_correct", of=use, least=0)
    metric = Count if facts.metric_counts else Sum
    for use in ("validation", "test"):
        yield metric(name=f"{use}_metric", length=facts.metric, over=use)
    of_types = Count if facts.report_counts else Sum
    for use in ("validation", "test"):
        yield of_types(name=f"{use}_types", length=facts.of_types, over=use)


def _products(_: GramRequest | ChoiceRequest, __: SumFacts) -> Iterator[Declared]:
    yield Count(name="examples", of="train")


def _structured(_: StructureRequest, __: SumFacts) -> Iterator[Declared]:
    yield Count(name="nodes", of="nodes")


def _basis_sums(request: BasisRequest, _: SumFacts) -> Iterator[Declared]:
    yield Count(name="examples", of="train")
    if request.weights is None:
        kinds = len(request.rows.split()) or 1
        yield Sum(name="squares", length=2 * kinds, is_list=True, least=0.0)


def _counted(request: CountsRequest, _: SumFacts) -> Iterator[Declared]:
    for item in fields(CountsAnswer):
        if item.name not in {"sizes", "vectors_later"}:
            yield Count(name=item.name)
    if request.sizes:
        yield Count(name="sizes", length=NUM_SIZES, is_list=True)
    if request.later:
        yield Count(name="vectors_later", length=request.later, is_list=True)


def _labelled(_: LabelsRequest, facts: SumFacts) -> Iterator[Declared]:
    yield Count(name="uses", length=3 * facts.classes, is_list=True)
    if facts.label_sums and not facts.label_words:
        # Digits are an array of their own.
        yield Sum(name="sums", length=facts.label_sums, is_list=True)


_DECLARED: Final[Mapping[type[Request[Any]], Callable[..., Iterator[Declared]]]] = MappingProxyType(
    {
        TrainRequest: _trained,
        EvaluateRequest: _evaluated,
        PredictRequest: _predicted,
        BasisRequest: _basis_sums,
        ChoiceRequest: _products,
        GramRequest: _products,
        StructureRequest: _structured,
        CountsRequest: _counted,
        LabelsRequest: _labelled,
    }
)


# ---- what trainers found -------------------------------------------------------------------------


def train_answer(
    update: LayerUpdate, coded: np.ndarray, *, counts_train: bool = False
) -> TrainAnswer:
    """Return the answer of one client to a round.

    Args:
        update: Of its trainer.
        coded: The same as it travels.
        counts_train: Whether to say how many train nodes are right.
    """
    return TrainAnswer(
        update_sum=coded,
        examples=update.train.count,
        loss_sum=update.train.loss_sum,
        validation_examples=update.validation.count,
        validation_loss_sum=update.validation.loss_sum,
        validation_correct=update.validation.correct,
        validation_metric=SparseSums.of(update.validation.metric_sums),
        correct=update.train.correct if counts_train else None,
    )


def judged_nodes(answer: TrainAnswer | EvaluateAnswer) -> Tally:
    """Return how nodes were judged by an answer: those of an evaluation, or a round's validation.

    Raises:
        RemoteProtocolError: Its sums are none.
    """
    if isinstance(answer, TrainAnswer):
        return Tally(
            count=answer.validation_examples,
            loss_sum=answer.validation_loss_sum,
            correct=answer.validation_correct,
            metric_sums=answer.validation_metric.array(),
        )
    return Tally(
        count=answer.examples,
        loss_sum=answer.loss_sum,
        correct=answer.correct,
        metric_sums=answer.metric.array(),
        report_sums=answer.report.array(),
    )


#: Of a client that does not hold the weights which a request changes.
LACKING_TRAIN: Final = TrainAnswer(
    update_sum=np.zeros(0, np.float32),
    examples=0,
    loss_sum=0.0,
    validation_examples=0,
    validation_loss_sum=0.0,
    validation_correct=0,
    lacks_weights=True,
)
LACKING_EVALUATE: Final = EvaluateAnswer(examples=0, loss_sum=0.0, correct=0, lacks_weights=True)
LACKING_MASKED: Final = MaskedAnswer(numbers=np.zeros(0, np.uint8), beside=b"", lacks_weights=True)
#: Of a client that has no masking keys.
KEYLESS: Final = MaskedAnswer(numbers=np.zeros(0, np.uint8), beside=b"", lacks_keys=True)
LACKING_PUBLISH: Final = PublishAnswer(lacks_weights=True)


def evaluate_answer(
    tally: Tally, own: tuple[float, ...], cached: tuple[float, ...] = ()
) -> EvaluateAnswer:
    """Say how some nodes were judged.

    Args:
        tally: Of its trainer.
        own: The client's figure, or nothing.
        cached: What mini-batches have read by caches (:attr:`.CachedRows.numbers`), or nothing.
    """
    return EvaluateAnswer(
        examples=tally.count,
        loss_sum=tally.loss_sum,
        correct=tally.correct,
        metric=SparseSums.of(tally.metric_sums),
        report=SparseSums.of(tally.report_sums),
        own=own,
        cached=cached,
    )
