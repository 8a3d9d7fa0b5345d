"""A client's keys and memory of masked sums: what it believes, repeats, and refuses."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Roster
from retexo_fl.client.api import (
    EvaluateRequest,
    GramAnswer,
    GramRequest,
    KeysRequest,
    LabelsAnswer,
    LabelsRequest,
    MaskedAnswer,
    Ticket,
)
from retexo_fl.client.masked_answers import (
    SumLengths,
    counter_of,
    form_of,
    numbers_of,
    told_weights,
)
from retexo_fl.client.masks import ClientMasks
from retexo_fl.client.store import FolderStore
from retexo_fl.errors import CheckpointError, SecureAggregationRefused, TrainingDiverged
from retexo_fl.masking.keys import PublicKeys, signed_text
from retexo_fl.masking.step import SharedStep
from tests.support.loopback import make_members
from tests.support.owners import agreed, signers

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

    def __init__(
        self,
        folder: Path,
        members: tuple[list[Identity], Roster],
        uses: Mapping[int, frozenset[str]] | None = None,
    ) -> None:
        self.folder = folder
        self._identities, self._roster = members
        self._agreed = agreed(self._roster, self._identities, uses=uses, cohort_size=CLIENTS)
        self._signers = signers(self._identities, self._roster, self._agreed)
        self.masks = [self.started(client) for client in ALL]
        self.signed: dict[int, tuple[bytes, bytes]] = {}

    def store(self, client: int) -> FolderStore:
        return FolderStore(self.folder / str(client))

    def started(self, client: int, *, least_clients: int = 3) -> ClientMasks:
        """Return a client as a process that has just started has it."""
        masks = ClientMasks(JOB, client, self.store(client), clients=CLIENTS)
        masks.signer = self._signers[client]
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
            agreement=self._agreed.agreement.digest,
            cohort=tuple(self.signed),
            uses="test train",
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


def question(number: int = 1, *, attempt: int = 1) -> LabelsRequest:
    """Ask for counts of labels, at some round."""
    return LabelsRequest(ticket=replace(TICKET, attempt=attempt, round=number))


def answered(masks: ClientMasks, request: LabelsRequest, first: int = 1) -> MaskedAnswer:
    return masks.hide(request, LabelsAnswer(uses=(first, 2, 3, 4, 5, 6)), None, LENGTHS)


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
    alone = ClientMasks(JOB, 0, clients.store(9), clients=CLIENTS)
    with pytest.raises(SecureAggregationRefused, match="two clients have the same masking key"):
        alone.learn(clients.keys())
    clients.introduce(2)
    with pytest.raises(SecureAggregationRefused, match="masking keys came before hello"):
        alone.learn(clients.keys(2))


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
            match="names another most-count of masked sums than before in this attempt",
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
        with pytest.raises(SecureAggregationRefused, match="names another keys of masked sums"):
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


# ---- whose sums ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cohort", "sentence"),
    [
        ((0, 1, 2), "clients 0, 1, 2 are to be added up; the owners agreed on clients 0, 1, 2, 3"),
        ((0, 1, 2, 3, 9), "the owners agreed on clients 0, 1, 2, 3"),
        ((1, 2, 3), "expected clients in ascending order, client 0 among them"),
        ((0, 1, 1, 2), "expected clients in ascending order"),
        ((1, 0, 2, 3), "expected clients in ascending order"),
        ((), "expected clients in ascending order"),
    ],
)
def test_a_client_is_added_up_with_those_alone_that_its_owner_agreed_to(
    clients: Clients, cohort: tuple[int, ...], sentence: str
) -> None:
    clients.introduce()
    keys = np.frombuffer(b"".join(clients.signed.get(c, (bytes(32),))[0] for c in cohort), np.uint8)
    with pytest.raises(SecureAggregationRefused, match=sentence):
        clients.masks[0].learn(clients.keys(cohort=cohort, keys=keys))


def test_another_agreement_and_another_use_are_refused(clients: Clients) -> None:
    clients.introduce()
    other = bytes(32)
    for changes, sentence in (
        ({"agreement": other}, "in agreement"),
        ({"uses": "everything"}, "sums are to be of everything; the owners agreed on nodes test"),
    ):
        with pytest.raises(SecureAggregationRefused, match=sentence):
            clients.masks[0].learn(clients.keys(**changes))


def test_a_client_adds_zeros_to_what_its_owner_did_not_promise(
    tmp_path: Path, members: tuple[list[Identity], Roster]
) -> None:
    uses = {client: frozenset({"train", "test"} if client else {"test"}) for client in ALL}
    clients = Clients(tmp_path, members, uses=uses).met()
    assert clients.masks[0].uses(TICKET) == {"test"}
    assert clients.masks[1].uses(TICKET) == {"test", "train"}


def test_an_attempt_ends_with_the_agreement_that_it_began_with(
    clients: Clients, members: tuple[list[Identity], Roster], tmp_path: Path
) -> None:
    clients.met()
    assert clients.masks[0].uses(TICKET) == {"test", "train"}
    clients.masks[0].signer = Clients(tmp_path / "later", members).masks[0].signer
    with pytest.raises(SecureAggregationRefused, match="agreed on something else since this"):
        clients.masks[0].uses(TICKET)


def test_cohort_and_uses_do_not_change_within_an_attempt(clients: Clients) -> None:
    clients.met()
    for masks in (clients.masks[0], clients.started(0)):
        with pytest.raises(SecureAggregationRefused, match="another uses of masked sums than bef"):
            masks.learn(clients.keys(uses="train"))
        assert masks.uses(TICKET) == {"test", "train"}


def test_an_owner_may_want_more_clients(clients: Clients) -> None:
    clients.introduce()
    with pytest.raises(SecureAggregationRefused, match="of 4 clients; expected 5 at least"):
        clients.started(3, least_clients=5).learn(clients.keys())


def test_in_a_simulation_three_clients_are_added_up_at_least(tmp_path: Path) -> None:
    masks = ClientMasks(JOB, 0, FolderStore(tmp_path / "0"), clients=CLIENTS)
    key, _ = masks.introduce(1)
    request = KeysRequest(
        ticket=TICKET,
        agreement=bytes(32),
        cohort=(0, 1),
        keys=np.frombuffer(key + bytes(32), np.uint8),
        most_count=MOST_COUNT,
    )
    with pytest.raises(SecureAggregationRefused, match="of 2 clients; expected 3 at least"):
        masks.learn(request)
