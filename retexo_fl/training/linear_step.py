"""One round of a stage whose layer is a matrix product: validation, loss and gradient in one pass.

Layers that aggregate once per stage are a product behind a fixed input. Their step is written out:
train and validation rows go through the stage together, the gradient is formed in the flat vector
that leaves the client, and the weights are read where they arrived. For a client with few rows and
sparse features this halves the time of automatic differentiation, which all other layers use.

Symbols: T train rows, R train and validation rows, D and H widths of the layer's input and output,
C classes, P parameters.

Source: RETEXO (Kolluri et al.), section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Final, Self
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.layers.aggregate import AggregatedInput, AggregatedLayer
from retexo_fl.layers.base import RowBatch
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.fixed_rows import fixed_rows
from retexo_fl.layers.relational import RelSageLayer
from retexo_fl.training.stage_model import StageModel
from retexo_fl.training.tally import PassSums, Tally
from retexo_fl.transfers import borrowed
from retexo_fl.updates import array_digest

# Looked up once, by overload.
_NORM_BACKWARD: Final = torch.ops.aten.native_layer_norm_backward.default
_THRESHOLD_BACKWARD: Final = torch.ops.aten.threshold_backward.grad_input


#: Most room of what is computed at once. A row takes one, and 1 KiB of a float32 gradient.
_MOST_ROOM: Final = 4096
_VALUES_OF_ROW: Final = 256
#: Of dense rows of which gradients are clipped at once.
_MOST_DENSE_BYTES: Final = 2**26
#: So that rounding of a length does not make a gradient longer than the bound.
_SPARE: Final = 1 - 2.0**-40


def is_linear(model: StageModel) -> bool:
    """Return whether a stage's layer is one matrix product and nothing else."""
    layer = model.layer
    names = [name for name, _ in layer.named_parameters()]
    is_product = isinstance(layer, RelSageLayer) or (type(layer).forward is AggregatedLayer.forward)
    return is_product and names == ["weight", "bias"]


def all_finite(values: np.ndarray) -> bool:
    """Return whether no value is infinite or not a number."""
    # A finite sum has finite terms, and is a third of the cost; large terms may overflow it.
    return bool(np.isfinite(float(torch.from_numpy(values).sum())) or np.isfinite(values).all())


class LinearBatch:
    """Train and validation rows of one client that are computed at once.

    Attributes:
        rows: R.
        room: What it takes where several are computed together.
    """

    def __init__(
        self,
        model: StageModel,
        prepared: AggregatedInput,
        shapes: Sequence[tuple[int, ...]],
        *,
        train: np.ndarray,
        validation: np.ndarray,
        labels: np.ndarray,
    ) -> None:
        """Select the rows.

        Args:
            model: A model that :func:`is_linear`; its parameters are not read.
            prepared: The stage's aggregated input.
            shapes: Of the model's parameters.
            train: (T,) train nodes.
            validation: (R - T,) validation nodes.
            labels: (N,) classes of the client's nodes.
        """
        self._layout = _Layout.of(model, shapes)
        self._train = len(train)
        self._labels = np.concatenate((labels[train], labels[validation])).astype(np.int64)
        self.rows = len(self._labels)
        self.room = self.rows + self._layout.size // _VALUES_OF_ROW
        self._rows = fixed_rows(
            prepared.rows,
            prepared.hashes,
            train=train,
            others=validation,
            spare=self._layout.spare_rows,
        )
        self._spans = self._layout.spans(self._rows.filled)

    @classmethod
    def sums_of(
        cls, batches: Sequence[Self], weights: np.ndarray, dropout: KeyedDropout
    ) -> list[PassSums]:
        """Validate (P,) ``weights`` and form the gradient at them, for each of some batches.

        What acts on each row by itself is computed of all rows at once. Products are each batch's
        own: in a larger one, other bits.

        Args:
            batches: Of one model.
            weights: Of that.
            dropout: Of the train rows.
        """
        layout = batches[0]._layout
        parameters = layout.split(borrowed(weights).numpy())
        tail = None if layout.is_last else _Tail(parameters, eps=layout.norm_eps)
        counts = [batch.rows for batch in batches]
        hidden = parameters[0].new_empty((sum(counts), parameters[0].shape[1]))
        for batch, rows in zip(batches, torch.split(hidden, counts), strict=True):
            batch._rows.product(parameters[0], dropout, out=rows)
        logits = hidden.t().contiguous() if tail is None else tail.logits(hidden, counts)
        found = cls._losses(batches, logits.numpy())
        for place, (batch, sums, at_logits) in enumerate(
            zip(batches, found, torch.split(logits, counts, dim=1), strict=True)
        ):
            if not batch._train:
                continue
            upstream = at_logits[:, : batch._train]
            at_rows = upstream.t().contiguous() if tail is None else tail.gradient(upstream, place)
            flat = batch._rows.gradient(at_rows).view(-1)[: layout.size]
            behind = flat[layout.bias_at :]
            if tail is not None:
                torch.cat(tail.gradients, out=behind[at_rows.shape[1] :])
            sums.gradient_sum, sums.spans = flat.numpy(), batch._spans
            sums.is_finite = all_finite(behind.numpy())
        return found

    @staticmethod
    @np.errstate(invalid="ignore")
    def _losses(batches: Sequence[LinearBatch], logits: np.ndarray) -> list[PassSums]:
        """Return the losses; (C, R) ``logits`` of all batches become the gradients at them.

        Classes are in rows: NumPy's sums and maxima over C are then vectorised over R.
        """
        labels = np.concatenate([batch._labels for batch in batches])
        columns = np.arange(len(labels))
        logits -= logits.max(axis=0)
        correct = logits.argmax(axis=0) == labels
        picked = logits[labels, columns]
        # Of the largest logit 0 is left.
        largest = picked == 0
        shares = np.exp(logits, out=logits)
        # Of one row alone NumPy's sum would add the classes in another order.
        totals = shares.sum(axis=0) if len(labels) > 1 else shares.cumsum(axis=0)[-1]
        losses = np.log(totals) - picked
        shares /= totals
        shares[labels, columns] -= 1
        found, begin = [], 0
        for batch in batches:
            middle, end = begin + batch._train, begin + batch.rows
            train = Tally(
                count=batch._train,
                loss_sum=float(losses[begin:middle].sum()),
                correct=int(np.count_nonzero(largest[begin:middle])),
            )
            validation = Tally(
                count=end - middle,
                loss_sum=float(losses[middle:end].sum()),
                correct=int(np.count_nonzero(correct[middle:end])),
            )
            found.append(PassSums(train=train, validation=validation))
            begin = end
        return found


@dataclass(slots=True, eq=False)
class Turns:
    """Batches of one model whose clients are asked in turn about the same weights.

    The first that is asked in a round computes for those that were asked after it in the round
    before: most of a small client's step is calls of functions, which take as long for many rows.
    Each has the bits that it has alone.
    """

    _at: tuple[KeyedDropout, bytes] | None = None
    _asked: list[ref[LinearBatch]] = field(default_factory=list)
    _before: list[ref[LinearBatch]] = field(default_factory=list)
    _found: WeakKeyDictionary[LinearBatch, PassSums] = field(default_factory=WeakKeyDictionary)

    def sums(self, batch: LinearBatch, weights: np.ndarray, dropout: KeyedDropout) -> PassSums:
        """Return the sums of one batch, as :meth:`LinearBatch.sums_of`."""
        if batch.room > _MOST_ROOM // 2:
            return LinearBatch.sums_of([batch], weights, dropout)[0]
        at = dropout, array_digest(weights)
        if self._at != at:
            self._at, self._before, self._asked = at, self._asked, []
            self._found.clear()
        if batch not in self._found:
            together, waiting = [batch], [known() for known in self._before]
            if batch in waiting:
                ahead = [one for one in waiting[waiting.index(batch) :] if one is not None]
                ends = accumulate(one.room for one in ahead)
                together = ahead[: sum(end <= _MOST_ROOM for end in ends)]
                self._before = list(map(ref, ahead[len(together) :]))
            found = LinearBatch.sums_of(together, weights, dropout)
            self._found.update(zip(together, found, strict=True))
        self._asked.append(ref(batch))
        return self._found.pop(batch)


class _Tail:
    """``LayerNorm, ReLU, Linear`` behind a layer that is not the last.

    Source: Ba, Kiros and Hinton (2016), section 3.1 (LayerNorm).
    """

    def __init__(self, parameters: list[torch.Tensor], *, eps: float) -> None:
        _, self._norm_weight, self._norm_bias, self._head_weight, self._head_bias = parameters
        self._width = list(self._norm_weight.shape)
        self._eps = eps

    def logits(self, hidden: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """Return (C, R) for (R, H) rows of batches of so many; all stay until :meth:`gradient`."""
        rows, mean, rstd = torch.native_layer_norm(
            hidden, self._width, self._norm_weight, self._norm_bias, self._eps
        )
        rows.relu_()
        of_all = (torch.split(table, counts) for table in (rows, hidden, mean, rstd))
        self._saved = list(zip(*of_all, strict=True))
        bias = self._head_bias[:, None]
        logits = [torch.addmm(bias, self._head_weight, rows.t()) for rows, *_ in self._saved]
        return torch.cat(logits, dim=1) if len(logits) > 1 else logits[0]

    def gradient(self, upstream: torch.Tensor, place: int) -> torch.Tensor:
        """Return (T, H) for the (C, T) gradient at the logits of the first T rows of a batch.

        The flat gradients of the tail's parameters are in ``gradients``.
        """
        count, upstream = upstream.shape[1], upstream.contiguous()
        active, hidden, mean, rstd = (saved[:count] for saved in self._saved[place])
        at_rows = upstream.t() @ self._head_weight
        _THRESHOLD_BACKWARD(at_rows, active, 0, grad_input=at_rows)
        found, *at_norm = _NORM_BACKWARD(
            at_rows,
            hidden,
            self._width,
            mean,
            rstd,
            self._norm_weight,
            self._norm_bias,
            [True, True, True],
        )
        at_head = torch.mm(upstream, active).view(-1), torch.sum(upstream, dim=1)
        self.gradients = (*at_norm, *at_head)
        result: torch.Tensor = found
        return result


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where a stage's parameters are in its flat vector.

    Attributes:
        shapes: Of the layer's weight and bias as one table, then of the tail's parameters.
        is_last: There is no tail.
        norm_eps: LayerNorm's epsilon.
    """

    shapes: tuple[tuple[int, ...], ...]
    is_last: bool
    norm_eps: float

    @classmethod
    def of(cls, model: StageModel, shapes: Sequence[tuple[int, ...]]) -> Self:
        (inputs, width), _, *tail = shapes
        return cls(
            shapes=((inputs + 1, width), *tail),
            is_last=model.is_last,
            norm_eps=0.0 if model.is_last else model.norm.eps,
        )

    @cached_property
    def size(self) -> int:
        """P."""
        return sum(math.prod(shape) for shape in self.shapes)

    @cached_property
    def bias_at(self) -> int:
        """Where the layer's bias begins.

        Its gradient is the sum of all rows that the weight's gradient is a product with, so what
        follows from here on is finite only if all is: the inputs are.
        """
        inputs, width = self.shapes[0]
        return (inputs - 1) * width

    @property
    def spare_rows(self) -> int:
        """Rows of H values that hold what comes behind the layer's table."""
        return -(-(self.size - math.prod(self.shapes[0])) // self.shapes[0][1])

    def spans(self, filled: np.ndarray | None) -> np.ndarray | None:
        """Return the (n, 2) places outside which a gradient is zero, for rows of the table."""
        if filled is None:
            return None
        width = self.shapes[0][1]
        starts = np.append(filled[filled * width < self.bias_at] * width, self.bias_at)
        ends = np.append(starts[:-1] + width, self.size)
        return np.stack((starts, ends), axis=1)

    def split(self, flat: np.ndarray) -> list[torch.Tensor]:
        """Return views of a flat vector."""
        return [torch.from_numpy(flat[some].reshape(shape)) for some, shape in self._places]

    @cached_property
    def _places(self) -> list[tuple[slice, tuple[int, ...]]]:
        ends = list(accumulate(map(math.prod, self.shapes), initial=0))
        return list(zip(map(slice, ends, ends[1:]), self.shapes, strict=False))


# ---- clipped gradients, under noise ---


class ClippedPass:
    """Adds up gradients of one client's train nodes, each no longer than a bound.

    The gradient of one node is, of each table, the product of a row that comes in and a row of
    gradients. So its length follows from the lengths of these rows, |x^T g|_F^2 = |x|^2 |g|^2, and
    no gradient of a node is ever formed. All of it is in float64, so that what a sum of floats
    loses is far below what it is rounded to.

    Source: Goodfellow, "Efficient per-example gradient computations" (2015); Abadi et al., CCS
    2016, algorithm 1 (clipping).

    Args:
        model: A model that :func:`.is_linear`; its parameters are not read.
        prepared: What its layer has prepared.
        train: (T,) train nodes.
        labels: (N,) classes.
        clip: The bound, a Euclidean length.
    """

    def __init__(
        self,
        model: StageModel,
        prepared: object,
        *,
        train: np.ndarray,
        labels: np.ndarray,
        clip: float,
    ) -> None:
        assert is_linear(model), "keys of a run leave no other model"
        self._model = model
        self._prepared = prepared
        self._train = train
        self._labels = labels
        self._clip = clip

    def sums(self, weights: np.ndarray, dropout: KeyedDropout) -> PassSums:
        """Return the clipped gradients' (P,) float64 sum at (P,) weights, and no loss.

        A node whose gradient is not finite adds nothing.
        """
        parameters = [
            torch.from_numpy(piece.reshape(shape).astype(np.float64))
            for piece, shape in zip(
                np.split(weights, np.cumsum([s.numel() for s in self._shapes])[:-1]),
                self._shapes,
                strict=True,
            )
        ]
        total = [torch.zeros_like(one) for one in parameters]
        for rows, labels in self._batches(dropout):
            clipped = self._clipped(parameters, rows, labels)
            total = [one.add_(found) for one, found in zip(total, clipped, strict=True)]
        count = len(self._train)
        flat = torch.cat([one.reshape(-1) for one in total]).numpy() if count else None
        return PassSums(gradient_sum=flat, train=Tally(count=count))

    @property
    def _shapes(self) -> list[torch.Size]:
        return [torch.Size(shape) for shape in self._model.flat.shapes]

    def _batches(self, dropout: KeyedDropout) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield (R, D) float64 rows after dropout, and their (R,) classes."""
        height = max(1, _MOST_DENSE_BYTES // (8 * self._shapes[0][0]))
        for begin in range(0, len(self._train), height):
            nodes = self._train[begin : begin + height]
            batch = self._model.layer.batch(self._prepared, nodes)
            assert isinstance(batch, RowBatch)
            if isinstance(batch.rows, torch.Tensor):
                rows = dropout.dense(batch.rows, batch.hashes).to(torch.float64)
            else:
                pattern = batch.rows.pattern
                values = dropout.sparse(batch.rows, batch.hashes).to(torch.float64)
                rows = torch.zeros((len(nodes), pattern.num_columns), dtype=torch.float64)
                rows[pattern.rows, pattern.columns] = values
            yield rows, torch.from_numpy(self._labels[nodes].astype(np.int64))

    def _clipped(
        self, parameters: list[torch.Tensor], rows: torch.Tensor, labels: torch.Tensor
    ) -> list[torch.Tensor]:
        """Return the clipped gradients' sum for each parameter."""
        weight, bias, *tail = parameters
        hidden = torch.addmm(bias, rows, weight)
        if not tail:
            at_hidden = _at_logits(hidden, labels)
            squares = _square(at_hidden) * (_square(rows) + 1)
            at_hidden = self._factors(squares)[:, None] * torch.nan_to_num(at_hidden)
            return [rows.T @ at_hidden, at_hidden.sum(0)]
        norm_weight, norm_bias, head_weight, head_bias = tail
        normed, deviation = _normed(hidden, self._model.norm.eps)
        active = F.relu(normed * norm_weight + norm_bias)
        at_logits = _at_logits(torch.addmm(head_bias, active, head_weight.T), labels)
        at_active = (at_logits @ head_weight) * (active > 0)
        at_normed = at_active * norm_weight
        at_hidden = (
            at_normed
            - at_normed.mean(1, keepdim=True)
            - normed * (at_normed * normed).mean(1, keepdim=True)
        ) / deviation
        at_scale = at_active * normed
        squares = (
            _square(at_hidden) * (_square(rows) + 1)
            + _square(at_scale)
            + _square(at_active)
            + _square(at_logits) * (_square(active) + 1)
        )
        kept = self._factors(squares)[:, None]
        at_hidden, at_scale, at_active, at_logits = (
            kept * torch.nan_to_num(one) for one in (at_hidden, at_scale, at_active, at_logits)
        )
        active = torch.nan_to_num(active)
        return [
            *(rows.T @ at_hidden, at_hidden.sum(0), at_scale.sum(0), at_active.sum(0)),
            *(at_logits.T @ active, at_logits.sum(0)),
        ]

    def _factors(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the (R,) factors that make no gradient longer than the bound; 0 if not finite."""
        factors = (self._clip * _SPARE / squares.sqrt()).clamp(max=1.0)
        return torch.where(squares.isfinite(), factors, torch.zeros_like(factors))


def _square(rows: torch.Tensor) -> torch.Tensor:
    return rows.square().sum(1)


def _at_logits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the (R, C) gradient of the cross-entropy of each row."""
    return torch.softmax(logits, 1) - F.one_hot(labels, logits.shape[1])


def _normed(hidden: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (R, H) rows normalised, and what they were divided by (Ba et al., 2016)."""
    variance, mean = torch.var_mean(hidden, 1, correction=0, keepdim=True)
    deviation = (variance + eps).sqrt()
    return (hidden - mean) / deviation, deviation
