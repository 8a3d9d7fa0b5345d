"""Answers as whole numbers that can be added under masks, and their sums as answers again.

The update of a round is whole numbers already (:class:`.MaskedUpdates`). Counts are, too, in 32
bits; those of parts and vectors, by which the others are checked, in 64. Sums of losses, of squares
and of metrics that do not count become multiples of 2**-20, sums of features multiples of 2**-28,
all in 64 bits; sums of products are multiples of a step that the request names
(:class:`.SharedStep`).

A refusal would tell of one client's data, so no number is refused: what is not finite, not whole or
too large is cut, and how much was is one of the numbers that are added up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from retexo_fl.client.api import (
    BasisRequest,
    CountsAnswer,
    CountsRequest,
    EvaluateRequest,
    GramRequest,
    LabelsRequest,
    PredictAnswer,
    PredictRequest,
    Request,
    Sums,
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
from retexo_fl.graph.labels import REGRESSION
from retexo_fl.masking.ring import Ring
from retexo_fl.masking.step import SharedStep
from retexo_fl.masking.streams import WIDE, Form, long_words
from retexo_fl.masking.streams import Sums as MaskSums
from retexo_fl.training.judging import report_length
from retexo_fl.training.label_facts import (
    digits_of,
    label_sums_length,
    label_words,
    number_of_digits,
)
from retexo_fl.training.metrics import make_metric
from retexo_fl.units import format_counted
from retexo_fl.updates.digest import array_digest
from retexo_fl.updates.masked import MaskedUpdates

#: One of the losses' sums, and of the metrics'; of features.
_UNIT: Final = 2.0**-20
_FINE_UNIT: Final = 2.0**-28
#: By sums of a metric, how many nodes they are over.
_COUNT_OF: Final = {
    "validation_metric": "validation_examples",
    "metric": "examples",
    "report": "examples",
}
#: What no count adds up to more than, over all clients, and the ring of such sums: the same in each
#: run, since how many bits they have would tell how many nodes there are.
MOST_COUNT: Final = 2**31 - 1
COUNTER: Final = Ring.of_sums(MOST_COUNT, 1)
#: Values that all clients together may have cut: more than there are.
_MOST_CUT: Final = 2**40
#: Sums of all clients in 64 bits stay below this.
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
        label_words: Words of 64 bits of these, where they are the digits of one whole number.
        metric_counts: The metric's are counts; likewise ``report_counts``.
    """

    update: int = 0
    metric: int = 0
    report: int = 0
    classes: int = 0
    label_sums: int = 0
    label_words: int = 0
    metric_counts: bool = False
    report_counts: bool = False


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
        label_words=label_words(config),
        metric_counts=metric is not None and metric.counts,
        report_counts=config.task != REGRESSION,
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """A field of an answer: its name, how many numbers, and of which unit; without one, counts."""

    name: str
    length: int = 1
    unit: float | None = None


def purpose_of(request: Request[Any]) -> str:
    """Return what distinguishes sums of one stage and round, as labels have it."""
    name = question_of(request).message_type
    if isinstance(request, EvaluateRequest):
        name = f"{name} {request.nodes}"
    return name


def told_weights(request: Request[Any], weights: np.ndarray | None) -> bytes:
    """Return the digest of all that an answer is computed with, the same on all clients.

    Args:
        request: What was asked.
        weights: What the client computes with, decoded.
    """
    facts = np.asarray(getattr(request, "label_facts", ()), np.float64)
    told = hashlib.sha256(b"retexo masked weights 2" + request.ticket.weights_digest)
    told.update(facts.tobytes())
    if weights is not None:
        told.update(array_digest(weights))
    return told.digest()


def form_of(request: Request[Any], lengths: SumLengths) -> Form:
    """Return the form of the numbers of an answer.

    Raises:
        RemoteProtocolError: The request's steps are none.
    """
    parts = _parts(request, lengths)
    wide = sum(part.length for part in parts if part.unit is not None)
    ring, narrow, beside, long = Ring(2), 0, 0, 0
    match request:
        case TrainRequest():
            shared = MaskedUpdates.shared(request.steps or b"")
            ring, narrow, beside = shared.ring, lengths.update, shared.beside(lengths.update)
        case BasisRequest() | GramRequest():
            (ring, _), narrow = _of_products(request), lengths.update
        case LabelsRequest():
            long = lengths.label_words
    return Form(
        ring=ring,
        narrow=narrow,
        # The last one counts what was cut.
        wide=long + wide + beside + 1,
        long=long,
        counts=sum(part.length for part in parts if part.unit is None),
        counter=WIDE if isinstance(request, CountsRequest) else COUNTER,
    )


def told_form(request: Request[Any], form: Form) -> bytes:
    """Return the digest of form and steps, for the label."""
    steps = getattr(request, "steps", None) or b""
    return hashlib.sha256(form.words + b"/" + steps).digest()


def numbers_of(
    request: Request[Any],
    answer: Any,
    form: Form,
    lengths: SumLengths,
    *,
    terms: int,
    cut: int = 0,
) -> MaskSums:
    """Return a client's answer as numbers.

    Args:
        request: What was asked.
        answer: Of the question's own class; the update of a round as :class:`.MaskedUpdates`
            encodes it. None if it could not be computed: zeros, and 1 that was cut.
        form: Of the numbers.
        lengths: How many there are.
        terms: How many clients' are added at most.
        cut: How many values were cut before.
    """
    if answer is None:
        nothing = form.zeros()
        nothing.wide[-1] = 1
        return nothing
    told = [(part, getattr(answer, part.name)) for part in _parts(request, lengths)]
    most = _MOST // terms
    wide, cut_wide = _whole([one for one in told if one[0].unit is not None], -most, most)
    counted = [one for one in told if one[0].unit is None]
    counts, cut_counts = _whole(counted, -1, form.counter.most + 1)
    cut += cut_wide + cut_counts
    narrow = np.zeros(0, np.int8)
    if form.long:
        words = long_words(number_of_digits(answer.sums), form.long)
        wide = np.concatenate([words.view(np.int64), wide])
    if isinstance(request, TrainRequest):
        narrow, beside = np.split(answer.update_sum, [lengths.update])
        wide = np.concatenate([wide, beside])
    elif isinstance(request, BasisRequest | GramRequest):
        ring, unit = _of_products(request)
        if isinstance(request, GramRequest):
            most = ring.most // terms
        elif ring != WIDE:
            # The server's step bounds sums for a basis, whoever adds what to them.
            most = ring.most
        sums = [(_Part("sums", lengths.update, unit), answer.sums)]
        narrow, cut_narrow = _whole(sums, -most, most)
        cut += cut_narrow
    return form.filled(narrow, np.append(wide, cut), counts)


def answer_of_sum(request: Request[Any], total: MaskSums, lengths: SumLengths) -> Any:
    """Return the sum of all answers as one: an answer of the question's own class.

    Raises:
        TrainingDiverged: Something was cut: what it says is not the clients' sum.
        RemoteProtocolError: A count is below 0, or none.
    """
    narrow, wide = total.signed()
    counts, wide, cut = total.signed_counts(), wide[:-1], int(wide[-1])
    if not 0 <= cut < _MOST_CUT:
        raise RemoteProtocolError(
            f"a masked sum has {cut} values that were cut; expected a count: a client added "
            "numbers of its own choice, or masks were not equal"
        )
    if cut:
        raise TrainingDiverged(
            f"{question_of(request).message_type}: {format_counted(cut, 'value')} of all clients "
            "could not be computed, or did not fit a sum under secure-aggregation masked: finite, "
            "not too large, whole where the metric counts; lower learning-rate, or scale features "
            "and labels; whose they were is not told, the logs of the clients' agents say more"
        )
    found: dict[str, Any] = {}
    if total.form.long:
        found["sums"], wide = digits_of(total.long), wide[total.form.long :]
    for part in _parts(request, lengths):
        if part.unit is None:
            found[part.name], counts = _field(part, counts[: part.length]), counts[part.length :]
        else:
            found[part.name], wide = _field(part, wide[: part.length]), wide[part.length :]
    for name, count in _COUNT_OF.items():
        if name in found and not found.get(count, 1):
            # Over no nodes there are no sums.
            found[name] = Sums()
    if isinstance(request, TrainRequest):
        found["update_sum"] = np.concatenate([narrow, wide])
    if isinstance(request, BasisRequest | GramRequest):
        found["sums"] = narrow * _of_products(request)[1]
    return question_of(request).answer(**found)


def _of_products(request: BasisRequest | GramRequest) -> tuple[Ring, float]:
    """Return the ring of the sums that are asked for, and of what they are multiples.

    Nothing is known yet of features when their own sums are asked for.
    """
    if isinstance(request, BasisRequest) and request.weights is None:
        return WIDE, _FINE_UNIT
    step = SharedStep.read(request.steps)
    return step.ring, step.unit


def _parts(request: Request[Any], lengths: SumLengths) -> Sequence[_Part]:
    """Return the fields of the answer to a request that are added up beside its array."""
    metric_unit = None if lengths.metric_counts else _UNIT
    match request:
        case TrainRequest():
            return [
                _Part("examples"),
                _Part("loss_sum", 1, _UNIT),
                _Part("validation_examples"),
                _Part("validation_loss_sum", 1, _UNIT),
                _Part("validation_correct"),
                _Part("validation_metric", lengths.metric, metric_unit),
            ]
        case EvaluateRequest():
            report = lengths.report if request.nodes == "test" else 0
            return [
                _Part("examples"),
                _Part("loss_sum", 1, _UNIT),
                _Part("correct"),
                _Part("metric", lengths.metric, metric_unit),
                _Part("report", report, None if lengths.report_counts else _UNIT),
            ]
        case BasisRequest() | GramRequest():
            is_first = isinstance(request, BasisRequest) and request.weights is None
            return [_Part("examples"), *([_Part("squares", 2, _UNIT)] if is_first else [])]
        case CountsRequest():
            return [_Part(item.name) for item in fields(CountsAnswer)]
        case LabelsRequest():
            label_sums = 0 if lengths.label_words else lengths.label_sums
            return [
                _Part("uses", 3 * lengths.classes),
                *([_Part("sums", label_sums, _UNIT)] if label_sums else []),
            ]
        case PredictRequest():
            metrics = ("validation_metric", "test_metric")
            counts = [item.name for item in fields(PredictAnswer) if item.name not in metrics]
            return [
                *(_Part(name) for name in counts),
                *(_Part(name, lengths.metric, metric_unit) for name in metrics),
            ]
    raise LocalProtocolError(f"{question_of(request).message_type}: cannot be masked")


def _whole(
    fields_of: Sequence[tuple[_Part, Any]], above: int, below: int
) -> tuple[np.ndarray, int]:
    """Return fields as whole numbers, one after the other, and how many had to be cut for that.

    Those with a unit are rounded to multiples of it; a count that is not whole has to be cut.
    """
    found, at = np.empty(sum(part.length for part, _ in fields_of)), 0
    for part, value in fields_of:
        into = found[at : at + part.length]
        if not isinstance(value, Sums):
            into[:] = value
        else:
            # None of no nodes; all answers have the same form.
            into[:] = value.array() if value.length else 0.0
        if part.unit is not None:
            np.rint(into / part.unit, out=into)
        at += part.length
    numbers = np.rint(found)
    fits = (numbers == found) & (above < found) & (found < below)
    cut = np.nan_to_num(np.clip(numbers, above + 1, below - 1))
    return cut.astype(np.int64), int((~fits).sum())


def _field(part: _Part, numbers: np.ndarray) -> Any:
    """Return sums as a field of an answer."""
    if part.unit is None and (numbers < 0).any():
        raise RemoteProtocolError(
            f"a masked sum has {int(numbers.min())} {part.name}; expected a count: a client added "
            "numbers of its own choice, or masks were not equal"
        )
    values = numbers if part.unit is None else numbers * part.unit
    if part.name in {"uses", "squares", "sums"}:
        return tuple(values.tolist())
    if part.name.endswith(("metric", "report")):
        return Sums.of(values.astype(np.float64)) if part.length else Sums()
    return values[0].item()
