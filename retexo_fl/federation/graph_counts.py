"""What all clients report to have together, and which keys of the run follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from retexo_fl.client.api import NUM_SIZES, CountsAnswer, GraphSizes, HelloAnswer
from retexo_fl.config import RunConfig
from retexo_fl.config.profiles import Fitting, GraphFacts
from retexo_fl.training.fitting import fit
from retexo_fl.units import counted


def total_vectors(told: Iterable[HelloAnswer]) -> tuple[int, ...]:
    """Return how many vectors clients send before the first stage, and before each later one.

    The latter only where these may be others.
    """
    counts = zip(*((one.vectors_out, *one.vectors_later) for one in told), strict=True)
    return tuple(map(sum, counts))


def fitted(
    config: RunConfig,
    fitting: Fitting,
    hello: HelloAnswer,
    told: Sequence[HelloAnswer | CountsAnswer],
) -> tuple[RunConfig, str]:
    """Fit a run to what its clients report; return it, and a sentence that says what was fitted.

    Where not all of them say how large their graph is, nothing is fitted.

    Args:
        config: Of the run.
        fitting: What is left.
        hello: Of any client: widths are the same at all.
        told: Reports of each client or, under masks, of each cohort.
    """
    counts = _ToldCounts.of(hello, told)
    if counts.sizes.tellers == config.clients:
        return fit(config, fitting, counts)
    silent = config.clients - counts.sizes.tellers
    does = "does" if silent == 1 else "do"
    return config, f"as it is, since {counted(silent, 'client')} {does} not tell its graph's size"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToldCounts:
    """Sums over all clients: see :class:`.GraphCounts`."""

    nodes: int
    train: int
    hello: HelloAnswer
    sizes: GraphSizes

    @classmethod
    def of(cls, hello: HelloAnswer, parts: Sequence[HelloAnswer | CountsAnswer]) -> Self:
        none = (0,) * NUM_SIZES
        sums = (sum(column) for column in zip(none, *(p.sizes or none for p in parts), strict=True))
        return cls(
            nodes=sum(part.nodes for part in parts),
            train=sum(part.train for part in parts),
            hello=hello,
            sizes=GraphSizes(**dict(zip(GraphSizes.__slots__, sums, strict=True))),
        )

    @property
    def facts(self) -> GraphFacts:
        """What a profile is fitted to."""
        return GraphFacts(
            nodes=self.nodes,
            edges=self.sizes.edge_ends // 2,
            train_nodes=self.train,
            features=self.hello.features,
            classes=self.hello.classes,
            entries=self.sizes.entries,
            is_binary=self.sizes.ones == self.sizes.entries,
        )

    @property
    def edge_features(self) -> int:
        """Attributes of each edge."""
        return self.hello.edge_features

    def vectors(self, kind: str) -> int:
        """Return how many vectors one exchange has."""
        return self.sizes.cover if kind == "cover" else self.sizes.rows

    def feature_bytes(self, kind: str) -> int:
        """Return the payload of the exchange of input features."""
        return self.sizes.cover_bytes if kind == "cover" else self.sizes.rows_bytes
