"""What trainings left, so that a change of the code can be shown to change no bit.

A cell is one training of a small graph over three clients: what runs by default, under masks too,
links and directed graphs, and of all other ways each model with each, codecs and samplers in turn.
``recorded_grid.json`` beside this module holds, for each, what it moved and the digest of its
weights. Arithmetic differs between processors: digests and compressed sizes were recorded on the
processor whose arithmetic :func:`arithmetic` digests, and are compared where it is the same;
elsewhere the losses are.

``python -m tests.support.recorded_grid`` records all cells anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from tests.support.predictions import SMALL, write_small
from tests.support.runs import events_of, ledger_of, model_bytes, train
from tests.support.valued_graphs import write_valued
from tests.support.ways import profile_keys

RECORD: Final = Path(__file__).with_suffix(".json")
#: What all cells share.
KEYS: Final[dict[str, Any]] = {
    **SMALL,
    **{"clients": 3, "hidden": 8, "heads": 2, "layers": 2, "rounds": 3, "threads": 1},
}
MODELS: Final = ("gcn", "sage", "gat", "gin")
#: Layers whose neighbours can be added up before they are sent.
_ADDING: Final = ("gcn", "sage", "gin")
CODECS: Final = ("lossless", "dense", "fixed")
SAMPLERS: Final = ("none", "full", "neighbour", "shadow", "gns")
_WAYS: Final = (
    *product(("lazy", "standard"), ("rows", "cover")),
    ("bns", "rows"),
)


def cells() -> Iterator[dict[str, Any]]:
    """Yield what sets each training apart."""
    yield from _cells_of_default()
    yield from _cells_of_masks()
    for model in ("gcn", "sage", "gin"):
        yield {"model": model, "algorithm": "lazy", **LINKS}
    for model in MODELS:
        yield {"model": f"dir-{model}", "algorithm": "lazy", **DIRECTED}
    yield {"model": "dir-gcn", "algorithm": "standard", **DIRECTED}
    for turn, model in enumerate(MODELS):
        for place, (algorithm, plan) in enumerate(_WAYS):
            if plan == "rows" or model in _ADDING:
                way = {"algorithm": algorithm, "boundary_plan": plan}
                yield {"model": model, **way, "codec": CODECS[(turn + place) % 3]}
        for place, sampler in enumerate(SAMPLERS):
            if (turn + place) % 2:
                batches = {"batch_nodes": 16, "balance": "static"} if sampler != "none" else {}
                yield {"model": model, "algorithm": "drop", "sampler": sampler, **batches}
    yield {"model": "sage-pool", "algorithm": "lazy"}
    yield {
        **{"model": "sage", "algorithm": "central", "clients": 1},
        **{"sampler": "gns", "batch_nodes": 16},
    }
    yield {"model": "sage", "algorithm": "lazy", "dtype": "float64"}
    yield {"model": "gcn", "algorithm": "lazy", "local_steps": 3}
    yield {"model": "gcn", "algorithm": "lazy", "aggregator": "median"}
    yield {"model": "sage", "algorithm": "standard", "activations": "recompute"}


LINKS: Final[dict[str, Any]] = {"task": "links", "split": "auto"}
#: Of edges that weigh something, some leading one way.
DIRECTED: Final[dict[str, Any]] = {"dataset": "valued", "edges_are": "directed"}


def _cells_of_default() -> Iterator[dict[str, Any]]:
    for model in MODELS:
        yield {"model": model, "profile": "lean"}
    yield {"model": "gcn", "profile": "lean", "basis_rows": "sums"}
    yield {"model": "gcn", "profile": "lean", "class_weights": "balanced", "loss": "focal:2"}
    for model in ("gcn", "sage"):
        yield {"model": model, "profile": "one-shot"}


def _cells_of_masks() -> Iterator[dict[str, Any]]:
    for way in (
        {"model": "gcn", "profile": "lean"},
        {"model": "sage", "profile": "lean", "basis_rows": "sums"},
        {"model": "sage", "profile": "one-shot"},
        {"model": "gat", "algorithm": "lazy"},
        {"model": "sage", "algorithm": "standard"},
        {"model": "gcn", "algorithm": "bns"},
        {"model": "gin", "algorithm": "drop", "local_steps": 2},
        {"model": "gcn", "algorithm": "lazy", **LINKS},
        {"model": "dir-sage", "algorithm": "lazy", **DIRECTED},
    ):
        yield way | {"secure_aggregation": "masked"}


def keys_of(cell: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a cell's training, without those of its place; a profile's with it."""
    chosen = dict(cell)
    of_profile = profile_keys(chosen.pop("profile", "retexo"))
    # So many rounds as the others; nothing is trained, or chosen, that the record does not know.
    for key in ("rounds", "candidates", "ridge_penalty", "floor"):
        of_profile.pop(key, None)
    return KEYS | of_profile | chosen


def name_of(cell: dict[str, Any]) -> str:
    """Return how the record calls a cell."""
    return " ".join(str(value) for value in cell.values())


def train_cell(cell: dict[str, Any], folder: Path) -> Path:
    """Train a cell in this process; return its run directory."""
    write_graphs(folder)
    return train(folder / name_of(cell).replace(" ", "_"), data_dir=folder, **keys_of(cell))


def write_graphs(folder: Path) -> None:
    """Write what cells are trained on."""
    write_small(folder / "small.npz", nodes=60)
    write_valued(folder, directed=True)


def left_by(run: Path) -> dict[str, Any]:
    """Return what a training left: digests, volumes of each kind, and losses."""
    weights = hashlib.sha256()
    for name, content in sorted(model_bytes(run).items()):
        if name.endswith(".safetensors"):
            weights.update(name.encode() + content)
    ledger = ledger_of(run)
    moved = {}
    for kind in ("boundary", "updates_up", "weights_down"):
        volume = ledger.sum(kind=kind)
        moved[kind] = [volume.messages, volume.raw, volume.payload]
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    # One that is solved at once has none.
    losses = [float(f"{event['loss']:.5g}") for event in rounds if event["loss"] is not None]
    return {"weights": weights.hexdigest()[:32], "moved": moved, "losses": losses}


@cache
def arithmetic() -> str:
    """Return a digest of what this processor makes of sums, products and functions."""
    rng = np.random.default_rng(0)
    digest = hashlib.sha256(torch.__version__.encode())
    for rows, columns in ((7, 5), (64, 33), (300, 128)):
        values = rng.standard_normal((rows, columns), np.float32)
        tensor = torch.from_numpy(values)
        for made in (
            *(tensor @ tensor.T, tensor.T @ tensor, tensor.exp(), tensor.sum(0)),
            *(torch.log_softmax(tensor, 1), tensor.sigmoid(), tensor.norm(dim=1)),
        ):
            digest.update(made.numpy().tobytes())
        digest.update((values.sum(0) + values.std(0)).tobytes())
    return digest.hexdigest()[:32]


@cache
def recorded() -> dict[str, Any]:
    """Return the record."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def assert_as_recorded(cell: dict[str, Any], run: Path) -> None:
    """Compare what a training left with what was recorded of its cell."""
    known, found = recorded()["cells"][name_of(cell)], left_by(run)
    if recorded()["arithmetic"] == arithmetic():
        assert found == known
        return
    np.testing.assert_allclose(found["losses"], known["losses"], rtol=1e-2)
    assert found["moved"].keys() == known["moved"].keys()
    # Another processor rounds some value of few bits to another level, and zeros have less.
    few_bits = cell.get("profile") == "lean"
    for kind, (count, raw, _) in known["moved"].items():
        assert found["moved"][kind][0] == count
        assert found["moved"][kind][1] == pytest.approx(raw, rel=0.01 if few_bits else 0)


def main() -> int:
    """Train all cells and write the record."""
    with tempfile.TemporaryDirectory() as folder:
        left = {name_of(cell): left_by(train_cell(cell, Path(folder))) for cell in cells()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(known)}" for name, known in left.items())
    start = f'{{\n "arithmetic": "{arithmetic()}",\n "cells": {{\n'
    RECORD.write_text(f"{start}{lines}\n }}\n}}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
