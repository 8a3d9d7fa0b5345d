"""How many vectors the kinds of plans send, for one exchange of all clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.cover_plan import CoveredEdges
from retexo_fl.graph.plan.cut_edges import CutEdges


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCounts:
    """Vectors of one exchange, over all ordered pairs of the clients that were counted.

    Over all clients ``rows`` equals ``sums``: what is a row in one direction of a pair is a sum in
    the other.

    Attributes:
        rows: A row for each node with an edge to the other client.
        sums: A sum for each node of the other client with an edge to this one.
        better: Of each ordered pair the smaller of the two.
        cover: The fewest that stand for all edges.
    """

    rows: int = 0
    sums: int = 0
    better: int = 0
    cover: int = 0

    @property
    def saved(self) -> float:
        """Share of the rows that a cover saves; 0 where there are none."""
        return 1 - self.cover / self.rows if self.rows else 0.0

    def __add__(self, other: PlanCounts) -> PlanCounts:
        """Return the counts of both."""
        return PlanCounts(
            rows=self.rows + other.rows,
            sums=self.sums + other.sums,
            better=self.better + other.better,
            cover=self.cover + other.cover,
        )


def count_plans(partitions: Iterable[GraphPartition]) -> PlanCounts:
    """Count what the owners of some partitions send."""
    return sum((_counts(part) for part in partitions), start=PlanCounts())


def _counts(partition: GraphPartition) -> PlanCounts:
    if not partition.num_boundary:
        return PlanCounts()
    cut = CutEdges.of(partition)
    covered = CoveredEdges.of(cut)
    rows, sums = (np.diff(ends)[:, 0] for ends in (cut.sent_ends, cut.slot_ends))
    return PlanCounts(
        rows=int(rows.sum()),
        sums=int(sums.sum()),
        better=int(np.minimum(rows, sums).sum()),
        cover=len(covered.own) + len(covered.foreign),
    )
