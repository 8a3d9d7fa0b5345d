"""Trained models to predict with, parts to predict on, and what a prediction leaves."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import key_infos, make_config
from retexo_fl.graph import write_partitions

#: The names of all layers that come with the installation, but for those of other graphs than
#: :func:`write_small` writes.
LAYERS = tuple(
    name
    for name in key_infos()["model"].brief.split(", or ")[0].split(", ")
    if name != "gine" and not name.startswith(("dir-", "rel-"))
)

#: Keys of a training on what :func:`write_small` wrote, but for ``data_dir``.
SMALL: dict[str, Any] = {"dataset": "small", "split": "random-unstratified:0.4/0.3/0.3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """All clients' predictions together, by ascending key.

    Attributes:
        keys: [N] keys.
        classes: [N] classes.
        probabilities: [N, C].
    """

    keys: list[bytes]
    classes: np.ndarray
    probabilities: np.ndarray

    @classmethod
    def of(
        cls, keys: list[bytes], classes: np.ndarray | list[int], probabilities: np.ndarray
    ) -> Predicted:
        """Bring predictions in the order of their keys."""
        order = sorted(range(len(keys)), key=keys.__getitem__)
        return cls(
            keys=[keys[i] for i in order],
            classes=np.asarray(classes)[order],
            probabilities=np.asarray(probabilities)[order],
        )


def cut(folder: Path, **keys: Any) -> Path:
    """Cut a data set into parts in ``folder``; keys of the configuration in snake case."""
    values = {
        name.replace("_", "-"): str(v) if isinstance(v, Path) else v for name, v in keys.items()
    }
    write_partitions(make_parts(make_config(values)), folder)
    return folder


def write_small(path: Path, *, nodes: int = 40, more: int = 0) -> None:
    """Write a graph with isolated and unlabelled nodes; ``more`` nodes come with new edges."""
    rng, rng_of_new = np.random.default_rng(0), np.random.default_rng(1)
    upper = np.triu(rng.random((nodes, nodes)) < 4 / nodes, k=1)
    upper[:2] = upper[:, :2] = False
    edges = np.array(np.nonzero(upper), dtype=np.int32)
    labels = rng.integers(0, 3, nodes)
    labels[5] = -1
    ends = (rng_of_new.integers(2, nodes, more), np.arange(nodes, nodes + more))
    features = (rng.normal(size=(nodes, 6)), rng_of_new.normal(size=(more, 6)))
    np.savez(
        path,
        edge_index=np.concatenate((edges, np.array(ends, dtype=np.int32)), axis=1),
        x=np.concatenate(features).astype(np.float32),
        y=np.concatenate((labels, np.full(more, -1))).astype(np.int16),
    )


def read_npz(folder: Path) -> Predicted:
    """Read all ``predictions-*.npz`` of a folder."""
    files = [np.load(path) for path in sorted(folder.glob("predictions-*.npz"))]
    assert files
    return Predicted.of(
        [key for file in files for key in file["key"].tolist()],
        np.concatenate([file["class"] for file in files]),
        np.concatenate([file["probability"] for file in files]),
    )


def read_csv(folder: Path) -> Predicted:
    """Read all ``predictions-*.csv`` of a folder."""
    rows: list[list[str]] = []
    for path in sorted(folder.glob("predictions-*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            head, *body = csv.reader(file)
        assert head == ["key", "class", *(f"p{c}" for c in range(len(head) - 2))]
        rows += body
    return Predicted.of(
        [row[0].encode() for row in rows],
        [int(row[1]) for row in rows],
        np.array([[float(text) for text in row[2:]] for row in rows]),
    )


def summary_of(folder: Path) -> dict[str, Any]:
    """Return ``predictions.json``."""
    summary: dict[str, Any] = json.loads((folder / "predictions.json").read_text())
    return summary


def files_in(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, as it is."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def predicted_tables(folder: Path) -> dict[str, bytes]:
    """Return every CSV file of predictions below a folder, as it is, by its name alone."""
    return {
        Path(name).name: content
        for name, content in files_in(folder).items()
        if name.endswith(".csv")
    }
