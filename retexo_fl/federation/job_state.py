"""How far a job has come over all its attempts, and its form in a checkpoint."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self, TypeVar

import numpy as np

from retexo_fl.client.api import Ticket, chain_digest
from retexo_fl.errors import CheckpointError, PartitionError
from retexo_fl.federation.checkpoints import Checkpoint, named_damage
from retexo_fl.federation.rounds.clients import Untold
from retexo_fl.federation.rounds.stage_state import StageOutcome, StageState
from retexo_fl.federation.run_directory import RunDirectory
from retexo_fl.ledger import TrafficLedger
from retexo_fl.run_log.chosen_floor import ChosenFloor
from retexo_fl.run_log.chosen_rows import ChosenRows
from retexo_fl.run_log.events import TriedCandidate
from retexo_fl.run_log.json_form import read
from retexo_fl.run_log.made_columns import MadeColumns
from retexo_fl.run_log.profile import ChosenProfile
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.selection import BestWeights, Score

Record = TypeVar("Record")

#: In errors: whose content is not as it was written, though its checksum fits.
_CHECKPOINT: Final = "the run's checkpoint"
#: Begins the name of a client's control variate in it.
_CONTROL: Final = "control-"


@dataclass(slots=True, kw_only=True)
class JobState:
    """What is known of a job.

    Attributes:
        job: Its name, for its whole life.
        attempt: The present start or resume, from 1.
        partitioning: Name of the partitioning that is trained on; empty until clients report it.
        ledger: Bytes of all attempts, up to the checkpoint for those that were cut off.
        columns: What makes features of degrees and columns of the edges, as it travels; None before
            it is found, or where nodes have features.
        made_columns: What the columns were, and took.
        basis: Of the features, as it travels; None before it is found, or without one.
        basis_rows: Of which rows it is, where validation nodes chose.
        outcomes: Finished stages.
        floor: What is kept in place of the trained model; None: nothing is. No checkpoint has it.
        chosen_floor: How that was chosen; None where there was no choice.
        missing: By stage, vectors that its exchange was closed without.
        absences: By client, how many rounds were closed without its answer.
        untold: What the ledger lacks, where sums are masked.
        exchange_s: Seconds in exchanges.
        train_s: Seconds in which the server waited for clients in rounds.
        label_facts: What the first attempt's clients made known of their labels.
        profile: The profile that the first attempt had, and why.
        rows: What the names of rows begin with; empty without masks (:func:`.rows_of`).
    """

    job: str
    attempt: int = 1
    partitioning: str = ""
    ledger: TrafficLedger = field(default_factory=TrafficLedger)
    columns: np.ndarray | None = None
    made_columns: MadeColumns | None = None
    basis: np.ndarray | None = None
    basis_rows: ChosenRows | None = None
    outcomes: list[StageOutcome] = field(default_factory=list)
    floor: StageOutcome | None = None
    chosen_floor: ChosenFloor | None = None
    missing: dict[int, int] = field(default_factory=dict)
    absences: dict[int, int] = field(default_factory=dict)
    untold: Untold = field(default_factory=dict)
    exchange_s: float = 0.0
    train_s: float = 0.0
    label_facts: tuple[float, ...] = ()
    profile: ChosenProfile | None = None
    rows: bytes = b""
    _restored: Checkpoint | None = None

    @classmethod
    def begin(cls, profile: ChosenProfile | None = None) -> Self:
        """Start a new job."""
        return cls(job=f"job-{secrets.token_hex(6)}", profile=profile)

    @classmethod
    def resume(cls, checkpoint: Checkpoint, ledger: TrafficLedger) -> Self:
        """Continue the job of a checkpoint, one attempt later.

        Args:
            checkpoint: Of :meth:`checkpoint`.
            ledger: The account that it names.

        Raises:
            CheckpointError: It does not say what :meth:`checkpoint` does.
        """
        facts = checkpoint.facts
        with named_damage(_CHECKPOINT):
            return cls(
                job=str(facts["job"]),
                attempt=int(facts["attempt"]) + 1,
                partitioning=str(facts["partitioning"]),
                ledger=ledger,
                missing=_counts(facts["missing"]),
                absences=_counts(facts.get("absences", {})),
                untold={
                    (int(attempt), int(stage)): {int(client) for client in clients}
                    for attempt, stage, clients in facts.get("untold", ())
                },
                exchange_s=float(facts["exchange_s"]),
                train_s=float(facts["train_s"]),
                label_facts=tuple(float(fact) for fact in facts.get("label_facts", ())),
                profile=_record(ChosenProfile, facts.get("profile")),
                made_columns=_record(MadeColumns, facts.get("columns")),
                basis_rows=_record(ChosenRows, facts.get("basis_rows")),
                _restored=checkpoint,
            )

    @property
    def kept(self) -> StageOutcome:
        """What is tested and predicts: the last stage's, or the floor."""
        return self.floor or self.outcomes[-1]

    def ticket(self, stage: int) -> Ticket:
        """Name a stage; the digest names the weights of all stages before it."""
        digest = self._digest(stage, self.rows)
        return Ticket(job=self.job, attempt=self.attempt, stage=stage, weights_digest=digest)

    def _digest(self, stage: int, before: bytes = b"") -> bytes:
        if self.columns is not None:
            before = chain_digest(before, self.columns)
        digest = chain_digest(before, self.basis)
        for outcome in self.outcomes[:stage]:
            digest = chain_digest(digest, outcome.weights)
        return digest

    def check_partitioning(self, told: str) -> None:
        """Continue only with the parts that the job began with.

        Raises:
            PartitionError: They are others.
        """
        if self.partitioning not in {"", told}:
            raise PartitionError(
                f"the clients' parts are of partitioning {told}; expected "
                f"{self.partitioning}, that of the run's first attempt"
            )
        self.partitioning = told

    def checkpoint(self, ticket: Ticket, state: StageState) -> Checkpoint:
        """Return what a resume needs after a round of stage ``ticket.stage``, but the ledger."""
        tensors = {"weights": state.weights, **state.optimizer}
        if state.held is not None:
            tensors["held"] = state.held
        if state.best.weights is not None:
            tensors["best"] = state.best.weights
        if state.rival is not None:
            tensors["rival"] = state.rival.weights
        tensors |= {f"{_CONTROL}{client}": item for client, item in state.controls.items()}
        facts = {
            "job": self.job,
            "attempt": self.attempt,
            "partitioning": self.partitioning,
            "stage": ticket.stage,
            "round": state.round,
            "loss": state.loss,
            "best_round": state.best.round_number,
            "best_score": None if state.best.score is None else asdict(state.best.score),
            **({} if self.made_columns is None else {"columns": asdict(self.made_columns)}),
            "basis": self.basis is not None,
            "basis_rows": None if self.basis_rows is None else asdict(self.basis_rows),
            # Of the weights alone: owners may agree on something else before a resume.
            "weights_digest": self._digest(ticket.stage).hex(),
            "outcomes": [_outcome_facts(outcome) for outcome in self.outcomes],
            # Copies: they are written while the training continues.
            "missing": dict(self.missing),
            "absences": dict(self.absences),
            "untold": [[*place, sorted(clients)] for place, clients in self.untold.items()],
            "absent": list(state.absent),
            "summed": state.summed,
            "cut": state.cut,
            "steps": state.steps.hex(),
            "train_accuracy": state.train_accuracy,
            "candidate": state.candidate,
            "begun": state.begun,
            "rival": None if state.rival is None else _outcome_facts(state.rival),
            "label_facts": list(self.label_facts),
            "profile": None if self.profile is None else asdict(self.profile),
            "exchange_s": self.exchange_s,
            "train_s": self.train_s,
        }
        return Checkpoint(facts=facts, tensors=tensors)

    def restore_weights(self, schedule: Schedule, run: RunDirectory) -> None:
        """Read the basis and the weights of finished stages; nothing to do in a first attempt.

        Raises:
            CheckpointError: They are not those that the checkpoint was made with.
        """
        if self._restored is None:
            return
        if self._restored.facts.get("columns"):
            self.columns = run.read_columns()
        if self._restored.facts.get("basis"):
            self.basis = run.read_basis()
        with named_damage(_CHECKPOINT):
            for facts in self._restored.facts["outcomes"]:
                stage = int(facts["stage"])
                layers = {layer: run.read_layer(layer) for layer in schedule.layers(stage)}
                weights = schedule.flat(stage, layers)
                self.outcomes.append(_outcome(facts, weights))
            expected = self._restored.facts["weights_digest"]
        if self._digest(len(self.outcomes)).hex() != expected:
            raise CheckpointError(
                f"{run.path / 'model'}: the layers are not those of the checkpoint"
            )

    def note_absent(self, clients: Iterable[int]) -> None:
        """Count a round that was closed without the answers of ``clients``."""
        for client in clients:
            self.absences[client] = self.absences.get(client, 0) + 1

    def is_restored(self, stage: int) -> bool:
        """Return whether an earlier attempt has recorded this stage's exchange already."""
        return self._restored is not None and str(stage) in self._restored.facts["missing"]

    def stage_state(self, stage: int) -> StageState | None:
        """Return where a checkpoint left this stage, or None.

        Raises:
            CheckpointError: It does not say what :meth:`checkpoint` does.
        """
        if self._restored is None:
            return None
        facts, tensors = self._restored.facts, self._restored.tensors
        optimizer = {name: item for name, item in tensors.items() if "." in name}
        with named_damage(_CHECKPOINT):
            if int(facts["stage"]) != stage:
                return None
            return StageState(
                round=int(facts["round"]),
                loss=None if facts["loss"] is None else float(facts["loss"]),
                best=_best(facts, tensors),
                weights=tensors["weights"],
                absent=tuple(int(client) for client in facts.get("absent", ())),
                summed=facts.get("summed"),
                cut=facts.get("cut"),
                optimizer=optimizer,
                steps=bytes.fromhex(facts.get("steps", "")),
                held=tensors.get("held"),
                train_accuracy=_share(facts.get("train_accuracy")),
                candidate=str(facts.get("candidate", "")),
                begun=int(facts.get("begun", 0)),
                rival=None
                if facts.get("rival") is None
                else _outcome(facts["rival"], tensors["rival"]),
                controls={
                    int(name.removeprefix(_CONTROL)): item
                    for name, item in tensors.items()
                    if name.startswith(_CONTROL)
                },
            )


def _best(facts: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> BestWeights:
    if facts["best_score"] is None:
        return BestWeights()
    return BestWeights(
        weights=tensors["best"],
        round_number=int(facts["best_round"]),
        score=_score(facts["best_score"]),
    )


def _record(kind: type[Record], values: Mapping[str, Any] | None) -> Record | None:
    return None if values is None else read(kind, values, _CHECKPOINT)


def _outcome(facts: Mapping[str, Any], weights: np.ndarray) -> StageOutcome:
    """Return what :func:`_outcome_facts` was given."""
    tried = facts.get("tried", ())
    return StageOutcome(
        stage=int(facts["stage"]),
        rounds=int(facts["rounds"]),
        best_round=int(facts["best_round"]),
        score=_score(facts["score"]),
        weights=weights,
        candidate=str(facts.get("candidate", "")),
        tried=tuple(read(TriedCandidate, one, _CHECKPOINT) for one in tried),
    )


def _share(value: object) -> float | None:
    return None if value is None else float(str(value))


def _counts(values: Mapping[str, Any]) -> dict[int, int]:
    return {int(index): int(count) for index, count in values.items()}


def _score(values: Mapping[str, Any]) -> Score:
    metric = values.get("metric")
    return Score(
        count=int(values["count"]),
        correct=int(values["correct"]),
        loss_sum=float(values["loss_sum"]),
        metric=None if metric is None else float(metric),
        by_metric=bool(values.get("by_metric", metric is not None)),
        lower_is_better=bool(values.get("lower_is_better", False)),
        counts_right=bool(values.get("counts_right", True)),
        train_accuracy=_share(values.get("train_accuracy")),
        ranked_among=_share(values.get("ranked_among")),
    )


def _outcome_facts(outcome: StageOutcome) -> dict[str, Any]:
    return {
        "stage": outcome.stage,
        "rounds": outcome.rounds,
        "best_round": outcome.best_round,
        "score": asdict(outcome.score),
        "candidate": outcome.candidate,
        "tried": [asdict(one) for one in outcome.tried],
    }
