"""What a client's owner allows a run: keys of ``agent.toml``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from retexo_fl.algorithms import ALGORITHMS
from retexo_fl.config import DEVICES
from retexo_fl.errors import ConfigurationError
from retexo_fl.gaussian_privacy import MOST_EPSILON
from retexo_fl.masking.agreement import LEAST
from retexo_fl.plugins import is_plugin
from retexo_fl.process_memory import PROCESS_BYTES, available_bytes

_MOST_SHOWN: Final = 60
_MOST_COUNT: Final = 2**31 - 1
_MIB: Final = 2**20
#: However little memory there is, the small questions of a training come in.
_LEAST_QUESTION_BYTES: Final = 16 * _MIB
#: What ``second-rows`` may be, from what reveals least to most.
ROWS: Final = ("none", "class", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a run may ask of one client; :mod:`retexo_fl.agent.admission` compares.

    Attributes:
        devices: What trainings compute on here, such as ``cuda:0,cpu``, whatever a run says; empty
            leaves it to the run, within ``allow_devices``.
        allow_devices: At most these GPUs and so many CPU workers; ``auto`` allows all GPUs and a
            worker for each core.
        allow_plugins: Extensions ``module:attribute`` that a run may have this agent import.
        allow_algorithms: Algorithms that a run may train by.
        least_train_nodes: Fewest train nodes that an update, or a mini-batch in it, may be of.
        most_rounds: Rounds of a layer.
        most_questions: That are answered about one part, in all jobs together.
        most_memory_mib: Estimated memory of a training, and, less what the process itself takes, of
            all messages together that are read or answered; 0 for all that the agent may have.
        require_secure_aggregation: Runs without masked sums are refused.
        least_clients: Fewest clients that a masked sum may be over.
        most_rows: What peers may be sent after the first exchange, by a run's ``second-rows``.
        max_epsilon: Runs whose sums have no noise are refused, and noised sums of all jobs
            together beyond this epsilon; 0 for neither.
        max_epsilon_delta: The delta that goes with it.
        max_row_epsilon: Runs whose first rows are not noised classes are refused, and such classes
            of all jobs together beyond this epsilon; 0 for neither.
        tell_sizes: The server learns how large the graph is, where keys of a run follow from that:
            ends of edges, features other than zero, vectors of an exchange; and how many rows
            mini-batches have read, where features are cached.
    """

    devices: str = ""
    allow_devices: str = "auto"
    allow_plugins: tuple[str, ...] = ()
    allow_algorithms: tuple[str, ...] = ("lazy",)
    least_train_nodes: int = 10
    most_rounds: int = 1000
    most_questions: int = 100_000
    most_memory_mib: float = 0.0
    require_secure_aggregation: bool = False
    least_clients: int = LEAST
    most_rows: str = "full"
    max_epsilon: float = 0.0
    max_epsilon_delta: float = 1e-5
    max_row_epsilon: float = 0.0
    tell_sizes: bool = True

    @property
    def most_bytes(self) -> float:
        """Memory that a training may take."""
        return self.most_memory_mib * _MIB or available_bytes()

    @property
    def question_bytes(self) -> int:
        """Memory that all questions together may take that are read or answered."""
        return max(int(self.most_bytes) - PROCESS_BYTES, _LEAST_QUESTION_BYTES)

    def __post_init__(self) -> None:
        """Check each key."""
        for key, text in (
            ("devices", self.devices or "auto"),
            ("allow-devices", self.allow_devices),
        ):
            if not DEVICES.allows(text):
                raise _unusable(key, text, DEVICES.expected)
        for name in self.allow_plugins:
            if not is_plugin(name):
                raise _unusable("allow-plugins", name, "strings of the form module:attribute")
        for name in self.allow_algorithms:
            if name not in ALGORITHMS:
                raise _unusable("allow-algorithms", name, f"some of {', '.join(ALGORITHMS)}")
        if self.most_rows not in ROWS:
            raise _unusable("most-rows", self.most_rows, f"one of {', '.join(ROWS)}")
        self._check_counts()

    def _check_counts(self) -> None:
        for key, count in (
            ("least-train-nodes", self.least_train_nodes),
            ("most-rounds", self.most_rounds),
            ("most-questions", self.most_questions),
        ):
            if not 1 <= count <= _MOST_COUNT:
                raise _unusable(key, count, f"1 to {_MOST_COUNT}")
        if not LEAST <= self.least_clients <= _MOST_COUNT:
            raise _unusable("least-clients", self.least_clients, f"{LEAST} at least")
        for key, epsilon in (
            ("max-epsilon", self.max_epsilon),
            ("max-row-epsilon", self.max_row_epsilon),
        ):
            if not 0 <= epsilon <= MOST_EPSILON:
                raise _unusable(key, epsilon, f"0 to {MOST_EPSILON:g}")
        if not 0 < self.max_epsilon_delta < 1:
            raise _unusable("max-epsilon-delta", self.max_epsilon_delta, "above 0, below 1")
        if not 0 <= self.most_memory_mib < math.inf:
            raise _unusable("most-memory-mib", self.most_memory_mib, "a number from 0")


def _unusable(key: str, value: object, expected: str) -> ConfigurationError:
    shown = repr(value[:_MOST_SHOWN] if isinstance(value, str) else value)
    return ConfigurationError(f"{key}: got {shown}; expected {expected}")
