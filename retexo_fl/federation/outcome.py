"""The end of a run: ``result.json``, ``ledger.csv``, ``report.html``."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

import retexo_fl
from retexo_fl.agent.api import HelloAnswer
from retexo_fl.config import RunConfig
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.run_directory import RunDirectory, describe_machine
from retexo_fl.federation.strategy import Participants
from retexo_fl.report import write_report
from retexo_fl.training.selection import Score
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import TrainingSize, gamma, lazy_volume, standard_volume


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """What the loop knows at the end.

    Attributes:
        config: The configuration.
        shape: Sizes of the model.
        answers: What each client told of itself.
        participants: Who took part in rounds.
        test: The selected model on the test nodes of all clients.
    """

    config: RunConfig
    shape: ModelShape
    answers: tuple[HelloAnswer, ...]
    participants: Participants
    test: Score


def finish_run(run: RunDirectory, job: JobState, outcome: TrainingOutcome) -> TrainingOutcome:
    """Write the results of a finished training."""
    run.finish(_result(run, job, outcome), job.ledger)
    run.write_status("finished")
    write_report(run.path)
    return outcome


def _result(run: RunDirectory, job: JobState, outcome: TrainingOutcome) -> dict[str, Any]:
    config, last = outcome.config, job.outcomes[-1]
    total_s = run.seconds
    return {
        "dataset": config.graph_name,
        "model": config.model,
        "algorithm": config.algorithm,
        "engine": config.engine,
        "test_accuracy": outcome.test.accuracy,
        "val_accuracy": last.score.accuracy,
        # With one label a node, every false positive is another class's false negative, so the
        # micro average of F1 over classes is the accuracy.
        "micro_f1": outcome.test.accuracy,
        **_metric(config, outcome.test),
        "stages": [
            {
                "layer": stage.stage,
                "rounds": stage.rounds,
                "best_round": stage.best_round,
                "val_accuracy": stage.score.accuracy,
                "val_loss": stage.score.loss,
                **_metric(config, stage.score),
            }
            for stage in job.outcomes
        ],
        "bytes": job.ledger.totals(),
        "seconds": {
            "total": total_s,
            "exchange": job.exchange_s,
            "train": job.train_s,
            "server": total_s - job.exchange_s - job.train_s,
        },
        "clients": config.clients,
        "client_table": _client_rows(job, outcome.answers),
        "seed": config.seed,
        "missing_rows": sum(job.missing.values()),
        "job": job.job,
        "attempts": job.attempt,
        "plan": _plan(outcome, [stage.rounds for stage in job.outcomes]),
        "versions": _versions(),
        "hardware": describe_machine(),
    }


def _metric(config: RunConfig, score: Score) -> dict[str, object]:
    """Return the metric by which weights were selected, where it is not accuracy."""
    if config.metric == "accuracy":
        return {}
    return {"metric": {"name": config.metric, "value": score.metric}}


def _client_rows(job: JobState, answers: Sequence[HelloAnswer]) -> list[dict[str, int]]:
    """Return one row for each client, from one pass over a ledger with lines for all of them."""
    sent: dict[int, int] = {}
    for account, volume in job.ledger.lines():
        if account.kind == "boundary" and account.direction == "out":
            sent[account.client] = sent.get(account.client, 0) + volume.payload
    return [
        {
            "client": answer.client,
            "nodes": answer.nodes,
            "train": answer.train,
            "val": answer.validation,
            "test": answer.test,
            "boundary_vectors_in": answer.vectors_in,
            "boundary_vectors_out": answer.vectors_out,
            "boundary_payload_out": sent.get(answer.client, 0),
        }
        for answer in answers
    ]


def _plan(outcome: TrainingOutcome, rounds: list[int]) -> Mapping[str, Any]:
    size = TrainingSize(
        clients=outcome.config.clients,
        training_clients=len(outcome.participants.training),
        asked_clients=len(outcome.participants.asked),
        validation_clients=len(outcome.participants.validation),
        vectors=sum(answer.vectors_out for answer in outcome.answers),
        rounds=tuple(rounds),
    )
    lazy = lazy_volume(outcome.shape, size)
    return {
        "predicted_raw": {
            "boundary": lazy.boundary,
            "updates_up": lazy.updates_up,
            "weights_down": lazy.weights_down,
            "total": lazy.total,
        },
        "gamma": gamma(outcome.shape, size),
        "standard_raw_total": standard_volume(outcome.shape, size).total,
    }


def _versions() -> dict[str, str]:
    return {
        "retexo-fl": retexo_fl.__version__,
        "torch": version("torch"),
        "flwr": version("flwr"),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
