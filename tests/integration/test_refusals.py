"""What clients and agents refuse a server: whom it asks, what, and which named error it gets.

All are real: an agent's service that is asked by the bytes of its socket, one client of a process,
one of a cohort whose owners signed an agreement, and an agent with its owners' files. A refusal
changes nothing of what is on an agent's disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent import admission
from retexo_fl.agent.introductions import Introductions
from retexo_fl.agent.limits import Limits
from retexo_fl.agent.promises import part_digest
from retexo_fl.agent.settings import AgentSettings, read_settings
from retexo_fl.algorithms import ALGORITHMS
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.key_signing import signature_of
from retexo_fl.channels.roster import Roster
from retexo_fl.client import api
from retexo_fl.client.api import Request, Ticket, chain_digest
from retexo_fl.client.client import GraphClient
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.peering import relay_request
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import (
    AgreementError,
    ConfigurationError,
    ExchangeIncomplete,
    LocalProtocolError,
    RemoteProtocolError,
    RetexoError,
    SecureAggregationRefused,
    StaleAttempt,
)
from retexo_fl.exchange.parcels import STREAM_BYTES, Parcel, ParcelKind
from retexo_fl.graph import GraphPartition, open_partition, write_partitions
from retexo_fl.masking.keys import COUNTERS_BYTES, SIGNED_BYTES, Counters, signed_text
from retexo_fl.masking.step import SharedStep
from retexo_fl.updates.masked import MaskedUpdates
from tests.support.adversary import Adversary
from tests.support.agent_ends import FIRST, JOB, ROUND, Ends
from tests.support.agents import agents
from tests.support.limits import PERMISSIVE_LIMITS
from tests.support.owners import agreed
from tests.support.predictions import files_in
from tests.support.ways import takes_devices

CLIENTS = 4
OPTIONS: dict[str, Any] = {"clients": 2, "split": "random-unstratified:0.2/0.1/0.7"}
ALONE: dict[str, Any] = {"clients": 1, "hidden": 8, "rounds": 1}
MASKED: dict[str, Any] = {"clients": CLIENTS, "hidden": 8, "secure-aggregation": "masked"}
DROP: dict[str, Any] = {"algorithm": "drop", "sampler": "full"}
NOTHING_SAID = Limits()
UPDATES = Limits(allow_algorithms=tuple(ALGORITHMS))
NEW = Ticket(job=JOB, attempt=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One row of the table.

    Attributes:
        whom: Makes whom is asked, in a folder, with ``keys`` and ``limits``.
        asked: Asks it, the last of several, of which those before are answered.
        error: Of exactly this class.
        sentence: A regular expression of what it says.
        keys: Of the run, beside those of ``whom``.
        limits: Of the owner.
    """

    whom: Callable[[Path, Refusal], Any]
    asked: Callable[[Any], object] | tuple[Callable[[Any], object], ...]
    error: type[RetexoError]
    sentence: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = PERMISSIVE_LIMITS


# ---- an agent, at hello: what its owner allows ---------------------------------------------------


@cache
def second_of_two() -> GraphPartition:
    """Return the second of two parts, of the digits, with 180 train nodes."""
    part = make_parts(make_config(OPTIONS))[1]
    mask = np.zeros_like(part.train_mask)
    mask[np.flatnonzero(part.train_mask)[:180]] = True
    return replace(part, train_mask=mask)


@dataclass(slots=True)
class Agent:
    """An agent's service of one part."""

    end: Ends
    limits: Limits = PERMISSIVE_LIMITS

    def ask(self, request: Request[Any], **keys: Any) -> Any:
        return asyncio.run(self.end.ask(0, request, **keys))

    def hello(self, attempt: int = 1, job: str = JOB, **keys: Any) -> Any:
        return self.ask(api.HelloRequest(ticket=Ticket(job=job, attempt=attempt)), **keys)

    def begin_anew(self) -> None:
        """Have it be in a process that has just started, after the one before was killed."""
        end = self.end
        self.end = Ends(end.root, end.parts, dict(end.values), limits=self.limits)

    def train(self, fill: float = 0.0, stage: int = 0, number: int = 1, attempt: int = 1) -> Any:
        weights = self.end.weights() + np.float32(fill)
        ticket = replace(ROUND, stage=stage, round=number, attempt=attempt)
        return self.ask(api.TrainRequest(ticket=ticket, weights=weights))

    def judge(self, fill: float = 0.0, nodes: str = "test") -> Any:
        weights = self.end.weights() + np.float32(fill)
        return self.ask(api.EvaluateRequest(ticket=ROUND, weights=weights, nodes=nodes))


def agent(folder: Path, row: Refusal) -> Agent:
    """Make an agent of one of two parts, which is asked hello alone."""
    return Agent(Ends(folder, [second_of_two()], OPTIONS, limits=row.limits))


def allowed(sentence: str, limits: Limits = NOTHING_SAID, **keys: Any) -> Refusal:
    """Return what an owner who has set these limits, or none, refuses at hello."""
    told = {name.replace("_", "-"): value for name, value in keys.items()}
    return Refusal(
        whom=agent,
        asked=lambda found: found.hello(**told),
        error=ConfigurationError,
        sentence=f"^client 1: {sentence}",
        keys=keys,
        limits=limits,
    )


AT_HELLO = [
    *(
        allowed(f"{key}: {name!r} .*; expected .*none", NOTHING_SAID, **{key: name})
        for key in ("model", "loss", "metric")
        for name in ("os:fork", "builtins:breakpoint", "unittest.__main__:x")
    ),
    allowed(
        r"loss: 'mine:other' .*; expected .*\(mine:loss\)",
        Limits(allow_plugins=("mine:loss",)),
        loss="mine:other",
    ),
    allowed("model: 'pyg:GATConv' may not be imported here", model="pyg:GATConv"),
    *(
        allowed(f"algorithm: '{name}'; .* lists .lazy", algorithm=name)
        for name in ("standard", "bns", "drop")
    ),
    allowed("algorithm: 'drop'", NOTHING_SAID, **DROP),
    allowed("rounds: 1001; expected at most 1000 .most-rounds", rounds=1001),
    allowed("rounds: 3; expected at most 2", Limits(most_rounds=2), rounds=3),
    allowed("rounds: 3; expected at most 2", Limits(most_rounds=2), rounds=1, last_rounds=3),
    allowed(
        r"secure-aggregation: none; expected masked \(require-secure-aggregation in this client's",
        Limits(require_secure_aggregation=True),
        clients=4,
    ),
    allowed(
        r"second-rows: full; expected none, or algorithm drop, .* \(most-rows in this client's",
        Limits(most_rows="none"),
    ),
    allowed(
        r"row-dp: 0; expected first rows of noised classes .* at most 2 \(max-row-epsilon in this",
        Limits(max_row_epsilon=2.0),
    ),
    allowed(
        "row-dp: 4; expected first rows of noised classes .* or algorithm drop$",
        Limits(max_row_epsilon=2.0),
        **{"row_dp": 4.0, "second_rows": "none", "basis": "supervised"},
    ),
    allowed(
        r"second-rows: class; expected none, or algorithm drop, .* \(most-rows in this client's",
        Limits(most_rows="none"),
        second_rows="class",
    ),
    allowed(
        r"second-rows: full; expected none or class, or algorithm drop, .* \(most-rows in this",
        Limits(most_rows="class"),
    ),
    allowed(
        r"clients: 4; expected 5 at least \(least-clients in this client's agent.toml\)$",
        Limits(least_clients=5),
        clients=4,
        secure_aggregation="masked",
    ),
    allowed(
        "batch-nodes: 1 .* 1 out of 180 train nodes; expected at least 10",
        UPDATES,
        **DROP,
        batch_nodes=1,
    ),
    allowed("batch-nodes: 9 .* of 9 .*; expected at least 10", UPDATES, **DROP, batch_nodes=9),
    # 180 = 1 * 179 + 1: the last mini-batch of an epoch is what is left.
    allowed("batch-nodes: 179 .* of 1 .*; expected at least", UPDATES, **DROP, batch_nodes=179),
    allowed("batch-nodes: 1 .*; expected", UPDATES, **DROP, batch_nodes=1, local_steps=5),
    allowed(
        "an update would sum over 3955 train edges; expected at least 100000",
        Limits(least_train_nodes=100_000),
        task="links",
        split="random:0.8/0.1/0.1",
    ),
    allowed("an update .* 180 train nodes; expected at least 181", Limits(least_train_nodes=181)),
    allowed("devices.* 'cpu:999'; expected .*1 to 256", devices="cpu:999"),
    allowed("devices: 'cpu:8'; expected .* 'auto', on 2 cores", devices="cpu:8"),
    allowed("devices: 'cuda:0,cpu:3'; expected", devices="cuda:0,cpu:3"),
    allowed("devices: 'cpu:2'; .* than 'cpu'", Limits(allow_devices="cpu"), devices="cpu:2"),
    allowed("devices: 'cuda:0'; expected", Limits(allow_devices="cpu:2"), devices="cuda:0"),
    allowed(
        "devices: 'cuda:1,cpu'; expected", Limits(allow_devices="cuda:0,cpu"), devices="cuda:1,cpu"
    ),
    allowed("threads: 3; expected at most 2", threads=3),
    allowed("hidden: 65536 .*memory; expected at most", hidden=65_536, layers=3),
    allowed("hidden: 64 .* expected at most 210 MB", Limits(most_memory_mib=200), layers=2),
    allowed(
        "hidden: 64 .* 6.. MB .*; expected at most 524 MB",
        Limits(most_memory_mib=500),
        devices="cpu:2",
    ),
    # What only the command line checked: agents ended in an assertion.
    allowed("sampler: 'full' .*algorithm standard", UPDATES, algorithm="standard", sampler="full"),
    allowed("rounds: got 0; expected a whole number", rounds=0),
    allowed("task: .*its part", task="regression"),
    allowed("makes no predictions; expected a folder", job="predict-0123456789ab"),
    allowed(
        "secure-aggregation: masked needs a roster file; expected roster in this client's agent",
        clients=4,
        secure_aggregation="masked",
    ),
]


# ---- an agent, while a job is under way ----------------------------------------------------------


@cache
def alone() -> list[GraphPartition]:
    """Return the part of a client that has no peers."""
    return make_parts(make_config(ALONE))


def agent_alone(folder: Path, row: Refusal) -> Agent:
    """Make an agent of a client without peers, whose exchange of stage 0 is over."""
    made = Agent(Ends(folder, alone(), {**ALONE, **row.keys}, limits=row.limits), row.limits)
    asyncio.run(made.end.exchange())
    return made


def of_agent(
    asked: Callable[[Agent], object] | tuple[Callable[[Agent], object], ...],
    sentence: str,
    error: type[RetexoError] = LocalProtocolError,
    limits: Limits = PERMISSIVE_LIMITS,
    **keys: Any,
) -> Refusal:
    return Refusal(
        whom=agent_alone,
        asked=asked,
        error=error,
        sentence=sentence,
        keys={name.replace("_", "-"): value for name, value in keys.items()},
        limits=limits,
    )


def ended(found: Agent) -> object:
    weights = found.end.weights()
    return found.ask(
        api.EvaluateRequest(
            ticket=replace(ROUND, attempt=3), weights=weights, nodes="test", last=True
        )
    )


def exchanged(found: Agent) -> None:
    """Begin attempt 4, exchange of stage 0 included."""
    first = replace(FIRST, attempt=4)
    found.hello(4)
    found.ask(api.PublishRequest(ticket=first))
    found.ask(api.CollectRequest(ticket=first))


OPENING = Parcel(kind=ParcelKind.OPEN, stream=bytes(STREAM_BYTES), sequence=0).to_bytes()
ONE_ROUND = replace(PERMISSIVE_LIMITS, most_rounds=1)
IN_A_JOB = [
    *(
        of_agent(partial(Agent.hello, job=job), "expected job- or predict- and 12 h")
        for job in ("job-1", "../../../etc", f"{JOB}\n")
    ),
    of_agent(
        lambda found: found.ask(api.CollectRequest(ticket=replace(FIRST, job="job-000000000000"))),
        "job-0{12} is unknown .*; expected hello",
    ),
    *(
        of_agent(
            partial(Agent.hello, attempt=attempt),
            rf"^client 0: attempt {attempt} of job .*; expected at most 1001, 1000 after the last",
        )
        for attempt in (1002, 2**48)
    ),
    of_agent(
        (lambda found: found.hello(2), Agent.train),
        "^client 0: attempt 1 was superseded by attempt 2$",
        StaleAttempt,
    ),
    of_agent(
        (lambda found: found.hello(3), ended, lambda found: found.hello(2)),
        f"^client 0: got attempt 2 of job {JOB}, which finished in attempt 3; expected a later",
        StaleAttempt,
        layers=1,
    ),
    of_agent(
        lambda found: found.hello(2, seed=3),
        f"^seed: got 3; expected 0, with which job {JOB} was started$",
        ConfigurationError,
    ),
    of_agent(
        lambda found: found.ask(api.SummaryRequest(ticket=NEW)), "has its part shares no summary"
    ),
    of_agent(
        lambda found: found.ask(api.RecipeRequest(ticket=NEW, recipe=np.zeros(0, np.uint8))),
        "has its part shares no summary",
    ),
    of_agent(
        lambda found: found.ask(relay_request(FIRST, 0, [(1, OPENING)])),
        "^got parcels of peers; expected none with relay = false$",
        RemoteProtocolError,
    ),
    of_agent(
        (Agent.train, lambda found: found.train(1)),
        "^client 0: stage 0: asked for more than 1 updates; .*most-rounds = 1",
        limits=ONE_ROUND,
    ),
    of_agent(
        (Agent.judge, lambda found: found.judge(1, "validation"), lambda found: found.judge(2)),
        "^client 0: stage 0: asked for more than 2 evaluations; ",
        limits=ONE_ROUND,
    ),
    *(
        of_agent(
            (Agent.train, *killed, partial(Agent.train, fill=1, number=number)),
            rf"^train.layer 1/0/{number}: this or a later sum was answered for other weights",
        )
        for number in (1, 0)
        for killed in ((), (Agent.begin_anew,))
    ),
    *(
        of_agent(
            (
                Agent.train,
                *between,
                partial(Agent.hello, attempt=2),
                partial(Agent.train, fill=1, attempt=2),
            ),
            "^client 0: stage 0: asked for more than 1 updates; .*most-rounds = 1",
            limits=ONE_ROUND,
        )
        for between in ((), (Agent.begin_anew,), (Agent.begin_anew, Agent.train, Agent.begin_anew))
    ),
    of_agent(
        # A job that has ended and begins once more has no new limits.
        (Agent.train, ended, Agent.begin_anew, exchanged, partial(Agent.train, fill=1, attempt=4)),
        "^client 0: stage 0: asked for more than 1 updates; .*most-rounds = 1",
        limits=ONE_ROUND,
        layers=1,
    ),
    of_agent(
        # Without train nodes a client judges what the last round sent out, and what came of it.
        tuple(partial(Agent.judge, fill=fill, nodes="validation") for fill in (0, 1, 1, 2)),
        "^evaluate.layer validation 1/0/1: this or a later sum was answered for other weights",
    ),
    of_agent(
        (Agent.judge, partial(Agent.judge, fill=1)),
        "^evaluate.layer test 1/0/1: this or a later sum was answered for other weights",
    ),
    *(
        of_agent(
            partial(Agent.judge, nodes=nodes),
            f"^client 0: stage 0: nodes: got {nodes!r}; expected validation or test$",
        )
        for nodes in ("train", "labels")
    ),
    of_agent(lambda found: found.train(stage=2), "^client 0: stage 2: expected 0 to 1$"),
    of_agent(
        lambda found: found.train(stage=-1),
        "^TrainRequest: 'stage' is -1; expected a count up to",
        RemoteProtocolError,
    ),
    of_agent(
        lambda found: found.ask(api.GramRequest(ticket=ROUND)),
        "^client 0: asked for sums of products more often than 0 times; expected once with",
    ),
    of_agent(
        lambda found: found.ask(api.ChoiceRequest(ticket=ROUND, weights=np.zeros(2, np.float32))),
        "^client 0: asked to compare bases more often than 0 times; expected once with basis-rows",
    ),
    of_agent(
        lambda found: found.ask(api.BasisRequest(ticket=ROUND)),
        "^client 0: asked for more than 0 sums of features; expected no more than basis-blocks",
    ),
    of_agent(
        (Agent.train, lambda found: found.train(1)),
        r"^client 0: its part has answered 1 question of all jobs; expected at most 1 \(most-quest",
        limits=replace(PERMISSIVE_LIMITS, most_questions=1),
    ),
    of_agent(
        lambda found: found.ask(api.LabelsRequest(ticket=ROUND)),
        "asked about masks; expected secure-aggregation none",
    ),
    of_agent(
        lambda found: found.ask(api.TrainRequest(ticket=ROUND, weights=found.end.weights()[:3])),
        r"^stage 0: got float32 weights of shape \(3,\); expected float32 of shape \(\d+,\)$",
    ),
    of_agent(
        lambda found: found.ask(
            api.TrainRequest(ticket=ROUND, weights=found.end.weights().astype(np.float64))
        ),
        r"^stage 0: got float64 weights of shape \(\d+,\); expected float32 of shape",
    ),
    of_agent(
        lambda found: found.ask(
            api.TrainRequest(ticket=ROUND, weights=found.end.weights(), label_facts=(1.0,))
        ),
        "^label-facts has 1 number; expected 0 finite ones",
    ),
    of_agent(
        lambda found: found.ask(
            api.TrainRequest(
                ticket=ROUND, weights=found.end.weights(), label_facts=(np.nan, *[1.0] * 9)
            )
        ),
        "^label-facts has 10 numbers; expected 10 finite ones",
        class_weights="balanced",
    ),
    of_agent(
        lambda found: found.ask(published(found, found.end.weights(), told=1.0)),
        "^stage 1: the digest of the weights is not the one in the message$",
    ),
    of_agent(
        lambda found: found.ask(published(found, None)),
        "^stage 1: the message has no weights; expected .*stage 0, whose rows are not computed yet",
    ),
    of_agent(
        lambda found: found.ask(published(found, found.end.weights()[:-1])),
        r"^stage 1: got float32 weights of shape .*; expected float32 of shape",
    ),
    of_agent(
        lambda found: found.ask(
            api.PredictRequest(ticket=FIRST, weights=found.end.weights(), form="csv")
        ),
        "^stage 0: got a request for predictions; expected the last stage, and a folder to write",
    ),
]


def published(found: Agent, weights: np.ndarray | None, told: float = 0.0) -> api.PublishRequest:
    """Return what has a client send rows of stage 1, made with these weights and so much more."""
    digest = chain_digest(FIRST.weights_digest, weights)
    return api.PublishRequest(
        ticket=replace(FIRST, stage=1, weights_digest=digest),
        previous_digest=FIRST.weights_digest,
        weights=None if weights is None else weights + np.float32(told),
    )


@cache
def of_four() -> list[GraphPartition]:
    return make_parts(make_config(MASKED))


# ---- a client of a simulation --------------------------------------------------------------------


def client(folder: Path, row: Refusal) -> api.ClientApi:
    """Make a client of this process, which answers whatever the server may not ask an agent."""
    del folder
    return InProcessClients(alone(), make_config({**ALONE, **row.keys})).find(JOB, 0)


def of_client(
    request: Request[Any],
    sentence: str,
    error: type[RetexoError] = LocalProtocolError,
    keys: Mapping[str, Any] = MappingProxyType({}),
) -> Refusal:
    return Refusal(
        whom=client,
        asked=lambda found: found.ask(request),
        error=error,
        sentence=sentence,
        keys=keys,
    )


def summed(found: api.ClientApi, fill: float) -> None:
    """Ask for the products of features with labels, about a mean."""
    mean = np.full(64, fill, np.float32)
    found.ask(api.BasisRequest(ticket=replace(NEW, round=1), weights=mean))


def masked_client(folder: Path, row: Refusal) -> api.ClientApi:
    """Make one under masks, which has said hello."""
    del folder, row
    found = InProcessClients(of_four(), make_config(MASKED)).find(JOB, 0)
    found.ask(api.HelloRequest(ticket=NEW))
    return found


CHOOSES = {"basis": "supervised", "basis-rows": "choose", "basis-blocks": 4}
IN_A_PROCESS = [
    of_client(
        api.HelloRequest(ticket=replace(NEW, job="job-2")),
        f"^message of job 'job-2'; expected '{JOB}'$",
    ),
    of_client(
        api.BasisRequest(ticket=NEW), "asked for a basis of the features; expected basis none"
    ),
    of_client(
        api.BasisRequest(ticket=NEW, weights=np.zeros(64 * 12, np.float32)),
        "a block has 11 directions; expected at most 10, the classes",
        keys={"basis": "supervised"},
    ),
    Refusal(
        whom=client,
        asked=tuple(partial(summed, fill=fill) for fill in (0, 0, 1)),
        error=LocalProtocolError,
        sentence="^query.basis 1/0/1: this or a later sum was answered for other weights",
        keys={"basis": "supervised"},
    ),
    *(
        of_client(
            api.BasisRequest(ticket=NEW, rows=rows),
            f"asked for sums of '{rows}'; expected none by name but with basis-rows choose",
            keys={"basis": "supervised", "basis-rows": "sums"},
        )
        for rows in ("own", "own sums")
    ),
    *(
        of_client(
            api.BasisRequest(ticket=replace(NEW, round=block), rows=rows),
            f"^block {block}: asked for sums of '{rows}'; expected {expected}$",
            keys=CHOOSES,
        )
        for block, rows, expected in (
            (0, "own", "own sums"),
            (0, "", "own sums"),
            (3, "sums own", "own sums"),
            (3, "sums", "own sums"),
            (4, "own sums", "own or sums"),
            (4, "", "own or sums"),
        )
    ),
    of_client(
        api.ChoiceRequest(ticket=NEW, weights=np.zeros(2 * 64 * 31, np.float32)),
        "asked to compare bases; expected basis-rows choose, and fewer directions than features",
        keys={"basis": "supervised", "basis-rows": "sums"},
    ),
    of_client(
        api.ChoiceRequest(ticket=NEW, weights=np.zeros(2 * 64 * 30, np.float32)),
        "bases have other directions than expected: 30 each",
        keys=CHOOSES,
    ),
    of_client(
        api.ChoiceRequest(ticket=NEW, weights=np.zeros(2 * 64 * 31, np.float32)),
        "^client 0: the exchange of stage 0 is not closed$",
        ExchangeIncomplete,
        keys=CHOOSES,
    ),
    of_client(
        api.GramRequest(ticket=replace(FIRST, stage=1)),
        "^stage 1: asked for sums of products; expected solver ridge, and its last stage, or a "
        "floor$",
    ),
    of_client(
        api.TrainRequest(ticket=replace(FIRST, attempt=1, round=1), weights=np.zeros(1)),
        "^client 0: the exchange of stage 0 is not closed$",
        ExchangeIncomplete,
    ),
    Refusal(
        whom=masked_client,
        asked=lambda found: found.ask(
            api.KeysRequest(
                ticket=NEW,
                agreement=bytes(32),
                cohort=(0, 1),
                keys=np.arange(64, dtype=np.uint8),
            )
        ),
        error=SecureAggregationRefused,
        sentence="^a sum of 2 clients; expected 3 at least$",
    ),
]


# ---- one of a cohort, under masks ----------------------------------------------------------------


def cohort(folder: Path, row: Refusal) -> Adversary:
    """Make a server that has said hello to all clients of a cohort."""
    server = Adversary.in_one_process(folder, CLIENTS, row.keys)
    server.greet(1)
    return server


def met(folder: Path, row: Refusal) -> Adversary:
    """Make one whose clients have their keys, and each other's rows."""
    server = Adversary.in_one_process(folder, CLIENTS, row.keys)
    server.meet()
    return server


def of_keys(sentence: str, change: Callable[[Adversary], Mapping[str, Any]]) -> Refusal:
    """Return what client 0 refuses of its cohort's keys."""
    return Refusal(
        whom=cohort,
        asked=lambda server: server.hand_out(1, server.everyone, to=[0], **change(server)),
        error=SecureAggregationRefused,
        sentence=sentence,
    )


def of_members(server: Adversary, members: tuple[int, ...]) -> dict[str, Any]:
    """Return the values of a message that names other clients, with keys and signatures of each."""
    nobody = server.signed[0]
    told = [server.signed.get(client, nobody) for client in members]
    keys, signatures = b"".join(one.key for one in told), b"".join(one.signature for one in told)
    return {
        "cohort": members,
        "keys": np.frombuffer(keys, np.uint8),
        "signatures": signatures,
    }


def signed_otherwise(
    server: Adversary, signer: int = 1, counters: Counters | None = None, **facts: Any
) -> dict[str, Any]:
    """Return the values of a message where what client 1 signed is something else.

    Args:
        server: Hands it out.
        signer: Who signs in its place.
        counters: What it says of its process; what it said before if None.
        facts: What else is signed than is said.
    """
    known = server.signed[1]
    counted = Counters.of(known.signature[:COUNTERS_BYTES]) if counters is None else counters
    told: dict[str, Any] = {
        **{"job": JOB, "attempt": 1, "client": 1, "public": known.key, "counters": counted},
        **facts,
    }
    known.signature = counted.content + signature_of(
        server.signers[signer].identity, signed_text(**told)
    )
    return of_members(server, server.everyone)


def with_signature(server: Adversary, change: Callable[[bytes], bytes]) -> dict[str, Any]:
    server.signed[1].signature = change(server.signed[1].signature)
    return of_members(server, server.everyone)


def with_key(server: Adversary, key: bytes) -> dict[str, Any]:
    server.signed[1].key = key
    return signed_otherwise(server, public=key)


def counters(starts: int, *, questions: int = 0, process: bytes = b"this one") -> Counters:
    return Counters(starts=starts, process=process, questions=questions)


def with_counters(server: Adversary, told: Counters, key: bytes = b"") -> None:
    """Tell client 0 of other counters, and maybe another key, of client 1, which this signed."""
    server.signed[1].key = key or server.signed[1].key
    changes = signed_otherwise(server, counters=told)
    server.hand_out(1, server.everyone, to=[0], **changes)


def flipped(place: int) -> Callable[[bytes], bytes]:
    return lambda told: told[:place] + bytes([told[place] ^ 1]) + told[place + 1 :]


def ending(signature: bytes) -> Callable[[bytes], bytes]:
    return lambda told: told[:COUNTERS_BYTES] + signature


NOT_SIGNED = "the masking key of client 1 is not signed by the key that the roster file names"
KEYS_OF_A_COHORT = [
    *(
        of_keys(sentence, partial(of_members, members=members))
        for members, sentence in (
            (
                (0, 1, 2),
                "clients 0, 1, 2 are to be added up; the owners agreed on clients 0, 1, 2, 3, in a",
            ),
            ((0, 1, 2, 3, 9), "the owners agreed on clients 0, 1, 2, 3"),
            ((1, 2, 3), "expected clients in ascending order, client 0 among them"),
            ((0, 1, 1, 2), "expected clients in ascending order"),
            ((1, 0, 2, 3), "expected clients in ascending order"),
            ((), "expected clients in ascending order"),
        )
    ),
    of_keys("in agreement", lambda server: {"agreement": bytes(32)}),
    of_keys(
        "sums are to be of everything; the owners agreed on nodes test train validation",
        lambda server: {"uses": "everything"},
    ),
    of_keys("5 bytes of masking keys for 4 cl", lambda server: {"keys": np.zeros(5, np.uint8)}),
    of_keys("are not signed; expected a signature of each", lambda server: {"signatures": None}),
    of_keys(
        "are not signed",
        lambda server: {"signatures": bytes(SIGNED_BYTES * CLIENTS - 1)},
    ),
    of_keys(
        "two clients have the same masking key",
        lambda server: (
            server.signed.update({1: server.signed[0]}) or of_members(server, server.everyone)
        ),
    ),
    *(
        of_keys(NOT_SIGNED, partial(signed_otherwise, **facts))
        for facts in (
            {"signer": 2},
            {"job": "job-ba9876543210"},
            {"attempt": 2},
            {"client": 2},
            {"public": b"o" * 32},
        )
    ),
    # Counters are signed with the key.
    *(of_keys(NOT_SIGNED, partial(with_signature, change=flipped(at))) for at in (0, 8, 16)),
    *(
        of_keys(NOT_SIGNED, partial(with_signature, change=ending(end)))
        for end in (bytes(64), b"\xff" * 64, b"\0" * 63 + b"\1")
    ),
    # A state folder that was put back.
    *(
        Refusal(
            whom=cohort,
            asked=tuple(partial(with_counters, told=one) for one in (told, later)),
            error=SecureAggregationRefused,
            sentence=f"^client 0: the masking key of client 1 tells of {sentence}: .*reset-cou",
        )
        for told, later, sentence in (
            (counters(2), counters(1), "start 1, after start 2"),
            (counters(2), counters(2, process=b"another "), "another start 2 than before"),
            (counters(2, questions=9), counters(3, questions=4), "4 answered questions, after 9"),
        )
    ),
    Refusal(
        whom=cohort,
        asked=(
            lambda server: server.hand_out(1, server.everyone),
            lambda server: server.hand_out(1, server.everyone, to=[0], uses="train"),
        ),
        error=SecureAggregationRefused,
        sentence="the server names another uses of masked sums than before in this attempt",
    ),
    Refusal(
        whom=cohort,
        asked=(
            lambda server: server.hand_out(1, server.everyone),
            lambda server: server.hand_out(
                1, server.everyone, to=[0], **with_key(server, b"o" * 32)
            ),
        ),
        error=SecureAggregationRefused,
        sentence="another masking key of client 1 than before in this attempt; expected one of a l",
    ),
    Refusal(
        whom=cohort,
        asked=lambda server: server.hand_out(
            1, (0, 1, 2, 3), to=[1], **with_key(server, b"o" * 32)
        ),
        error=SecureAggregationRefused,
        sentence="client 1: the server names another masking key than the client's own",
    ),
    # Keys that were replaced, told again by a client that helps the server.
    Refusal(
        whom=cohort,
        asked=(
            lambda server: with_counters(server, counters(2)),
            lambda server: with_counters(server, counters(3), b"o" * 32),
            lambda server: server.greet(1),
            lambda server: with_counters(server, counters(4)),
        ),
        error=SecureAggregationRefused,
        sentence="the server names masking keys that were replaced in this attempt; expected oth",
    ),
    # A point of low order gives no secret.
    Refusal(
        whom=cohort,
        asked=(
            lambda server: server.hand_out(
                1, server.everyone, to=[0], **with_key(server, bytes(32))
            ),
            lambda server: server.ask(server.labels(), [0]),
        ),
        error=SecureAggregationRefused,
        sentence="a client's masking key is none",
    ),
    Refusal(
        whom=cohort,
        asked=(
            lambda server: server.clients[0].masks.sign_by(server.signers[0], least_clients=5),
            lambda server: server.greet(1),
            lambda server: server.hand_out(1, server.everyone, to=[0]),
        ),
        error=SecureAggregationRefused,
        sentence=r"a sum of 4 clients; expected 5 at least \(least-clients in its agent.toml\)$",
    ),
]


def otherwise(server: Adversary) -> None:
    server.weights = server.weights + np.float32(1)


def trained(server: Adversary, number: int = 1, **changes: Any) -> None:
    server.ask(replace(server.train(number=number), **changes), [0])


def judged(server: Adversary) -> None:
    server.clients[0].ask(server.evaluate("validation", number=1))


def multiplied(server: Adversary, steps: bytes | None) -> None:
    server.clients[0].ask(api.GramRequest(ticket=server.ticket(), steps=steps))


def counted(server: Adversary, number: int) -> None:
    server.clients[0].ask(server.part_counts(number=number))


def labelled(server: Adversary, number: int) -> None:
    server.clients[0].ask(server.labels(number=number))


def predicted(server: Adversary, fill: float = 0.0) -> None:
    weights = server.weights + np.float32(fill)
    server.clients[0].ask(api.PredictRequest(ticket=server.ticket(), weights=weights, form="csv"))


def begin_anew(server: Adversary) -> None:
    """Have all clients be in processes that have just started, and give them keys."""
    for client, signer in zip(server.clients, server.signers, strict=True):
        assert isinstance(client, GraphClient)
        client.masks.sign_by(signer, least_clients=3)
    server.greet(1)
    server.hand_out(1, server.everyone)


FINER = MaskedUpdates().first_steps(55, most_train=9, terms=CLIENTS)
ONE_ANSWER = "this or a later sum was answered for other weights, clients or numbers; a second answ"
SUMS_OF_A_COHORT = [
    *(
        Refusal(
            whom=met,
            asked=(
                lambda server: server.ask(server.train(number=2), server.everyone),
                *between,
                partial(trained, number=number),
            ),
            error=SecureAggregationRefused,
            sentence=ONE_ANSWER,
        )
        for number, *between in (
            (2, otherwise),
            (1, otherwise),
            # Under other keys nothing was masked yet, but it is known what was.
            (2, begin_anew, otherwise),
            (1, begin_anew),
        )
    ),
    Refusal(
        # Nor may a second content follow where validation nodes are judged, as it may in the clear.
        whom=met,
        asked=(judged, begin_anew, otherwise, judged),
        error=SecureAggregationRefused,
        sentence=ONE_ANSWER,
    ),
    *(
        # Each question that is answered by sums is noted.
        Refusal(
            whom=met,
            asked=(first, begin_anew, then),
            error=SecureAggregationRefused,
            sentence=ONE_ANSWER,
            keys=keys,
        )
        for first, then, keys in (
            (partial(counted, number=2), partial(counted, number=1), {}),
            (partial(labelled, number=2), partial(labelled, number=1), {}),
            (predicted, partial(predicted, fill=1), {}),
            (
                partial(multiplied, steps=SharedStep(40, -3).told),
                partial(multiplied, steps=SharedStep(40, -4).told),
                {"solver": "ridge"},
            ),
        )
    ),
    Refusal(
        # The same weights, in finer steps.
        whom=met,
        asked=(trained, begin_anew, partial(trained, steps=FINER)),
        error=SecureAggregationRefused,
        sentence=ONE_ANSWER,
    ),
    *(
        Refusal(
            whom=met,
            asked=(lambda server: server.greet(2), ask),
            error=StaleAttempt,
            sentence="^client 0: attempt 1 was superseded by attempt 2$",
            keys=keys,
        )
        for ask, keys in (
            (trained, {}),
            (partial(multiplied, steps=SharedStep(40, -3).told), {"solver": "ridge"}),
        )
    ),
    Refusal(
        whom=cohort,
        asked=(
            lambda server: server.hand_out(1, server.everyone),
            lambda server: server.clients[0].ask(api.PublishRequest(ticket=server.ticket())),
            lambda server: server.clients[0].ask(
                api.CollectRequest(ticket=server.ticket(), close=True)
            ),
        ),
        error=SecureAggregationRefused,
        sentence="^stage 0: to train without vectors of some peers; expected all under secure-aggr",
    ),
    Refusal(
        whom=cohort,
        asked=(
            lambda server: server.hand_out(1, server.everyone),
            lambda server: server.clients[0].ask(
                api.PublishRequest(
                    ticket=server.ticket(digest=server.first(replace(server.config, dropout=0.5)))
                )
            ),
        ),
        error=LocalProtocolError,
        sentence="^stage 0: the digest of the weights.*this client's configuration or agreement",
    ),
    *(
        Refusal(
            whom=met,
            asked=partial(trained, steps=steps),
            error=RemoteProtocolError,
            sentence=sentence,
        )
        for steps, sentence in (
            (None, "steps of a masked update are missing"),
            (bytes(1), "steps of a masked update are missing"),
            (b"\xff" * 9, "steps are of 255 bits and "),
        )
    ),
    *(
        Refusal(
            whom=met,
            asked=partial(multiplied, steps=steps),
            error=RemoteProtocolError,
            sentence=sentence,
            keys={"solver": "ridge"},
        )
        for steps, sentence in (
            (None, "the step of masked sums is missing"),
            (b"\xff\xff", "a step of masked sums is of 255 bits, "),
        )
    ),
]


# ---- an agent with its owners' files -------------------------------------------------------------


@dataclass(slots=True)
class Owned:
    """Client 0 of four whose owners signed an agreement, and its files."""

    root: Path
    settings: AgentSettings
    identities: list[Identity]
    keys: dict[str, Any]
    agent: Agent | None = None

    @property
    def roster(self) -> Path:
        return Path(self.settings.roster)

    def start(self) -> None:
        """Have its agent be in a process that has just started."""
        signer = Introductions(self.settings, self.identities[0]).signer()
        part = open_partition(Path(self.settings.partition))
        end = Ends(self.root, [part], self.keys, limits=self.settings, signer=signer)
        self.agent = Agent(end)

    def hello(self) -> Any:
        assert self.agent is not None
        return self.agent.hello()


def owned(folder: Path, row: Refusal) -> Owned:
    with agents(folder, of_four(), start=False) as made:
        settings = read_settings(made[0].settings)
    identities = [
        Identity.load(agent.folder / "key.pem", agent.folder / "certificate.pem") for agent in made
    ]
    return Owned(folder, settings, identities, {**MASKED, **row.keys})


def without_agreement(found: Owned) -> None:
    found.roster.write_text(Roster.read(found.roster).text())


def with_another_part(found: Owned) -> None:
    part = replace(of_four()[0], labels=(of_four()[0].labels + 1) % 10)
    write_partitions([part], found.root / "other")
    found.settings = replace(found.settings, partition=str(found.root / "other" / "part-0"))


def without_a_signature(found: Owned) -> None:
    federation = Federation.read(found.roster)
    assert federation is not None
    kept = {client: one for client, one in federation.signatures.items() if client != 2}
    found.roster.write_text(replace(federation, signatures=kept).text())


def agree_on_less(found: Owned) -> None:
    """Have the owners agree anew, without the file of before, on sums of fewer uses."""
    promised = {c: part_digest(found.root / "parts" / f"part-{c}") for c in range(CLIENTS)}
    federation = agreed(
        Roster.read(found.roster),
        found.identities,
        digests=promised,
        uses=dict.fromkeys(promised, frozenset({"nodes", "train"})),
    )
    found.roster.write_text(federation.text())


def of_owner(
    sentence: str,
    *before: Callable[[Owned], object],
    error: type[RetexoError] = AgreementError,
    **keys: Any,
) -> Refusal:
    return Refusal(
        whom=owned,
        asked=(*before, Owned.start, Owned.hello),
        error=error,
        sentence=sentence,
        keys=keys,
    )


OF_OWNERS = [
    of_owner(
        "^client 0: its roster file has no agreement of the owners; expected one for masked sums",
        without_agreement,
    ),
    of_owner(
        "^client 0: its part is another than the one that its owner promised; expected that one",
        with_another_part,
    ),
    of_owner("client 2: not signed; expected a signature of each owner", without_a_signature),
    of_owner(
        "^client 0: the roster file does not name the cohort 0, 1, 2, 3, in which it answered befo",
        Owned.start,
        Owned.hello,
        agree_on_less,
    ),
    of_owner(
        "^client 0: split: .* leaves no validation edges or nodes of this client, of which its own",
        error=ConfigurationError,
        task="links",
        split="random:0.9/0.000001/0.09",
    ),
]


# ---- all of them ---------------------------------------------------------------------------------

TABLE = {
    "at hello": AT_HELLO,
    "in a job": IN_A_JOB,
    "in a process": IN_A_PROCESS,
    "keys": KEYS_OF_A_COHORT,
    "sums": SUMS_OF_A_COHORT,
    "owners": OF_OWNERS,
}


_REMEMBERED = ("cohorts.jsonl", "counters.json")


def kept_in(folder: Path) -> dict[str, bytes]:
    """Return all files but those that remember what others have signed, whatever comes of it."""
    kept = files_in(folder).items()
    return {name: told for name, told in kept if not name.endswith(_REMEMBERED)}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id=f"{name} {number}",
            marks=[pytest.mark.devices] if takes_devices(row.keys) else [],
        )
        for name, rows in TABLE.items()
        for number, row in enumerate(rows)
    ],
)
def test_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Refusal) -> None:
    monkeypatch.setattr(admission, "available_cores", lambda: 2)
    found = row.whom(tmp_path, row)
    *answered, refused = row.asked if isinstance(row.asked, tuple) else (row.asked,)
    for ask in answered:
        ask(found)
    before = kept_in(tmp_path)
    with pytest.raises(RetexoError, match=row.sentence) as told:
        refused(found)
    assert type(told.value) is row.error
    assert kept_in(tmp_path) == before
