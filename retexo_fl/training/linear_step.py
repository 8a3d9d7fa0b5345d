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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final, Self

import numpy as np
import torch

from retexo_fl.layers.aggregate import AggregatedInput, AggregatedLayer
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.fixed_rows import fixed_rows
from retexo_fl.training.stage_model import StageModel
from retexo_fl.training.tally import PassSums, Tally

# Looked up once, by overload.
_NORM_BACKWARD: Final = torch.ops.aten.native_layer_norm_backward.default
_THRESHOLD_BACKWARD: Final = torch.ops.aten.threshold_backward.grad_input


def is_linear(model: StageModel) -> bool:
    """Return whether a stage's layer is one matrix product and nothing else."""
    layer = model.layer
    names = [name for name, _ in layer.named_parameters()]
    return type(layer).forward is AggregatedLayer.forward and names == ["weight", "bias"]


def all_finite(values: np.ndarray) -> bool:
    """Return whether no value is infinite or not a number."""
    # A finite sum has finite terms, and is a third of the cost; large terms may overflow it.
    return bool(np.isfinite(float(torch.from_numpy(values).sum())) or np.isfinite(values).all())


class LinearBatch:
    """Train and validation rows of one client that are computed at once."""

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
        self._columns = np.arange(len(self._labels))
        self._rows = fixed_rows(
            prepared.rows,
            prepared.hashes,
            train=train,
            others=validation,
            spare=self._layout.spare_rows,
        )
        self._spans = self._layout.spans(self._rows.filled)

    def sums(self, weights: np.ndarray, dropout: KeyedDropout) -> PassSums:
        """Validate (P,) ``weights`` and form the gradient at them."""
        parameters = self._layout.split(weights)
        tail = None if self._layout.is_last else _Tail(parameters, eps=self._layout.norm_eps)
        hidden = self._rows.product(parameters[0], dropout)
        logits = hidden.t().contiguous() if tail is None else tail.logits(hidden)
        sums, upstream = self._losses(logits.numpy())
        if not self._train:
            return sums
        if tail is not None:
            upstream = tail.gradient(upstream)
        table = self._rows.gradient(upstream.t().contiguous() if tail is None else upstream)
        flat = table.view(-1)[: self._layout.size].numpy()
        if tail is not None:
            tail.write(self._layout.split(flat))
        sums.gradient_sum, sums.spans = flat, self._spans
        sums.is_finite = all_finite(flat[self._layout.bias_at :])
        return sums

    def _losses(self, logits: np.ndarray) -> tuple[PassSums, torch.Tensor]:
        """Return the losses and the (C, T) gradient at the logits; (C, R) ``logits`` are used up.

        Classes stand in rows: NumPy's sums and maxima over C are then vectorised over R.
        """
        train, labels, columns = self._train, self._labels, self._columns
        logits -= logits.max(axis=0)
        correct = np.count_nonzero(logits[:, train:].argmax(axis=0) == labels[train:])
        picked = logits[labels, columns]
        shares = np.exp(logits, out=logits)
        totals = shares.sum(axis=0)
        losses = np.log(totals) - picked
        sums = PassSums(
            train=Tally(
                count=train,
                loss_sum=float(losses[:train].sum()),
                # Of the largest logit 0 is left.
                correct=int(np.count_nonzero(picked[:train] == 0)),
            ),
            validation=Tally(
                count=len(labels) - train,
                loss_sum=float(losses[train:].sum()),
                correct=int(correct),
            ),
        )
        upstream = shares[:, :train] / totals[:train]
        upstream[labels[:train], columns[:train]] -= 1
        return sums, torch.from_numpy(upstream)


class _Tail:
    """``LayerNorm, ReLU, Linear`` behind a layer that is not the last.

    Source: Ba, Kiros and Hinton (2016), section 3.1 (LayerNorm).
    """

    def __init__(self, parameters: list[torch.Tensor], *, eps: float) -> None:
        _, self._norm_weight, self._norm_bias, self._head_weight, self._head_bias = parameters
        self._eps = eps

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return (C, R) for (R, H); both stay needed until :meth:`gradient`."""
        width = list(self._norm_weight.shape)
        rows, self._mean, self._rstd = torch.native_layer_norm(
            hidden, width, self._norm_weight, self._norm_bias, self._eps
        )
        self._hidden, self._active = hidden, rows.relu_()
        return torch.addmm(self._head_bias[:, None], self._head_weight, self._active.t())

    def gradient(self, upstream: torch.Tensor) -> torch.Tensor:
        """Return (T, H) for the (C, T) gradient at the logits of the first T rows."""
        count = upstream.shape[1]
        self._upstream, self._active = upstream, self._active[:count]
        at_rows = upstream.t() @ self._head_weight
        _THRESHOLD_BACKWARD(at_rows, self._active, 0, grad_input=at_rows)
        found, self._norm_weight_grad, self._norm_bias_grad = _NORM_BACKWARD(
            at_rows,
            self._hidden[:count],
            list(self._norm_weight.shape),
            self._mean[:count],
            self._rstd[:count],
            self._norm_weight,
            self._norm_bias,
            [True, True, True],
        )
        result: torch.Tensor = found
        return result

    def write(self, parts: list[torch.Tensor]) -> None:
        """Complete the flat gradient, given as its parts."""
        _, norm_weight, norm_bias, head_weight, head_bias = parts
        norm_weight.copy_(self._norm_weight_grad)
        norm_bias.copy_(self._norm_bias_grad)
        torch.mm(self._upstream, self._active, out=head_weight)
        torch.sum(self._upstream, dim=1, out=head_bias)


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where a stage's parameters stand in its flat vector.

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
        stands from here on is finite only if all is: the inputs are.
        """
        inputs, width = self.shapes[0]
        return (inputs - 1) * width

    @property
    def spare_rows(self) -> int:
        """Rows of H values that hold what stands behind the layer's table."""
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
