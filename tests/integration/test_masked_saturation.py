"""A masked training whose updates grow a thousandfold from one round to the next."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from torch import Tensor

from retexo_fl.client import api
from retexo_fl.federation import records
from tests.support.fickle_grid import FickleGrid
from tests.support.masked_training import train_in
from tests.support.runs import events_of

#: By which the loss is multiplied in the round that is under way.
FACTOR = {"now": 1.0}


def grown_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the summed cross-entropy times a factor that the test sets."""
    return FACTOR["now"] * torch.nn.functional.cross_entropy(logits, labels, reduction="sum")


def grow(grid: FickleGrid, message: Message) -> None:
    """Have the loss, and so all gradients, be a thousandfold from round 3 on."""
    del grid
    if message.metadata.message_type == api.TRAIN.message_type:
        FACTOR["now"] = 1000.0 if records.read_request(message).ticket.round >= 3 else 1.0


@pytest.mark.parametrize("bits", [32, 8])
def test_what_exceeds_the_steps_is_cut_and_counted_and_reached_in_the_next_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bits: int
) -> None:
    with caplog.at_level(logging.WARNING):
        run = train_in(
            tmp_path / "run",
            grow,
            loss=f"{__name__}:grown_loss",
            update_bits=bits,
            layers=1,
            rounds=5,
            model="gcn",
        )
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    cut = [event["cut"] for event in rounds]
    weights = 64 * 10 + 10
    assert cut[:2] == [0, 0]
    assert 0.1 * 4 * weights < cut[2] <= 4 * weights
    assert cut[3:] == [0, 0]
    warnings = [r.getMessage() for r in caplog.records if "exceeded" in r.getMessage()]
    assert warnings == [
        f"stage 0, round 3: {cut[2]:,} values of 4 clients exceeded what their steps reach and "
        "were cut; the next round's steps reach them"
    ]
    assert all(torch.isfinite(torch.tensor(event["loss"])) for event in rounds)
