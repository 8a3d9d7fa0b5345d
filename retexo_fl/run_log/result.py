"""The content of ``result.json``: how a run ended, written and read by the same classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final

from retexo_fl.errors import RunDirectoryError
from retexo_fl.ledger import KINDS, MEASURES, RARE_KINDS
from retexo_fl.run_log.cached_rows import CachedRows
from retexo_fl.run_log.chosen_floor import ChosenFloor
from retexo_fl.run_log.chosen_rows import ChosenRows
from retexo_fl.run_log.events import TriedCandidate
from retexo_fl.run_log.json_form import OMITTED, key, parse_object, read, spread, to_json
from retexo_fl.run_log.made_columns import MadeColumns
from retexo_fl.run_log.profile import ChosenProfile
from retexo_fl.units import format_bytes, format_duration

RESULT_VERSION: Final = 1
#: Of a client's index.
_MOST_DIGITS: Final = 18

#: ``{kind: bytes, "total": bytes}``; None where not measured.
ByKind = Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """One client's share of the graph and of the boundary vectors.

    ``test_metric`` is its own figure of the test, with ``per-client-metrics``. Where sums are
    masked a row is of a ``cohort``, and ``client`` the first of it.
    """

    client: int
    nodes: int
    train: int
    val: int
    test: int
    boundary_vectors_in: int
    boundary_vectors_out: int
    boundary_payload_out: int
    cohort: tuple[int, ...] = field(default=(), metadata=OMITTED)
    test_metric: float | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True)
class LabelRow:
    """Test nodes with one of several labels: predicted rightly, predicted, and with the label."""

    hits: int
    predicted: int
    positive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """A metric other than accuracy by which weights were selected.

    Attributes:
        name: Of it.
        value: None where the nodes leave it undefined.
        ranked_among: Of the test where nodes rank others: how many candidates the mean node had.
    """

    name: str
    value: float | None
    ranked_among: float | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """How one stage ended; accuracies and losses are None without validation nodes.

    ``train_accuracy`` is None where it is not counted. ``candidate`` says as what the stage was
    kept, empty as it is, ``tried`` what it was trained as, where that is more than one thing.
    ``cached`` is what its mini-batches have read in the last attempt where devices cache features;
    None where none does.
    """

    layer: int
    rounds: int
    best_round: int | None
    val_accuracy: float | None
    val_loss: float | None
    metric: MetricValue | None = field(default=None, metadata=OMITTED)
    train_accuracy: float | None = field(default=None, metadata=OMITTED)
    candidate: str = field(default="", metadata=OMITTED)
    tried: tuple[TriedCandidate, ...] = field(default=(), metadata=OMITTED)
    cached: CachedRows | None = field(default=None, metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was predicted before the run.

    Attributes:
        predicted_raw: Raw bytes by kind.
        gamma: Volume of standard training over that of lazy training (RETEXO, equation 2). This and
            what follows is None where the run has nothing to compare with: no edges between
            clients, or coordinates instead of features.
        algorithm_gamma: Volume of this algorithm over that of lazy training.
        standard_raw_total: Raw bytes that standard training would move.
    """

    predicted_raw: ByKind
    gamma: float | None
    algorithm_gamma: float | None = None
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

    sender: object = ""
    receiver: object = ""
    messages: int
    size_bytes: int = field(metadata=key("bytes"))
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
        between_clients_s: How much of each phase, and of the ``total``, was for blocks; of
            ``train``, how much for ``validation``.
        busiest: The links that sent longest.
    """

    links: str
    lines: Mapping[str, Line]
    seconds: float
    phases: Mapping[str, float] = field(metadata=spread("_s"))
    between_clients_s: Mapping[str, float]
    busiest: tuple[Lane, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """A type of nodes.

    ``labels`` is the task whose labels it has, empty without. ``weights`` says what became of the
    type's weights: ``trained``; ``as drawn``, where no loss leads to them; ``none``, where nodes
    with labels read its features alone, or nothing of it. Where several types have labels,
    ``test`` is how many of its nodes test, with their ``accuracy`` and ``metric``.
    """

    name: str
    features: int
    labels: str
    weights: str
    test: int | None = field(default=None, metadata=OMITTED)
    test_accuracy: float | None = field(default=None, metadata=OMITTED)
    metric: MetricValue | None = field(default=None, metadata=OMITTED)

    def figures(self) -> dict[str, float]:
        """Return the accuracy and the metric of its test nodes by name, those that there are."""
        found = {"accuracy": self.test_accuracy}
        if self.metric is not None:
            found[self.metric.name] = self.metric.value
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationRow:
    """A relation between types, and which ways messages go along its edges."""

    name: str
    source: str
    target: str
    messages: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The content of ``result.json``.

    Attributes:
        dataset: Name of the graph; the next five are the configuration's, ``boundary_plan`` as it
            took effect.
        profile: The profile of the run; None where its keys were given without any.
        types: Of nodes, where they have types; else empty, as ``relations``.
        relations: Between types.
        columns: What took the place of features where nodes have none, and its cost; else None.
        basis_rows: Of which rows its basis is, where validation nodes chose.
        floor: What was kept at the end, likewise.
        test_accuracy: Of the selected model on all test nodes; None without any.
        val_accuracy: Of the last stage's best round, or of the floor that is kept.
        micro_f1: Of classes equal to the accuracy: with one label a node, every false positive is
            another class's false negative; else None.
        metric: On the test nodes, where it is not accuracy.
        confusion: (C, C) test nodes by class, each by predicted class; empty for too many classes,
            and where labels are no classes.
        labels: Of several labels a node, the test by label; else empty.
        errors: Of a regression, the test's errors by name; else empty.
        warnings: What the user should know of labels and predictions, a line each.
        stages: In order.
        volumes: By measure and kind, in bytes.
        seconds: ``total``, and of it ``exchange``, ``train`` and ``server``.
        network: What was modelled of the network in the last attempt; None where nothing was.
        clients: How many there are.
        client_table: By client.
        missing_rows: Vectors that exchanges were closed without.
        absences: By client, rounds that were closed without it.
        job: Name of the training.
        attempts: How many it took.
        plan: What was predicted before the run.
        versions: Of the libraries.
        hardware: What it was computed on.
    """

    version: int = RESULT_VERSION
    dataset: str
    model: str
    algorithm: str
    boundary_plan: str = ""
    engine: str
    profile: ChosenProfile | None = field(default=None, metadata=OMITTED)
    types: tuple[TypeRow, ...] = field(default=(), metadata=OMITTED)
    relations: tuple[RelationRow, ...] = field(default=(), metadata=OMITTED)
    columns: MadeColumns | None = field(default=None, metadata=OMITTED)
    basis_rows: ChosenRows | None = field(default=None, metadata=OMITTED)
    floor: ChosenFloor | None = field(default=None, metadata=OMITTED)
    test_accuracy: float | None
    val_accuracy: float | None
    micro_f1: float | None
    metric: MetricValue | None = field(default=None, metadata=OMITTED)
    confusion: tuple[tuple[int, ...], ...] = field(default=(), metadata=OMITTED)
    labels: tuple[LabelRow, ...] = field(default=(), metadata=OMITTED)
    errors: Mapping[str, float | None] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=(), metadata=OMITTED)
    stages: tuple[StageResult, ...]
    volumes: Mapping[str, ByKind] = field(metadata=key("bytes"))
    seconds: Mapping[str, float | None]
    network: Network | None = None
    clients: int
    client_table: tuple[ClientRow, ...]
    seed: int
    missing_rows: int
    absences: Mapping[str, int] = field(default_factory=dict)
    job: str
    attempts: int
    plan: Plan | None = None
    versions: Mapping[str, object]
    hardware: Mapping[str, object]

    def __repr__(self) -> str:
        return f"<Result of {self.dataset!r}: {self.told()}>"

    def _repr_html_(self) -> str:
        rows = (
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>'
            for name, text in self.headline().items()
        )
        return f"<table><caption>Result</caption>{''.join(rows)}</table>"

    def told(self) -> str:
        """Return in a line how good it is and what it took."""
        figures = [f"{name} {text}" for name, text in self._figures().items()]
        moved = format_bytes(self.volumes["payload"]["total"])
        return ", ".join(
            [
                *(figures or ["no test nodes"]),
                f"{moved} of payload",
                format_duration(self.seconds["total"]),
            ]
        )

    def headline(self) -> dict[str, str]:
        """Return what of it one sees first, as text by name."""
        profile = {} if self.profile is None else {"profile": self.profile.name}
        by_type = {
            f"test {name} of {one.name}": f"{value:.4f}"
            for one in self.types
            for name, value in one.figures().items()
        }
        return {
            "graph": self.dataset,
            "model": self.model,
            "algorithm": self.algorithm,
            **profile,
            "clients": str(self.clients),
            **self._figures(),
            **by_type,
            "payload": format_bytes(self.volumes["payload"]["total"]),
            "seconds": format_duration(self.seconds["total"]),
        }

    def _figures(self) -> dict[str, str]:
        """Return the figures by which weights were chosen, of validation and test nodes."""
        last = self.stages[-1] if self.stages else None
        if self.metric is None:
            name, test = "accuracy", self.test_accuracy
            val = None if last is None else last.val_accuracy
        else:
            name, test = self.metric.name, self.metric.value
            val = None if last is None or last.metric is None else last.metric.value
        found = {f"validation {name}": val, f"test {name}": test}
        return {use: f"{value:.4f}" for use, value in found.items() if value is not None}


def result_text(result: Result) -> str:
    """Return the text of ``result.json``."""
    return json.dumps(to_json(result), indent=2) + "\n"


def read_result(text: str, place: str) -> Result:
    """Read the text of ``result.json``.

    Raises:
        RunDirectoryError: It is damaged or of another version; names the place and the key.
    """
    values = parse_object(text, place)
    version = read(_Versioned, values, place).version
    if version != RESULT_VERSION:
        raise RunDirectoryError(f"{place}: result version {version}, expected {RESULT_VERSION}")
    result = read(Result, values, place)
    _check_names(result.volumes, MEASURES, f"{place}, bytes")
    kinds = (*(kind for kind in KINDS if kind not in RARE_KINDS), "total")
    for measure in MEASURES:
        _check_names(result.volumes[measure], kinds, f"{place}, bytes, {measure}")
    for client in result.absences:
        if not (client.isascii() and client.isdecimal() and len(client) <= _MOST_DIGITS):
            raise RunDirectoryError(
                f"{place}, absences: key {client[:40]!r}, expected the index of a client"
            )
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versioned:
    version: int


def _check_names(found: Mapping[str, Any], names: tuple[str, ...], place: str) -> None:
    for name in names:
        if name not in found:
            raise RunDirectoryError(f"{place}: key {name!r} is absent")
