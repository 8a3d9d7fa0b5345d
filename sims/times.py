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
        validation_s: Inside rounds, the waiting for vectors that only the validation of the round's
            weights needs: a pass over all layers' exchanges, forward.
    """

    message_passing_s: float
    aggregation_s: float
    validation_s: float

    @property
    def total_s(self) -> float:
        """Message passing and aggregation of training alone."""
        return self.message_passing_s + self.aggregation_s

    @property
    def with_validation_s(self) -> float:
        """The same, with the validation of each round's weights."""
        return self.total_s + self.validation_s


def network_time(trained: Trained) -> NetworkTime:
    """Return what the modelled links cost; nothing where they are ideal.

    Greeting and the evaluation after stages are left out.
    """
    facts: dict[str, Any] | None = trained.result.get("network")
    if not facts:
        return NetworkTime(0.0, 0.0, 0.0)
    between_s = facts["between_clients_s"]
    passing_s, validating_s = float(between_s["train"]), float(between_s["validation"])
    return NetworkTime(
        message_passing_s=float(facts["exchange_s"]) + passing_s - validating_s,
        aggregation_s=float(facts["train_s"]) - passing_s,
        validation_s=validating_s,
    )


def delays(algorithm: str, *, layers: int, rounds: int) -> NetworkTime:
    """Return how many delays, one after the other, a training waits for where nothing else costs.

    An exchange that opens a stage takes four: it is asked for, vectors go, their arrival is told,
    and the server hears of it. A round takes two, weights down and updates up. In each round
    end-to-end training sends the inputs of every layer but the first forward, and their gradients
    back; sampled training tells before that which vectors it wants. To validate the round's weights
    both send the inputs of every layer but the first forward a second time, all of them.

    Args:
        algorithm: ``lazy``, ``standard`` or ``bns``.
        layers: K.
        rounds: Of a layer, or of the whole model.
    """
    if algorithm == "lazy":
        return NetworkTime(4.0 * layers, 2.0 * layers * rounds, 0.0)
    steps = 2 * (layers - 1) + (algorithm == "bns")
    return NetworkTime(4.0 + steps * rounds, 2.0 * rounds, float((layers - 1) * rounds))


def computing_s(trained: Trained) -> float:
    """Return the measured seconds of exchanges and rounds that a client takes, on average.

    The clients take turns in one process; side by side they would take this long.
    """
    seconds = trained.seconds
    return (seconds["exchange"] + seconds["train"]) / trained.clients
