"""About how much memory an audit takes beside the training that it watches."""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.client.run_memory import GraphSize, budget_bytes, memory_by_phase, row_widths
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError
from retexo_fl.leakage.influence import TELLING
from retexo_fl.leakage.peer_attacks import MOST_COLUMNS
from retexo_fl.units import format_bytes

#: Of each exchange: own rows and those of peers as they crossed, and what a layer reads of them.
_COPIES: Final = 2
#: Of the rows of one attacker, or of two together, in few coordinates: as they are, whitened, and
#: what a regression reads and says of each.
_ATTACKING_COPIES: Final = 8
_ATTACKING_ITEM: Final = np.dtype(np.float64).itemsize


def kept_bytes(config: RunConfig, size: GraphSize) -> float:
    """Return about how many bytes an audit keeps of all exchanges, at every client.

    Args:
        config: Of the training.
        size: Of its graph.
    """
    rows = size.nodes + size.boundary
    return float(_COPIES * np.dtype(config.dtype).itemsize * rows * sum(row_widths(config, size)))


def attacking_bytes(config: RunConfig, size: GraphSize) -> float:
    """Return about how many bytes the attackers take that have most, two together."""
    rows = min(1.0, 2 * size.largest) * (size.nodes + size.boundary)
    widths = sum(min(width, MOST_COLUMNS) for width in row_widths(config, size))
    return float(_ATTACKING_COPIES * _ATTACKING_ITEM * rows * widths)


def predicting_bytes(config: RunConfig, size: GraphSize) -> float:
    """Return about how many bytes repeated predictions take beside what is kept of the training.

    All exchanges of one prediction as they crossed, one of the first, and of that the rows that one
    client was sent, twice, as it compares them.
    """
    if config.layers <= TELLING or config.later_rows != "full":
        return 0.0
    width = row_widths(config, size)[TELLING]
    first = np.dtype(config.dtype).itemsize * (size.nodes + size.boundary) * width
    return kept_bytes(config, size) / _COPIES + first + 2 * _ATTACKING_ITEM * size.boundary * width


def check_audit_memory(config: RunConfig, size: GraphSize) -> None:
    """Refuse an audit that takes more memory than this process may have.

    Rows are in memory, whatever the training would do: attacks read all of them.

    Raises:
        ConfigurationError: Names what it takes, and what there is.
    """
    kept = kept_bytes(config, size)
    training = max(memory_by_phase(config, size).values())
    most = training + kept + max(attacking_bytes(config, size), predicting_bytes(config, size))
    if most > budget_bytes(config):
        raise ConfigurationError(
            f"memory: an audit takes about {format_bytes(most)}, {format_bytes(kept)} of it for "
            f"rows that it keeps; expected at most the {format_bytes(budget_bytes(config))} that "
            "this process may have: a smaller graph of like shape, a smaller hidden, or --force"
        )
