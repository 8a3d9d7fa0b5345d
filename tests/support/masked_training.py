"""Small trainings under masks whose clients go away."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from retexo_fl.client import api
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.federation import records
from retexo_fl.graph import GraphPartition
from retexo_fl.masking import streams
from retexo_fl.training.cohorts import simulated_agreement
from retexo_fl.training.link_split import counts_by_use
from tests.support.fickle_grid import FickleGrid
from tests.support.fickle_training import (
    Change,
    See,
    node_of,
    train_on_fickle_grid,
    unchanged,
)
from tests.support.runs import configured

#: One cohort.
KEYS: dict[str, Any] = {"clients": 4, "rounds": 4, "hidden": 4, "layers": 2}
MASKED: dict[str, Any] = {**KEYS, "secure_aggregation": "masked"}
#: Two, with whole cohorts absent.
HALVES: dict[str, Any] = {"clients": 6, "cohort_size": 3}
QUORUM: dict[str, Any] = {"min_clients": 3, "round_deadline_s": 0.9, "message_timeout_s": 20.0}


@cache
def parts(clients: int = 4) -> list[GraphPartition]:
    """Return the parts of trainings of so many clients, cut once."""
    return make_parts(make_config({"clients": clients}))


def cohort_of(client: int) -> tuple[int, ...]:
    """Return with whom a client is added up in a training of :data:`HALVES`."""
    config = make_config({"clients": 6, "cohort-size": 3})
    counts = {part.client: counts_by_use(config, part) for part in parts(6)}
    return simulated_agreement(config, counts).cohort_of(client).members


def train_in(out: Path, change: Change, *, see: See = unchanged, **keys: Any) -> Path:
    """Train while ``change`` may do to the grid what it likes, and ``see`` to answers."""
    config = configured(out, **{**MASKED, **keys})
    train_on_fickle_grid(config, parts(config.clients), change, see=see)
    return out


def away_in(places: dict[tuple[int, int], int], kind: str = api.TRAIN.message_type) -> Change:
    """Return a change: in these (stage, round) one client answers messages of a kind not at all."""

    def change(grid: FickleGrid, message: Message) -> None:
        if message.metadata.message_type in {kind, api.TRAIN.message_type}:
            ticket = records.read_request(message).ticket
            client = places.get((ticket.stage, ticket.round))
            is_time = message.metadata.message_type == kind
            grid.weather.mute = {node_of(client)} if client is not None and is_time else set()

    return change


def without_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all masks be zero: the same whole numbers, in the clear."""

    class Zeros:
        def update_into(self, zeros: memoryview, room: bytearray) -> None:
            room[: len(zeros)] = zeros

    monkeypatch.setattr(streams, "key_stream", lambda what, seed: Zeros())
