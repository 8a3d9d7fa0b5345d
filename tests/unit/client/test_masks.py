"""A client's keys of masked sums, and its memory: what it believes, repeats, and refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent.counters import CounterFile
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.key_signing import RosterSigner, signature_of
from retexo_fl.channels.roster import Roster
from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import (
    EvaluateRequest,
    GramAnswer,
    GramRequest,
    KeysRequest,
    LabelsAnswer,
    LabelsRequest,
    MaskedAnswer,
    Ticket,
    TrainRequest,
    told_weights,
)
from retexo_fl.client.masked_answers import (
    form_of,
    numbers_of,
)
from retexo_fl.client.masks import ClientMasks
from retexo_fl.client.store import FolderStore
from retexo_fl.errors import MaskingKeysLost, SecureAggregationRefused
from retexo_fl.federation.rounds.masked_sums import numbers_in
from retexo_fl.masking.keys import PublicKeys, signed_text
from retexo_fl.masking.step import SharedStep
from retexo_fl.updates import MaskedUpdates
from tests.support.loopback import make_members
from tests.support.owners import agreed, signer_of

JOB, CLIENTS = "job-0123456789ab", 4
TICKET = Ticket(job=JOB, attempt=1)
#: Nodes of all clients, at least.
LENGTHS = SumFacts(classes=2)
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
        self.masks = [self.started(client) for client in ALL]
        self.signed: dict[int, tuple[bytes, bytes]] = {}

    def state(self, client: int) -> Path:
        return self.folder / str(client)

    def started(self, client: int, *, questions: int = 0) -> ClientMasks:
        """Return a client as a process that has just started has it."""
        masks = ClientMasks(JOB, client, FolderStore(self.state(client)), clients=CLIENTS)
        identity, state = self._identities[client], self.state(client)
        signer = signer_of(identity, self._roster, self._agreed, state, questions=questions)
        masks.sign_by(signer, least_clients=3)
        return masks

    def restart(self, client: int, *, questions: int = 0) -> None:
        """Have a client begin anew, and introduce itself."""
        self.masks[client] = self.started(client, questions=questions)
        self.introduce_one(client)

    def introduce(self, attempt: int = 1) -> None:
        self.signed = {}
        for client in ALL:
            self.introduce_one(client, attempt)

    def introduce_one(self, client: int, attempt: int = 1) -> None:
        key, signature = self.masks[client].introduce(attempt)
        assert signature is not None
        self.signed[client] = key, signature

    def sign(self, signer: int, **facts: Any) -> bytes:
        """Return counters and signature by a client of what it may not have said."""
        own = self.masks[signer].signer
        assert isinstance(own, RosterSigner)
        counters = own.counters()
        text = signed_text(**{"job": JOB, "attempt": 1, "counters": counters, **facts})
        return counters.content + signature_of(own.identity, text)

    def keys(self, attempt: int = 1, **changes: Any) -> KeysRequest:
        request = KeysRequest(
            ticket=replace(TICKET, attempt=attempt),
            agreement=self._agreed.agreement.digest,
            cohort=tuple(self.signed),
            uses="test train",
            keys=np.frombuffer(b"".join(key for key, _ in self.signed.values()), np.uint8),
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


@pytest.mark.parametrize("first", [0, 2**31, -1])
def test_an_answer_looks_the_same_whatever_a_client_counts(clients: Clients, first: int) -> None:
    clients.met()
    found = answered(clients.masks[0], question(), first=first)
    assert (len(found.numbers), len(found.beside)) == (0, 32)


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
    lengths, most = SumFacts(update=1), step.ring.most // CLIENTS
    form = form_of(request, lengths)
    for number in (most - 1, most):
        answer = GramAnswer(sums=np.array([-number * step.unit]), examples=1)
        found = numbers_of(request, answer, form, lengths, terms=CLIENTS)
        assert (found.signed()[0][0], found.wide[-1]) == (1 - most, number == most)


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


def test_the_same_question_has_the_same_bytes(clients: Clients) -> None:
    clients.met()
    first = answered(clients.masks[0], question())
    again = answered(clients.masks[0], question())
    assert again.beside == first.beside
    assert again.numbers.tobytes() == first.numbers.tobytes()


def test_another_answer_at_a_place_and_an_earlier_place_are_refused(clients: Clients) -> None:
    clients.met()
    answered(clients.masks[0], question(2))
    answered(clients.masks[0], question(3))
    # The same keys once more are nothing new.
    clients.masks[0].learn(clients.keys())
    for request, first in ((question(2), 1), (question(3), 9)):
        with pytest.raises(SecureAggregationRefused, match="this or a later sum was answered"):
            answered(clients.masks[0], request, first)


def test_a_question_of_an_earlier_attempt_is_refused(clients: Clients) -> None:
    clients.met()
    answered(clients.masks[0], question())
    clients.met(2)
    with pytest.raises(MaskingKeysLost, match="attempt 1: has no masking keys"):
        answered(clients.masks[0], question())
    answered(clients.masks[0], question(attempt=2))


def test_in_a_simulation_a_client_takes_its_keys_to_another_process(tmp_path: Path) -> None:
    stores = [FolderStore(tmp_path / str(client)) for client in ALL]

    def process(client: int) -> ClientMasks:
        return ClientMasks(JOB, client, stores[client], clients=CLIENTS)

    keys = b"".join(process(client).introduce(1)[0] for client in ALL)
    request = KeysRequest(
        ticket=TICKET,
        agreement=bytes(32),
        cohort=tuple(ALL),
        keys=np.frombuffer(keys, np.uint8),
    )
    for client in ALL:
        process(client).learn(request)
    first, again = (answered(process(0), question()) for _ in range(2))
    assert first.beside == again.beside


# ---- a process that begins anew -----------------------------------------------------------------


def test_a_client_that_began_anew_has_no_keys_and_says_so(clients: Clients) -> None:
    clients.met()
    answered(clients.masks[0], question())
    uses = clients.masks[0].uses(TICKET)
    clients.masks[0] = clients.started(0)
    with pytest.raises(MaskingKeysLost, match="client 0, attempt 1: has no masking keys, as after"):
        answered(clients.masks[0], question())
    # Nor does it believe any before it has introduced itself.
    assert clients.masks[0].learn(clients.keys()).lacks_keys
    with pytest.raises(MaskingKeysLost):
        clients.masks[0].uses(TICKET)
    # What its peers wait for is of the same uses.
    assert clients.masks[0].uses(TICKET, without_keys=True) == uses == {"train", "test"}
    with pytest.raises(MaskingKeysLost):
        clients.masks[0].uses(replace(TICKET, attempt=2), without_keys=True)


def test_no_secret_is_on_the_disk_of_a_client_that_signs(clients: Clients) -> None:
    clients.met()
    answered(clients.masks[0], question())
    kept = {path.name: path for path in clients.folder.rglob("*") if path.is_file()}
    assert kept.keys() == {"counters.json", "uses"}
    # All of this stands in what the server tells.
    assert json.loads(kept["uses"].read_text()) == {
        "attempt": 1,
        "agreement": clients.keys().agreement.hex(),
        "cohort": [*ALL],
        "uses": "test train",
    }


@pytest.mark.parametrize(("most_train", "size"), [(5000, 4), (50, 5)])
def test_numbers_of_other_steps_or_widths_are_under_another_label(
    clients: Clients, most_train: int, size: int
) -> None:
    """The same zeros, at the same place: what they would stand for is another sum."""
    clients.met()

    def hidden(most_train: int, size: int) -> bytes:
        steps = MaskedUpdates().first_steps(size, most_train=most_train, terms=CLIENTS)
        request = TrainRequest(ticket=replace(TICKET, round=1), weights=np.zeros(size), steps=steps)
        facts = SumFacts(classes=2, update=size)
        return clients.masks[0].hide(request, None, request.weights, facts).beside

    first = hidden(50, 4)
    assert hidden(50, 4) == first
    with pytest.raises(SecureAggregationRefused, match="this or a later sum was answered"):
        hidden(most_train, size)


def test_its_cohort_answers_the_place_again_under_its_new_keys(clients: Clients) -> None:
    clients.met()
    before, first = clients.digest, [answered(masks, question()) for masks in clients.masks]
    clients.restart(1)
    for masks in clients.masks:
        masks.learn(clients.keys())
    assert clients.digest != before
    again = [answered(masks, question()) for masks in clients.masks]
    form = form_of(question(), LENGTHS)
    for answers in (first, again):
        total = form.zeros()
        for answer in answers:
            total.add(numbers_in(answer, form))
        assert total.signed()[2].tolist()[1:] == [2 * CLIENTS, 12, 16, 20, 24]
    assert not {answer.beside for answer in first} & {answer.beside for answer in again}


# ---- a disk that was put back -------------------------------------------------------------------


def put_back(clients: Clients, client: int, kept: Path) -> None:
    shutil.rmtree(clients.state(client))
    shutil.copytree(kept, clients.state(client))


@pytest.mark.parametrize(
    ("starts", "questions", "sentence"),
    [
        (2, 9, "start 2, after start 3"),
        (1, 4, "another start 2 than before"),
        (0, 4, "4 answered questions, after 9"),
    ],
    ids=["fewer starts", "as many", "more, with fewer questions"],
)
def test_a_state_folder_that_was_put_back_is_noticed_by_the_others(
    clients: Clients, tmp_path: Path, starts: int, questions: int, sentence: str
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(clients.state(1), kept)
    for _ in range(starts):
        clients.restart(1, questions=9)
    if not starts:
        clients.masks[1] = clients.started(1, questions=9)
    clients.met()
    if starts:
        put_back(clients, 1, kept)
    clients.restart(1, questions=questions)
    with pytest.raises(
        SecureAggregationRefused,
        match=f"client 0: the masking key of client 1 tells of {sentence}: .*reset-counter 1` here",
    ):
        clients.masks[0].learn(clients.keys())
    # Also in another attempt, and after a start of the one that remembers.
    clients.masks[0] = clients.started(0)
    clients.introduce(2)
    with pytest.raises(SecureAggregationRefused, match=sentence):
        clients.masks[0].learn(clients.keys(2))
    # Its owner says that the machine was set up anew.
    assert CounterFile(clients.state(0)).reset(1)
    clients.masks[0].learn(clients.keys(2))


def test_the_same_process_may_come_to_jobs_in_any_order(clients: Clients) -> None:
    """Its keys of two jobs are handed out in another order than they were signed in."""
    clients.introduce()
    earlier = dict(clients.signed)
    own = clients.masks[1].signer
    assert isinstance(own, RosterSigner)
    later, public = replace(own.counters(), questions=9), clients.signed[1][0]
    text = signed_text(JOB, 1, 1, public, later)
    clients.signed[1] = public, later.content + signature_of(own.identity, text)
    clients.masks[0].learn(clients.keys())
    clients.signed = earlier
    clients.masks[0].learn(clients.keys())
    seen = json.loads((clients.state(0) / "counters.json").read_text())["members"]["1"]
    assert seen[1] == later.content.hex()


# ---- whose sums ---------------------------------------------------------------------------------


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
    with pytest.raises(SecureAggregationRefused, match="another uses of masked sums than bef"):
        clients.masks[0].learn(clients.keys(uses="train"))
    assert clients.masks[0].uses(TICKET) == {"test", "train"}
