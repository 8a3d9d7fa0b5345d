"""What a peer reads that changes a row between two predictions: whose rows change with it.

A layer's row of a node is made of its neighbours' rows. A peer B predicts once, gives one of its
nodes b another row, and predicts again. Of another client's node u beside b the row after one layer
changes; of a neighbour v of u that after two, which crosses before a third layer. So B learns which
of the nodes that it sees are linked to u inside the other part, one question after the other.

What B can explain by what it knows is no find, and is left out: u itself, and nodes beside another
neighbour of b in its own part. Rows also change by nodes of third clients; those edges it does not
know, and they stay as false alarms.

Played on the predictions themselves: the layers of the training that was audited, and all
exchanges as they are, with one row of one part changed. With two layers the row of u is the last to
cross, and reveals nothing that B does not know.

Source: Wu et al., LinkTeller, IEEE S&P 2022 (influence analysis), here by rows that cross instead
of by predictions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.config import RunConfig, config_values, make_config
from retexo_fl.federation.prediction_app import PredictionTask
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.base import StageInput
from retexo_fl.leakage.chosen_rows import with_another_row
from retexo_fl.leakage.figures import Finding
from retexo_fl.leakage.peer_attacks import dense, numbers_of_slots
from retexo_fl.leakage.scores import auc, drawn_limit, found_at_few_alarms
from retexo_fl.leakage.watch import Watch
from retexo_fl.progress.steps import Step
from retexo_fl.simulation.inline_engine import predict_inline
from retexo_fl.units import counted

#: Rows that are changed, each in a prediction of its own.
_QUESTIONS: Final = 16
#: Links and other pairs, without as many of which no figure is given.
_LEAST: Final = 3
#: The exchange before the third layer: the first that holds rows of neighbours' neighbours.
TELLING: Final = 2
_NAME: Final = "edges from repeated predictions"


def why_not_played(config: RunConfig, parts: Sequence[GraphPartition]) -> str:
    """Return why a training is not attacked so; empty where it is."""
    if config.later_rows == "none":
        return f"{_NAME}: rows cross once, so that none comes back changed"
    if not config.goal.splits_nodes:
        return f"{_NAME}: not played over links, of which two layers tell as much"
    if config.later_rows == "class":
        return (
            f"{_NAME}: not played yet on classes, of which few change with a row that their owner "
            "reads"
        )
    if config.layers <= TELLING:
        return (
            f"{_NAME}: with {counted(config.layers, 'layer')} a changed row comes back by rows of "
            "nodes that its owner touches, which it knows"
        )
    if parts[0].is_structural or not parts[0].num_features:
        return f"{_NAME}: nodes have no features that a peer could choose"
    return ""


def play_influence(
    config: RunConfig, run: Path, parts: Sequence[GraphPartition], *, quiet: bool
) -> tuple[Finding | None, str]:
    """Predict, and predict again with one row changed, once for each of some nodes.

    Of a training that :func:`why_not_played` says nothing of.

    Args:
        config: Of the training, in the clear and in this process.
        run: Its directory.
        parts: Of all clients, by index.
        quiet: Show no progress.

    Returns:
        What was found; None, and why it was not played.
    """
    questions = _chosen(parts, np.random.default_rng([config.seed, TELLING]))
    if not questions:
        return None, f"{_NAME}: no node has one edge across to a client of which more is seen"
    moved: list[tuple[np.ndarray, np.ndarray]] = []
    with Step(f"predicting {len(questions) + 1} times, with one row changed", quiet=quiet):
        before, exchanges = _last_telling(config, run, parts)
        for one in questions:
            changed = list(parts)
            changed[one.peer] = with_another_row(parts[one.peer], one.node)
            after, _ = _last_telling(config, run, changed)
            shares = _moved(*(dense(of[one.peer].received) for of in (before, after)))
            moved.append((shares[one.linked], shares[one.others]))
    true, false = map(np.concatenate, zip(*moved, strict=True))
    if min(len(true), len(false)) < _LEAST:
        return None, f"{_NAME}: fewer than {_LEAST} pairs to tell apart"
    return (
        Finding(
            attack="edges inside a part, from repeated predictions",
            reader="peers",
            measure="ROC AUC",
            guess=0.5,
            clear=auc(true, false),
            cut=0.5,
            chance=drawn_limit(moved, np.random.default_rng([config.seed, TELLING, 1])),
            by={
                "predictions": len(questions) + 1,
                "exchanges": exchanges,
                "found at 1 % false alarms": found_at_few_alarms(true, false),
                "pairs": len(true) + len(false),
            },
            note=(
                "a peer changes one row between two predictions; one prediction, or "
                "--second-rows none, tells it nothing of the kind (most-questions in agent.toml "
                "bounds how many there are)"
            ),
        ),
        "",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Question:
    """A row that is changed.

    Attributes:
        peer: Whose.
        node: Which of its nodes, with one edge to another client.
        linked: Slots of the peer, of nodes that are linked to that edge's other end.
        others: Slots of nodes of the same client that are not. In neither are nodes beside this one
            or beside its neighbours in the peer's own part: why these change, the peer knows.
    """

    peer: int
    node: int
    linked: np.ndarray
    others: np.ndarray


def _chosen(parts: Sequence[GraphPartition], generator: np.random.Generator) -> list[_Question]:
    """Return questions of all peers in turn, as many as are asked."""
    starts = np.cumsum([0, *(part.num_inner for part in parts)])
    waiting = [_of_peer(peer, parts, starts, generator) for peer in range(len(parts))]
    found: list[_Question] = []
    while waiting and len(found) < _QUESTIONS:
        peer = waiting.pop(0)
        one = next(peer, None)
        if one is not None:
            found.append(one)
            waiting.append(peer)
    return found


def _of_peer(
    peer: int,
    parts: Sequence[GraphPartition],
    starts: np.ndarray,
    generator: np.random.Generator,
) -> Iterator[_Question]:
    """Yield what a peer may ask, in an order that is drawn."""
    part = parts[peer]
    indptr, indices = np.asarray(part.indptr), np.asarray(part.indices)
    numbers = numbers_of_slots(part, parts, starts)
    owners = np.asarray(part.boundary_owners)
    for node in generator.permutation(part.num_inner):
        neighbours = indices[indptr[node] : indptr[node + 1]]
        slots = neighbours[neighbours >= part.num_inner] - part.num_inner
        own = neighbours[neighbours < part.num_inner]
        beside_own = [indices[indptr[one] : indptr[one + 1]] for one in own]
        known = np.concatenate([neighbours, *beside_own]) - part.num_inner
        for owner in np.unique(owners[slots]):
            beside = slots[owners[slots] == owner]
            if len(beside) != 1:
                # Which of its neighbours a change came through would not be known.
                continue
            theirs, end = parts[owner], int(numbers[beside[0]] - starts[owner])
            row = np.asarray(theirs.indices)[theirs.indptr[end] : theirs.indptr[end + 1]]
            seen = np.flatnonzero((owners == owner) & ~np.isin(np.arange(len(owners)), known))
            is_linked = np.isin(numbers[seen] - starts[owner], row[row < theirs.num_inner])
            if is_linked.any():
                yield _Question(
                    peer=peer, node=int(node), linked=seen[is_linked], others=seen[~is_linked]
                )
                break


def _last_telling(
    config: RunConfig, run: Path, parts: Sequence[GraphPartition]
) -> tuple[Mapping[int, StageInput], int]:
    """Predict; return by client what crossed before the third layer, and how often rows crossed."""
    watch = Watch(config, keeps_updates=False)
    with tempfile.TemporaryDirectory(prefix="retexo-leakage-") as folder:
        for name in ("server", "clients"):
            (Path(folder) / name).mkdir()
        predict_inline(
            make_config({**config_values(config), "out": "", "resume": ""}),
            list(parts),
            PredictionTask(run=str(run), folder=str(Path(folder) / "server"), form="npz"),
            predictions=Path(folder) / "clients",
            watching=watch.watching,
        )
    stages = sorted(watch.crossed)
    return watch.crossed[stages[min(TELLING, len(stages) - 1)]], len(stages)


def _moved(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the (B,) share by which each row has changed."""
    lengths = np.linalg.norm(before, axis=1)
    moved: np.ndarray = np.linalg.norm(after - before, axis=1) / np.maximum(
        lengths, np.finfo(float).tiny
    )
    return moved
