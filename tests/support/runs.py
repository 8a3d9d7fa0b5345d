"""Trainings as tests start them, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from retexo_fl.agent.preparation import make_parts
from retexo_fl.config import RunConfig, make_config
from retexo_fl.federation.server_app import Listener
from retexo_fl.simulation.inline_engine import run_inline


def train(out: Path, *listeners: Listener, **keys: Any) -> Path:
    """Train in this process with kebab-case keys written in snake case; return ``out``."""
    config = configured(out, **keys)
    run_inline(config, make_parts(config), listeners)
    return out


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


def largest_difference(one: Path, other: Path) -> float:
    """Return the largest absolute difference between the weights of two runs."""
    first, second = model_weights(one), model_weights(other)
    assert first.keys() == second.keys()
    assert first
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)


def model_bytes(run: Path) -> dict[str, bytes]:
    """Return the model files as they are, for comparisons bit by bit."""
    files = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    assert files
    return files


def result_of(run: Path) -> dict[str, Any]:
    """Return ``result.json``."""
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return result


def events_of(run: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl``."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
