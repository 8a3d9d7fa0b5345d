"""What owners allow whose clients are there to be tested."""

from __future__ import annotations

from typing import Any, Final

from retexo_fl.agent.limits import Limits
from retexo_fl.algorithms import ALGORITHMS

#: Lines of an ``agent.toml``: every algorithm, and clients of any size.
PERMISSIVE: Final[dict[str, Any]] = {
    "allow-algorithms": list(ALGORITHMS),
    "least-train-nodes": 1,
}
PERMISSIVE_LIMITS: Final = Limits(allow_algorithms=tuple(ALGORITHMS), least_train_nodes=1)
