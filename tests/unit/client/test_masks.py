"""A client's keys and memory of masked sums: what it believes, repeats, and refuses."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.channels.identity import Identity
from retexo_fl.channels.key_signing import RosterSigner
from retexo_fl.channels.roster import Roster
from retexo_fl.client.api import (
    EvaluateRequest,
    GramAnswer,
    GramRequest,
    KeysRequest,
    LabelsAnswer,
    LabelsRequest,
    MaskedAnswer,
    MaskTerms,
    OpenRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
    bits_of,
)
from retexo_fl.client.masked_answers import (
    SumLengths,
    counter_of,
    form_of,
    numbers_of,
    told_form,
    told_weights,
)
from retexo_fl.client.masks import ClientMasks
from retexo_fl.client.store import FolderStore
from retexo_fl.errors import CheckpointError, SecureAggregationRefused, TrainingDiverged
from retexo_fl.masking.holder import told_shares
from retexo_fl.masking.keys import PublicKeys, signed_text
from retexo_fl.masking.label import Label, Place
from retexo_fl.masking.step import SharedStep
from retexo_fl.updates import UpdateKey
from retexo_fl.updates.masked import MaskedUpdates
from tests.support.loopback import make_members

JOB, CLIENTS = "job-0123456789ab", 4
TICKET = Ticket(job=JOB, attempt=1)
#: Nodes of all clients, at least.
MOST_COUNT = 100
LENGTHS = SumLengths(classes=2)
ALL = range(CLIENTS)


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Identity], Roster]:
    return make_members(tmp_path_factory.mktemp("members"), CLIENTS)


class Clients:
    """Clients whose owners know each other, each with a folder of its own."""

    def __init__(self, folder: Path, members: tuple[list[Identity], Roster]) -> None:
        self.folder = folder
        self._identities, self._roster = members
        self.masks = [self.started(client) for client in ALL]
        self.signed: dict[int, tuple[bytes, bytes]] = {}

    def store(self, client: int) -> FolderStore:
        return FolderStore(self.folder / str(client))

    def started(self, client: int, *, least_clients: int = 3) -> ClientMasks:
        """Return a client as a process that has just started has it."""
        masks = ClientMasks(JOB, client, self.store(client))
        masks.signer = RosterSigner(identity=self._identities[client], roster=lambda: self._roster)
        masks.least_clients = least_clients
        return masks

    def introduce(self, attempt: int = 1) -> None:
        self.signed = {}
        for client, masks in enumerate(self.masks):
            key, signature = masks.introduce(attempt)
            assert signature is not None
            self.signed[client] = key, signature

    def keys(self, attempt: int = 1, **changes: Any) -> KeysRequest:
        request = KeysRequest(
            ticket=replace(TICKET, attempt=attempt),
            clients=bits_of(self.signed),
            keys=np.frombuffer(b"".join(key for key, _ in self.signed.values()), np.uint8),
            most_count=MOST_COUNT,
            signatures=b"".join(signature for _, signature in self.signed.values()),
        )
        return replace(request, **changes)

    def met(self, attempt: int = 1) -> Clients:
        self.introduce(attempt)
        for masks in self.masks:
            masks.learn(self.keys(attempt))
        return self

    @property
    def digest(self) -> bytes:
        return PublicKeys(by_client={c: key for c, (key, _) in self.signed.items()}).digest


@pytest.fixture
def clients(tmp_path: Path, members: tuple[list[Identity], Roster]) -> Clients:
    return Clients(tmp_path, members)


def question(number: int = 1, *, attempt: int = 1, **terms: Any) -> LabelsRequest:
    """Ask all for counts of labels, at some round."""
    given = {"asked": bits_of(ALL), "opens": True, **terms}
    return LabelsRequest(
        ticket=replace(TICKET, attempt=attempt, round=number), terms=MaskTerms(**given)
    )


def answered(masks: ClientMasks, request: LabelsRequest, first: int = 1) -> MaskedAnswer:
    return masks.hide(request, LabelsAnswer(uses=(first, 2, 3, 4, 5, 6)), None, LENGTHS)


def opening(
    clients: Clients, request: LabelsRequest, included: Iterable[int], opener: int
) -> OpenRequest:
    """Ask an opener to open a sum over the clients that are included."""
    among = tuple(included)
    pieces = []
    for client in among:
        shares = answered(clients.masks[client % CLIENTS], request).shares
        assert shares is not None
        size = len(shares) // CLIENTS
        pieces.append(shares[opener * size : (opener + 1) * size])
    return OpenRequest(
        ticket=request.ticket,
        purpose="query.labels",
        asked_with=request.terms,
        form=told_form(request, form_of(request, LENGTHS, counter_of(MOST_COUNT))),
        weights=told_weights(request, None),
        included=bits_of(among),
        shares=np.frombuffer(b"".join(pieces), np.uint8),
    )


# ---- keys ---------------------------------------------------------------------------------------


def test_keys_that_their_owners_signed_are_believed(clients: Clients) -> None:
    clients.introduce()
    told = {masks.learn(clients.keys()).digest for masks in clients.masks}
    assert told == {clients.digest}


@pytest.mark.parametrize(
    ("text", "signer"),
    [
        ({"client": 1}, 2),
        ({"job": "job-ba9876543210"}, 1),
        ({"attempt": 2}, 1),
        ({"client": 2}, 1),
        ({"public": b"o" * 32}, 1),
    ],
    ids=["by another client", "another job", "another attempt", "as another client", "other key"],
)
def test_a_key_that_its_owner_did_not_sign_as_it_is_told_is_refused(
    clients: Clients, text: dict[str, Any], signer: int
) -> None:
    clients.introduce()
    key, _ = clients.signed[1]
    facts = {"job": JOB, "attempt": 1, "client": 1, "public": key, **text}
    own = clients.masks[signer].signer
    assert own is not None
    clients.signed[1] = key, own.sign(signed_text(**facts))
    for masks in (clients.masks[0], clients.masks[3]):
        with pytest.raises(
            SecureAggregationRefused, match="the masking key of client 1 is not signed by the key"
        ):
            masks.learn(clients.keys())
    # With the signature of the right text all is well.
    right = clients.masks[1].signer
    assert right is not None
    clients.signed[1] = key, right.sign(signed_text(JOB, 1, 1, key))
    clients.masks[0].learn(clients.keys())


@pytest.mark.parametrize("signature", [bytes(64), b"\xff" * 64, b"\0" * 63 + b"\1"])
def test_what_is_no_signature_is_refused(clients: Clients, signature: bytes) -> None:
    clients.introduce()
    clients.signed[1] = clients.signed[1][0], signature
    with pytest.raises(SecureAggregationRefused, match="key of client 1 is not signed"):
        clients.masks[0].learn(clients.keys())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"signatures": None}, "are not signed; expected a signature of each client"),
        ({"signatures": bytes(63)}, "are not signed"),
        ({"keys": np.zeros(5, np.uint8)}, "5 bytes of masking keys for 4 clients"),
        ({"clients": b""}, "128 bytes of masking keys for 0 clients"),
        ({"clients": bits_of([0, 1, 2, 9])}, "client 9 is not in the roster file"),
    ],
)
def test_other_faults_of_a_keys_message_are_named(
    clients: Clients, changes: dict[str, Any], sentence: str
) -> None:
    clients.introduce()
    with pytest.raises(SecureAggregationRefused, match=sentence):
        clients.masks[0].learn(clients.keys(**changes))


def test_keys_come_after_hello_and_no_two_are_the_same(clients: Clients) -> None:
    clients.introduce()
    twice = clients.signed
    twice[1] = twice[0]
    alone = ClientMasks(JOB, 0, clients.store(9))
    with pytest.raises(SecureAggregationRefused, match="two clients have the same masking key"):
        alone.learn(clients.keys())
    clients.introduce(2)
    with pytest.raises(SecureAggregationRefused, match="masking keys came before hello"):
        alone.learn(clients.keys(2))


def test_a_question_without_masks_is_refused(clients: Clients) -> None:
    clients.met()
    request = LabelsRequest(ticket=replace(TICKET, round=1))
    with pytest.raises(SecureAggregationRefused, match="query.labels: asked for numbers without"):
        answered(clients.masks[0], request)


def test_a_point_of_low_order_gives_no_secret(clients: Clients) -> None:
    clients.introduce()
    signer = clients.masks[1].signer
    assert signer is not None
    clients.signed[1] = bytes(32), signer.sign(signed_text(JOB, 1, 1, bytes(32)))
    clients.masks[0].learn(clients.keys())
    with pytest.raises(SecureAggregationRefused, match="a client's masking key is none"):
        answered(clients.masks[0], question())


def test_how_many_nodes_all_clients_have_does_not_change_within_an_attempt(
    clients: Clients,
) -> None:
    clients.met()
    for masks in (clients.masks[0], clients.started(0)):
        with pytest.raises(
            SecureAggregationRefused,
            match="all clients have 101 nodes or pairs together; before in this attempt it said",
        ):
            masks.learn(clients.keys(most_count=MOST_COUNT + 1))


def test_more_nodes_than_all_clients_are_said_to_have_are_not_counted(clients: Clients) -> None:
    clients.met()
    with pytest.raises(
        SecureAggregationRefused, match="client 0: of uses, one is 1000; expected counts up to 127"
    ):
        answered(clients.masks[0], question(), first=1000)


def test_a_count_below_zero_is_no_count(clients: Clients) -> None:
    clients.met()
    with pytest.raises(SecureAggregationRefused, match="of uses, one is -1; expected counts up to"):
        answered(clients.masks[0], question(), first=-1)


def test_a_sum_of_more_updates_than_steps_are_for_is_refused(clients: Clients) -> None:
    """They would not be a sum any more but wrap around."""
    clients.met()
    codec, update = MaskedUpdates(), np.full(3, 0.5)
    key = UpdateKey(seed=0, job=JOB, stage=0, round=1, client=0)
    for terms in (CLIENTS - 1, CLIENTS):
        request = TrainRequest(
            ticket=replace(TICKET, round=1),
            weights=np.zeros(3),
            terms=MaskTerms(asked=bits_of(ALL)),
            steps=codec.first_steps(3, most_train=5, terms=terms),
        )
        numbers, beside = codec.whole(update, key, request.steps or b"")
        answer = TrainAnswer(
            update_sum=numbers,
            examples=5,
            loss_sum=1.0,
            validation_examples=0,
            validation_loss_sum=0.0,
            validation_correct=0,
        )
        with (
            nullcontext()
            if terms == CLIENTS
            else pytest.raises(SecureAggregationRefused, match="steps for 3 updates, where 4 cl")
        ):
            clients.masks[0].hide(request, answer, np.zeros(3), SumLengths(update=3), beside)


def test_what_an_answer_is_computed_with_is_bound_to_its_mask() -> None:
    """Clients that were told other weights, of the model or of classes, add up to noise."""
    weights = np.zeros(3)
    asked = EvaluateRequest(ticket=TICKET, weights=weights, label_facts=(1.0, 2.0), nodes="test")
    other = replace(asked, label_facts=(1.0, 2.5))
    after = replace(asked, ticket=replace(TICKET, weights_digest=b"d" * 32))
    told = {
        *(told_weights(request, weights) for request in (asked, other, after)),
        *(told_weights(asked, changed) for changed in (weights + 1, None)),
    }
    assert len(told) == 5
    assert told_weights(replace(asked), weights.copy()) in told


def test_products_for_ridge_add_up_within_their_ring_whoever_answers() -> None:
    step = SharedStep(40, -3)
    request = GramRequest(ticket=TICKET, steps=step.told)
    lengths, most = SumLengths(update=1), step.ring.most // CLIENTS
    form = form_of(request, lengths, counter_of(MOST_COUNT))
    for number in (most - 1, most):
        answer = GramAnswer(sums=np.array([-number * step.unit]), examples=1)
        with nullcontext() if number < most else pytest.raises(TrainingDiverged, match="sums is"):
            numbers_of(request, answer, form, lengths, terms=CLIENTS, client=0)


def test_keys_that_change_within_an_attempt_are_refused(clients: Clients) -> None:
    clients.met()
    before = clients.keys()
    _forget(clients, 1)
    key, signature = clients.masks[1].introduce(1)
    assert signature is not None
    clients.signed[1] = key, signature
    for masks in (clients.masks[0], clients.started(0)):
        with pytest.raises(SecureAggregationRefused, match="names other masking keys than before"):
            masks.learn(clients.keys())
        masks.learn(before)
    clients.introduce(2)
    clients.masks[0].learn(clients.keys(2))


def _forget(clients: Clients, client: int) -> None:
    clients.store(client).forget()
    clients.masks[client] = clients.started(client)


def test_an_attempt_has_keys_of_its_own(clients: Clients) -> None:
    clients.introduce()
    first = clients.signed
    clients.introduce()
    assert {c: key for c, (key, _) in clients.signed.items()} == {
        c: key for c, (key, _) in first.items()
    }
    clients.introduce(2)
    keys = {key for signed in (first, clients.signed) for key, _ in signed.values()}
    assert len(keys) == 2 * CLIENTS


# ---- one answer for each place ------------------------------------------------------------------


def test_the_same_question_has_the_same_bytes_also_after_a_restart(clients: Clients) -> None:
    clients.met()
    first = answered(clients.masks[0], question())
    for masks in (clients.masks[0], clients.started(0)):
        again = answered(masks, question())
        assert again.beside == first.beside
        assert again.shares == first.shares
        assert again.numbers.tobytes() == first.numbers.tobytes()


@pytest.mark.parametrize("restarts", [False, True])
def test_another_answer_at_a_place_and_an_earlier_place_are_refused(
    clients: Clients, restarts: bool
) -> None:
    clients.met()
    answered(clients.masks[0], question(2))
    answered(clients.masks[0], question(3))
    masks = clients.started(0) if restarts else clients.masks[0]
    for request, first in (
        (question(2), 1),
        (question(3), 9),
        (question(3, asked=bits_of([0, 1, 2])), 1),
        (question(3, opens=False), 1),
    ):
        with pytest.raises(SecureAggregationRefused, match="this or a later sum was answered"):
            answered(masks, request, first)


def test_what_another_worker_has_answered_binds_this_one(clients: Clients) -> None:
    clients.met()
    here, there = clients.masks[0], clients.started(0)
    for number, (one, other) in enumerate([(here, there), (there, here)] * 2, start=1):
        first = answered(one, question(number))
        with pytest.raises(SecureAggregationRefused, match="this or a later sum was answered"):
            answered(other, question(number), 9)
        assert answered(other, question(number)).numbers.tobytes() == first.numbers.tobytes()


def test_a_question_of_an_earlier_attempt_is_refused(clients: Clients) -> None:
    clients.met()
    answered(clients.masks[0], question())
    clients.met(2)
    for masks in (clients.masks[0], clients.started(0)):
        with pytest.raises(SecureAggregationRefused, match="attempt 1: no masking keys have come"):
            answered(masks, question())
        answered(masks, question(attempt=2))


# ---- what is lost -------------------------------------------------------------------------------


@pytest.mark.parametrize("note", ["masking-secrets", "masking-memory", "masking-keys"])
@pytest.mark.parametrize("damage", ["missing", "cut", "a bit", "empty", "other JSON"])
def test_lost_notes_are_named_and_a_resume_goes_on(
    clients: Clients, note: str, damage: str
) -> None:
    clients.met()
    answered(clients.masks[0], question())
    path = clients.folder / "0" / note
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {
                "cut": content[:-3],
                "a bit": content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
                "empty": b"",
                "other JSON": content[:4] + b"[1]",
            }[damage]
        )
    clients.masks[0] = clients.started(0)
    with pytest.raises((CheckpointError, SecureAggregationRefused), match="retexo run --resume"):
        answered(clients.masks[0], question(2))
    clients.met(2)
    again = answered(clients.masks[0], question(attempt=2))
    assert again.beside != answered(clients.masks[1], question(attempt=2)).beside


# ---- opening ------------------------------------------------------------------------------------


def test_an_opener_answers_again_with_the_same_bytes_also_after_a_restart(clients: Clients) -> None:
    clients.met()
    request = opening(clients, question(), (0, 1, 2), opener=3)
    first = clients.masks[3].open(request)
    for masks in (clients.masks[3], clients.started(3)):
        assert masks.open(request).shares.tobytes() == first.shares.tobytes()


@pytest.mark.parametrize("restarts", [False, True])
def test_an_opener_opens_one_set_only(clients: Clients, restarts: bool) -> None:
    clients.met()
    # Both before anything is opened: to mask writes down all that is remembered.
    one = opening(clients, question(), (0, 1, 2), opener=3)
    other = opening(clients, question(), ALL, opener=3)
    clients.masks[3].open(one)
    masks = clients.started(3) if restarts else clients.masks[3]
    with pytest.raises(SecureAggregationRefused, match="a sum over other clients was opened"):
        masks.open(other)


@pytest.mark.parametrize(
    ("included", "changes", "sentence"),
    [
        ((0, 1), {}, "to open a sum of 2 clients; expected 3 at least"),
        ((0, 1, 2, 5), {}, "to open a sum of clients that were not asked"),
        (
            (0, 1, 2),
            {"asked_with": MaskTerms(asked=bits_of(range(9)), opens=True)},
            "expected clients with masking",
        ),
        (
            (0, 1, 2),
            {"asked_with": MaskTerms(asked=bits_of(ALL))},
            "client 3 holds no shares of this sum",
        ),
        ((0, 1, 2), {"form": b"f" * 32}, "shares of client 0 were not sealed for this sum"),
        ((0, 1, 2), {"weights": b"w" * 32}, "shares of client 0 were not sealed"),
        ((0, 1, 2), {"purpose": "train.layer"}, "shares of client 0 were not sealed"),
        ((0, 1, 2), {"purpose": "\ud800"}, "messages of no type that there is"),
        ((0, 1, 2), {"shares": np.zeros(7, np.uint8)}, "shares of client 0 were not sealed"),
        ((0, 1, 2), {"ticket": replace(TICKET, round=2)}, "shares of client 0 were not sealed"),
    ],
)
def test_what_an_opener_refuses(
    clients: Clients, included: tuple[int, ...], changes: dict[str, Any], sentence: str
) -> None:
    clients.met()
    request = opening(clients, question(), included, opener=3)
    with pytest.raises(SecureAggregationRefused, match=sentence):
        clients.masks[3].open(replace(request, **changes))


def test_an_owner_may_want_more_clients(clients: Clients) -> None:
    clients.met()
    masks = clients.started(3, least_clients=4)
    answered(masks, question())
    with pytest.raises(SecureAggregationRefused, match="of 3 clients; expected 4 at least"):
        masks.open(opening(clients, question(), (0, 1, 2), opener=3))
    masks.open(opening(clients, question(), ALL, opener=3))


def test_no_set_names_a_client_both_present_and_missing() -> None:
    """Who is included says all: of each client the own mask is told, or pair masks, never both."""
    label = Label(
        job=JOB,
        place=Place(attempt=1, purpose="train.layer", stage=0, round=1),
        keys=bytes(32),
        asked=tuple(range(6)),
        form=bytes(32),
        weights=bytes(32),
        opens=True,
    )
    for size in range(3, 7):
        for included in combinations(range(6), size):
            told = told_shares(label, included)
            present = {client for client, other in told if client == other}
            missing = {other for client, other in told if client != other}
            assert present == {*included}
            assert missing == {*range(6)} - present
            assert len({*told}) == len(told)
