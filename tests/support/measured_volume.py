"""What finished trainings moved, as the RETEXO paper counts it: from their ledgers alone.

Nothing here knows a closed form, so that what `retexo plan` predicts can be held against it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from retexo_fl.ledger import TrafficLedger, Volume

#: What a movement was for that the paper does not count.
_EVALUATION: Final = "evaluate"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredVolume:
    """Bytes of one training, each counted once, at its sender.

    Attributes:
        boundary_training: Vectors between clients that training needed.
        boundary_evaluation: Vectors between clients for validation and test alone.
        updates_up: Updates.
        weights_training: Weights that began a round.
    """

    boundary_training: int
    boundary_evaluation: int
    updates_up: int
    weights_training: int

    @classmethod
    def of(cls, run: Path, *, measure: str = "raw") -> Self:
        """Read a run directory.

        Args:
            run: Of a finished training.
            measure: ``raw`` or ``payload``.
        """
        with (run / "ledger.csv").open(encoding="utf-8", newline="") as lines:
            ledger = TrafficLedger.from_csv(lines)

        def moved(volume: Volume) -> int:
            size: int = getattr(volume, measure)
            return size

        boundary = moved(ledger.sum(kind="boundary"))
        evaluation = moved(ledger.sum(kind="boundary", purpose=_EVALUATION))
        return cls(
            boundary_training=boundary - evaluation,
            boundary_evaluation=evaluation,
            updates_up=moved(ledger.sum(kind="updates_up")),
            weights_training=moved(ledger.sum(kind="weights_down", purpose="train")),
        )

    @property
    def paper(self) -> int:
        """What the paper counts, at the clients: vectors both sent and received, no evaluation."""
        return 2 * self.boundary_training + self.weights_training + self.updates_up


def measured_gamma(lazy_run: Path, other_run: Path, *, measure: str = "raw") -> float:
    """Return how many times more one finished training moved than a finished lazy one.

    Args:
        lazy_run: Run directory of the lazy training.
        other_run: Run directory of the other one, on the same partitions.
        measure: ``raw``: dense tensors. ``payload``: after the codec.

    Source: RETEXO, section 3.2, equation 2, with measured volumes.
    """
    other = MeasuredVolume.of(other_run, measure=measure)
    return other.paper / MeasuredVolume.of(lazy_run, measure=measure).paper
