"""Run directories as a training leaves them, written from formulas."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retexo_fl.ledger import KINDS, RARE_KINDS, SERVER, Account, TrafficLedger, Volume
from retexo_fl.run_log.events import Event, event_of

EXCHANGE_PAYLOAD = 190_000
UPDATE_PAYLOAD = 16_650
CONTROL_PAYLOAD = 140
VECTORS = 1_234


@dataclass(kw_only=True)
class Recipe:
    """What the run was; the defaults are a small finished run."""

    dataset: str = "digits"
    clients: int = 5
    stages: int = 2
    rounds: int = 50
    accuracies: bool = True
    plan: bool = True
    missing: int = 0
    config: dict[str, str] = field(default_factory=dict)

    @property
    def best_round(self) -> int:
        return max(1, self.rounds * 3 // 4)


def accuracy(recipe: Recipe, stage: int, number: int) -> float:
    """Validation accuracy of a round; highest in the best round of the recipe."""
    peak = 0.88 + 0.05 * stage / max(recipe.stages - 1, 1)
    if number == recipe.best_round:
        return peak
    noise = random.Random(stage * 7919 + number).uniform(0.0, 0.012)
    return round(peak - 0.004 - 0.62 * math.exp(-number / (recipe.rounds / 9)) - noise, 4)


def events(recipe: Recipe) -> list[dict[str, Any]]:
    """All events of a run in one attempt."""
    moved, time_s = 0, 0.0
    found: list[dict[str, Any]] = [
        {
            "event": "start",
            "time_s": 0.0,
            "attempt": 1,
            "clients": recipe.clients,
            "stages": recipe.stages,
        }
    ]
    for stage in range(recipe.stages):
        moved, time_s = moved + EXCHANGE_PAYLOAD // (stage + 1), time_s + 0.31
        exchange = {"vectors": VECTORS, "missing": recipe.missing if stage == 0 else 0}
        found.append(_event("exchange", time_s, stage, moved) | exchange)
        for number in range(1, recipe.rounds + 1):
            moved += 2 * UPDATE_PAYLOAD + CONTROL_PAYLOAD
            time_s += 0.042
            found.append(_round(recipe, stage, number, (time_s, moved)))
        end = {
            "best_round": recipe.best_round if recipe.accuracies else recipe.rounds,
            "val_accuracy": accuracy(recipe, stage, recipe.best_round)
            if recipe.accuracies
            else None,
        }
        found.append(_event("stage_end", time_s, stage, moved) | end)
    found.append(
        {
            "event": "finish",
            "time_s": round(time_s, 3),
            "test_accuracy": 0.9137 if recipe.accuracies else None,
            "bytes_payload": moved,
        }
    )
    return found


def typed(found: list[dict[str, Any]]) -> list[Event]:
    """Return events as their listeners get them."""
    return [event for values in found if (event := event_of(values, "a test")) is not None]


def _event(name: str, time_s: float, stage: int, moved: int) -> dict[str, Any]:
    return {"event": name, "time_s": round(time_s, 3), "stage": stage, "bytes_payload": moved}


def _round(recipe: Recipe, stage: int, number: int, at: tuple[float, int]) -> dict[str, Any]:
    decay = math.exp(-number / (recipe.rounds / 5))
    scored = recipe.accuracies
    best = recipe.best_round if number >= recipe.best_round else number
    return _event("round", at[0], stage, at[1]) | {
        "round": number,
        "rounds": recipe.rounds,
        "loss": round(0.08 + 2.2 * decay + 0.02 * math.sin(number), 4),
        "val_loss": round(0.27 + 2.0 * decay + 0.002 * number, 4) if scored else None,
        "val_accuracy": accuracy(recipe, stage, number) if scored else None,
        "best_round": best if scored else None,
        "best_val_accuracy": accuracy(recipe, stage, best) if scored else None,
        "seconds": 0.042,
    }


def ledger(recipe: Recipe) -> TrafficLedger:
    """A ledger whose payload equals that of the events, all of it entered for one client."""
    book = TrafficLedger()
    raw_factor = {"boundary": 2, "updates_up": 4, "weights_down": 1, "control": 0}
    for stage in range(recipe.stages):
        payload = {
            "boundary": EXCHANGE_PAYLOAD // (stage + 1),
            "updates_up": UPDATE_PAYLOAD * recipe.rounds,
            "weights_down": UPDATE_PAYLOAD * recipe.rounds,
            "control": CONTROL_PAYLOAD * recipe.rounds,
        }
        for kind, moved in payload.items():
            account = Account(
                attempt=1,
                kind=kind,
                layer=stage,
                purpose="exchange" if kind == "boundary" else "train",
                client=0,
                peer=1 if kind == "boundary" else SERVER,
                direction="out",
            )
            volume = Volume(
                messages=recipe.rounds,
                raw=moved * raw_factor[kind],
                payload=moved,
                wire=None,
            )
            book.add(account, volume)
    return book


def result(recipe: Recipe) -> dict[str, Any]:
    """The content of ``result.json``."""
    volumes = ledger(recipe).totals()
    scored = recipe.accuracies
    val = accuracy(recipe, recipe.stages - 1, recipe.best_round) if scored else None
    return {
        "version": 1,
        "dataset": recipe.dataset,
        "model": "sage",
        "algorithm": "lazy",
        "engine": "inline",
        "test_accuracy": 0.9137 if scored else None,
        "val_accuracy": val,
        "micro_f1": 0.9137 if scored else None,
        "stages": [_stage_result(recipe, stage) for stage in range(recipe.stages)],
        "bytes": volumes,
        "seconds": {"total": 4.83, "exchange": 0.62, "train": 4.2, "server": 0.01},
        "clients": recipe.clients,
        "client_table": [_client(index) for index in range(recipe.clients)],
        "seed": 7,
        "missing_rows": recipe.missing,
        "job": "5f0c2a9e41d7",
        "attempts": 1,
        "plan": _plan(volumes["raw"]) if recipe.plan else None,
        "versions": {
            "retexo-fl": "0.1.0",
            "torch": "2.13.0",
            "flwr": "1.41.0",
            "python": "3.11.9",
            "numpy": "2.4.1",
        },
        "hardware": {"cpu": "AMD EPYC 7B13", "cores": 2, "memory_gib": 7.8},
    }


def _stage_result(recipe: Recipe, stage: int) -> dict[str, Any]:
    scored = recipe.accuracies
    return {
        "layer": stage,
        "rounds": recipe.rounds,
        "best_round": recipe.best_round if scored else recipe.rounds,
        "val_accuracy": accuracy(recipe, stage, recipe.best_round) if scored else None,
        "val_loss": 0.31 if scored else None,
    }


def _client(index: int) -> dict[str, int]:
    draw = random.Random(index)
    nodes = draw.randint(220, 420)
    return {
        "client": index,
        "nodes": nodes,
        "train": nodes * 6 // 10,
        "val": nodes * 2 // 10,
        "test": nodes * 2 // 10,
        "boundary_vectors_in": draw.randint(150, 300),
        "boundary_vectors_out": draw.randint(150, 300),
        "boundary_payload_out": draw.randint(30_000, 60_000),
    }


def _plan(raw: dict[str, int | None]) -> dict[str, Any]:
    predicted = {kind: raw[kind] for kind in KINDS if kind not in {"control", *RARE_KINDS}}
    predicted["boundary"] = round((raw["boundary"] or 0) / 1.02)
    predicted["total"] = sum(value or 0 for value in predicted.values())
    return {"predicted_raw": predicted, "gamma": 8.14, "standard_raw_total": 70_000_000}


def write_run(folder: Path, recipe: Recipe) -> Path:
    """Write a finished run and return its directory."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "dataset": recipe.dataset,
        "model": "sage",
        "algorithm": "lazy",
        "engine": "inline",
        "layers": str(recipe.stages),
        "hidden-width": "64",
        "rounds": str(recipe.rounds),
        "learning-rate": "0.01",
        "partitioner": "metis",
        "codec": "float16",
    } | recipe.config
    lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
    (folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "result.json").write_text(json.dumps(result(recipe)), encoding="utf-8")
    write_events(folder, events(recipe))
    (folder / "ledger.csv").write_text(ledger(recipe).to_csv(), encoding="utf-8")
    write_status(folder, "finished")
    return folder


def write_events(folder: Path, found: list[dict[str, Any]]) -> None:
    """Write ``metrics.jsonl``."""
    text = "".join(json.dumps(event) + "\n" for event in found)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")


def write_status(folder: Path, state: str, error: str | None = None) -> None:
    """Write ``status.json``."""
    (folder / "status.json").write_text(json.dumps({"state": state, "error": error}), "utf-8")


def write_unfinished(folder: Path, recipe: Recipe, *, rounds: int, state: str) -> Path:
    """Write a run that ended inside its second stage after ``rounds`` rounds of it."""
    write_run(folder, recipe)
    (folder / "result.json").unlink()
    (folder / "ledger.csv").unlink()
    found = events(recipe)
    last = next(
        index
        for index, event in enumerate(found)
        if event.get("stage") == 1 and event.get("round") == rounds
    )
    write_events(folder, found[: last + 1])
    write_status(folder, state, "ExchangeIncomplete: client 3 sent 12 of 40 vectors")
    return folder
