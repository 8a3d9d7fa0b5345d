"""What stands around rounds: one that knows nothing of it gets the same, whoever is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pytest
from flwr.clientapp import ClientApp

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import (
    CollectAnswer,
    CollectRequest,
    CountsAnswer,
    EndRequest,
    EvaluateAnswer,
    EvaluateRequest,
    HelloRequest,
    KeysAnswer,
    KeysRequest,
    MaskedAnswer,
    Request,
    Ticket,
)
from retexo_fl.client.masked_answers import form_of, numbers_of
from retexo_fl.client.moved import KEYS_BYTES, Moved
from retexo_fl.errors import RemoteProtocolError, RoundIncomplete
from retexo_fl.federation.asking import (
    Answers,
    Ask,
    Messenger,
    Round,
    Rounds,
    WaitPolicy,
    members,
    through,
)
from retexo_fl.federation.rounds.clients import Clients, MaskedClients
from retexo_fl.federation.rounds.masked_sums import MaskedSums
from retexo_fl.federation.wrappers import wrappers_of
from retexo_fl.ledger import PeerTraffic, Traffic, TrafficLedger, Volume
from retexo_fl.masking.agreement import USES, Cohort
from retexo_fl.masking.keys import KEY_BYTES, PublicKeys
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.support.promises import hello_of

CLIENTS = 6
COHORTS = ((0, 1, 2), (3, 4, 5))
NAME, WHOLE = np.zeros(1, np.float32), np.ones(3, np.float32)
TICKET = Ticket(job="job-0123456789ab", attempt=1, stage=1, round=2)
LENGTHS = SumFacts()
MOVED = Traffic(boundary=Volume(messages=1, raw=8, payload=7, wire=9))


def count(*, all_again: bool = False, ends: bool = False) -> Round[tuple[tuple[int, ...], int]]:
    """Ask all how many nodes they have; return whose were added up, and how many."""

    def requests(weights: np.ndarray) -> dict[int, Request[Any]]:
        request = EvaluateRequest(ticket=TICKET, weights=weights, nodes="test", last=ends)
        return dict.fromkeys(range(CLIENTS), request)

    answers = yield Ask(
        requests=requests(NAME),
        stage=1,
        purpose="evaluate",
        sums=LENGTHS,
        again=lambda: requests(WHOLE),
        all_again=all_again,
        ends=ends,
    )
    there: list[int] = []
    nodes = 0
    for who, answer in answers:
        there += members(who)
        nodes += answer.examples
    return tuple(there), nodes


@dataclass
class Machines:
    """Clients that lose what they held, and their keys, or leave after one answer.

    What they are asked is kept.
    """

    forgetful: Collection[int] = ()
    anew: Collection[int] = ()
    leaving: Collection[int] = ()
    is_masked: bool = False
    asked: list[tuple[str, list[int]]] = field(default_factory=list)
    ledger: TrafficLedger = field(default_factory=TrafficLedger)
    lacking: set[int] = field(init=False)
    keyless: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.lacking, self.keyless = {*self.forgetful}, {*self.anew}

    @property
    def clients(self) -> Clients:
        hellos = {client: hello_of(client, test=10**client) for client in range(CLIENTS)}
        facts: dict[str, Any] = {
            "hellos": hellos,
            "policy": WaitPolicy(timeout_s=9.0, quorum=1),
            "ledger": self.ledger,
            "most_held": 2,
            "exchange_in_rounds": True,
        }
        if self.is_masked:
            cohorts = tuple(Cohort(members=c, uses=frozenset(USES)) for c in COHORTS)
            counts: dict[tuple[int, ...], CountsAnswer] = {
                cohort: CountsAnswer(
                    nodes=30,
                    train=12,
                    validation=9,
                    test=nodes_of(cohort),
                    vectors_out=0,
                    vectors_in=0,
                )
                for cohort in COHORTS
            }
            keys: dict[tuple[int, ...], KeysRequest] = {
                cohort: KeysRequest(
                    ticket=TICKET,
                    agreement=bytes(32),
                    cohort=cohort,
                    uses=" ".join(USES),
                    keys=np.zeros(KEY_BYTES * len(cohort), np.uint8),
                )
                for cohort in COHORTS
            }
            masking = MaskedSums(cohorts=cohorts, keys=keys, counts=counts)
            return MaskedClients(masking=masking, **facts)
        return Clients(**facts)

    def wrapped(self, asking: Round[Any], behind: Collection[int] = ()) -> Round[Any]:
        # What it would send is answered by these.
        clients, grid = self.clients, InlineGrid(ClientApp(), CLIENTS, {})
        messenger = Messenger(grid, ledger=self.ledger, policy=clients.policy)
        wrappers = wrappers_of(clients, behind=lambda: behind)
        return Rounds(messenger=messenger, wrappers=wrappers).wrapped(asking)

    def run(self, asking: Round[Any]) -> Any:
        answers: Answers | None = None
        while True:
            try:
                ask = next(asking) if answers is None else asking.send(answers)
            except StopIteration as end:
                return end.value
            kinds = {type(request) for request in ask.requests.values()}
            self.asked.append((kinds.pop().__name__, list(ask.requests)))
            assert not kinds
            answers = self.answers(ask)

    def answers(self, ask: Ask) -> Iterator[tuple[int, Any]]:
        for client, request in ask.requests.items():
            if client in self.leaving and len(self.asked) > 1:
                continue
            yield client, self.answer(client, request, is_sum=bool(ask.cohorts))

    def answer(self, client: int, request: Request[Any], *, is_sum: bool) -> Any:
        match request:
            case HelloRequest():
                untold = dict.fromkeys([item.name for item in fields(CountsAnswer)], 0)
                key = bytes([client]) * KEY_BYTES
                return replace(hello_of(client, **untold), mask_key=key, label_uses=())
            case KeysRequest():
                self.keyless.discard(client)
                keys = PublicKeys.of(request.cohort, request.keys.tobytes())
                return KeysAnswer(digest=keys.digest)
            case EvaluateRequest():
                found = self.evaluated(client, request)
                return self.hidden(client, request, found) if is_sum else found
            case EndRequest():
                return None
            case CollectRequest():
                return CollectAnswer(complete=True)
        raise AssertionError(request)

    def evaluated(self, client: int, request: EvaluateRequest) -> EvaluateAnswer:
        assert request.weights is not None
        is_lacking = client in self.lacking and len(request.weights) == len(NAME)
        if len(request.weights) == len(WHOLE):
            self.lacking.discard(client)
        return EvaluateAnswer(
            examples=0 if is_lacking else 10**client,
            loss_sum=0.0,
            correct=0,
            traffic=PeerTraffic(sent=MOVED),
            lacks_weights=is_lacking or None,
        )

    def hidden(self, client: int, request: EvaluateRequest, answer: EvaluateAnswer) -> MaskedAnswer:
        """Return an answer in the form of a masked one, with masks of zeros."""
        nothing = MaskedAnswer(numbers=np.zeros(0, np.uint8), beside=b"")
        if client in self.keyless:
            return replace(nothing, lacks_keys=True)
        moved = Moved(by_purpose={"evaluate": answer.traffic}).numbers(EvaluateRequest)
        told = bytes(KEYS_BYTES) + moved.astype("<i8").tobytes()
        if answer.lacks_weights:
            return replace(nothing, lacks_weights=True, moved=told)
        form = form_of(request, LENGTHS)
        sums = numbers_of(request, answer, form, LENGTHS, terms=CLIENTS)
        return MaskedAnswer(
            numbers=form.ring.pack(sums.narrow),
            beside=form.counter.pack(sums.counts).tobytes() + sums.wide.tobytes(),
            moved=told,
        )


def nodes_of(clients: Collection[int]) -> int:
    return sum(10**client for client in clients)


@pytest.mark.parametrize("behind", [(), (1,), (1, 4)])
@pytest.mark.parametrize("forgetful", [(), (0,), (0, 1, 5)])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("anew", [(), (2,)])
def test_a_round_gets_what_it_would_get_of_those_who_are_there(
    behind: tuple[int, ...], forgetful: tuple[int, ...], anew: tuple[int, ...], is_masked: bool
) -> None:
    machines = Machines(forgetful=forgetful, anew=anew, is_masked=is_masked)
    there = {*range(CLIENTS)}.difference(behind)
    if is_masked:
        there = {c for cohort in COHORTS if there.issuperset(cohort) for c in cohort}
    asking = machines.wrapped(count(), behind)
    if not there:
        with pytest.raises(RoundIncomplete, match="evaluate: of each cohort a client is missing"):
            machines.run(asking)
        return
    found = machines.run(asking)
    assert found == (tuple(sorted(there)), nodes_of(there))
    # Nobody who knows the weights is asked for more than once, but under new keys.
    weights = [clients for kind, clients in machines.asked if kind == "EvaluateRequest"]
    assert weights[0] == sorted(there)
    asked_again = {client for clients in weights[1:] for client in clients}
    renewed = {0, 1, 2} if is_masked and anew and 2 in there else set()
    assert asked_again == {*forgetful}.intersection(there) | renewed


@pytest.mark.parametrize("is_masked", [False, True])
def test_answers_that_others_replace_are_accounted_for(is_masked: bool) -> None:
    machines = Machines(forgetful=(4,), is_masked=is_masked)
    found = machines.run(machines.wrapped(count(all_again=True)))
    assert found == (tuple(range(CLIENTS)), nodes_of(range(CLIENTS)))
    assert [clients for _, clients in machines.asked] == [list(range(CLIENTS))] * 2
    volume = machines.ledger.sum(kind="boundary", direction="out")
    assert volume.payload == 2 * CLIENTS * MOVED.boundary.payload


@pytest.mark.parametrize("is_masked", [False, True])
def test_who_leaves_before_it_has_the_weights_is_missing(is_masked: bool) -> None:
    machines = Machines(forgetful=(1, 4), leaving=(4,), is_masked=is_masked)
    there = (0, 1, 2) if is_masked else (0, 1, 2, 3, 5)
    assert machines.run(machines.wrapped(count())) == (there, nodes_of(there))


def test_under_masks_clients_forget_a_job_when_all_sums_are_there() -> None:
    machines = Machines(is_masked=True, forgetful=(3,), anew=(0,))
    machines.run(machines.wrapped(count(ends=True)))
    kinds = [kind for kind, _ in machines.asked]
    assert kinds[-1] == "EndRequest"
    assert kinds.count("EndRequest") == 1
    assert machines.asked[-1][1] == list(range(CLIENTS))


def test_without_masks_a_last_answer_is_the_last_message() -> None:
    machines = Machines(forgetful=(3,))
    machines.run(machines.wrapped(count(ends=True)))
    assert {kind for kind, _ in machines.asked} == {"EvaluateRequest"}


def test_a_round_sees_what_was_raised_while_it_was_asked_in_another_way() -> None:
    seen: list[str] = []

    def asking() -> Round[int]:
        try:
            yield Ask(requests={}, stage=0, purpose="train")
        except RemoteProtocolError as error:
            seen.append(str(error))
        answers = yield Ask(requests={}, stage=0, purpose="evaluate")
        return len(list(answers))

    def handle(ask: Ask) -> Round[Answers]:
        if ask.purpose == "train":
            raise RemoteProtocolError("client 0: no")
        return (yield ask)

    around = through(asking(), handle)
    assert next(around).purpose == "evaluate"
    with pytest.raises(StopIteration) as end:
        around.send([(0, None), (1, None)])
    assert (end.value.value, seen) == (2, ["client 0: no"])
