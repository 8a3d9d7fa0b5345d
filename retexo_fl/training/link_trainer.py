"""Training of one layer to distinguish edges from pairs without one, on one client.

A stage trains the layer whose input rows (its sums over neighbours) crossed before it: so both
ends of an edge between clients have what the layer reads of either node, and the loss of every
edge is known to a client, whatever the weights. Each edge is counted at one of its ends.

A layer that attends to neighbours reads no fixed rows: the end whose client counts an edge is then
what the layer makes of it, and the other end what it makes of that node without any neighbour.

Edges with directions are scored by the source's first half of an embedding and the target's second.

Symbols: N inner nodes, B slots, D' width of what the layer reads, D of an embedding, n edges of
one use, c pairs without an edge for each, P weights.

Source: the score and its loss are those of GAE (Kipf and Welling, 2016); with directions of its
source/target autoencoders (Salha et al., CIKM 2019); training layer by layer is RETEXO's
(Kolluri et al.), section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np
import torch
from scipy.sparse import csr_array, vstack

from retexo_fl.layers.aggregate import AggregatedLayer, CrossedRows
from retexo_fl.layers.base import Rows, StageInput, compact_rows, without_edges
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.judging import NOTHING
from retexo_fl.training.layer_trainer import StageTrainer
from retexo_fl.training.linear_step import all_finite
from retexo_fl.training.link_split import LinkSplit, Pairs
from retexo_fl.training.metrics import metric_sums
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel
from retexo_fl.training.tally import PassSums, Tally, tally
from retexo_fl.transfers import borrowed

#: Pairs scored at once where no gradient is wanted.
_PAIRS_PER_BATCH: Final = 2**17
#: Values that are held at once where all pairs are scored.
_SCORES_PER_BATCH: Final = 2**24
#: Of each pair that is ranked: its score, the same in order, and its label.
_VALUES_OF_RANKING: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """(n, 1 + c) pairs: each edge, then those without one.

    Attributes:
        used: (R,) first nodes that occur, ascending, of the N + B; or second ones, too.
        beyond: (S,) second ones; None where they are among these.
        first: (n (1 + c),) places among the first.
        second: Likewise among the second.
        begins: (n (1 + c),) whether an edge would begin at the first.
        labels: (n (1 + c), 1) int64: 1 for an edge.
    """

    used: np.ndarray
    beyond: np.ndarray | None
    first: torch.Tensor
    second: torch.Tensor
    begins: torch.Tensor
    labels: torch.Tensor


class _Crossed:
    """Both ends by what the layer reads of them, which has crossed."""

    apart: ClassVar[bool] = False

    def __init__(self, model: StageModel, inputs: StageInput) -> None:
        self._model = model
        assert isinstance(model.layer, AggregatedLayer)
        self._layer = model.layer
        width = self._layer.crossing_width(self._layer.shape) or 0
        self._crossed = CrossedRows(
            rows=compact_rows(_stacked(inputs.own, inputs.received, width), inputs.dtype),
            hashes=np.concatenate([inputs.own_hashes, inputs.slot_hashes]),
            kinds=inputs.kinds,
            dtype=inputs.dtype,
        )

    def rows(
        self, used: np.ndarray, beyond: np.ndarray | None, dropout: KeyedDropout | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (R, D) embeddings of first nodes and the (S, D) of second ones.

        Args:
            used: (R,) of the N + B.
            beyond: (S,) likewise; None: the same.
            dropout: Of the layer.
        """
        found = self._model.classify(self._layer.crossed_batch(self._crossed, used), dropout)
        return found, found if beyond is None else self.rows(beyond, None, dropout)[0]


class _Attended:
    """A client's own end by all that it attends to, the other one by its own row alone.

    What a peer's node attends to is not known here. As in SVD++ (Koren, KDD 2008, equation 15) one
    end is what it is joined to, the other is itself: what the layer makes of it without any edge.
    """

    apart: ClassVar[bool] = True

    def __init__(self, model: StageModel, inputs: StageInput) -> None:
        self._model = model
        # Of all nodes: to choose edges anew for each round's pairs takes longer than to pass them.
        self._joined, self._alone = (
            model.layer.batch(model.layer.prepare(read), np.arange(read.num_nodes))
            for read in (inputs, without_edges(inputs))
        )

    def rows(
        self, used: np.ndarray, beyond: np.ndarray | None, dropout: KeyedDropout | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`_Crossed`; ``used`` are of the N."""
        assert beyond is not None
        first, second = (
            self._model.classify(batch, dropout).index_select(0, torch.from_numpy(nodes))
            for batch, nodes in ((self._joined, used), (self._alone, beyond))
        )
        return first, second


class LinkTrainer(StageTrainer):
    """Holds what is fixed in a stage: what its layer reads of own nodes and of peers'.

    Args:
        shape: Of the model.
        stage: Index, from 1.
        inputs: Its rows are those that crossed before the stage: (N, D') and (B, D'), maybe with
            the column of a factor; of layers that attend (N, D) and (B, D) of the edges that they
            read.
        split: The client's edges.
        seed: Of the training.
        recipe: Loss, metric and local steps.
        negatives: Pairs without an edge for each train edge.
    """

    def __init__(
        self,
        shape: ModelShape,
        stage: int,
        inputs: StageInput,
        split: LinkSplit,
        *,
        seed: int,
        recipe: Recipe,
        negatives: int = 1,
    ) -> None:
        super().__init__(stage, seed=seed, recipe=recipe)
        self._split = split
        self._negatives = negatives
        self._model = StageModel(shape, stage - shape.stage_of(0))
        self._flat = FlatParameters(self._model)
        self._flat.release()
        self.num_weights = self._flat.size
        self._ends = (_Crossed if shape.crosses_ahead else _Attended)(self._model, inputs)
        self._nodes = inputs.num_nodes
        self._judged: dict[str, _Drawn] = {}

    @torch.no_grad()
    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Judge the edges of a use against pairs without one, without dropout."""
        if which not in self._judged:
            self._judged[which] = self._judged_pairs(which)
        drawn, recipe = self._judged[which], self._recipe
        self._flat.bind_tensor(borrowed(weights))
        tables, places = self._ends.rows(drawn.used, drawn.beyond, None), range(len(drawn.labels))
        if recipe.ranks_nodes:
            recipe = replace(recipe, metric=None)
        # A group of pairs, an edge and those beside it, is not parted.
        group = 1 + recipe.judged_beside
        step = max(1, _PAIRS_PER_BATCH // group) * group
        total = Tally()
        for start in places[::step]:
            some = slice(start, start + step)
            scores = self._scores(tables, drawn, some)
            total += tally(scores[:, None], drawn.labels[some], recipe, which)
        if recipe is not self._recipe:
            total += Tally(metric_sums=self._ranked(which))
        self._flat.release()
        return total

    def _ranked(self, which: str) -> np.ndarray:
        """Return the metric's sums over nodes with edges of a use; the parameters stay bound."""
        sources, targets = self._everyone()
        metric, found = self._recipe.metric, NOTHING
        assert metric is not None
        for one in self._split.rankings(which, self._most_scores // _VALUES_OF_RANKING):
            scores = self._model.score_all(sources[one.nodes], targets[one.others])
            sums = metric_sums(metric, scores, torch.from_numpy(one.labels))
            found = found + sums if found.size else sums
        return found

    def _everyone(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the N own nodes are scored by as sources, and the N + B as targets."""
        everyone = np.arange(self._split.known.num_columns)
        used, beyond = (everyone[: self._nodes], everyone) if self._ends.apart else (everyone, None)
        first, second = self._ends.rows(used, beyond, None)
        return self._model.ends(first, begins=True), self._model.ends(second, begins=False)

    def _scores(
        self,
        tables: tuple[torch.Tensor, torch.Tensor],
        drawn: _Drawn,
        some: slice = slice(None),
    ) -> torch.Tensor:
        """Return the logits of some pairs, by the embeddings of first and second nodes."""
        first, second = tables
        begins = drawn.begins[some]
        return self._model.score(
            self._model.ends(first.index_select(0, drawn.first[some]), begins=begins),
            self._model.ends(second.index_select(0, drawn.second[some]), begins=~begins),
        )

    @property
    def _most_scores(self) -> int:
        """Of how many pairs scores are computed at once."""
        width = self._model.pair.in_features if self._model.scores_by_mlp else 1
        return _SCORES_PER_BATCH // width

    @torch.no_grad()
    def suggested(self, weights: np.ndarray, most: int) -> tuple[np.ndarray, ...]:
        """Find the pairs of each own node that are likeliest to have an edge, and have none.

        Of a relation of two types, of its sources alone; of edges with directions, those from it.

        Args:
            weights: (P,).
            most: Of each node.

        Returns:
            (n,) int64 inner nodes, ascending; (n,) int64 other ends, of the N + B, the likeliest
            first; (n,) their logits.
        """
        known = self._split.known
        self._flat.bind_tensor(borrowed(weights))
        sources, targets = self._everyone()
        found = []
        for side in known.ranking:
            others = targets if len(side.columns) == len(targets) else targets[side.columns]
            place = np.full(known.num_columns, -1)
            place[side.columns] = np.arange(len(side.columns))
            height = max(1, self._most_scores // len(side.columns))
            for start in range(0, len(side.rows), height):
                own = side.rows[start : start + height]
                scores = self._model.score_all(sources[own], others)
                taken, ends = known.ends_of(own)
                scores[taken, place[ends]] = -torch.inf
                itself = place[own]
                scores[np.flatnonzero(itself >= 0), itself[itself >= 0]] = -torch.inf
                best = scores.topk(min(most, len(others)), dim=1)
                kept = (best.values > -torch.inf).numpy()
                first = np.broadcast_to(own[:, None], kept.shape)[kept]
                second = side.columns[best.indices.numpy()[kept]]
                found.append((first, second, best.values.numpy()[kept]))
        self._flat.release()
        if not found:
            none = np.zeros(0, dtype=np.int64)
            return none, none, targets.new_zeros(0).numpy()
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))

    def _sums(self, weights: np.ndarray, place: KeyedDropout) -> PassSums:
        """Return the gradient at (P,) weights, of pairs drawn for this round and step."""
        pairs = self._split.pairs["train"]
        if not len(pairs):
            return PassSums()
        text = f"{place.seed}/{place.stage}/{place.round}/{place.step}"
        drawn = self._joined(pairs, *self._split.unseen.draw(pairs.keys, self._negatives, text))
        self._flat.bind_tensor(borrowed(weights))
        parameters = list(self._model.parameters())
        scores = self._scores(self._ends.rows(drawn.used, drawn.beyond, place), drawn)
        loss = self._recipe.loss(scores[:, None], drawn.labels)
        parts = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        flat = torch.cat([part.reshape(-1) for part in parts]).numpy()
        self._flat.release()
        return PassSums(
            gradient_sum=flat,
            is_finite=all_finite(flat),
            train=Tally(count=len(drawn.labels), loss_sum=float(loss.detach())),
        )

    def _judged_pairs(self, which: str) -> _Drawn:
        pairs = self._split.pairs[which]
        count = self._recipe.judged_beside
        first = pairs.first if self._recipe.ranks_beside_own_end else None
        text = f"{self._seed}/{which}"
        return self._joined(pairs, *self._split.known.draw(pairs.keys, count, text, first=first))

    def _joined(self, pairs: Pairs, first: np.ndarray, second: np.ndarray) -> _Drawn:
        """Put each of n edges before its (n, c) pairs without one."""
        rows = np.concatenate([pairs.first[:, None], first], axis=1).reshape(-1)
        others = np.concatenate([pairs.second[:, None], second], axis=1).reshape(-1)
        labels = np.zeros((len(pairs), 1 + first.shape[1]), np.int64)
        labels[:, :1] = 1
        ones, beyond = rows % max(1, self._nodes), None
        if self._ends.apart:
            used, one = np.unique(ones, return_inverse=True)
            beyond, other = np.unique(others, return_inverse=True)
        else:
            used, places = np.unique(np.stack([ones, others]), return_inverse=True)
            one, other = places.reshape(2, -1)
        return _Drawn(
            used=used,
            beyond=beyond,
            first=torch.from_numpy(one),
            second=torch.from_numpy(other),
            begins=torch.from_numpy(rows < self._nodes),
            labels=torch.from_numpy(labels.reshape(-1, 1)),
        )


def _stacked(own: Rows, received: Rows, width: int) -> Rows:
    """Return the first ``width`` columns of own rows above received ones; sparse where few are."""
    parts = [
        csr_array(part.numpy() if isinstance(part, torch.Tensor) else part)[:, :width]
        for part in (own, received)
    ]
    stacked = csr_array(vstack(parts, format="csr"))
    stacked.sort_indices()
    return stacked
