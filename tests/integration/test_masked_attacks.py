"""What a server reads of one client out of what it is sent: without masks all, under masks nothing.

The same attack is run on both. Clients have one train node or two each, so their updates tell most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from retexo_fl.client import api
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.federation import records
from retexo_fl.graph import GraphPartition
from retexo_fl.masking.holder import MaskHolder
from retexo_fl.masking.keys import Label
from retexo_fl.masking.streams import Sums
from retexo_fl.updates import with_zeros
from retexo_fl.updates.masked import MaskedUpdates
from tests.support.fickle_training import node_of, train_on_fickle_grid
from tests.support.runs import configured

CLIENTS, CLASSES, FEATURES = 40, 10, 64
KEYS: dict[str, Any] = {
    **{"clients": CLIENTS, "layers": 1, "rounds": 1, "dropout": 0.0, "model": "sage"},
    **{"split": "random-unstratified:0.025/0.1/0.5", "codec": "dense"},
}


@cache
def parts() -> list[GraphPartition]:
    return make_parts(make_config({key.replace("_", "-"): value for key, value in KEYS.items()}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a server has been sent.

    Attributes:
        updates: By client, its update of the first round as the server can best read it.
        content: All that passed, as bytes.
    """

    updates: dict[int, np.ndarray]
    content: bytes


def watch(out: Path, **keys: Any) -> Seen:
    """Train, and return what the server was sent."""
    updates: dict[int, np.ndarray] = {}
    content: list[bytes] = []

    def see(message: Message, reply: Message) -> Message:
        for record in reply.content.values():
            content.extend(_bytes_of(record))
        if message.metadata.message_type == api.TRAIN.message_type:
            updates[message.metadata.dst_node_id - node_of(0)] = _read(message, reply)
        return reply

    train_on_fickle_grid(configured(out, **{**KEYS, **keys}), parts(), see=see)
    return Seen(updates=updates, content=b"".join(content))


def _bytes_of(record: Any) -> list[bytes]:
    found = []
    for value in record.values():
        if isinstance(value, bytes):
            found.append(value)
        elif hasattr(value, "numpy"):
            found.append(value.numpy().tobytes())
    return found


def _read(message: Message, reply: Message) -> np.ndarray:
    """Read an update; a masked one as if no mask were on it."""
    if "weights" in reply.content:
        return with_zeros(records.weights_of(reply.content.array_records["weights"]))
    asked = message.content.config_records["retexo"]
    shared, exponents = MaskedUpdates.shared(asked["steps"])  # type: ignore[arg-type]
    packed = reply.content.config_records["retexo"]["numbers"]
    assert isinstance(packed, bytes)
    size = (2 * FEATURES + 1) * CLASSES
    numbers = shared.ring.signed(shared.ring.unpack(packed, size))
    return shared.grid.values(numbers, exponents)


def labels_read(seen: Seen) -> float:
    """Return the share of clients of one train node whose label the bias's gradient tells."""
    right = [
        int(np.argmin(seen.updates[part.client][-CLASSES:])) == labels[0]
        for part in parts()
        if len(labels := _train_labels(part)) == 1
    ]
    assert len(right) > 8
    return float(np.mean(right))


def rows_read(seen: Seen) -> float:
    """Return the share of these clients whose node's features the weights' gradient tells."""
    right = []
    for part in parts():
        if len(_train_labels(part)) != 1:
            continue
        update = seen.updates[part.client]
        weights, bias = update[:-CLASSES].reshape(-1, CLASSES), update[-CLASSES:]
        column = int(np.argmax(np.abs(bias)))
        row = weights[:FEATURES, column] / bias[column]
        known = np.asarray(part.features)[np.asarray(part.train_mask)][0]
        right.append(np.allclose(row, known, rtol=1e-3, atol=1e-3))
    return float(np.mean(right))


def _train_labels(part: GraphPartition) -> np.ndarray:
    found: np.ndarray = np.asarray(part.labels)[np.asarray(part.train_mask)]
    return found


def test_labels_and_rows_are_read_without_masks_and_guessed_under_them(tmp_path: Path) -> None:
    clear = watch(tmp_path / "clear")
    assert labels_read(clear) == 1.0
    assert rows_read(clear) == 1.0
    masked = watch(tmp_path / "masked", secure_aggregation="masked")
    # A label in ten is guessed; masks are random, and more than half are in one run of millions.
    assert labels_read(masked) < 0.6
    assert rows_read(masked) == 0.0


def test_a_search_of_all_that_passes_finds_no_update_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: dict[bytes, None] = {}
    hide = MaskHolder.hide

    def noted(self: MaskHolder, label: Label, sums: Sums) -> Sums:
        if sums.form.narrow and sums.narrow.any():
            plain[sums.form.ring.pack(sums.narrow).tobytes()] = None
        return hide(self, label, sums)

    monkeypatch.setattr(MaskHolder, "hide", noted)
    masked = watch(tmp_path / "masked", secure_aggregation="masked")
    assert len(plain) > 20
    assert not any(numbers in masked.content for numbers in plain)
    plain.clear()
    monkeypatch.setattr(Sums, "add_masks", lambda self, added, subtracted=(): None)
    clear = watch(tmp_path / "clear", secure_aggregation="masked")
    assert all(numbers in clear.content for numbers in plain)
