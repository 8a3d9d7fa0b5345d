"""What each profile would move of the graph at hand, at most, and how often clients are asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from retexo_fl.cli.tables import figures
from retexo_fl.config import RunConfig
from retexo_fl.exchange.levels import level_bytes
from retexo_fl.training.ridge import gram_values
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import TrainingSize, basis_values, lazy_volume
from retexo_fl.units import UNKNOWN, format_bytes, format_count

if TYPE_CHECKING:
    from rich.table import Table

#: What Flower's polling makes of one message in a deployment, from and to.
_MESSAGE_S: Final = (4, 9)
#: Values that share a step, of one byte.
_STEP_VALUES: Final = 256
_MEAN_BYTES: Final = 2

PROFILE_NOTE: Final = (
    "Payload and messages if no stage ends before its last round, with the options\n"
    f"given here. Deployed, a message takes {_MESSAGE_S[0]} to {_MESSAGE_S[1]} s of polling."
)


def profile_facts(
    config: RunConfig, shape: ModelShape, size: TrainingSize, *, features_bytes: int
) -> dict[str, Any]:
    """Return what a lazy training moves at most and asks of a client, as JSON has it.

    Args:
        config: Of the training.
        shape: Of its model.
        size: What its volume depends on.
        features_bytes: Of an exchange of input features without loss.
    """
    messages = _messages(config, shape, size)
    return {
        "rounds": sum(size.rounds),
        "payload_at_most": _server_bytes(config, shape, size)
        + sum(
            _exchange_bytes(config, shape, size, stage, features_bytes)
            for stage in range(shape.layers)
        ),
        "messages": messages,
        "deployed_minutes": [messages * seconds / 60 for seconds in _MESSAGE_S],
    }


def profile_table(facts: Mapping[str, Mapping[str, Any] | None]) -> Table:
    """Return the same of all profiles for a terminal; None does not go with the options."""
    table = figures("profile", "rounds", "payload, at most", "messages", "deployed, minutes")
    for name, one in facts.items():
        if one is None:
            table.add_row(name, *[UNKNOWN] * 4)
            continue
        least, most = one["deployed_minutes"]
        table.add_row(
            name,
            format_count(one["rounds"]),
            format_bytes(one["payload_at_most"]),
            format_count(one["messages"]),
            f"{least:.0f} to {most:.0f}",
        )
    return table


def _messages(config: RunConfig, shape: ModelShape, size: TrainingSize) -> int:
    """Return how often a deployment asks a client with train and validation nodes, at most."""
    # Publish and collect, which go along with what follows where weights are sent as changes.
    exchange = 2 if config.weight_bits == 32 else 0
    before = 1
    if shape.has_basis:
        blocks = -(-shape.inputs // shape.classes)
        # The mean and the blocks; features cross before them where the basis is of their sums.
        before += 1 + blocks + (exchange if shape.basis_of_sums else 0)
    if shape.passes_sums:
        # Each exchange but the last has clients send what crosses in the next; then validation and
        # test.
        return before + shape.layers * (1 + exchange) + 2
    # With the validation of the last weights; and the test.
    return before + sum(exchange + rounds + 1 for rounds in size.rounds) + 1


def _server_bytes(config: RunConfig, shape: ModelShape, size: TrainingSize) -> int:
    """Return payload between clients and server, updates and weights of all kinds."""
    item = np.dtype(config.dtype).itemsize
    volume = lazy_volume(shape, size)
    up, down, basis = basis_values(shape)
    basis_up, basis_down = size.training_clients * up, size.training_clients * down
    basis_down += size.clients * basis
    # Sums of products are not coded.
    products = size.clients * gram_values(shape.read_width, shape.classes)
    products = products if shape.passes_sums else 0
    updates = volume.updates_up // item - basis_up - products
    weights = (volume.weights_training + volume.weights_beyond) // item - basis_down
    means = _MEAN_BYTES * basis_down // (shape.features or 1) if config.basis_bits < 32 else 0
    return (
        _coded_bytes(updates, config.update_bits, item)
        + _coded_bytes(weights, config.weight_bits, item)
        + _coded_bytes(basis_up + basis_down, config.basis_bits, item)
        + means
        + products * item
    )


def _coded_bytes(values: int, bits: int, item: int) -> int:
    if bits == 32:
        return values * item
    return -(-values * bits // 8) + -(-values // _STEP_VALUES)


def _exchange_bytes(
    config: RunConfig, shape: ModelShape, size: TrainingSize, stage: int, features_bytes: int
) -> int:
    width, few = shape.exchange_width(stage), config.row_bits < 32
    dense = size.vectors * width * np.dtype(config.dtype).itemsize
    levels = level_bytes(size.vectors, width, config.row_bits) if few else dense
    if stage or (shape.has_basis and not shape.basis_of_sums):
        return levels
    return features_bytes if shape.basis_of_sums or not few else min(features_bytes, levels)
