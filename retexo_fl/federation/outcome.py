"""The end of a run: ``result.json``, ``ledger.csv``, ``report.html``."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version

import numpy as np

from retexo_fl.client.api import HelloAnswer
from retexo_fl.config import RunConfig
from retexo_fl.federation.asking import Who, members
from retexo_fl.federation.graph_counts import total_vectors
from retexo_fl.federation.hardware import describe_machine
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.rounds.clients import untold_bytes
from retexo_fl.federation.rounds.stage_state import StageOutcome
from retexo_fl.federation.run_directory import RunDirectory
from retexo_fl.methods.forecasts import LAZY, STANDARD, forecast_of
from retexo_fl.relations import Relation, Relations
from retexo_fl.report import write_report
from retexo_fl.run_log.cached_rows import CachedRows
from retexo_fl.run_log.result import (
    ClientRow,
    LabelRow,
    MetricValue,
    Network,
    Plan,
    RelationRow,
    Result,
    StageResult,
    TypeRow,
)
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.link_split import USES
from retexo_fl.training.recipe import JudgedTest, objective_of
from retexo_fl.training.selection import Score
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import TrainingSize, gamma
from retexo_fl.units import format_metric
from retexo_fl.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """The result of the loop.

    Attributes:
        config: The configuration.
        shape: Sizes of the model.
        answers: The hello of each client.
        counted: See :attr:`.Clients.counted`.
        warnings: What the user should have known before.
        test: The selected model on the test nodes of all clients.
        report_sums: Of the test (:func:`~retexo_fl.training.judging.report_sums`).
        by_type: Of each type with labels, where there are several, how its test nodes were judged.
        own_figures: By client, its own figure of the test, where they were asked for.
        cached: What mini-batches, which are of the last stage, have read by caches; None without.
        network: What the grid modelled of the network in the last attempt; None where nothing was.
    """

    config: RunConfig
    shape: ModelShape
    answers: tuple[HelloAnswer, ...]
    counted: Mapping[Who, HelloAnswer]
    warnings: tuple[str, ...]
    test: Score
    report_sums: np.ndarray
    by_type: tuple[Score, ...]
    own_figures: Mapping[int, float]
    cached: CachedRows | None = None
    network: Network | None = None


def finish_run(run: RunDirectory, job: JobState, outcome: TrainingOutcome) -> TrainingOutcome:
    """Write the results of a finished training."""
    run.finish(_result(run, job, outcome), job.ledger)
    run.write_status("finished")
    write_report(run.path)
    return outcome


def end_warnings(config: RunConfig, job: JobState, report_sums: np.ndarray) -> tuple[str, ...]:
    """Return what the user should know of a finished training's model, and of its account."""
    return (
        *_worse_than_earlier(config, [*job.outcomes[:-1], job.kept]),
        *(objective_of(config).warnings(report_sums) if report_sums.size else ()),
        *untold_bytes(config, job.untold),
    )


def _worse_than_earlier(config: RunConfig, stages: Sequence[StageOutcome]) -> tuple[str, ...]:
    """Return that an earlier stage's model was better on the validation nodes, where it was."""
    judged = [stage for stage in stages if stage.score.value is not None]
    if not judged or judged[-1] is not stages[-1]:
        return ()
    sign = -1 if stages[-1].score.lower_is_better else 1
    best = max(judged, key=lambda stage: sign * (stage.score.value or 0.0))
    name = config.metric_name
    ours, other = (format_metric(name, stage.score.value) for stage in (stages[-1], best))
    if ours == other:
        return ()
    return (
        f"the finished model is worse on validation nodes than that of stage {best.stage}: {name} "
        f"{ours}, after stage {best.stage} {other}; it is what is kept, tested and predicts. Train "
        f"with more rounds (now {stages[-1].rounds} in the last stage) or, if these do not help, "
        "fewer layers",
    )


def _result(run: RunDirectory, job: JobState, outcome: TrainingOutcome) -> Result:
    config = outcome.config
    kept, judged = job.kept, _judged_test(outcome, job.label_facts)
    total_s = run.checkpoints.seconds
    return Result(
        dataset=config.graph_name,
        model=config.model,
        algorithm=config.algorithm,
        boundary_plan=effective_plan(config),
        engine=config.engine,
        profile=job.profile,
        types=_type_rows(config, outcome.shape, outcome.by_type),
        relations=_relation_rows(outcome.shape.relations),
        columns=job.made_columns,
        basis_rows=job.basis_rows,
        floor=job.chosen_floor,
        test_accuracy=outcome.test.accuracy,
        val_accuracy=kept.score.accuracy,
        micro_f1=objective_of(config).micro_f1(outcome.test.accuracy),
        metric=_metric(config, outcome.test, ranked_among=outcome.test.ranked_among),
        confusion=judged.confusion,
        labels=tuple(LabelRow(*counts) for counts in judged.labels),
        errors=judged.errors,
        warnings=(
            *outcome.warnings,
            *end_warnings(config, job, outcome.report_sums),
        ),
        stages=tuple(
            _stage_row(config, stage, outcome.cached if stage is job.outcomes[-1] else None)
            for stage in job.outcomes
        ),
        volumes=job.ledger.totals(),
        seconds={
            "total": total_s,
            "exchange": job.exchange_s,
            "train": job.train_s,
            "server": total_s - job.exchange_s - job.train_s,
        },
        network=outcome.network,
        clients=config.clients,
        client_table=_client_rows(job, outcome),
        seed=config.seed,
        missing_rows=sum(job.missing.values()),
        absences={str(client): rounds for client, rounds in sorted(job.absences.items())},
        job=job.job,
        attempts=job.attempt,
        plan=_plan(outcome, job),
        versions=_versions(),
        hardware=describe_machine(),
    )


def _stage_row(config: RunConfig, stage: StageOutcome, cached: CachedRows | None) -> StageResult:
    return StageResult(
        layer=stage.stage,
        rounds=stage.rounds,
        best_round=stage.best_round,
        val_accuracy=stage.score.accuracy,
        val_loss=stage.score.loss,
        metric=_metric(config, stage.score),
        train_accuracy=stage.score.train_accuracy,
        candidate=stage.candidate,
        tried=stage.choice,
        cached=cached,
    )


def _metric(
    config: RunConfig, score: Score, *, ranked_among: float | None = None
) -> MetricValue | None:
    """Return the metric by which weights were selected, where it is not accuracy."""
    if config.metric_name == "accuracy":
        return None
    return MetricValue(name=config.metric_name, value=score.metric, ranked_among=ranked_among)


def _judged_test(outcome: TrainingOutcome, label_facts: tuple[float, ...]) -> JudgedTest:
    """Return what the sums of the test say; nothing without any."""
    sums = outcome.report_sums
    if not sums.size:
        return JudgedTest()
    return objective_of(outcome.config).report(sums, outcome.shape.classes, label_facts)


def _client_rows(job: JobState, outcome: TrainingOutcome) -> tuple[ClientRow, ...]:
    """Return one row for each client, from one pass over a ledger with lines for all of them.

    Under masks there is one for each cohort. Of links it has edges, without the pairs that were
    counted beside each.
    """
    objective = objective_of(outcome.config)
    group = {use: objective.group_size(use) for use in USES}
    sent: dict[int, int] = {}
    for account, volume in job.ledger.lines():
        if account.kind == "boundary" and account.direction == "out":
            sent[account.client] = sent.get(account.client, 0) + volume.payload
    return tuple(
        ClientRow(
            client=members(who)[0],
            cohort=() if isinstance(who, int) else who,
            nodes=answer.nodes,
            train=answer.train // group["train"],
            val=answer.validation // group["validation"],
            test=answer.test // group["test"],
            boundary_vectors_in=answer.vectors_in,
            boundary_vectors_out=answer.vectors_out,
            boundary_payload_out=sent.get(members(who)[0], 0),
            test_metric=outcome.own_figures.get(answer.client),
        )
        for who, answer in outcome.counted.items()
    )


def _type_rows(
    config: RunConfig, shape: ModelShape, by_type: tuple[Score, ...]
) -> tuple[TypeRow, ...]:
    relations = shape.relations
    if relations is None:
        return ()
    typed = shape.layer_shape(0).typed
    assert typed is not None
    beyond = "trained" if typed.trains_all else "as drawn"
    weights = dict.fromkeys(typed.kinds, beyond)
    weights |= dict.fromkeys((*typed.with_loss, *typed.taught), "trained")
    rows = [
        TypeRow(
            name=name,
            features=relations.widths[kind],
            labels=config.task if kind in relations.with_labels else "",
            weights=weights.get(kind, "none"),
        )
        for kind, name in enumerate(relations.types)
    ]
    for kind, score in zip(relations.with_labels, by_type, strict=bool(by_type)):
        rows[kind] = replace(
            rows[kind],
            test=score.count,
            test_accuracy=score.accuracy,
            metric=_metric(config, score) if score.count else None,
        )
    return tuple(rows)


def _relation_rows(relations: Relations | None) -> tuple[RelationRow, ...]:
    if relations is None:
        return ()
    return tuple(
        RelationRow(
            name=one.name,
            source=relations.types[one.source],
            target=relations.types[one.target],
            messages=_ways(one),
        )
        for one in relations.relations
    )


def _ways(relation: Relation) -> str:
    if relation.symmetric:
        return "both ways alike"
    return "both ways" if relation.source != relation.target else "both ways, told apart"


def _plan(outcome: TrainingOutcome, job: JobState) -> Plan:
    config, shape = outcome.config, outcome.shape
    own = job.outcomes[: config.stages]
    # What a stage was trained as first, and what it was as something else.
    of_stages = [[one.rounds for one in stage.tried] or [stage.rounds] for stage in own]
    refined = [stage.tried[-1].rounds for stage in job.outcomes if stage.stage == shape.refinement]
    rounds = [first for first, *_ in of_stages]
    # End to end there is one stage; lazy training would have as many rounds in each.
    of_layers = (max(rounds),) * config.layers
    is_lazy = len(rounds) == len(config.stage_rounds)
    vectors, *later = total_vectors(outcome.counted.values())
    size = TrainingSize(
        clients=config.clients,
        training_clients=sum(a.has("train") for a in outcome.answers),
        asked_clients=sum(a.has("train") or a.has("validation") for a in outcome.answers),
        validation_clients=sum(a.has("validation") for a in outcome.answers),
        vectors=vectors,
        later=tuple(later),
        sampled_vectors=sum(counts.vectors_drawn for counts in outcome.counted.values()),
        rounds=tuple(rounds) if is_lazy else of_layers,
        further=tuple(sum(others) for _, *others in of_stages) if is_lazy else (),
        refined=sum(refined),
        corrected=config.local_correction == "scaffold",
        tests_floor=job.floor is not None,
    )
    forecast = forecast_of(config)
    moved = forecast.volume(shape, size)
    assert moved is not None, "clients tell how many vectors they draw"
    lazy, standard = LAZY.volume(shape, size), STANDARD.volume(shape, size)
    compared = forecast.is_comparable(shape)
    return Plan(
        predicted_raw={
            "boundary": moved.boundary,
            "updates_up": moved.updates_up,
            "weights_down": moved.weights_down,
            "total": moved.total,
        },
        gamma=gamma(standard, lazy) if compared else None,
        algorithm_gamma=gamma(moved, lazy) if compared else None,
        standard_raw_total=standard.total if compared else None,
    )


def _versions() -> dict[str, str]:
    return {
        "retexo-fl": __version__,
        "torch": _version_of("torch"),
        "flwr": _version_of("flwr"),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


# A package's own file of facts has hundreds of lines, which are all read for this one.
_version_of = cache(version)
