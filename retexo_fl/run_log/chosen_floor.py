"""What a trained model was compared with at its end, and which of the two was kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from retexo_fl.run_log.json_form import OMITTED
from retexo_fl.units import format_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenFloor:
    """What was kept, and how both did on validation nodes, by the metric of the run.

    Attributes:
        kept: ``floor``, a ridge regression, or ``trained``.
        metric: Name of the metric.
        floor: Its value of the floor; None where no client has validation nodes.
        trained: Of the trained model.
    """

    kept: str
    metric: str = "accuracy"
    floor: float | None = field(default=None, metadata=OMITTED)
    trained: float | None = field(default=None, metadata=OMITTED)

    @property
    def keeps_floor(self) -> bool:
        """Whether the regression is kept."""
        return self.kept == "floor"

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        floor, trained = (format_metric(self.metric, v) for v in (self.floor, self.trained))
        what = "a ridge regression of the same rows" if self.keeps_floor else "the model"
        return (
            f"kept {what}, by validation nodes: {self.metric} {floor} of the regression (floor "
            f"one-shot), {trained} as trained"
        )
