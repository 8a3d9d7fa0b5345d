"""Trainings as tests start them, and what they leave."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from safetensors.numpy import load_file

from retexo_fl.channels import Channel
from retexo_fl.client.api import Ticket
from retexo_fl.client.client import GraphClient
from retexo_fl.client.preparation import load_parts, make_parts
from retexo_fl.client.store import MemoryStore
from retexo_fl.config import RunConfig, config_values, make_config
from retexo_fl.federation import outcome
from retexo_fl.federation.client_handlers import build_client_app, client_index
from retexo_fl.federation.server_app import Listener, make_server_app
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.ledger import OF_COHORT, Account, TrafficLedger, Volume
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.report import write_report
from retexo_fl.run_log.events import Event, RoundClosed
from retexo_fl.simulation.inline_engine import run_inline
from retexo_fl.simulation.inline_grid import InlineGrid
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import TrainingSize


class Interrupter:
    """Presses Ctrl-C at an event of a run, counted from 1."""

    def __init__(self, event: int) -> None:
        self._left = event

    def __call__(self, event: Event) -> None:
        """Count an event."""
        del event
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def size_of(config: RunConfig, parts: Sequence[GraphPartition]) -> TrainingSize:
    """Return what closed forms count, of clients that all take part in everything."""
    clients = len(parts)
    shape = ModelShape.of_part(config, parts[0])
    vectors, *later = (
        sum(crossing_rows(part, shape.read_into(m)) for part in parts)
        for m in (0, *shape.further_plans)
    )
    return TrainingSize(
        clients=clients,
        training_clients=clients,
        asked_clients=clients,
        validation_clients=clients,
        vectors=vectors,
        later=tuple(later),
        rounds=config.stage_rounds,
        refined=shape.refined_rounds(config),
    )


def crossing_rows(part: GraphPartition, kinds: tuple[int, ...] | None) -> int:
    """Count the rows that a client sends: one for each peer with a node of a type that reads it."""
    found, far = set(), part.boundary_kinds
    for row in range(part.num_inner):
        for end in part.indices[part.indptr[row] : part.indptr[row + 1]].tolist():
            slot = end - part.num_inner
            if slot < 0:
                continue
            if kinds is None or far is None or int(far[slot]) in kinds:
                found.add((row, int(part.boundary_owners[slot])))
    return len(found)


def stop_after(round_number: int, *, stage: int | None = None) -> Listener:
    """Return what presses Ctrl-C when a round is over, of any stage if None."""

    def stop(event: Event) -> None:
        if not isinstance(event, RoundClosed) or event.round != round_number:
            return
        if stage in {None, event.stage}:
            raise KeyboardInterrupt

    return stop


def train(out: Path, *listeners: Listener, **keys: Any) -> Path:
    """Train in this process with kebab-case keys written in snake case; return ``out``.

    Of the run all is there but its report, a tenth of such a training: :func:`page_of` writes it.
    """
    config = configured(out, **keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "write_report", lambda run: run / "report.html")
        run_inline(config, make_parts(config), listeners)
    return out


def page_of(run: Path) -> str:
    """Return the report of a run."""
    return write_report(run).read_text(encoding="utf-8")


def train_over(config: RunConfig, channel: Channel, parts: Sequence[GraphPartition] = ()) -> None:
    """Train in this process over a channel of the test's, on other parts than its own if given."""
    parts = parts or load_parts(config)
    clients: dict[int, GraphClient] = {}

    def find(context: Context, ticket: Ticket) -> GraphClient:
        index = client_index(context)
        if index not in clients:
            clients[index] = LazyClient(
                parts[index], config, job=ticket.job, channel=channel, store=MemoryStore()
            )
        return clients[index]

    values = config_values(config)
    context = Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(values)
    )
    make_server_app()(InlineGrid(build_client_app(find), len(parts), values), context)


def configured(out: Path, **keys: Any) -> RunConfig:
    """Return a configuration from keys written in snake case."""
    values = {
        name.replace("_", "-"): str(v) if isinstance(v, Path) else v for name, v in keys.items()
    }
    return make_config({**values, "out": str(out)})


def model_weights(run: Path) -> dict[str, np.ndarray]:
    """Return every trained tensor of a run."""
    return {
        f"{path.stem}/{name}": tensor
        for path in sorted((run / "model").glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


#: Numbers of clients and partitioners.
Cuts = tuple[tuple[int, str], ...]


def by_turns(cuts: Sequence[Cuts], *rows: dict[str, Any]) -> list[tuple[dict[str, Any], Cuts]]:
    """Give each row of a table one of some sets of cuts, in turn."""
    return [(keys, cuts[at % len(cuts)]) for at, keys in enumerate(rows)]


def largest_difference(one: Path, other: Path) -> float:
    """Return the largest absolute difference between the weights of two runs."""
    first, second = model_weights(one), model_weights(other)
    assert first.keys() == second.keys()
    assert first
    return max(float(np.abs(first[name] - second[name]).max(initial=0.0)) for name in first)


def model_bytes(run: Path) -> dict[str, bytes]:
    """Return the model files as they are, for comparisons bit by bit."""
    files = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    assert files
    return files


def result_of(run: Path) -> dict[str, Any]:
    """Return ``result.json``."""
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return result


def ledger_of(run: Path) -> TrafficLedger:
    """Return the account of a finished run."""
    return TrafficLedger.from_csv((run / "ledger.csv").read_text(encoding="utf-8").splitlines())


def crossed(run: Path) -> dict[Account, Volume]:
    """Return what a masked run's ledger has of bytes between clients."""
    return {a: v for a, v in ledger_of(run).lines() if a.peer == OF_COHORT}


def events_of(run: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl``."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def curves_of(run: Path) -> list[tuple[object, ...]]:
    """Return what is known of each round, without bytes and times."""
    names = ("stage", "round", "loss", "val_loss", "val_accuracy", "summed", "cut")
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    return [tuple(event.get(name) for name in names) for event in rounds]
