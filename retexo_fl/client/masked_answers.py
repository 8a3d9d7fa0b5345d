"""Answers as whole numbers that can be added under masks, and their sums as answers again.

The update of a round is whole numbers already (:class:`.MaskedUpdates`). Counts are; sums of losses
and of metrics become multiples of 2**-20, sums of features and of products multiples of 2**-28.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from retexo_fl.client.api import (
    BasisAnswer,
    BasisRequest,
    EvaluateRequest,
    GramAnswer,
    GramRequest,
    LabelsRequest,
    PredictAnswer,
    PredictRequest,
    Request,
    Sums,
    TrainAnswer,
    TrainRequest,
    question_of,
)
from retexo_fl.config import RunConfig
from retexo_fl.errors import (
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
    TrainingDiverged,
)
from retexo_fl.masking.ring import Ring
from retexo_fl.masking.streams import WIDE, Form
from retexo_fl.masking.streams import Sums as MaskSums
from retexo_fl.training.judging import report_length
from retexo_fl.training.label_facts import label_sums_length
from retexo_fl.training.metrics import make_metric
from retexo_fl.updates.masked import MaskedUpdates

#: One of the losses' sums, and of the metrics'; of features and products.
_UNIT: Final = 2.0**-20
_FINE_UNIT: Final = 2.0**-28
#: By sums of a metric, how many nodes they are over.
_COUNT_OF: Final = {
    "validation_metric": "validation_examples",
    "metric": "examples",
    "report": "examples",
}
#: Sums of all clients stay below this.
_MOST: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class SumLengths:
    """How many numbers an answer has: of a run and a request, equal on all clients.

    Attributes:
        update: Of the flat array: weights, or sums of features or products.
        metric: Of the metric; 0 without one.
        report: Of the report of the test.
        classes: Of the labels; 0 where they are not counted.
        label_sums: That the loss depends on.
    """

    update: int = 0
    metric: int = 0
    report: int = 0
    classes: int = 0
    label_sums: int = 0


def sum_lengths(config: RunConfig, classes: int, *, update: int = 0) -> SumLengths:
    """Return the lengths of the answers of a run.

    Args:
        config: Of the run.
        classes: As in the clients' hellos.
        update: Length of the answer's array.

    Raises:
        ConfigurationError: The metric does not say how many sums it has.
    """
    metric = make_metric(config.metric_name, config.task)
    length = 0 if metric is None else metric.length(classes)
    if length is None:
        raise ConfigurationError(
            f"metric: {config.metric_name} does not say how many sums it has; expected a method "
            "length, or secure-aggregation none"
        )
    return SumLengths(
        update=update,
        metric=length,
        report=report_length(config.task, classes),
        classes=classes,
        label_sums=label_sums_length(config, classes),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A field of an answer: its name, how many numbers, and of which unit (0: counts)."""

    name: str
    length: int
    unit: float


def purpose_of(request: Request[Any]) -> str:
    """Return what distinguishes sums of one stage and round, as labels have it."""
    name = question_of(request).message_type
    if isinstance(request, EvaluateRequest):
        name = f"{name} {request.nodes}{' beside' if request.terms.beside else ''}"
    return name


def told_weights(request: Request[Any], weights: np.ndarray | None) -> bytes:
    """Return the digest of all that an answer is computed with, the same on all clients.

    Args:
        request: What was asked.
        weights: What the client computes with, decoded.
    """
    facts = np.asarray(getattr(request, "label_facts", ()), np.float64)
    told = hashlib.sha256(b"retexo masked weights 1" + request.ticket.weights_digest)
    told.update(facts.tobytes())
    if weights is not None:
        told.update(str(weights.dtype).encode() + np.ascontiguousarray(weights).tobytes())
    return told.digest()


def form_of(request: Request[Any], lengths: SumLengths) -> Form:
    """Return the form of the numbers of an answer."""
    wide = sum(part.length for part in _parts(request, lengths))
    if isinstance(request, BasisRequest | GramRequest):
        return Form(ring=WIDE, narrow=lengths.update, wide=wide)
    if not isinstance(request, TrainRequest):
        return Form(ring=Ring(2), narrow=0, wide=wide)
    shared = MaskedUpdates.shared(request.steps or b"")
    return Form(ring=shared.ring, narrow=lengths.update, wide=wide + shared.beside(lengths.update))


def told_form(request: Request[Any], form: Form) -> bytes:
    """Return the digest of form and steps, for the label."""
    steps = getattr(request, "steps", None) or b""
    return hashlib.sha256(form.words + b"/" + steps).digest()


def numbers_of(
    request: Request[Any], answer: Any, lengths: SumLengths, *, terms: int, client: int
) -> MaskSums:
    """Return a client's answer as numbers.

    Args:
        request: What was asked.
        answer: Of the question's own class.
        lengths: How many numbers there are.
        terms: How many clients' are added.
        client: Its index, for errors.

    Raises:
        TrainingDiverged: A value is not finite, or too large for a sum under masks.
    """
    form, most = form_of(request, lengths), _MOST // terms
    wide = np.concatenate(
        [
            _whole(part, getattr(answer, part.name), most=most, client=client)
            for part in _parts(request, lengths)
        ]
    )
    narrow = np.zeros(0, np.int64)
    if isinstance(answer, BasisAnswer | GramAnswer):
        part = _Part("sums", lengths.update, _FINE_UNIT)
        narrow = _whole(part, answer.sums, most=most, client=client)
    if isinstance(answer, TrainAnswer):
        narrow, extra = np.split(answer.update_sum, [form.narrow])
        wide = np.concatenate([wide, extra])
    return MaskSums.of(form.ring, narrow, wide)


def answer_of_sum(request: Request[Any], total: MaskSums, lengths: SumLengths) -> Any:
    """Return the sum of all answers as one: an answer of the question's own class."""
    narrow, wide = total.signed()
    found: dict[str, Any] = {}
    at = 0
    for part in _parts(request, lengths):
        found[part.name] = _field(part, wide[at : at + part.length])
        at += part.length
    for name, count in _COUNT_OF.items():
        if name in found and not found.get(count, 1):
            # Over no nodes there are no sums.
            found[name] = Sums()
    kind = question_of(request).answer
    if kind is TrainAnswer:
        found["update_sum"] = np.concatenate([narrow, wide[at:]])
    if kind in {BasisAnswer, GramAnswer}:
        found["sums"] = narrow * _FINE_UNIT
    return kind(**found)


def _parts(request: Request[Any], lengths: SumLengths) -> Sequence[_Part]:
    """Return the fields of the answer to a request that are added up beside its array."""
    match request:
        case TrainRequest():
            return [
                _Part("examples", 1, 0),
                _Part("loss_sum", 1, _UNIT),
                _Part("validation_examples", 1, 0),
                _Part("validation_loss_sum", 1, _UNIT),
                _Part("validation_correct", 1, 0),
                _Part("validation_metric", lengths.metric, _UNIT),
            ]
        case EvaluateRequest():
            report = lengths.report if request.nodes == "test" else 0
            return [
                _Part("examples", 1, 0),
                _Part("loss_sum", 1, _UNIT),
                _Part("correct", 1, 0),
                _Part("metric", lengths.metric, _UNIT),
                _Part("report", report, _UNIT),
            ]
        case BasisRequest() | GramRequest():
            return [_Part("examples", 1, 0)]
        case LabelsRequest():
            return [
                _Part("uses", 3 * lengths.classes, 0),
                _Part("sums", lengths.label_sums, _UNIT),
            ]
        case PredictRequest():
            metrics = ("validation_metric", "test_metric")
            counts = [item.name for item in fields(PredictAnswer) if item.name not in metrics]
            return [
                *(_Part(name, 1, 0) for name in counts),
                *(_Part(name, lengths.metric, _UNIT) for name in metrics),
            ]
    raise LocalProtocolError(f"{question_of(request).message_type}: cannot be masked")


def _whole(part: _Part, value: Any, *, most: int, client: int) -> np.ndarray:
    """Return a field as (length,) whole numbers."""
    if isinstance(value, Sums):
        # None of no nodes; all answers have the same form.
        value = value.array() if value.length else np.zeros(part.length)
    values = np.atleast_1d(np.asarray(value))
    if part.unit:
        values = np.rint(values.astype(np.float64) / part.unit)
        if not (np.abs(values) < most).all():
            raise TrainingDiverged(
                f"client {client}: {part.name.replace('_', '-')} is not finite, or "
                f"{most * part.unit:.3g} or more; expected less under secure-aggregation masked: "
                "lower learning-rate, or scale features and labels"
            )
    assert values.shape == (part.length,), (part, values.shape)
    return values.astype(np.int64)


def _field(part: _Part, numbers: np.ndarray) -> Any:
    if part.name in {"uses", "sums"}:
        return tuple((numbers * part.unit if part.unit else numbers).tolist())
    if part.name.endswith(("metric", "report")):
        return Sums.of(numbers * part.unit) if part.length else Sums()
    if part.unit:
        return float(numbers[0]) * part.unit
    if int(numbers[0]) < 0:
        raise RemoteProtocolError(
            f"a masked sum has {int(numbers[0])} {part.name}; expected a count: a client added "
            "numbers of its own choice, or masks were not equal"
        )
    return int(numbers[0])
