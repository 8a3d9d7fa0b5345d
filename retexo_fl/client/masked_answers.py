"""Answers as whole numbers that can be added under masks, and their sums as answers again.

What an answer adds up is declared (:func:`.sums_of`). The update of a round is whole numbers
already (:class:`.MaskedUpdates`). Counts are, too, in 32 bits; those of parts and vectors, by which
the others are checked, in 64. Sums become multiples of their unit in 64 bits, sums of features
multiples of 2**-28; sums of products are multiples of a step that the request names
(:class:`.SharedStep`).

A refusal would reveal something of one client's data, so no number is refused: what is not finite,
not whole or too large is cut, and how much was cut is one of the numbers that are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from retexo_fl.client.answers import Count, Declared, Sum, SumFacts, sums_of
from retexo_fl.client.api import (
    BasisRequest,
    ChoiceRequest,
    CountsRequest,
    GramRequest,
    LabelsRequest,
    Request,
    SparseSums,
    StructureRequest,
    TrainRequest,
    question_of,
)
from retexo_fl.errors import RemoteProtocolError, TrainingDiverged
from retexo_fl.masking.ring import Ring
from retexo_fl.masking.step import SharedStep
from retexo_fl.masking.streams import WIDE, Form, Sums, long_words
from retexo_fl.training.label_facts import digits_of, number_of_digits
from retexo_fl.units import format_counted
from retexo_fl.updates.masked import MaskedUpdates

#: One of sums of features.
_FINE_UNIT: Final = 2.0**-28
#: What no count adds up to more than, over all clients, and the ring of such sums: the same in each
#: run, since how many bits they have would reveal how many nodes there are.
MOST_COUNT: Final = 2**31 - 1
COUNTER: Final = Ring.of_sums(MOST_COUNT, 1)
#: Values that all clients together may have cut: more than there are.
_MOST_CUT: Final = 2**40
#: Sums of all clients in 64 bits stay below this.
_MOST: Final = 2**62
_NOTHING: Final = np.zeros(0, np.int64)

# ---- arrays --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Array:
    """How an answer's array is coded: an update as :class:`.MaskedUpdates` has made numbers of it.

    Attributes:
        name: Its field; empty without an array.
        ring: Of its numbers.
        narrow: How many of these there are.
        beside: How many numbers of 64 bits go with them.
        long: Words of 64 bits, where the array is one whole number; else 0.
        unit: Quantisation step, where the array is sums in fixed point; 0 where it is an update.
        is_shared: Each client may use its share of the ring's range; else the quantisation step
            that the server chose bounds the sum.
    """

    name: str = ""
    ring: Ring = field(default_factory=lambda: Ring(2))
    narrow: int = 0
    beside: int = 0
    long: int = 0
    unit: float = 0.0
    is_shared: bool = False

    def numbers(self, answer: Any, terms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Return the long, the narrow and the other numbers; and how many values had to be cut."""
        if not self.name:
            return _NOTHING, _NOTHING, _NOTHING, 0
        values = getattr(answer, self.name)
        if self.long:
            words = long_words(number_of_digits(values), self.long)
            return words.view(np.int64), _NOTHING, _NOTHING, 0
        if not self.unit:
            narrow, beside = np.split(values, [self.narrow])
            return _NOTHING, narrow, beside, 0
        most = self.ring.most // terms if self.is_shared else self.ring.most
        if self.ring == WIDE and not self.is_shared:
            most = _MOST // terms
        sums = Sum(name=self.name, length=self.narrow, unit=self.unit)
        narrow, cut = _whole([(sums, values)], -most, most)
        return _NOTHING, narrow, _NOTHING, cut

    def value(self, total: Sums) -> Any:
        """Return what sums of such numbers say."""
        narrow, wide, _ = total.signed()
        if self.long:
            return digits_of(total.long)
        if self.unit:
            return narrow * self.unit
        return np.concatenate([narrow, wide[len(wide) - 1 - self.beside : -1]])


def _array_of(request: Request[Any], facts: SumFacts) -> _Array:
    """Return how the array of the answer to a request is coded.

    Raises:
        RemoteProtocolError: The request's steps are none.
    """
    size = facts.update
    match request:
        case TrainRequest():
            shared, exponents = MaskedUpdates.shared(request.steps or b"")
            # A power of each block, and what was cut.
            beside = len(exponents) + 1
            return _Array(name="update_sum", ring=shared.ring, narrow=size, beside=beside)
        case BasisRequest(weights=None):
            # Nothing is known yet of features when their own sums are asked for.
            return _Array(name="sums", ring=WIDE, narrow=size, unit=_FINE_UNIT)
        case BasisRequest():
            step = SharedStep.read(request.steps)
            return _Array(name="sums", ring=step.ring, narrow=size, unit=step.unit)
        case GramRequest() | ChoiceRequest() | StructureRequest():
            step = SharedStep.read(request.steps)
            return _Array(name="sums", ring=step.ring, narrow=size, unit=step.unit, is_shared=True)
        case LabelsRequest() if facts.label_words:
            return _Array(name="sums", long=facts.label_words)
    return _Array()


# ---- answers -------------------------------------------------------------------------------------


def form_of(request: Request[Any], facts: SumFacts) -> Form:
    """Return the form of the numbers of an answer.

    Raises:
        RemoteProtocolError: The request's steps are none.
    """
    declared, array = sums_of(request, facts), _array_of(request, facts)
    sums = sum(item.length or 0 for item in declared if isinstance(item, Sum))
    return Form(
        ring=array.ring,
        narrow=array.narrow,
        # The last one counts what was cut.
        wide=array.long + sums + array.beside + 1,
        long=array.long,
        counts=sum(item.length or 0 for item in declared if isinstance(item, Count)),
        counter=WIDE if isinstance(request, CountsRequest) else COUNTER,
    )


def numbers_of(
    request: Request[Any],
    answer: Any,
    form: Form,
    facts: SumFacts,
    *,
    terms: int,
    cut: int = 0,
) -> Sums:
    """Return a client's answer as numbers.

    Args:
        request: What was asked.
        answer: Of the question's own class; the update of a round as :class:`.MaskedUpdates`
            encodes it. None if it could not be computed: zeros, and 1 that was cut.
        form: Of the numbers.
        facts: Of the run's sums.
        terms: How many clients' are added at most.
        cut: How many values were cut before.
    """
    if answer is None:
        nothing = form.zeros()
        nothing.wide[-1] = 1
        return nothing
    told = [(item, getattr(answer, item.name)) for item in sums_of(request, facts)]
    most = _MOST // terms
    sums, cut_sums = _whole([one for one in told if isinstance(one[0], Sum)], -most, most)
    counted = [one for one in told if isinstance(one[0], Count)]
    counts, cut_counts = _whole(counted, -1, form.counter.most + 1)
    long, narrow, beside, cut_array = _array_of(request, facts).numbers(answer, terms)
    cut += cut_sums + cut_counts + cut_array
    return form.filled(narrow, np.concatenate([long, sums, beside, [cut]]), counts)


def answer_of_sum(request: Request[Any], total: Sums, facts: SumFacts) -> Any:
    """Return the sum of all answers as one: an answer of the question's own class.

    Raises:
        TrainingDiverged: Something was cut: what it says is not the clients' sum.
        RemoteProtocolError: A count is below 0, or none.
    """
    _, wide, counts = total.signed()
    wide, cut = wide[total.form.long :], int(wide[-1])
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
    for item in sums_of(request, facts):
        length = item.length or 0
        if isinstance(item, Count):
            own, counts = counts[:length], counts[length:]
        else:
            own, wide = wide[:length], wide[length:]
        found[item.name] = _field_of(item, own, of_none=bool(item.over) and not found[item.over])
    array = _array_of(request, facts)
    if array.name:
        found[array.name] = array.value(total)
    return question_of(request).answer(**found)


def _field_of(item: Declared, numbers: np.ndarray, *, of_none: bool) -> Any:
    """Return the field of an answer that sums of numbers say.

    Args:
        item: Declares the field.
        numbers: The sums.
        of_none: The nodes that they are over are none: then there are no sums.

    Raises:
        RemoteProtocolError: A count is below 0.
    """
    values = numbers
    if isinstance(item, Sum):
        values = numbers * item.unit
    elif (numbers < 0).any():
        raise RemoteProtocolError(
            f"a masked sum has {int(numbers.min())} {item.name}; expected a count: a client added "
            "numbers of its own choice, or masks were not equal"
        )
    if item.over:
        return (
            SparseSums() if of_none or not len(values) else SparseSums.of(values.astype(np.float64))
        )
    return tuple(values.tolist()) if item.is_list else values[0].item()


def _whole(told: Sequence[tuple[Declared, Any]], above: int, below: int) -> tuple[np.ndarray, int]:
    """Return fields as whole numbers, one after the other, and how many had to be cut for that.

    Those with a unit are rounded to multiples of it; a count that is not whole has to be cut.
    """
    found, at = np.empty(sum(item.length or 0 for item, _ in told)), 0
    for item, value in told:
        length = item.length or 0
        into = found[at : at + length]
        if not isinstance(value, SparseSums):
            # A list that is left out is of zeros.
            into[:] = 0.0 if isinstance(value, tuple) and not value else value
        else:
            # None of no nodes; all answers have the same form.
            into[:] = value.array() if value.length else 0.0
        if isinstance(item, Sum):
            np.rint(into / item.unit, out=into)
        at += length
    numbers = np.rint(found)
    fits = (numbers == found) & (above < found) & (found < below)
    cut = np.nan_to_num(np.clip(numbers, above + 1, below - 1))
    return cut.astype(np.int64), int((~fits).sum())
