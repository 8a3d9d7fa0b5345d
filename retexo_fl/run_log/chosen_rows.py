"""Of which rows a basis was made, where validation nodes chose, and by how much."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Self

from retexo_fl.run_log.json_form import OMITTED

#: Own rows are taken with an error that is lower by this share: of ties, a layer that reads both
#: makes more of sums.
MARGIN: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRows:
    """What was chosen, and the least squared errors a validation node of ridge regressions.

    Attributes:
        rows: ``own`` or ``sums``.
        own: The error with a basis of each node's own rows; None where no client has
            enough validation nodes.
        sums: The same with one of sums over neighbours.
    """

    rows: str
    own: float | None = field(default=None, metadata=OMITTED)
    sums: float | None = field(default=None, metadata=OMITTED)

    @classmethod
    def of(cls, own: float | None = None, sums: float | None = None) -> Self:
        """Choose by the errors of both, if there are any."""
        takes_own = own is not None and sums is not None and own < (1 - MARGIN) * sums
        return cls(rows="own" if takes_own else "sums", own=own, sums=sums)

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        if self.own is None or self.sums is None:
            return "basis-rows sums: no client has enough validation nodes to choose by"
        return (
            f"basis-rows {self.rows}, by validation nodes: squared error {self.own:.4g} with own "
            f"rows, {self.sums:.4g} with sums (own has to be {MARGIN:.0%} lower)"
        )
