"""A server that asks anything of anybody in any order: no answers tell of fewer than three.

Clients, owners' files and the logs of agents are real. What was answered is kept as linear algebra
(:mod:`tests.support.told_sums`): of each answer the masks that the client really put on, and what
it added to the sum of which use. After each step all combinations of all answers are looked at.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Generator, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from retexo_fl.agent.introductions import Introductions
from retexo_fl.agent.promises import part_digest
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels import MemoryChannel
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Roster
from retexo_fl.client.api import ClientApi, CollectRequest, PublishRequest, Request
from retexo_fl.client.client import GraphClient
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.config import make_config
from retexo_fl.errors import RetexoError
from retexo_fl.graph import GraphPartition, write_partitions
from retexo_fl.masking.agreement import LEAST, USES
from retexo_fl.masking.holder import MaskHolder
from retexo_fl.masking.label import Label
from retexo_fl.masking.streams import Sums
from tests.support.adversary import KEYS, Adversary
from tests.support.agents import ROSTER
from tests.support.loopback import make_members
from tests.support.owners import agreed
from tests.support.told_sums import Row, Told, fewest, rows_of

MOST = 6
JUDGED = ("train", "validation", "test")
#: What clients bring.
ROLES = ({*JUDGED}, {*JUDGED}, {"train"}, {"test"})
#: A configuration that changes what a client adds, and no row that it sends.
OTHER_CONFIGURATION = {"local-steps": 2, "local-learning-rate": 0.01}

some_client = st.integers(0, MOST - 1)
a_kind = st.sampled_from(["train", *JUDGED[1:]])


@dataclass(slots=True)
class Noted:
    """What clients masked last."""

    content: Sums | None = None
    label: Label | None = None
    #: Added, then subtracted.
    seeds: tuple[list[bytes], list[bytes]] = ([], [])

    def forget(self) -> None:
        """Know of no answer."""
        self.content, self.label, self.seeds = None, None, ([], [])


@dataclass(frozen=True, slots=True)
class Files:
    """Where owners have their keys, and parts are.

    Attributes:
        root: Of all.
        identities: Of six owners.
        roster: Theirs.
    """

    root: Path
    identities: list[Identity]
    roster: Roster

    def part(self, clients: int, client: int, version: int, role: int) -> Path:
        """Return the folder of a part, which is written once."""
        folder = self.root / f"parts-{clients}-{client}-{version}-{role}"
        if not folder.exists():
            write_partitions([part_of(clients, client, version, role)], folder)
        return folder / f"part-{client}"


@cache
def part_of(clients: int, client: int, version: int, role: int) -> GraphPartition:
    """Return a part of a graph that is cut for so many clients; versions have other features."""
    part = _cut(clients)[client]
    brought = ROLES[role]
    return replace(
        part,
        features=part.features * np.float32(1 + version),
        train_mask=part.train_mask & ("train" in brought),
        val_mask=part.val_mask & ("validation" in brought),
        test_mask=part.test_mask & ("test" in brought),
    )


@cache
def _cut(clients: int) -> list[GraphPartition]:
    return make_parts(make_config({**KEYS, "clients": clients}))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    root = tmp_path_factory.mktemp("owners")
    return Files(root, *make_members(root, MOST))


@pytest.fixture
def noted() -> Generator[Noted]:
    """Note what the real clients mask, and by which masks."""
    found = Noted()
    hide, add_masks = MaskHolder.hide, Sums.add_masks

    def hiding(self: MaskHolder, label: Label, numbers: Any) -> Any:
        found.label, found.content = label, numbers
        return hide(self, label, numbers)

    def masking(self: Sums, added: Iterable[bytes], subtracted: Iterable[bytes] = ()) -> None:
        found.seeds = [*added], [*subtracted]
        add_masks(self, *found.seeds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaskHolder, "hide", hiding)
        patch.setattr(Sums, "add_masks", masking)
        yield found


def contributes(noted: Noted) -> dict[str, bool]:
    """Return of which uses a client added something."""
    assert noted.label is not None
    assert noted.content is not None
    purpose, counts = noted.label.purpose, noted.content.signed_counts()
    if purpose == "query.counts":
        return {use: bool(counts[1 + at]) for at, use in enumerate(JUDGED)}
    if purpose == "query.labels":
        by_use = counts[: counts.size // 3 * 3].reshape(3, -1)
        return {use: bool(by_use[at].any()) for at, use in enumerate(JUDGED)}
    if purpose == "train.layer":
        return {
            "train": bool(counts[0] or noted.content.narrow.any()),
            "validation": bool(counts[1]),
        }
    return {purpose.removeprefix("evaluate.layer "): bool(counts[0])}


@dataclass(slots=True)
class Job:
    """One job: its clients, and what each of them computes with.

    Attributes:
        server: Asks them.
        attempt: The last one.
        number: Of the last question.
        inputs: By client, its configuration and part.
        lacks: By client, peers without whose rows it computes.
    """

    server: Adversary
    inputs: dict[int, Hashable]
    attempt: int = 0
    number: int = 0
    lacks: dict[int, Hashable] = field(default_factory=dict)


class Histories(RuleBasedStateMachine):
    """What a malicious server may do in some order, and what it must never be able to add up."""

    def __init__(self, files: Files, noted: Noted) -> None:
        super().__init__()
        self._files, self._noted = files, noted
        self._home = files.root / "history"
        shutil.rmtree(self._home, ignore_errors=True)
        self._jobs = 0
        self._job: Job | None = None
        self._fresh: list[Told] = []
        self._rows: dict[str, set[Row]] = {use: set() for use in JUDGED}

    @initialize(
        clients=st.integers(LEAST, MOST),
        colluders=st.integers(0, 2),
        size=st.sampled_from([0, 3]),
        roles=st.lists(st.integers(0, len(ROLES) - 1), min_size=MOST, max_size=MOST),
    )
    def begin(self, clients: int, colluders: int, size: int, roles: list[int]) -> None:
        self._clients, self._roles = clients, roles
        tolerated = min(colluders, clients - LEAST)
        self._colluders = range(tolerated)
        self._versions = dict.fromkeys(range(clients), 0)
        self._federation: Federation | None = None
        self._terms = {"tolerated": tolerated, "cohort_size": size and size + tolerated}
        assert self._agree(self._versions, former=None)

    @rule(first=some_client, left_out=st.sampled_from([1, 2]), kind=a_kind)
    def attempt_over_fewer(self, first: int, left_out: int, kind: str) -> None:
        self.attempt(first, left_out=left_out, kind=kind)

    @rule(first=some_client, kind=a_kind)
    def attempt_for_every_use(self, first: int, kind: str) -> None:
        self.attempt(first, every_use=True, kind=kind)

    @rule(first=some_client, odd=st.sampled_from(["configuration", "rows"]), kind=a_kind)
    def attempt_on_other_inputs(self, first: int, odd: str, kind: str) -> None:
        self.attempt(first, odd=odd, kind=kind)

    @rule(
        first=some_client,
        left_out=st.integers(0, 2),
        every_use=st.booleans(),
        odd=st.sampled_from(["", "configuration", "rows"]),
        kind=a_kind,
        is_new_job=st.booleans(),
    )
    def attempt(
        self,
        first: int,
        *,
        left_out: int = 0,
        every_use: bool = False,
        odd: str = "",
        kind: str = "train",
        is_new_job: bool = True,
    ) -> None:
        """Begin an attempt, name somebody a cohort, exchange, and ask just these."""
        cohort = self._cohort(first)
        at = cohort.index(first) if first in cohort else 0
        members = [client for client in cohort if client not in cohort[at : at + left_out]]
        if is_new_job or self._job is None or odd:
            self._begin_job(cohort[-1] if odd == "configuration" else None)
        job = self._begun()
        job.attempt += 1
        job.number = 0
        changes: dict[str, Any] = {"uses": " ".join(USES)} if every_use else {}
        self._try(lambda: job.server.greet(job.attempt, self._members))
        self._try(lambda: job.server.hand_out(job.attempt, members, **changes))
        # Those whose configurations differ exchange nothing, and answer no more than this.
        self.ask("labels", members, is_next=True)
        self._exchange(cohort[-2] if odd == "rows" else None, cohort[-1])
        self.ask(kind, members, is_next=True)

    @rule(
        kind=st.sampled_from(["counts", "labels", *JUDGED]),
        among=st.sets(st.integers(0, MOST - 1), min_size=1),
        is_next=st.booleans(),
    )
    def ask(self, kind: str, among: Collection[int], *, is_next: bool) -> None:
        """Ask some clients something, at a new place or where something was asked."""
        if self._job is None:
            return
        job = self._job
        job.number += is_next or not job.number
        if kind in JUDGED[1:]:
            asked: Request[Any] = job.server.evaluate(kind, job.attempt, job.number)
        elif kind == "counts":
            asked = job.server.part_counts(job.attempt, job.number)
        elif kind == "labels":
            asked = job.server.labels(job.attempt, job.number)
        else:
            asked = job.server.train(job.attempt, job.number)
        for client in sorted({*among} & {*self._members}):
            self._noted.forget()
            # One that lacks keys, or weights, answers without a number.
            is_answered = self._try(lambda client=client: job.server.clients[client].ask(asked))
            if is_answered and self._noted.label is not None:
                self._fresh.append(self._told(client, job))

    @rule(
        who=st.sets(st.integers(0, MOST - 1), min_size=1, max_size=2),
        what=st.sampled_from(["leave", "leave", "change", "change", "all change", "come back"]),
        is_forgotten=st.sampled_from([False, False, True]),
    )
    def agree(self, who: set[int], what: str, *, is_forgotten: bool) -> None:
        """Have owners sign another file, which may say nothing of the one before."""
        versions = {**self._versions}
        if what == "leave":
            versions = {c: version for c, version in versions.items() if c not in who}
        elif what == "change":
            versions |= {c: versions[c] + 1 for c in who if c in versions}
        elif what == "all change":
            versions = {c: version + 1 for c, version in versions.items()}
        else:
            versions = {**dict.fromkeys(sorted(who & {*range(self._clients)}), 0), **versions}
        former = None if is_forgotten else self._federation
        if len(versions) >= LEAST and versions != self._versions:
            self._agree(dict(sorted(versions.items())), former=former)

    @invariant()
    def nobody_is_read(self) -> None:
        if not self._fresh:
            return
        honest = [client for client in range(MOST) if client not in self._colluders]
        for use in JUDGED:
            self._rows[use] |= rows_of(self._fresh, use)
            read = fewest(self._rows[use], honest, LEAST)
            assert read is None, f"{use} sums tell of clients {read} alone"
        self._fresh = []

    # ---- pieces ---------------------------------------------------------------------------------

    @property
    def _members(self) -> list[int]:
        return [*self._versions]

    def _cohort(self, client: int) -> list[int]:
        assert self._federation is not None
        cohorts = self._federation.agreement.cohorts
        found = [cohort.members for cohort in cohorts if client in cohort.members]
        return [*(found[0] if found else cohorts[0].members)]

    def _begun(self) -> Job:
        assert self._job is not None
        return self._job

    def _try(self, call: Any) -> bool:
        """Do what may be refused by name; return whether it was not."""
        try:
            call()
        except RetexoError:
            return False
        return True

    def _agree(self, versions: dict[int, int], *, former: Federation | None) -> bool:
        roster = Roster.of([self._files.roster.members[client] for client in versions])
        folders = {
            c: self._files.part(self._clients, c, version, self._roles[c])
            for c, version in versions.items()
        }
        uses = {
            c: frozenset(USES if c in self._colluders else {"nodes", *ROLES[self._roles[c]]})
            for c in versions
        }
        identities = [self._files.identities[client] for client in versions]

        def sign() -> None:
            federation = agreed(
                roster,
                identities,
                digests={client: part_digest(folder) for client, folder in folders.items()},
                uses=uses,
                former=former,
                **self._terms,  # type: ignore[arg-type]
            )
            # With whatever number of the owners.
            assert federation.agreement
            self._federation, self._versions, self._job = federation, versions, None

        if not self._try(sign):
            return False
        assert self._federation is not None
        self._home.mkdir(exist_ok=True)
        (self._home / ROSTER).write_text(self._federation.text())
        # All that a server may know: what is wrong with any step from now on shows at once.
        for cohort in self._federation.agreement.cohorts:
            self.attempt(cohort.members[0])
        return True

    def _begin_job(self, odd: int | None) -> None:
        self._jobs += 1
        name = f"job-{self._jobs:012x}"
        values = {**KEYS, "clients": self._clients}
        channel, clients = MemoryChannel(), []
        config = make_config(values)
        for c in range(self._clients):
            version = self._versions.get(c, 0)
            told = {**values, **(OTHER_CONFIGURATION if c == odd else {})}
            part = part_of(self._clients, c, version, self._roles[c])
            client = GraphClient(
                part, make_config(told), job=name, channel=channel, store=MemoryStore()
            )
            identity = self._files.identities[c]
            if c in self._versions:
                signer = Introductions(self._settings(c, version), identity).signer()
                client.sign_masks(signer, least_clients=LEAST)
            clients.append(client)
        assert self._federation is not None
        made: list[ClientApi] = [*clients]
        parts = _cut(self._clients)
        server = Adversary(made, parts, config, self._federation.agreement, name)
        inputs: dict[int, Hashable] = {c: (c == odd, v) for c, v in self._versions.items()}
        self._job = Job(server=server, inputs=inputs)

    def _settings(self, client: int, version: int) -> AgentSettings:
        identity = self._files.identities[client]
        part = self._files.part(self._clients, client, version, self._roles[client])
        return AgentSettings(
            partition=str(part),
            state=str(self._home / f"state-{client}"),
            socket="socket",
            key=str(identity.key_path),
            certificate=str(identity.key_path.with_name("certificate.pem")),
            roster=str(self._home / ROSTER),
        )

    def _exchange(self, late: int | None, hasty: int) -> None:
        """Have all send their rows; one may be late, and another one told not to wait."""
        job = self._begun()
        ticket, clients = job.server.ticket(job.attempt), job.server.clients
        # Those who have left are peers still, and send nothing that is asked for.
        everyone = range(self._clients)
        asked = CollectRequest(ticket=ticket, close=True)
        for client in everyone:
            if client != late:
                self._try(lambda c=client: clients[c].ask(PublishRequest(ticket=ticket)))
        if late is not None:
            closed: list[bool] = []
            self._try(lambda: closed.append(clients[hasty].ask(asked).complete))
            if closed == [False]:
                job.lacks[hasty] = late
            self._try(lambda: clients[late].ask(PublishRequest(ticket=ticket)))
        for client in everyone:
            self._try(lambda c=client: clients[c].ask(asked))

    def _told(self, client: int, job: Job) -> Told:
        """Return what a client has just answered."""
        label, (added, subtracted) = self._noted.label, self._noted.seeds
        assert label is not None
        after = [other for other in label.cohort if other > client]
        before = [other for other in label.cohort if other < client]
        pairs = [
            *((other, seed, 1) for other, seed in zip(after, added, strict=True)),
            *((other, seed, -1) for other, seed in zip(before, subtracted, strict=True)),
        ]
        return Told(
            added=contributes(self._noted),
            variable=(client, (job.inputs[client], job.lacks.get(client))),
            masks={seed: sign for other, seed, sign in pairs if other not in self._colluders},
        )


def _histories(files: Files, noted: Noted, examples: int, steps: int) -> None:
    class Begun(Histories):
        def __init__(self) -> None:
            super().__init__(files, noted)

    run_state_machine_as_test(
        Begun,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=[*HealthCheck],
        ),
    )


@pytest.mark.timeout(900)
def test_no_history_of_questions_tells_of_fewer_than_three(files: Files, noted: Noted) -> None:
    _histories(files, noted, examples=20, steps=8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_long_history_tells_of_fewer_than_three(files: Files, noted: Noted) -> None:
    _histories(files, noted, examples=2000, steps=30)
