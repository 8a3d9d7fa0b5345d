"""What a recipe needs to know of a finished training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from retexo_fl.ledger import MEASURES, SERVER, TrafficLedger

#: What the paper counts: exchanges, and weights and updates of rounds. Evaluation, the weights that
#: come with an exchange, and messages without tensors are left out.
COUNTED_PURPOSES: Final = ("exchange", "train")
MODEL_KINDS: Final = ("updates_up", "weights_down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished training, as it is kept on disk.

    Attributes:
        result: What ``result.json`` holds.
        moved: One mapping for each kind, purpose and layer: these three, ``messages`` and the bytes
            of each measure, every byte once.
        history: One mapping for each round: ``stage``, ``round``, ``val_accuracy``.
        wall_s: It took, with all that comes before the first round.
    """

    result: Mapping[str, Any]
    moved: list[dict[str, Any]]
    history: list[dict[str, Any]]
    wall_s: float = 0.0

    @property
    def accuracy(self) -> float:
        """Share of all clients' test nodes that the selected model gets right."""
        return float(self.result["test_accuracy"])

    @property
    def clients(self) -> int:
        """How many there are."""
        return int(self.result["clients"])

    @property
    def vectors(self) -> int:
        """Vectors of one exchange, over all ordered pairs of clients."""
        return sum(int(row["boundary_vectors_out"]) for row in self.result["client_table"])

    @property
    def seconds(self) -> Mapping[str, float]:
        """Measured seconds of this process, in which the clients work one after the other."""
        parts: Mapping[str, float] = self.result["seconds"]
        return parts

    def bytes(
        self,
        measure: str = "payload",
        *,
        kinds: Iterable[str] = ("boundary", *MODEL_KINDS),
        purposes: Iterable[str] = COUNTED_PURPOSES,
    ) -> int:
        """Return the bytes of some kinds and purposes, each counted once, at its sender."""
        wanted_kinds, wanted_purposes = set(kinds), set(purposes)
        return sum(
            bytes_of(line, measure)
            for line in self.moved
            if line["kind"] in wanted_kinds and line["purpose"] in wanted_purposes
        )

    def boundary(self, measure: str = "payload") -> int:
        """Return the bytes of message passing, each counted once."""
        return self.bytes(measure, kinds=("boundary",))

    def model(self, measure: str = "payload") -> int:
        """Return the bytes of weights and updates of rounds, each counted once."""
        return self.bytes(measure, kinds=MODEL_KINDS)

    def at_clients(self, measure: str = "payload") -> int:
        """Return the bytes as the paper counts: a vector is both sent and received."""
        return 2 * self.boundary(measure) + self.model(measure)


def bytes_of(line: Mapping[str, Any], measure: str) -> int:
    """Return the bytes of one line; updates have their zeros, as published ones."""
    return int(line["raw" if line["kind"] == "updates_up" else measure])


def moved_lines(ledger: TrafficLedger) -> list[dict[str, Any]]:
    """Return what moved by kind, purpose and layer, over all clients, every byte once."""
    lines: dict[tuple[str, str, int], dict[str, Any]] = {}
    for account, volume in ledger.lines():
        if account.peer != SERVER and account.direction != "out":
            continue
        key = (account.kind, account.purpose, account.layer)
        line = lines.setdefault(
            key,
            {
                **dict(zip(("kind", "purpose", "layer"), key, strict=True)),
                "messages": 0,
                **dict.fromkeys(MEASURES, 0),
            },
        )
        line["messages"] += volume.messages
        for measure in MEASURES:
            more = getattr(volume, measure)
            known = line[measure]
            line[measure] = None if known is None or more is None else known + more
    return list(lines.values())
