"""Trainings whose clients share rows in this process are those over blocks, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from retexo_fl.channels import Channel, MemoryChannel, SharingChannel
from retexo_fl.client import peer_exchange
from retexo_fl.simulation import inline_engine
from tests.frozen.taps import Tap, tapped
from tests.support.each_choice import by_day
from tests.support.runs import curves_of, ledger_of, model_bytes, train

_LEAN: Final[dict[str, Any]] = {
    **{"dropout": 0.0, "optimizer": "lbfgs", "warm_start": True},
    **{"basis": "supervised", "basis_blocks": 2, "basis_bits": 8},
    **{"row_bits": 8, "update_bits": 8, "weight_bits": 4},
}
#: Keys of trainings by what crosses.
_CASES: Final[dict[str, dict[str, Any]]] = {
    "rows without loss": {"model": "sage"},
    "dense rows": {"model": "gcn", "codec": "dense", "layers": 3},
    "lean, own rows": {"model": "sage", **_LEAN},
    "lean, sums": {"model": "gcn", "basis_rows": "sums", **_LEAN},
    "in two bits": {"model": "gin", "row_bits": 2, "dtype": "float64"},
    "under masks": {"model": "gcn", "secure_aggregation": "masked", **_LEAN},
    "solved": {"model": "gcn", "solver": "ridge"},
    "links": {"model": "sage", "task": "links"},
    "all layers": {"model": "sage", "algorithm": "standard"},
    "sums of rows": {"model": "gcn", "boundary_plan": "cover"},
    "lean, sums of rows": {"model": "sage", "boundary_plan": "cover", **_LEAN},
    # What stays with blocks.
    "on a grid": {"model": "gcn", "codec": "fixed"},
}


def trained_over(
    channel: Callable[[], Channel], out: Path, monkeypatch: pytest.MonkeyPatch, **keys: Any
) -> Tap:
    """Train over a channel; return what passed."""
    monkeypatch.setattr(inline_engine, "make_channel", lambda network, folder=None: channel())
    with tapped("shared rows") as tap:
        train(out, clients=4, rounds=2, **keys)
    return tap


@pytest.mark.parametrize(
    "name",
    by_day(
        _CASES,
        *("dense rows", "lean, own rows", "in two bits", "under masks", "all layers"),
        *("sums of rows", "on a grid"),
        others=pytest.mark.slow,
    ),
)
def test_a_training_is_that_over_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keys = _CASES[name]
    blocks = trained_over(MemoryChannel, tmp_path / "blocks", monkeypatch, **keys)
    shared = trained_over(SharingChannel, tmp_path / "shared", monkeypatch, **keys)
    assert shared.messages == blocks.messages
    assert sorted(shared.blocks) == sorted(blocks.blocks)
    assert blocks.blocks
    one, other = tmp_path / "blocks", tmp_path / "shared"
    assert model_bytes(other) == model_bytes(one)
    assert list(ledger_of(other).lines()) == list(ledger_of(one).lines())
    assert curves_of(other) == curves_of(one)


@pytest.mark.parametrize(
    "name",
    ["dense rows", "lean, own rows", "lean, sums", "solved", "sums of rows", "lean, sums of rows"],
)
def test_no_block_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The engine's own channel shares."""
    for coder in ("encode_block", "decode_block"):
        monkeypatch.setattr(peer_exchange, coder, _refuse)
    train(tmp_path / "run", clients=4, rounds=2, **_CASES[name])


def _refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a block was made")
