"""A server that asks anything of anybody in any order: no answers tell of fewer than three.

Clients, owners' files and the logs of agents are real. What was answered is kept as linear algebra
(:mod:`tests.support.told_sums`): of each answer the masks that the client really put on, and what
it added to the sum of which use. After each step all combinations of all answers are looked at.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Collection, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent.agreed import OwnersFile
from retexo_fl.agent.introductions import Introductions
from retexo_fl.agent.promises import part_digest
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels import MemoryChannel
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.owner_secret import OwnerSecret
from retexo_fl.channels.owner_words import Signature
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.client.api import ClientApi, CollectRequest, PublishRequest, Request
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.config import make_config
from retexo_fl.errors import AgreementError, RetexoError
from retexo_fl.graph import GraphPartition, write_partitions
from retexo_fl.masking.agreement import LEAST, SEED_BYTES, USES
from retexo_fl.masking.holder import MaskHolder
from retexo_fl.masking.keys import KEY_BYTES, Counters, Label
from retexo_fl.masking.past_cohorts import Brought, PastCohort, PastCohorts
from retexo_fl.masking.streams import Sums
from retexo_fl.methods.lazy.answers import LazyClient
from tests.support.adversary import KEYS, Adversary
from tests.support.agents import ROSTER
from tests.support.loopback import make_members
from tests.support.owners import TODAY
from tests.support.told_sums import Row, Told, fewest, rows_of

MOST = 6
JUDGED = ("train", "validation", "test")
#: What clients bring.
ROLES = ({*JUDGED}, {*JUDGED}, {"train"}, {"test"})
#: A configuration that changes what a client adds, and no row that it sends.
OTHER_CONFIGURATION = {"local-steps": 2, "local-learning-rate": 0.01}

#: Files that a server thinks of before it proposes one.
PROPOSALS = 40

#: In what an attempt may differ from what the owners agreed on.
ODD = ("one less", "two less", "uses", "configuration", "rows")
#: How histories begin, in turn: clients, how many of them the first file has, how many work with
#: the server, and about how many a cohort has.
BEGINNINGS = (
    (6, 6, 0, 3),
    (6, 6, 1, 0),
    (6, 3, 0, 0),
    (6, 6, 0, 0),
    (5, 5, 2, 0),
    (6, 3, 0, 0),
    (5, 5, 1, 0),
    (4, 4, 0, 0),
)


@dataclass(slots=True)
class Noted:
    """What clients masked last.

    Attributes:
        varied: Added to what clients mask, as if peers had sent other rows. Where rows cross in
            rounds, those who work with the server may do that when a question is repeated.
    """

    varied: int = 0
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
        numbers = numbers.copy()
        numbers.wide[-1] += found.varied
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
    purpose, counts = noted.label.purpose, noted.content.signed()[2]
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
        odd: Who was told another configuration.
        attempt: The last one.
        number: Of the last question.
        starts: Those that a client tells who works with the server.
        lacks: By client, a peer without whose rows it computes.
    """

    server: Adversary
    odd: int | None
    attempt: int = 0
    number: int = 0
    starts: int = 1000
    lacks: dict[int, int] = field(default_factory=dict)


class History:
    """What a malicious server does in some order, and what it must never be able to add up.

    Args:
        files: Of the owners.
        noted: What clients mask.
        number: Of the history: all but keys and the owners' numbers follow from it.
    """

    def __init__(self, files: Files, noted: Noted, number: int) -> None:
        self._chance = random.Random(number)
        self._number = number
        #: What was done.
        self._moves: list[str] = []
        self._files, self._noted = files, noted
        self._home = files.root / "history"
        shutil.rmtree(self._home, ignore_errors=True)
        self._jobs = 0
        self._job: Job | None = None
        self._fresh: list[Told] = []
        self._rows: dict[str, set[Row]] = {use: set() for use in JUDGED}
        #: By client and label, what it masked: a second content would be a variable of its own.
        self._contents: dict[tuple[int, bytes], list[bytes]] = {}
        #: By client and version of its part.
        self._members_by_part: dict[tuple[int, int], Member] = {}

    def run(self, steps: int) -> None:
        """Begin with a file that the owners agree on, and go on.

        Raises:
            AssertionError: Answers tell of too few clients.
        """
        self._begin(*BEGINNINGS[self._number % len(BEGINNINGS)])
        self._check()
        for _ in range(steps):
            self._move()
            self._check()

    def _begin(self, clients: int, first: int, tolerated: int, size: int) -> None:
        chance, self._clients = self._chance, clients
        # All alike, or each as it comes.
        alike = first < clients or chance.random() < 0.5
        # Of files above all, or of questions.
        self._is_of_files = first < clients or self._number // len(BEGINNINGS) % 2 == 1
        self._roles = [0 if alike else chance.randrange(len(ROLES)) for _ in range(clients)]
        self._colluders = range(tolerated)
        self._newest = dict.fromkeys(range(clients), 0)
        self._versions = dict.fromkeys(range(first), 0)
        self._federation: Federation | None = None
        self._size = size
        proposed = self._proposed(self._versions, [])
        assert proposed is not None
        signed = self._signed(self._versions, proposed)
        assert signed is not None
        self._adopt(self._versions, signed)

    def _move(self) -> None:
        chance = self._chance
        client, kind = chance.randrange(self._clients), chance.choice(JUDGED)
        is_new = chance.random() < 0.5
        weights = [2, 8, 1, 1] if self._is_of_files else [6, 2, 2, 1]
        match chance.choices(["attempt", "agree", "again", "ask"], weights)[0]:
            case "attempt":
                odd = chance.choice(ODD)
                self._moves.append(f"attempt with {client}, {odd}, {kind}, {is_new}")
                self._attempt(client, odd, kind, is_new_job=is_new)
            case "agree":
                self._agree()
                self._moves.append(f"agree on {self._versions}")
            case "again":
                keys = [chance.randrange(3) for _ in range(chance.randint(1, 4))]
                self._moves.append(f"ask again {kind}, {keys}")
                self._ask_again(kind, keys)
            case _:
                kind = chance.choice(["counts", "labels", *JUDGED])
                among = chance.sample(range(self._clients), chance.randint(1, self._clients))
                self._moves.append(f"ask {kind}, {among}, {is_new}")
                self._ask(kind, among, is_next=is_new)

    def _attempt(
        self, first: int, odd: str = "", kind: str = "train", *, is_new_job: bool = True
    ) -> None:
        """Begin an attempt, name somebody a cohort, exchange, and ask just these."""
        cohort = self._cohort(first)
        at = cohort.index(first) if first in cohort else 0
        less = ("", "one less", "two less").index(odd) if odd.endswith("less") else 0
        members = [client for client in cohort if client not in cohort[at : at + less]]
        if is_new_job or self._job is None or odd in {"configuration", "rows"}:
            self._begin_job(cohort[-1] if odd == "configuration" else None)
        job = self._begun()
        job.attempt += 1
        job.number = 0
        changes: dict[str, Any] = {"uses": " ".join(USES)} if odd == "uses" else {}
        self._try(lambda: job.server.greet(job.attempt, self._members))
        self._try(lambda: job.server.hand_out(job.attempt, members, **changes))
        # Those whose configurations differ exchange nothing, and answer no more than this.
        self._ask("labels", members, is_next=True)
        self._exchange(cohort[-2] if odd == "rows" else None, cohort[-1])
        self._ask(kind, members, is_next=True)

    def _ask(self, kind: str, among: Collection[int], *, is_next: bool) -> None:
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

    def _ask_again(self, kind: str, keys: list[int]) -> None:
        """Ask, name the keys of the cohort anew, and ask the same, on other rows of its peers.

        Args:
            kind: Of the question.
            keys: Those of a client that works with the server: it signs one after the other, as if
                it had begun anew; 0 is the one that it had.
        """
        if self._job is None:
            return
        job, cohort = self._job, self._cohort(0)
        self._ask(kind, cohort, is_next=True)
        colluder = cohort[0]
        first = job.server.key_of(colluder)
        for key in (*keys, 0) if colluder in self._colluders else ():
            job.starts += 1
            counters = Counters(starts=job.starts, process=bytes(8), questions=job.starts)
            public = bytes([key]) * KEY_BYTES if key else first
            identity = self._files.identities[colluder]
            job.server.have_signed(identity, job.attempt, public, counters)
            for client in cohort:
                self._try(lambda c=client: job.server.hand_out(job.attempt, cohort, [c]))
        self._noted.varied += 1
        self._ask(kind, cohort, is_next=False)
        self._noted.varied = 0

    def _agree(self) -> None:
        """Think of files for the owners, and have them sign one: the one that tells most."""
        assert self._federation is not None
        true = self._federation.history
        found: list[tuple[int, dict[int, int], Federation]] = []
        for _ in range(PROPOSALS):
            versions, past = self._proposal()
            proposed = self._proposed(versions, past)
            if proposed is not None and versions != self._versions:
                # A cohort that was invented, and believed, may tell something later.
                is_invented = any(version not in true for version in past)
                worth = 2 if self._would_tell(versions, proposed) else int(is_invented)
                found.append((worth, versions, proposed))
        for _, versions, proposed in sorted(found, key=lambda one: -one[0]):
            signed = self._signed(versions, proposed)
            if signed is not None:
                self._adopt(versions, signed)
                return

    def _check(self) -> None:
        if not self._fresh:
            return
        for use in JUDGED:
            self._rows[use] |= rows_of(self._fresh, use)
            read = self._read(use, self._rows[use])
            told = f"history {self._number}: {use} sums tell of clients {read} alone"
            assert read is None, "\n".join([told, *self._moves])
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

    def _proposal(self) -> tuple[dict[int, int], list[PastCohort]]:
        """Return versions of parts, by client, and what a file says of the past, true or not."""
        chance, versions = self._chance, dict(self._versions)
        move = chance.choice(["leave", "leave", "new", "old", "any", "come"])
        some = chance.sample(range(self._clients), chance.choice([1, 2, 3, 3, 3]))
        if move == "come":
            some, move = [c for c in range(self._clients) if c not in versions], "new"
        for client in some:
            does = chance.choice(["leave", "new", "old"]) if move == "any" else move
            if does == "leave":
                versions.pop(client, None)
            elif does == "new":
                versions[client] = self._newest[client] + 1
            else:
                versions[client] = chance.randint(0, self._newest[client])
        assert self._federation is not None
        past = [*self._federation.history]
        match chance.choice(["true", "true", "short", "joined", "joined"]):
            case "short":
                past = chance.sample(past, chance.randrange(len(past)))
            case "joined":
                # A cohort, and all others, or some, as they were once, or are to be now.
                one, other = chance.choice(past), chance.choice(past).members
                if chance.random() < 0.5:
                    other = {c: self._brought(c, version) for c, version in versions.items()}
                share = chance.choice([1.0, 0.5])
                others = {c: its for c, its in other.items() if chance.random() < share}
                past.append(PastCohort(members={**others, **one.members}, uses=one.uses))
        return dict(sorted(versions.items())), past

    def _brought(self, client: int, version: int) -> Brought:
        member = self._member(client, version)
        assert member.promise is not None
        return Brought(key=member.digest, part=member.promise.part, uses=member.promise.brings)

    def _proposed(self, versions: dict[int, int], past: Sequence[PastCohort]) -> Federation | None:
        """Return a file for owners to sign; None if it is none by its rules."""
        members = [self._member(client, version) for client, version in versions.items()]
        if len(members) < LEAST:
            return None
        try:
            return Federation(
                roster=Roster.of(members),
                date=TODAY,
                past=tuple(past),
                tolerated=len(self._colluders),
                cohort_size=self._size,
            )
        except AgreementError:
            return None

    def _signed(self, versions: dict[int, int], proposed: Federation) -> Federation | None:
        """Return a file with the signatures of all; None if an honest owner's tool refuses it."""
        try:
            federation = proposed.with_signatures(
                self._signature(client, version, proposed) for client, version in versions.items()
            )
            # With whatever number of the owners.
            assert federation.agreement
        except AgreementError:
            return None
        return federation

    def _member(self, client: int, version: int) -> Member:
        """Return what an owner promises of a part."""
        if (client, version) not in self._members_by_part:
            secret = OwnerSecret.beside_or_new(self._files.identities[client].key_path)
            folder = self._files.part(self._clients, client, version, self._roles[client])
            # Those who work with the server promise all that there is.
            uses = USES if client in self._colluders else ("nodes", *ROLES[self._roles[client]])
            self._members_by_part[client, version] = replace(
                self._files.roster.members[client],
                promise=secret.promise(frozenset(uses), part_digest(folder)),
            )
        return self._members_by_part[client, version]

    def _signature(self, client: int, version: int, proposed: Federation) -> Signature:
        identity = self._files.identities[client]
        if client in self._colluders:
            return proposed.sign(identity, OwnerSecret.beside(identity.key_path))
        return OwnersFile(self._settings(client, version), identity).sign(proposed)

    def _would_tell(self, versions: dict[int, int], proposed: Federation) -> bool:
        """Return whether the sums of a file would tell too much beside what was told."""
        known = PastCohorts(proposed.past, least=LEAST, tolerated=proposed.tolerated)
        seed = self._chance.randbytes(SEED_BYTES)
        cohorts = known.cohorts(proposed.brought, size=self._size, seed=seed)
        for use in JUDGED:
            rows = {
                frozenset(
                    ((client, _inputs(versions[client])), 1)
                    for client in cohort.members
                    if use in ROLES[self._roles[client]]
                )
                for cohort in cohorts
                if use in cohort.uses
            }
            if not rows <= self._rows[use] and self._read(use, self._rows[use] | rows) is not None:
                return True
        return False

    def _read(self, use: str, rows: Collection[Row]) -> tuple[int, ...] | None:
        honest = [client for client in range(MOST) if client not in self._colluders]
        return fewest(rows, honest, LEAST)

    def _adopt(self, versions: dict[int, int], signed: Federation) -> None:
        """Give all agents a file, and ask what an honest server asks."""
        self._federation, self._versions, self._job = signed, versions, None
        self._newest |= {c: max(v, self._newest[c]) for c, v in versions.items()}
        self._home.mkdir(exist_ok=True)
        (self._home / ROSTER).write_text(signed.text())
        # All that a server may know: what is wrong with any step from now on shows at once.
        for cohort in signed.agreement.cohorts:
            self._attempt(cohort.members[0], is_new_job=False)

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
            client = LazyClient(
                part, make_config(told), job=name, channel=channel, store=MemoryStore()
            )
            identity = self._files.identities[c]
            if c in self._versions:
                signer = Introductions(self._settings(c, version), identity).signer()
                client.masks.sign_by(signer, least_clients=LEAST)
            clients.append(client)
        assert self._federation is not None
        made: list[ClientApi] = [*clients]
        parts = _cut(self._clients)
        server = Adversary(made, parts, config, self._federation.agreement, name)
        self._job = Job(server=server, odd=odd)

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
        assert self._noted.content is not None
        told = hashlib.sha256()
        self._noted.content.tell(told.update)
        contents = self._contents.setdefault((client, label.digest), [])
        if told.digest() not in contents:
            contents.append(told.digest())
        inputs = _inputs(
            self._versions[client],
            is_odd=client == job.odd,
            lacks=job.lacks.get(client),
            content=contents.index(told.digest()),
        )
        return Told(
            added=contributes(self._noted),
            variable=(client, inputs),
            masks={seed: sign for other, seed, sign in pairs if other not in self._colluders},
        )


def _inputs(
    version: int, *, is_odd: bool = False, lacks: int | None = None, content: int = 0
) -> Hashable:
    """Return what a client computes with.

    Args:
        version: Of its part.
        is_odd: It was told another configuration.
        lacks: A peer without whose rows it computes.
        content: Of its different answers to one question, which.
    """
    return version, is_odd, lacks, content


def _histories(files: Files, noted: Noted, histories: int, steps: int) -> None:
    # CI looks at the same histories in every run; elsewhere they are new each time.
    first = 0 if os.environ.get("CI") == "true" else random.randrange(2**32)
    for number in range(first, first + histories):
        History(files, noted, number).run(steps)


@pytest.mark.system
@pytest.mark.timeout(2400)
def test_no_history_of_questions_tells_of_fewer_than_three(files: Files, noted: Noted) -> None:
    # Each beginning twice: one history more of files, one more of questions.
    _histories(files, noted, histories=2 * len(BEGINNINGS), steps=8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_long_history_tells_of_fewer_than_three(files: Files, noted: Noted) -> None:
    _histories(files, noted, histories=500, steps=30)
