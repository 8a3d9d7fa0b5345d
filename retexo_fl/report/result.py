"""What ``result.json`` of a finished run says, typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from retexo_fl.errors import RunDirectoryError
from retexo_fl.ledger import KINDS, MEASURES
from retexo_fl.report.fields import Fields

RESULT_VERSION: Final = 1
#: Of a client's index.
_MOST_DIGITS: Final = 18

#: ``{kind: bytes, "total": bytes}``; None where not measured.
ByKind = Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """One client's share of the graph and of the boundary vectors."""

    client: int
    nodes: int
    train: int
    val: int
    test: int
    boundary_vectors_in: int
    boundary_vectors_out: int
    boundary_payload_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """How one stage ended; accuracies and losses are None without validation nodes."""

    layer: int
    rounds: int
    best_round: int | None
    val_accuracy: float | None
    val_loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was predicted before the run.

    Attributes:
        predicted_raw: Raw bytes by kind.
        gamma: Volume of standard training over the volume of lazy training. Source: RETEXO, eq. 2.
        standard_raw_total: Raw bytes that standard training would move.
    """

    predicted_raw: ByKind
    gamma: float | None
    standard_raw_total: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the links that were modelled; no rate is no limit."""

    rate_bit_s: float | None
    delay_s: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What one direction between two ends carried; ends are ``server`` or a client's index."""

    sender: str
    receiver: str
    messages: int
    size_bytes: int
    sent_bytes: int
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What was modelled of the network, in virtual seconds.

    Attributes:
        links: The configuration's text.
        lines: Its links, by name.
        seconds: From the first message to the last reply.
        phases: The same, by what it was for.
        between_clients_s: How much of each phase, and of the ``total``, was for blocks.
        busiest: The links that sent longest.
    """

    links: str
    lines: Mapping[str, Line]
    seconds: float
    phases: Mapping[str, float]
    between_clients_s: Mapping[str, float]
    busiest: tuple[Lane, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The content of ``result.json``; ``volumes`` is its key ``bytes``, by measure and kind."""

    dataset: str
    model: str
    algorithm: str
    engine: str
    test_accuracy: float | None
    val_accuracy: float | None
    micro_f1: float | None
    stages: tuple[StageResult, ...]
    volumes: Mapping[str, ByKind]
    seconds: Mapping[str, float | None]
    clients: int
    client_table: tuple[ClientRow, ...]
    seed: int
    missing_rows: int
    absences: Mapping[str, int]
    job: str
    attempts: int
    plan: Plan | None
    network: Network | None
    versions: Mapping[str, str]
    hardware: Mapping[str, str]


def parse_result(fields: Fields) -> Result:
    """Check and type the content of ``result.json``.

    Raises:
        RunDirectoryError: Another version, an absent key, or a value of the wrong kind.
    """
    version = fields.integer("version")
    if version != RESULT_VERSION:
        raise RunDirectoryError(
            f"{fields.place}: result version {version}, expected {RESULT_VERSION}"
        )
    volumes, seconds = fields.table("bytes"), fields.table("seconds")
    return Result(
        dataset=fields.text("dataset"),
        model=fields.text("model"),
        algorithm=fields.text("algorithm"),
        engine=fields.text("engine"),
        test_accuracy=fields.number_or_none("test_accuracy"),
        val_accuracy=fields.number_or_none("val_accuracy"),
        micro_f1=fields.number_or_none("micro_f1"),
        stages=tuple(_stage(item) for item in fields.tables("stages")),
        volumes={name: _by_kind(volumes.table(name)) for name in MEASURES},
        seconds={key: seconds.number_or_none(key) for key in seconds.values},
        clients=fields.integer("clients"),
        client_table=tuple(_client(item) for item in fields.tables("client_table")),
        seed=fields.integer("seed"),
        missing_rows=fields.integer("missing_rows"),
        absences=_absences(fields.table_or_none("absences")),
        job=fields.text("job"),
        attempts=fields.integer("attempts"),
        plan=_plan(fields.table_or_none("plan")),
        network=_network(fields.table_or_none("network")),
        versions=fields.table("versions").texts(),
        hardware=fields.table("hardware").texts(),
    )


def _absences(fields: Fields | None) -> dict[str, int]:
    if fields is None:
        return {}
    for client in fields.values:
        if not (client.isascii() and client.isdecimal() and len(client) <= _MOST_DIGITS):
            raise RunDirectoryError(
                f"{fields.place}: key {client[:40]!r}, expected the index of a client"
            )
    return {client: fields.integer(client) for client in fields.values}


def _by_kind(fields: Fields) -> ByKind:
    return {kind: fields.integer_or_none(kind) for kind in (*KINDS, "total")}


def _stage(fields: Fields) -> StageResult:
    return StageResult(
        layer=fields.integer("layer"),
        rounds=fields.integer("rounds"),
        best_round=fields.integer_or_none("best_round"),
        val_accuracy=fields.number_or_none("val_accuracy"),
        val_loss=fields.number_or_none("val_loss"),
    )


def _client(fields: Fields) -> ClientRow:
    return ClientRow(
        client=fields.integer("client"),
        nodes=fields.integer("nodes"),
        train=fields.integer("train"),
        val=fields.integer("val"),
        test=fields.integer("test"),
        boundary_vectors_in=fields.integer("boundary_vectors_in"),
        boundary_vectors_out=fields.integer("boundary_vectors_out"),
        boundary_payload_out=fields.integer("boundary_payload_out"),
    )


def _plan(fields: Fields | None) -> Plan | None:
    if fields is None:
        return None
    predicted = fields.table("predicted_raw")
    return Plan(
        predicted_raw={key: predicted.integer_or_none(key) for key in predicted.values},
        gamma=fields.number_or_none("gamma"),
        standard_raw_total=fields.integer_or_none("standard_raw_total"),
    )


def _network(fields: Fields | None) -> Network | None:
    if fields is None:
        return None
    lines, between = fields.table("lines"), fields.table("between_clients_s")
    return Network(
        links=fields.text("links"),
        lines={name: _line(lines.table(name)) for name in lines.values},
        seconds=fields.number("seconds"),
        phases={
            key.removesuffix("_s"): fields.number(key)
            for key in fields.values
            if key.endswith("_s") and key != "between_clients_s"
        },
        between_clients_s={key: between.number(key) for key in between.values},
        busiest=tuple(_lane(item) for item in fields.tables("busiest")),
    )


def _line(fields: Fields) -> Line:
    return Line(
        rate_bit_s=fields.number_or_none("rate_bit_s"),
        delay_s=fields.number("delay_s"),
        loss=fields.number("loss"),
    )


def _lane(fields: Fields) -> Lane:
    texts = fields.texts()
    return Lane(
        sender=texts.get("sender", ""),
        receiver=texts.get("receiver", ""),
        messages=fields.integer("messages"),
        size_bytes=fields.integer("bytes"),
        sent_bytes=fields.integer("sent_bytes"),
        busy_s=fields.number("busy_s"),
    )
