"""Answers of clients, compared with the hello of each.

The error names the client, so that the operator can repair it, or leave it out.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Final

import numpy as np

from retexo_fl.client.api import (
    CollectAnswer,
    CountsAnswer,
    EvaluateAnswer,
    HelloAnswer,
    PredictAnswer,
    PublishAnswer,
    Sums,
    TrainAnswer,
)
from retexo_fl.errors import RemoteProtocolError, TrainingDiverged
from retexo_fl.federation.asking import named, subject
from retexo_fl.masking.agreement import USES
from retexo_fl.masking.keys import KEY_BYTES, SIGNED_BYTES
from retexo_fl.training.label_facts import ALL_USES

#: Of a feature recipe.
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
#: Names of partitionings are digests; what is longer is none, and would fill logs and reports.
_MAX_NAME_CHARS: Final = 128
#: Nodes, widths and vectors are counted in int32 between clients.
_MAX_COUNT: Final = 2**31 - 1
_USES: Final = ("train", "validation", "test")
_JUDGED: Final = ("validation", "test")


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
        for field in ("features", "classes"):
            _demand(field, getattr(hello, field), 1, _MAX_COUNT)
        for field in ("nodes", "vectors_out", "vectors_in", "edge_features"):
            _demand(field, getattr(hello, field), 0, _MAX_COUNT)
        for field in _USES:
            _demand(field, getattr(hello, field), 0, _MAX_COUNT if counts_links else hello.nodes)
        _demand("vectors_drawn", hello.vectors_drawn, 0, hello.vectors_in)
        if hello.mask_key is not None:
            check_mask_key(hello)
        else:
            _demand("numbers of label-uses", len(hello.label_uses), hello.classes, hello.classes)
            _demand("label-uses", max(hello.label_uses), 0, ALL_USES)


def check_update(
    hello: HelloAnswer, answer: TrainAnswer, *, in_batches: bool, least_loss: float
) -> None:
    """Check the answer to a ``train.layer``.

    Args:
        hello: The client's hello.
        answer: What it answered.
        in_batches: A round may be of some of its train nodes.
        least_loss: Of a node.

    Raises:
        RemoteProtocolError: Its counts are not those of its nodes, or a loss is below the least.
        TrainingDiverged: A loss is not finite.
    """
    with named(hello.client):
        _demand("num-examples", answer.examples, _least(hello, in_batches), hello.train)
        count = answer.validation_examples
        _demand("validation-examples", count, hello.validation, hello.validation)
        _demand("validation-correct", answer.validation_correct, 0, count)
    _demand_loss(hello.client, "loss-sum", answer.loss_sum, least_loss)
    _demand_loss(hello.client, "validation-loss-sum", answer.validation_loss_sum, least_loss)
    _demand_finite(hello.client, "validation-metric-values", *answer.validation_metric.values)


def check_sums(hello: HelloAnswer, examples: int, sums: np.ndarray, size: int) -> None:
    """Check sums over a client's train nodes: of features, or of products.

    Args:
        hello: The client's hello.
        examples: Nodes that they are over, as it answered.
        sums: What it answered, decoded.
        size: How many values were asked for.

    Raises:
        RemoteProtocolError: They are of another number of nodes or values.
        TrainingDiverged: A value is not finite.
    """
    with named(hello.client):
        _demand("num-examples", examples, hello.train, hello.train)
        if sums.shape != (size,) or sums.dtype.kind != "f":
            raise RemoteProtocolError(
                f"sums are {sums.dtype} of shape {sums.shape}; expected floats of shape ({size},)"
            )
    if not math.isfinite(float(sums.sum(dtype=np.float64))):
        raise TrainingDiverged(
            f"{subject(hello.client)}: sums of features are not finite; expected finite features"
        )


def check_squares(hello: HelloAnswer, squares: tuple[float, ...]) -> None:
    """Check sums of squares of features and labels, if they were asked for.

    Raises:
        RemoteProtocolError: One cannot be.
    """
    if any(not 0 <= total < math.inf for total in squares):
        with named(hello.client):
            raise RemoteProtocolError(f"squares add up to {list(squares)}; expected numbers from 0")


def check_evaluated(
    hello: HelloAnswer, answer: EvaluateAnswer, *, nodes: str, least_loss: float
) -> None:
    """Check the answer to an ``evaluate.layer`` on the ``validation`` or ``test`` nodes.

    Raises:
        RemoteProtocolError: Its counts are not those of its nodes, or its loss is below the least.
        TrainingDiverged: A loss is not finite.
    """
    count = hello.test if nodes == "test" else hello.validation
    with named(hello.client):
        _demand("num-examples", answer.examples, count, count)
        _demand("correct", answer.correct, 0, count)
        _demand("numbers of own", len(answer.own), 0, 1 if nodes == "test" else 0)
    _demand_loss(hello.client, "loss-sum", answer.loss_sum, least_loss)
    _demand_finite(hello.client, "metric-values", *answer.metric.values)
    _demand_finite(hello.client, "report-values", *answer.report.values)
    _demand_finite(hello.client, "own", *answer.own)


def checked_sums(hello: HelloAnswer, name: str, sums: Sums, length: int | None) -> np.ndarray:
    """Return the (k,) sums of a client.

    Args:
        hello: The client's hello.
        name: What they are of.
        sums: As they came.
        length: k, or None where it is not known.

    Raises:
        RemoteProtocolError: They are no such sums.
    """
    with named(hello.client):
        if length is not None and sums.length != length:
            raise RemoteProtocolError(f"{name}-length is {sums.length}; expected {length}")
        return sums.array()


def check_published(hello: HelloAnswer, answer: PublishAnswer) -> None:
    """Check the answer to a ``query.publish``.

    Raises:
        RemoteProtocolError: It sent another number of vectors than it has to.
    """
    with named(hello.client):
        if hello.mask_key is not None:
            _demand_untold(answer, PublishAnswer())
            return
        _demand("vectors", answer.vectors, hello.vectors_out, hello.vectors_out)
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


def check_predicted(hello: HelloAnswer, answer: PredictAnswer) -> None:
    """Check the answer to a ``query.predict``.

    Raises:
        RemoteProtocolError: Its counts are not those of its nodes.
        TrainingDiverged: A sum of the metric is not finite.
    """
    with named(hello.client):
        for field in ("nodes", *_USES):
            promised = getattr(hello, field)
            _demand(field, getattr(answer, field), promised, promised)
        for use in _USES:
            _demand(f"{use}-correct", getattr(answer, f"{use}_correct"), 0, getattr(hello, use))
    for use in _JUDGED:
        sums: Sums = getattr(answer, f"{use}_metric")
        _demand_finite(hello.client, f"{use}-metric-values", *sums.values)


def check_mask_key(hello: HelloAnswer) -> None:
    """Check a hello that leaves out what is only told in masked sums.

    Raises:
        RemoteProtocolError: It has no key, or tells what it may not.
    """
    _demand("bytes of mask-key", len(hello.mask_key or b""), KEY_BYTES, KEY_BYTES)
    signature = hello.mask_signature
    if signature is not None:
        _demand("bytes of mask-signature", len(signature), SIGNED_BYTES, SIGNED_BYTES)
    if any(getattr(hello, item.name) for item in fields(CountsAnswer)):
        raise RemoteProtocolError("it tells counts; expected none where sums are masked")
    if not {*hello.brings.split()}.issubset(USES):
        raise RemoteProtocolError(
            f"brings is {hello.brings[:_MAX_NAME_CHARS]!r}; expected uses of nodes: "
            f"{', '.join(USES)}"
        )
    _demand("numbers of label-uses", len(hello.label_uses), 0, 0)
    _demand("numbers of label-sums", len(hello.label_sums), 0, 0)


def _least(hello: HelloAnswer, in_batches: bool) -> int:
    return min(1, hello.train) if in_batches else hello.train


def _demand(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise RemoteProtocolError(f"{name} is {value}; expected {expected}, as in its hello")


def _demand_untold(answer: PublishAnswer | CollectAnswer, expected: object) -> None:
    if answer != expected:
        raise RemoteProtocolError("it tells vectors or bytes; expected none where sums are masked")


def _demand_loss(client: int, name: str, value: float, least: float) -> None:
    _demand_finite(client, name, value)
    if value < least:
        with named(client):
            raise RemoteProtocolError(f"{name} is {value}; expected a number from {least:g}")


def _demand_finite(client: int, name: str, *values: float) -> None:
    for value in values:
        if not math.isfinite(value):
            raise TrainingDiverged(
                f"{subject(client)}: {name} is {value}; expected a finite number; lower "
                "learning-rate, or check this client's part and its features"
            )
