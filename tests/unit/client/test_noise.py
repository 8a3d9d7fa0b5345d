"""A client's noise: its variance, when it is the same, and an attacker who measures epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta, norm

from retexo_fl.client import noise as module
from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import Ticket, TrainAnswer, TrainRequest
from retexo_fl.client.masked_answers import form_of, numbers_of
from retexo_fl.client.noise import UpdateNoise, client_secret, secret_in, share_of_variance
from retexo_fl.errors import CheckpointError, LocalProtocolError
from retexo_fl.gaussian_privacy import NoisedReleases, epsilon_of
from retexo_fl.masking.streams import Sums
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


def request_of(codec: NoisedUpdates, size: int, *, round_number: int = 1) -> TrainRequest:
    steps = codec.first_steps(size, most_train=100, terms=3)
    ticket = replace(TICKET, round=round_number)
    return TrainRequest(ticket=ticket, weights=np.zeros(size), steps=steps)


def numbers(request: TrainRequest, codec: NoisedUpdates, update: np.ndarray) -> Sums:
    """Return an update as a client has it before noise and masks."""
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
) -> np.ndarray:
    """Return (P,) numbers of an update with one client's noise."""
    codec, made = NoisedUpdates(noise.clip), UpdateNoise(noise, JOB)
    made.follow_from(lambda: secret)
    request = request_of(codec, len(update), round_number=round_number)
    found = made.added(request, numbers(request, codec, update), told, honest=honest)
    return found.signed()[0]


@pytest.mark.parametrize("honest", [1, 3, 10])
def test_the_noise_of_all_honest_clients_together_has_the_promised_variance(honest: int) -> None:
    size = 1_000_000 // honest
    total = sum(
        noised(np.zeros(size), secret=client_secret(SECRET, client), honest=honest)
        for client in range(honest)
    )
    promised = NOISE.sigma * steps_changed(NOISE.clip, size)
    assert np.asarray(total).std() / promised == pytest.approx(1, abs=4 / math.sqrt(2 * size))


def test_a_share_is_never_less_than_its_part() -> None:
    for honest in (1, 2, 7, 65):
        of_all = (NOISE.sigma * steps_changed(NOISE.clip, 99)) ** 2
        assert honest * share_of_variance(NOISE, 99, honest) >= of_all + 16 * honest


def test_the_same_update_has_the_same_noise_and_no_other_has_it() -> None:
    zeros = np.zeros(200)
    found = noised(zeros)
    assert np.array_equal(found, noised(zeros))
    one = zeros.copy()
    one[0] = step_of(NOISE.clip, len(one))
    others = [
        noised(one),
        noised(zeros, secret=b"o" * 32),
        noised(zeros, told=b"o" * 32),
        noised(zeros, round_number=2),
        noised(zeros, honest=2),
    ]
    for other in others:
        # None of it is left in a difference.
        assert np.count_nonzero(found == other) < 5


def test_a_job_has_no_more_releases_than_epsilon_is_for() -> None:
    codec, made = NoisedUpdates(NOISE.clip), UpdateNoise(NOISE, JOB)
    request = request_of(codec, 5)
    one, other, third = (numbers(request, codec, np.full(5, value)) for value in (0, 1, 2))
    for asked in (one, other, one):
        made.added(request, asked, TOLD, honest=3)
    with pytest.raises(LocalProtocolError, match="update-dp: 2 noised updates left in this job; "):
        made.added(request, third, TOLD, honest=3)


def test_steps_of_updates_without_noise_are_refused() -> None:
    codec = NoisedUpdates(NOISE.clip)
    request = request_of(codec, 5)
    asked = numbers(request, codec, np.zeros(5))
    with pytest.raises(LocalProtocolError, match="steps are of updates without noise; expected"):
        UpdateNoise(NOISE, JOB).added(
            replace(request, steps=MaskedUpdates().first_steps(5, most_train=9, terms=3)),
            asked,
            TOLD,
            honest=3,
        )


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "noise.key"
    secret = secret_in(path)
    assert secret_in(path) == secret != secret_in(tmp_path / "other.key")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"noise.key: has 5 bytes; expected 32"):
        secret_in(path)


# ---- an attacker who sees all releases ----------------------------------------------------------

CLIENTS, TRAININGS = 3, 1000
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


def scores(noise: NoisedReleases, *, canary: bool) -> np.ndarray:
    """Return, by training, how far all that the server reads points along the canary's gradient."""
    updates = [list(updates_of_clients(is_there)) for is_there in (True, False)]
    direction = updates[0][0] - updates[1][0]
    codec = NoisedUpdates(noise.clip)
    requests = [request_of(codec, len(direction), round_number=r + 1) for r in range(noise.count)]
    forms = [[numbers(r, codec, update) for update in updates[not canary]] for r in requests]
    key, found = UpdateKey(seed=0, job=JOB, stage=0, round=1, client=0), np.zeros(TRAININGS)
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
            coded = np.append(total.signed()[0], 0)
            found[training] += codec.decode_update(coded, key, request.steps or b"") @ direction
    expected = noise.count * (np.sum(updates[1], axis=0) @ direction)
    scale = noise.count * (direction @ direction)
    return np.asarray((found - expected) / scale)


def measured_epsilon(noise: NoisedReleases) -> float:
    """Return a lower bound of epsilon that holds with a confidence of 95 %.

    Source: Nasr et al., USENIX Security 2023 (auditing of Gaussian mechanisms by mu).
    """
    # Without the canary around 0, with it around 1.
    threshold = 0.5
    without, with_it = (scores(noise, canary=canary) for canary in (False, True))
    false, missed = (without > threshold).sum(), (with_it <= threshold).sum()
    most = [beta.ppf(0.975, wrong + 1, TRAININGS - wrong) for wrong in (false, missed)]
    mu = -norm.ppf(most[0]) - norm.ppf(most[1])
    return epsilon_of(max(0.0, mu), noise.delta)


def test_an_auditor_finds_no_more_than_was_promised_and_more_where_noise_is_halved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = measured_epsilon(NOISE)
    # A bound that says nothing would hold for any noise.
    assert 0.5 * NOISE.epsilon < found < NOISE.epsilon
    share = share_of_variance
    monkeypatch.setattr(module, "share_of_variance", lambda *facts: share(*facts) // 4)
    assert measured_epsilon(NOISE) > NOISE.epsilon
