"""A client's noise: its variance, when it is the same, and an attacker who measures epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, norm

from retexo_fl.client import noise as module
from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import (
    BasisAnswer,
    BasisRequest,
    GramRequest,
    Request,
    Ticket,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.client.masked_answers import form_of, numbers_of
from retexo_fl.client.noise import UpdateNoise, client_secret, secret_in, share_of_variance
from retexo_fl.errors import CheckpointError, LocalProtocolError
from retexo_fl.gaussian_privacy import NoisedReleases, epsilon_of
from retexo_fl.masking.step import SharedStep
from retexo_fl.masking.streams import Sums
from retexo_fl.training.clipped_products import clipped_sums, noised_step
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.stage_model import ModelShape, initial_weights
from retexo_fl.updates import UpdateKey
from retexo_fl.updates.masked import MaskedUpdates, NoisedUpdates, step_of, steps_changed
from tests.support.layer_contract import NODES, WIDTH, whole_input

JOB = "job-0123456789ab"
TICKET = Ticket(job=JOB, attempt=1, stage=0, round=1)
NOISE = NoisedReleases(epsilon=3.0, delta=1e-5, clip=0.5, count=2)
SECRET = b"s" * 32
TOLD = b"t" * 32


def request_of(
    codec: NoisedUpdates, size: int, *, kind: str = "update", round_number: int = 1
) -> Request[Any]:
    ticket = replace(TICKET, round=round_number)
    if kind == "update":
        steps = codec.first_steps(size, most_train=100, terms=3)
        return TrainRequest(ticket=ticket, weights=np.zeros(size), steps=steps)
    steps = noised_step(NOISE.clip, size).told
    if kind == "basis":
        return BasisRequest(ticket=ticket, weights=np.zeros(size), steps=steps)
    return GramRequest(ticket=ticket, steps=steps)


def numbers(request: Request[Any], codec: NoisedUpdates, update: np.ndarray) -> Sums:
    """Return an update, or sums of train nodes, as a client has it before noise and masks."""
    if not isinstance(request, TrainRequest):
        sums = update
        if isinstance(request, GramRequest):
            # Products of validation nodes go beside those of train nodes, without noise.
            sums = np.concatenate([update, np.full(len(update), 0.25), [7.0]])
        of_nodes = BasisAnswer(sums=sums, examples=1)
        facts = SumFacts(update=len(sums))
        return numbers_of(request, of_nodes, form_of(request, facts), facts, terms=3)
    key = UpdateKey(seed=0, job=JOB, stage=0, round=1, client=0)
    answer = TrainAnswer(
        update_sum=codec.encode_update(update, key, request.steps or b""),
        examples=1,
        loss_sum=0.0,
        validation_examples=0,
        validation_loss_sum=0.0,
        validation_correct=0,
    )
    facts = SumFacts(update=len(update))
    return numbers_of(request, answer, form_of(request, facts), facts, terms=3)


def noised(
    update: np.ndarray,
    *,
    noise: NoisedReleases = NOISE,
    secret: bytes = SECRET,
    told: bytes = TOLD,
    honest: int = 1,
    round_number: int = 1,
    kind: str = "update",
) -> np.ndarray:
    """Return (P,) numbers of an update, or of sums of train nodes, with one client's noise."""
    codec, made = NoisedUpdates(noise.clip), UpdateNoise(noise, JOB)
    made.follow_from(lambda: secret)
    request = request_of(codec, len(update), round_number=round_number, kind=kind)
    before = numbers(request, codec, update)
    found = made.added(request, before, told, honest=honest)
    assert np.array_equal(found.signed()[0][len(update) :], before.signed()[0][len(update) :])
    return found.signed()[0][: len(update)]


KINDS = pytest.mark.parametrize("kind", ["update", "products", "basis"])


@KINDS
@pytest.mark.parametrize("honest", [1, 10])
@pytest.mark.each_choice
def test_the_noise_of_all_honest_clients_together_has_the_promised_variance(
    kind: str, honest: int
) -> None:
    size = 1_000_000 // honest
    total = sum(
        noised(np.zeros(size), secret=client_secret(SECRET, client), honest=honest, kind=kind)
        for client in range(honest)
    )
    promised = NOISE.sigma * steps_changed(NOISE.clip, size)
    assert np.asarray(total).std() / promised == pytest.approx(1, abs=4 / math.sqrt(2 * size))


def test_a_share_is_never_less_than_its_part() -> None:
    for honest in (1, 2, 7, 65):
        of_all = (NOISE.sigma * steps_changed(NOISE.clip, 99)) ** 2
        assert honest * share_of_variance(NOISE, 99, honest) >= of_all + 16 * honest


@KINDS
def test_the_same_update_has_the_same_noise_and_no_other_has_it(kind: str) -> None:
    zeros = np.zeros(200)
    found = noised(zeros, kind=kind)
    assert np.array_equal(found, noised(zeros, kind=kind))
    one = zeros.copy()
    one[0] = step_of(NOISE.clip, len(one))
    others = [
        noised(one, kind=kind),
        noised(zeros, kind=kind, secret=b"o" * 32),
        noised(zeros, kind=kind, told=b"o" * 32),
        noised(zeros, kind=kind, round_number=2),
        noised(zeros, kind=kind, honest=2),
        *(noised(zeros, kind=other) for other in ("update", "products", "basis") if other != kind),
    ]
    for other in others:
        # None of it is left in a difference.
        assert np.count_nonzero(found == other) < 5


@KINDS
def test_a_job_has_no_more_releases_than_epsilon_is_for(kind: str) -> None:
    codec, made = NoisedUpdates(NOISE.clip), UpdateNoise(NOISE, JOB)
    request = request_of(codec, 5, kind=kind)
    one, other, third = (numbers(request, codec, np.full(5, value)) for value in (0, 1, 2))
    for asked in (one, other, one):
        made.added(request, asked, TOLD, honest=3)
    with pytest.raises(LocalProtocolError, match="update-dp: 2 noised sums left in this job; "):
        made.added(request, third, TOLD, honest=3)


def test_steps_of_updates_without_noise_are_refused() -> None:
    codec = NoisedUpdates(NOISE.clip)
    request: Any = request_of(codec, 5)
    asked = numbers(request, codec, np.zeros(5))
    with pytest.raises(LocalProtocolError, match="steps are of updates without noise; expected"):
        UpdateNoise(NOISE, JOB).added(
            replace(request, steps=MaskedUpdates().first_steps(5, most_train=9, terms=3)),
            asked,
            TOLD,
            honest=3,
        )


@pytest.mark.parametrize("kind", ["products", "basis"])
def test_a_step_that_is_not_the_noises_is_refused(kind: str) -> None:
    """A coarse one would hide less; and bits that leave no room tell what was cut."""
    codec, made = NoisedUpdates(NOISE.clip), UpdateNoise(NOISE, JOB)
    request: Any = request_of(codec, 5, kind=kind)
    asked = numbers(request, codec, np.zeros(5))
    step = noised_step(NOISE.clip, 5)
    for other in (
        SharedStep(step.bits, step.exponent + 1),
        SharedStep(step.bits, step.exponent - 1),
        SharedStep(40, step.exponent),
    ):
        wrong = replace(request, steps=other.told)
        with pytest.raises(LocalProtocolError, match="the step is of sums without noise; expecte"):
            made.added(wrong, asked, TOLD, honest=3)


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "noise.key"
    secret = secret_in(path)
    assert secret_in(path) == secret != secret_in(tmp_path / "other.key")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"noise.key: has 5 bytes; expected 32"):
        secret_in(path)


# ---- an attacker who sees all releases ----------------------------------------------------------

CLIENTS, TRAININGS = 3, 400
#: One of them is the canary.
NODE_SETS = NodeSets(
    train=np.array([0, 2, 3, 5, 8, 9]),
    validation=np.array([1]),
    test=np.array([6]),
    labels=np.arange(NODES) % 3,
)
CANARY = 5
SHAPE = ModelShape(
    model="sage", layers=1, inputs=WIDTH, hidden=6, heads=2, classes=3, dtype="float64"
)


def updates_of_clients(canary: bool) -> Iterator[np.ndarray]:
    """Yield each client's clipped sum; the first one has the canary, or not."""
    weights = initial_weights(SHAPE, 0, seed=0)
    train = NODE_SETS.train if canary else np.setdiff1d(NODE_SETS.train, [CANARY])
    for client in range(CLIENTS):
        nodes = NODE_SETS if client else replace(NODE_SETS, train=train)
        trainer = LayerTrainer(SHAPE, 0, whole_input(client + 5), nodes, seed=0, clip=NOISE.clip)
        yield trainer.update(weights, round_number=1, dropout=0.0).update_sum


def products_of_clients(canary: bool) -> Iterator[np.ndarray]:
    """Yield each client's products of its train nodes; the first one has the canary, or not."""
    made = np.random.default_rng(9)
    for client in range(CLIENTS):
        rows, labels = made.normal(size=(NODES, WIDTH)), np.arange(NODES) % 3
        train = NODE_SETS.train
        if not client and not canary:
            train = np.setdiff1d(train, [CANARY])
        nobody = rows[:0], labels[:0]
        sums = clipped_sums((rows[train], labels[train]), nobody, 3, NOISE.clip)
        yield sums[: len(sums) // 2]


#: What clients add up; how many releases of it there are, and how it is asked for.
AUDITED = {
    "update": (updates_of_clients, 2, "update"),
    "products": (products_of_clients, 1, "products"),
}


def scores(noise: NoisedReleases, audited: str, *, canary: bool) -> np.ndarray:
    """Return, by training, how far all that the server reads points along the canary's share."""
    sums_of, _, kind = AUDITED[audited]
    updates = [list(sums_of(is_there)) for is_there in (True, False)]
    direction = updates[0][0] - updates[1][0]
    codec, size = NoisedUpdates(noise.clip), len(direction)
    requests = [request_of(codec, size, kind=kind, round_number=r + 1) for r in range(noise.count)]
    forms = [[numbers(r, codec, update) for update in updates[not canary]] for r in requests]
    found, step = np.zeros(TRAININGS), step_of(noise.clip, size)
    for training in range(TRAININGS):
        clients = [UpdateNoise(noise, JOB) for _ in range(CLIENTS)]
        for client, made in enumerate(clients):
            secret = client_secret(f"{canary} {training}".encode(), client)
            made.follow_from(lambda secret=secret: secret)  # type: ignore[misc]
        for request, asked in zip(requests, forms, strict=True):
            shares = [
                made.added(request, one, TOLD, honest=CLIENTS)
                for made, one in zip(clients, asked, strict=True)
            ]
            total = shares[0].copy()
            for share in shares[1:]:
                total.add(share)
            found[training] += step * total.signed()[0][:size] @ direction
    expected = noise.count * (np.sum(updates[1], axis=0) @ direction)
    scale = noise.count * (direction @ direction)
    return np.asarray((found - expected) / scale)


def measured_epsilon(noise: NoisedReleases, audited: str) -> float:
    """Return a lower bound of epsilon that holds with a confidence of 95 %.

    Source: Nasr et al., USENIX Security 2023 (auditing of Gaussian mechanisms by mu).
    """
    # Without the canary around 0, with it around 1.
    threshold = 0.5
    without, with_it = (scores(noise, audited, canary=canary) for canary in (False, True))
    false, missed = (without > threshold).sum(), (with_it <= threshold).sum()
    most = [beta.ppf(0.975, wrong + 1, TRAININGS - wrong) for wrong in (false, missed)]
    mu = -norm.ppf(most[0]) - norm.ppf(most[1])
    return epsilon_of(max(0.0, mu), noise.delta)


@pytest.mark.system
@pytest.mark.parametrize("audited", AUDITED)
def test_an_auditor_finds_no_more_than_was_promised_and_more_where_noise_is_halved(
    monkeypatch: pytest.MonkeyPatch, audited: str
) -> None:
    noise = replace(NOISE, count=AUDITED[audited][1])
    found = measured_epsilon(noise, audited)
    # A bound that says nothing would hold for any noise.
    assert 0.5 * noise.epsilon < found < noise.epsilon
    share = share_of_variance
    monkeypatch.setattr(module, "share_of_variance", lambda *facts: share(*facts) // 4)
    assert measured_epsilon(noise, audited) > noise.epsilon
