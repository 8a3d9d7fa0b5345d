"""Answers of clients, compared with the hello of each.

The error names the client, so that the operator can repair it, or leave it out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Final

import numpy as np

from retexo_fl.client.answers import Declared, Sum, SumFacts, sums_of
from retexo_fl.client.api import (
    NUM_SIZES,
    CollectAnswer,
    CountsAnswer,
    EvaluateAnswer,
    HelloAnswer,
    PublishAnswer,
    SparseSums,
)
from retexo_fl.client.schema import key_of
from retexo_fl.errors import RemoteProtocolError, TrainingDiverged
from retexo_fl.federation.asking import Answers, Ask, Round, Who, members, named, subject, through
from retexo_fl.federation.asking.ask import T
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.masking.agreement import USES
from retexo_fl.masking.keys import KEY_BYTES, SIGNED_BYTES
from retexo_fl.relations import relations_of
from retexo_fl.run_log.cached_rows import CachedRows
from retexo_fl.training.label_facts import ALL_USES
from retexo_fl.units import counted

#: Of a feature recipe.
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
#: Names of partitionings are digests; what is longer is none, and would fill logs and reports.
_MAX_NAME_CHARS: Final = 128
#: Of a hundred types and relations, with long names.
_MAX_RELATIONS_CHARS: Final = 2**15
#: Nodes, widths and vectors are counted in int32 between clients.
_MAX_COUNT: Final = 2**31 - 1
_USES: Final = ("train", "validation", "test")


def check_hello(hello: HelloAnswer, *, clients: int, counts_links: bool = False) -> None:
    """Check the hello of a client of this version.

    Args:
        hello: Its answer.
        clients: How many there are.
        counts_links: What is counted by use are pairs of nodes, not nodes.

    Raises:
        RemoteProtocolError: It has an index that no client has, a name that is none, or counts
            that cannot be.
    """
    with named(hello.client):
        _demand("client", hello.client, 0, clients - 1)
        name = hello.partitioning
        if not (0 < len(name) <= _MAX_NAME_CHARS and name.isascii() and name.isprintable()):
            raise RemoteProtocolError(
                f"partitioning is {name[:_MAX_NAME_CHARS]!r}; expected 1 to {_MAX_NAME_CHARS} "
                "printable ASCII characters"
            )
        if hello.recipe and not _DIGEST.fullmatch(hello.recipe):
            raise RemoteProtocolError(
                f"recipe is {hello.recipe[:_MAX_NAME_CHARS]!r}; expected 64 hex digits"
            )
        _check_relations(hello)
        for field in ("features", "classes"):
            _demand(field, getattr(hello, field), 1, _MAX_COUNT)
        for field in ("nodes", "vectors_out", "vectors_in", "edge_features"):
            _demand(field, getattr(hello, field), 0, _MAX_COUNT)
        for field in _USES:
            _demand(field, getattr(hello, field), 0, _MAX_COUNT if counts_links else hello.nodes)
        _demand("vectors_drawn", hello.vectors_drawn, 0, hello.vectors_in)
        for count in hello.vectors_later:
            _demand("vectors_later", count, 0, hello.vectors_out)
        if hello.sizes:
            _demand("numbers of sizes", len(hello.sizes), NUM_SIZES, NUM_SIZES)
        if hello.mask_key is not None:
            check_mask_key(hello)
        else:
            _demand("numbers of label-uses", len(hello.label_uses), hello.classes, hello.classes)
            _demand("label-uses", max(hello.label_uses), 0, ALL_USES)


def _check_relations(hello: HelloAnswer) -> None:
    if len(hello.relations) > _MAX_RELATIONS_CHARS:
        found = counted(len(hello.relations), "character")
        raise RemoteProtocolError(
            f"relations have {found}; expected at most {_MAX_RELATIONS_CHARS}"
        )
    try:
        relations_of(hello.relations)
    except (ValueError, TypeError, RecursionError) as error:
        raise RemoteProtocolError(f"relations: {error}") from error


def checked(asking: Round[T], clients: Clients) -> Round[T]:
    """Return a round that gets no sums which cannot be, of a client or of several.

    It raises as :func:`check_sums`.
    """

    def handle(ask: Ask) -> Round[Answers]:
        answers = yield ask
        return answers if ask.sums is None else each(ask, ask.sums, answers)

    def each(ask: Ask, facts: SumFacts, answers: Answers) -> Iterator[tuple[Who, Any]]:
        # A request that several clients share declares the same of each.
        shared: tuple[object, tuple[Declared, ...]] = None, ()
        for who, answer in answers:
            request = ask.requests[members(who)[0]]
            if shared[0] is not request:
                shared = request, sums_of(request, facts)
            check_sums(clients.hello(who), answer, shared[1])
            yield who, answer

    return through(asking, handle)


def check_sums(hello: HelloAnswer, answer: object, declared: Iterable[Declared]) -> None:
    """Check what an answer adds up beside its array.

    Args:
        hello: The client's hello.
        answer: What it answered.
        declared: What it had to (:func:`.sums_of`).

    Raises:
        RemoteProtocolError: Its counts are not those of its nodes, a sum is below its least, or
            there are more or fewer of them.
        TrainingDiverged: A sum is not finite.
    """
    with named(hello.client):
        for item in declared:
            name, value = key_of(type(answer), item.name), getattr(answer, item.name)
            if isinstance(value, SparseSums):
                _demand_finite(hello.client, f"{name}-values", *value.values)
                length = item.length if getattr(answer, item.over) else 0
                if length is not None and value.length != length:
                    raise RemoteProtocolError(f"{name}-length is {value.length}; expected {length}")
                value.array()
            elif isinstance(item, Sum):
                numbers = value if item.is_list else (value,)
                _demand_finite(hello.client, name, *numbers)
                if any(number < item.least for number in numbers):
                    raise RemoteProtocolError(
                        f"{name} is {value}; expected a number from {item.least:g}"
                    )
            elif value is None:
                raise RemoteProtocolError(f"{name} is missing; expected a count")
            elif item.of:
                most = getattr(hello, item.of)
                _demand(name, value, most if item.least is None else min(item.least, most), most)


def check_array(who: Who, sums: np.ndarray, size: int) -> None:
    """Check sums of features, or of products, over a client's train nodes.

    Args:
        who: Whose they are.
        sums: What it answered, decoded.
        size: How many values were asked for.

    Raises:
        RemoteProtocolError: They are of another number of values.
        TrainingDiverged: A value is not finite.
    """
    with named(who):
        if sums.shape != (size,) or sums.dtype.kind != "f":
            raise RemoteProtocolError(
                f"sums are {sums.dtype} of shape {sums.shape}; expected floats of shape ({size},)"
            )
    if not math.isfinite(float(sums.sum(dtype=np.float64))):
        raise TrainingDiverged(
            f"{subject(who)}: sums of features are not finite; expected finite features"
        )


def check_own(who: Who, answer: EvaluateAnswer, *, nodes: str) -> None:
    """Check a client's own figure of the test.

    Raises:
        RemoteProtocolError: It has more than one, or one of other nodes.
        TrainingDiverged: It is not finite.
    """
    with named(who):
        _demand("numbers of own", len(answer.own), 0, 1 if nodes == "test" else 0)
    _demand_finite(who, "own", *answer.own)


def cached_rows(who: Who, answer: EvaluateAnswer, *, facts: SumFacts, nodes: str) -> CachedRows:
    """Return what a client's mini-batches, or those of several, have read by caches.

    Raises:
        RemoteProtocolError: It comes where nothing is expected, or is no counts.
    """
    with named(who):
        if nodes != "test" or not facts.counts_cached:
            raise RemoteProtocolError("it sent cached rows; expected none in its run")
        return CachedRows.of(answer.cached)


def check_later(hello: HelloAnswer, plans: int) -> None:
    """Check that it counts vectors of all exchanges that may have others than the first.

    Raises:
        RemoteProtocolError: It does not.
    """
    with named(hello.client):
        _demand("numbers of vectors_later", len(hello.vectors_later), plans, plans)


def check_published(hello: HelloAnswer, answer: PublishAnswer, *, stage: int) -> None:
    """Check the answer to a ``query.publish`` of a stage.

    Raises:
        RemoteProtocolError: It sent another number of vectors than it has to.
    """
    with named(hello.client):
        if hello.mask_key is not None:
            _demand_untold(answer, PublishAnswer())
            return
        expected = hello.vectors_before(stage)
        _demand("vectors", answer.vectors, expected, expected)
        _demand("numbers of error-bound", len(answer.error_bound), 0, 1)
        if any(not 0 <= bound < math.inf for bound in answer.error_bound):
            raise RemoteProtocolError(
                f"error-bound is {answer.error_bound[0]}; expected a finite number from 0"
            )


def check_collected(hello: HelloAnswer, answer: CollectAnswer) -> None:
    """Check the answer to a ``query.collect``.

    Raises:
        RemoteProtocolError: It lacks more vectors than it gets.
    """
    with named(hello.client):
        if hello.mask_key is not None:
            _demand_untold(answer, CollectAnswer(complete=answer.complete, moved=answer.moved))
            return
        _demand("missing", answer.missing, 0, 0 if answer.complete else hello.vectors_in)
        _demand("missing-peers", answer.missing_peers, 0, hello.num_clients - 1)


def check_mask_key(hello: HelloAnswer) -> None:
    """Check a hello that leaves out what is only sent in masked sums.

    Raises:
        RemoteProtocolError: It has no key, or says more than it may.
    """
    _demand("bytes of mask-key", len(hello.mask_key or b""), KEY_BYTES, KEY_BYTES)
    signature = hello.mask_signature
    if signature is not None:
        _demand("bytes of mask-signature", len(signature), SIGNED_BYTES, SIGNED_BYTES)
    if any(getattr(hello, item.name) for item in fields(CountsAnswer)):
        raise RemoteProtocolError("it sent counts; expected none under masks")
    if not {*hello.brings.split()}.issubset(USES):
        raise RemoteProtocolError(
            f"brings is {hello.brings[:_MAX_NAME_CHARS]!r}; expected uses of nodes: "
            f"{', '.join(USES)}"
        )
    _demand("numbers of label-uses", len(hello.label_uses), 0, 0)
    _demand("numbers of label-sums", len(hello.label_sums), 0, 0)


def _demand(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise RemoteProtocolError(f"{name} is {value}; expected {expected}, as in its hello")


def _demand_untold(answer: PublishAnswer | CollectAnswer, expected: object) -> None:
    if answer != expected:
        raise RemoteProtocolError("it sent vectors or bytes; expected none under masks")


def _demand_finite(who: Who, name: str, *values: float) -> None:
    for value in values:
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"{subject(who)}: {name} is {value}; expected a finite number; lower "
                "learning-rate, or check this client's part and its features"
            )
