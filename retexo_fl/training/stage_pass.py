"""A pass of one stage over some labelled nodes: loss, gradient and tallies, on any device.

Symbols: N inner nodes, n nodes of one use, P parameters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch

from retexo_fl.layers.aggregate import AggregatedInput
from retexo_fl.layers.base import moved
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.judging import count_right, label_tensor
from retexo_fl.training.linear_step import LinearBatch, Turns, all_finite, is_linear
from retexo_fl.training.losses import check_loss, cross_entropy
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.stage_model import StageModel
from retexo_fl.training.tally import PassSums, Tally, tally
from retexo_fl.transfers import back, borrowed, onto

#: Rows computed at once. Fixed, since a product over other rows differs in its last bits; 8,192
#: rows of 256 float32 values are 8 MiB, about a core's share of cache. Chosen; not tuned.
ROWS_PER_BATCH = 8192

_CPU: Final = torch.device("cpu")
_TRAINED: Final = frozenset({"train"})
_VALIDATED: Final = frozenset({"validation"})
#: Uses of nodes that one pass computes.
BOTH: Final = _TRAINED | _VALIDATED
#: Of the models that clients have in turn, by the uses of nodes that are computed together.
_TURNS: Final[WeakKeyDictionary[StageModel, dict[frozenset[str], Turns]]] = WeakKeyDictionary()
#: Of rows that are judged.
_NO_DROPOUT: Final = KeyedDropout(rate=0.0, seed=0, stage=0, round=0, step=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSets:
    """Inner nodes of one client by use, each (n,) int64, ascending; labels of all N as stored.

    ``by_type`` are, where K types of nodes have labels and not one, (K, N) bool: nodes of each.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    labels: np.ndarray
    by_type: np.ndarray | None = None

    def types_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Return (K, n) bool of some nodes, or None."""
        return None if self.by_type is None else self.by_type[:, rows]

    @property
    def by_use(self) -> dict[str, np.ndarray]:
        """Nodes by the name of their use."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def only(self, uses: frozenset[str]) -> Self:
        """Return the same without nodes of other uses."""
        kept = {use: rows if use in uses else rows[:0] for use, rows in self.by_use.items()}
        return replace(self, **kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LabelledBatch:
    """Rows with labels; the first ``count`` are those of nodes, others teach."""

    rows: object
    labels: torch.Tensor
    count: int
    of_types: np.ndarray | None


class StageFacts:
    """What all passes of a stage on one device share.

    Attributes:
        model: Its model; the parameters hold no values between passes.
        flat: These parameters.
        prepared: What the layer prepared, on the CPU.
        recipe: Loss and metric.
        device: Where passes compute.
        is_linear: Passes are written out: on a CPU, and for layers and losses that allow it.
        in_one_pass: The written-out step validates on its way; it counts nothing but accuracy.
    """

    def __init__(
        self,
        model: StageModel,
        prepared: object,
        recipe: Recipe,
        device: torch.device = _CPU,
    ) -> None:
        self.model = model if device == _CPU else model.to(device)
        self.flat = model.flat
        self.flat.release()
        self.prepared = prepared
        self.recipe = recipe
        self.device = device
        plain = recipe.loss is cross_entropy
        self.is_linear = device.type == "cpu" and is_linear(model) and plain
        self.turns = _TURNS.setdefault(model, defaultdict(Turns))
        self.in_one_pass = self.is_linear and recipe.metric is None
        self.is_loss_checked = plain


class StagePass:
    """Computes some nodes of a stage; what does not change is prepared at the first pass."""

    def __init__(self, facts: StageFacts, nodes: NodeSets) -> None:
        self._facts = facts
        self._nodes = nodes
        self._batches: dict[str, list[_LabelledBatch]] = {}
        self._linear: dict[frozenset[str], list[LinearBatch]] = {}

    def sums(
        self,
        weights: np.ndarray | torch.Tensor,
        dropout: KeyedDropout,
        uses: frozenset[str] = _TRAINED,
    ) -> PassSums:
        """Return the gradient at (P,) ``weights`` and, on the way, validation where asked.

        Args:
            weights: On the device of the stage; an array on a CPU.
            dropout: Of the train nodes.
            uses: ``train``, and ``validation`` only where the stage is ``in_one_pass``.
        """
        if self._facts.is_linear:
            if uses not in self._linear:
                self._linear[uses] = self._linear_batches(self._nodes.only(uses))
            flat = weights if isinstance(weights, np.ndarray) else weights.numpy()
            turns = self._facts.turns[uses]
            parts = (turns.sums(batch, flat, dropout) for batch in self._linear[uses])
            total = next(parts, PassSums())
            for part in parts:
                total.add(part)
            return total
        assert uses == _TRAINED
        total = PassSums()
        self._facts.flat.bind_tensor(
            borrowed(weights) if isinstance(weights, np.ndarray) else weights
        )
        for batch in self._labelled("train"):
            total.add(self._differentiated(batch, dropout))
        self._facts.flat.release()
        return total

    @torch.no_grad()
    def tally(self, weights: np.ndarray | torch.Tensor, which: str) -> Tally:
        """Count over the ``train``, ``validation`` or ``test`` nodes, without dropout.

        Args:
            weights: (P,), as of :meth:`sums`.
            which: Use of the nodes.
        """
        facts, total = self._facts, Tally()
        if not len(getattr(self._nodes, which)):
            return total
        if which == "validation" and facts.in_one_pass:
            return self.sums(weights, _NO_DROPOUT, _VALIDATED).validation
        facts.flat.bind_tensor(borrowed(weights) if isinstance(weights, np.ndarray) else weights)
        for batch in self._labelled(which):
            logits = facts.model.classify(batch.rows, None)
            # A metric of the user's own may not work on another device.
            judged = back(logits), back(batch.labels)
            total += tally(*judged, facts.recipe, which, of_types=batch.of_types)
        facts.flat.release()
        return total

    def _linear_batches(self, nodes: NodeSets) -> list[LinearBatch]:
        prepared = self._facts.prepared
        assert isinstance(prepared, AggregatedInput)
        none = np.zeros(0, dtype=np.int64)
        pairs = zip_longest(chunks(nodes.train), chunks(nodes.validation), fillvalue=none)
        return [
            LinearBatch(
                self._facts.model,
                prepared,
                self._facts.flat.shapes,
                train=trained,
                validation=validated,
                labels=self._nodes.labels,
            )
            for trained, validated in pairs
        ]

    def _differentiated(self, batch: _LabelledBatch, dropout: KeyedDropout) -> PassSums:
        """Return the sums of one batch of any layer and loss, by automatic differentiation."""
        facts = self._facts
        logits = facts.model.classify(batch.rows, dropout)
        if not facts.is_loss_checked:
            check_loss(facts.recipe.loss, logits, batch.labels)
            facts.is_loss_checked = True
        parameters = facts.model.parameters()
        return differentiated(logits, batch.labels, facts.recipe, parameters, count=batch.count)

    def _labelled(self, which: str) -> Iterable[_LabelledBatch]:
        if which == "test":
            # Most nodes, and judged once.
            return self._selected(which)
        if which not in self._batches:
            self._batches[which] = list(self._selected(which))
        return self._batches[which]

    def _selected(self, which: str) -> Iterator[_LabelledBatch]:
        facts = self._facts
        layer = facts.model.layer
        for rows in chunks(getattr(self._nodes, which)):
            if which == "train" and facts.model.teaches:
                batch, of = layer.examples(facts.prepared, rows)
                labels = self._nodes.labels[rows[of]]
            else:
                batch, labels = layer.batch(facts.prepared, rows), self._nodes.labels[rows]
            yield _LabelledBatch(
                rows=moved(batch, facts.device),
                labels=onto(label_tensor(labels), facts.device),
                count=len(rows),
                of_types=self._nodes.types_of(rows),
            )


def differentiated(
    logits: torch.Tensor,
    labels: torch.Tensor,
    recipe: Recipe,
    parameters: Iterable[torch.nn.Parameter],
    *,
    count: int,
) -> PassSums:
    """Return the gradient of a loss in parameters, flat, and how nodes were judged on the way.

    Args:
        logits: (n, C), of any device.
        labels: Of them, as :mod:`.judging` has them.
        recipe: With the loss, which is a sum.
        parameters: P values; zeros of those that have no part in it.
        count: The first so many of n are nodes, others teach.
    """
    loss = recipe.loss(logits, labels)
    # Not backward(): it would add to a zeroed buffer, two more passes over P values.
    parts = torch.autograd.grad(loss, [*parameters], allow_unused=True, materialize_grads=True)
    flat = back(torch.cat([part.reshape(-1) for part in parts])).numpy()
    return PassSums(
        gradient_sum=flat,
        is_finite=all_finite(flat),
        train=Tally(
            count=count,
            loss_sum=float(loss.detach()),
            correct=int(count_right(logits.detach()[:count], labels[:count])),
        ),
    )


def chunks(rows: np.ndarray) -> list[np.ndarray]:
    """Cut rows into those that are computed at once."""
    return [rows[start : start + ROWS_PER_BATCH] for start in range(0, len(rows), ROWS_PER_BATCH)]
