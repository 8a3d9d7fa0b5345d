"""Answers that the server can only read as a sum: who is asked among whom, and what opens it.

A round asks as ever, with the terms of :meth:`MaskedSums.asked`; from the masked answers
:meth:`MaskedSums.summed` makes one answer for all clients that it is the sum of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from retexo_fl.client.api import (
    EvaluateRequest,
    HelloAnswer,
    LabelsRequest,
    MaskedAnswer,
    MaskTerms,
    OpenRequest,
    Request,
    TrainRequest,
    bits_of,
    question_of,
)
from retexo_fl.client.masked_answers import (
    SumLengths,
    answer_of_sum,
    counter_of,
    form_of,
    purpose_of,
    told_form,
    told_weights,
)
from retexo_fl.errors import RemoteProtocolError, RoundIncomplete
from retexo_fl.federation.asking import SUM, Ask, Round, named
from retexo_fl.masking.holder import LEAST_CLIENTS, sealed_bytes
from retexo_fl.masking.label import Label, Place
from retexo_fl.masking.streams import WIDE, Form, Sums
from retexo_fl.masking.unmasking import unmask
from retexo_fl.units import counted

#: A client, or those whose answers came as one sum.
Who: TypeAlias = int | tuple[int, ...]
#: A question whose sum too few could open is asked so often in all.
TRIALS: Final = 2


def members(who: Who) -> tuple[int, ...]:
    """Return the clients, ascending."""
    return (who,) if isinstance(who, int) else who


def hello_of_sum(hellos: Iterable[HelloAnswer]) -> HelloAnswer:
    """Return what a sum of clients' answers is compared with: sums of what their hellos counted."""
    found = list(hellos)
    one = found[0]
    uses = ("nodes", "train", "validation", "test", "vectors_out", "vectors_in", "vectors_drawn")
    return replace(one, client=SUM, **{use: sum(getattr(h, use) for h in found) for use in uses})


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSums:
    """How an attempt's sums are masked.

    Attributes:
        job: Name of the job.
        keys: Digest of all clients' masking keys.
        opens: Rounds may be closed without some clients.
        most_count: What no count adds up to more than.
    """

    job: str
    keys: bytes
    opens: bool
    most_count: int

    def asked(
        self, requests: Mapping[int, Request[Any]], *, trial: int = 0
    ) -> dict[int, Request[Any]]:
        """Return requests with the terms of their masks: one sum of each kind of request."""
        trains = any(isinstance(request, TrainRequest) for request in requests.values())
        among: dict[type[Any], list[int]] = {}
        for client, request in requests.items():
            among.setdefault(type(request), []).append(client)
        terms = {
            kind: MaskTerms(
                asked=bits_of(clients),
                opens=self.opens,
                trial=trial,
                beside=trains and kind is EvaluateRequest,
            )
            for kind, clients in among.items()
        }
        # Requests that clients share stay shared, so that each is written once.
        made: dict[int, Request[Any]] = {}
        for request in requests.values():
            if id(request) not in made:
                changed: Any = replace(request, terms=terms[type(request)])  # type: ignore[type-var]
                made[id(request)] = changed
        return {client: made[id(request)] for client, request in requests.items()}

    def summed(
        self,
        requests: Mapping[int, Request[Any]],
        answers: Mapping[int, MaskedAnswer],
        *,
        weights: np.ndarray | None,
        lengths: SumLengths,
        purpose: str,
        opened: MutableMapping[type[Any], tuple[int, ...]] | None = None,
    ) -> Round[list[tuple[Who, Any]]]:
        """Return one answer for each kind of request, with the clients that it is the sum of.

        Args:
            requests: As they were asked.
            answers: By client, ascending.
            weights: What clients compute with, decoded.
            lengths: How many numbers answers have.
            purpose: For the ledger, of what opens a sum.
            opened: By kind of request, over whom a sum was to be opened when the same was asked
                before; it is added to. Openers tell of no other set.

        Raises:
            RemoteProtocolError: An answer has another length.
            RoundIncomplete: Too few clients answered, or too few told shares.
        """
        found: list[tuple[Who, Any]] = []
        for kind in dict.fromkeys(map(type, requests.values())):
            of_kind = {c: r for c, r in requests.items() if type(r) is kind}
            there = {c: answers[c] for c in of_kind if c in answers}
            request = next(iter(of_kind.values()))
            known = {} if opened is None else opened
            if gone := sorted({*known.get(kind, ())} - {*there}):
                raise RoundIncomplete(
                    f"{question_of(request).message_type}: asked again because too few clients "
                    f"opened the sum, and now {'clients' if gone[1:] else 'client'} "
                    f"{', '.join(map(str, gone))} did not answer; expected all of before: a sum "
                    "over others would tell the difference"
                )
            there = {client: there[client] for client in known.get(kind, tuple(there))}
            if len(there) < LEAST_CLIENTS:
                raise RoundIncomplete(
                    f"{question_of(request).message_type}: "
                    f"{counted(len(there), 'masked answer')}; expected {LEAST_CLIENTS} at least"
                )
            if self.opens:
                known[kind] = tuple(there)
            sums = _Sum(self, request, tuple(of_kind), weights=weights, lengths=lengths)
            total = yield from sums.total(there, purpose)
            found.append((tuple(there), answer_of_sum(request, total, lengths)))
        return sorted(found, key=lambda pair: members(pair[0]))


class _Sum:
    """One sum: its label, and its form."""

    def __init__(
        self,
        masking: MaskedSums,
        request: Request[Any],
        asked: tuple[int, ...],
        *,
        weights: np.ndarray | None,
        lengths: SumLengths,
    ) -> None:
        ticket = request.ticket
        self._request = request
        self._terms: MaskTerms = request.terms  # type: ignore[attr-defined]
        self._form: Form = form_of(request, lengths, counter_of(masking.most_count))
        self._label = Label(
            job=masking.job,
            place=Place(
                attempt=ticket.attempt,
                purpose=purpose_of(request),
                stage=ticket.stage,
                round=ticket.round,
                trial=self._terms.trial,
            ),
            keys=masking.keys,
            asked=asked,
            form=told_form(request, self._form),
            weights=told_weights(request, weights),
            opens=self._terms.opens,
        )

    def total(self, answers: Mapping[int, MaskedAnswer], purpose: str) -> Round[Sums]:
        """Return the sum without masks."""
        total = self._form.zeros()
        for client, answer in answers.items():
            with named(client):
                total.add(self._numbers(answer))
        if not self._terms.opens:
            return total
        included = tuple(answers)
        told = yield from self._told(included, answers, purpose)
        unmask(self._label, total, included, told)
        return total

    def _numbers(self, answer: MaskedAnswer) -> Sums:
        form = self._form
        if answer.numbers.dtype != np.uint8:
            raise RemoteProtocolError("masked numbers are no bytes")
        begin = form.counter.size(form.counts)
        return Sums(
            form=form,
            narrow=form.ring.unpack(answer.numbers, form.narrow),
            wide=WIDE.unpack(answer.beside[begin:], form.wide),
            counts=form.counter.unpack(answer.beside[:begin], form.counts),
        )

    def _told(
        self, included: Sequence[int], answers: Mapping[int, MaskedAnswer], purpose: str
    ) -> Round[dict[int, bytes]]:
        """Ask the openers for shares; return those of enough of them.

        One that has not answered would be waited for once more: it is asked where it is needed.
        """
        label = self._label
        needed = {*label.openers}
        if len(needed.intersection(included)) >= label.threshold:
            needed &= {*included}
        sealed = {client: self._sealed(client, answers[client]) for client in included}
        requests: dict[int, Request[Any]] = {
            opener: OpenRequest(
                ticket=self._request.ticket,
                purpose=label.place.purpose,
                asked_with=self._terms,
                form=label.form,
                weights=label.weights,
                included=bits_of(included),
                shares=np.frombuffer(
                    b"".join(sealed[client][place] for client in included), np.uint8
                ),
            )
            for place, opener in enumerate(label.openers)
            if opener in needed
        }
        is_before = isinstance(self._request, LabelsRequest)
        stage = -1 if is_before else label.place.stage
        # More than that may be how many have to answer a round: they are no more needed here.
        answered = yield Ask(
            requests=requests, stage=stage, purpose=purpose, enough=label.threshold
        )
        told = {opener: answer.shares.tobytes() for opener, answer in answered}
        if len(told) < label.threshold:
            raise RoundIncomplete(
                f"stage {label.place.stage}, round {label.place.round}: shares from "
                f"{len(told)} of {counted(len(requests), 'client')}; expected {label.threshold} "
                "to open a masked sum"
            )
        return told

    def _sealed(self, client: int, answer: MaskedAnswer) -> list[bytes]:
        """Return what a client sealed for each opener."""
        size, openers = sealed_bytes(len(self._label.neighbours(client))), len(self._label.openers)
        shares = answer.shares or b""
        if len(shares) != size * openers:
            raise RemoteProtocolError(
                f"client {client}: {len(shares)} bytes of sealed shares; expected {size * openers}"
            )
        return [shares[at * size : (at + 1) * size] for at in range(openers)]
