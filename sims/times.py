"""Measured and modelled seconds of a training, which are never added."""

from __future__ import annotations

from typing import Any, NamedTuple

from sims.trained import Trained


class NetworkTime(NamedTuple):
    """Modelled seconds on the server's clock.

    Attributes:
        message_passing_s: Exchanges, with the messages that begin and end them, and inside rounds
            the waiting for vectors that clients send each other.
        aggregation_s: The rest of the rounds: weights down and updates up.
    """

    message_passing_s: float
    aggregation_s: float

    @property
    def total_s(self) -> float:
        """Both."""
        return self.message_passing_s + self.aggregation_s


def network_time(trained: Trained) -> NetworkTime:
    """Return what the modelled links cost; nothing where they are ideal.

    Greeting and evaluation are left out, that of each round's weights as well.
    """
    facts: dict[str, Any] | None = trained.result.get("network")
    if not facts:
        return NetworkTime(0.0, 0.0)
    between_s = facts["between_clients_s"]
    passing_s, validating_s = float(between_s["train"]), float(between_s["validation"])
    return NetworkTime(
        message_passing_s=float(facts["exchange_s"]) + passing_s - validating_s,
        aggregation_s=float(facts["train_s"]) - passing_s,
    )


def computing_s(trained: Trained) -> float:
    """Return the measured seconds of exchanges and rounds that a client takes, on average.

    The clients take turns in one process; side by side they would take this long.
    """
    seconds = trained.seconds
    return (seconds["exchange"] + seconds["train"]) / trained.clients
