"""One layer of an end-to-end round: forward now, backward when the gradient has come back."""

from __future__ import annotations

from collections.abc import Callable

import torch

from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.stage_model import StageModel


class LayerPass:
    """Computes a layer's rows, and later their gradients.

    Between the two the client may wait for its peers. What backward needs is kept, or with
    ``recompute`` only the layer's input is: the rows are then computed a second time, to the same
    bits, since dropout is keyed.

    Symbols: N inner nodes, B slots, D and H widths of input and output, R rows computed.
    """

    def __init__(
        self,
        model: StageModel,
        make_batch: Callable[[torch.Tensor], object],
        dropout: KeyedDropout,
        *,
        recompute: bool,
    ) -> None:
        self._model = model
        self._make_batch = make_batch
        self._dropout = dropout
        self._recompute = recompute

    def forward(self, stacked: torch.Tensor) -> torch.Tensor:
        """Return the (R, H) rows, or logits of the last layer, for (N + B, D) input rows."""
        self._stacked = stacked.requires_grad_()
        with torch.set_grad_enabled(not self._recompute):
            self._rows = self._computed()
        return self._rows.detach()

    def backward(self, upstream: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the gradients of the layer's parameters and of its input.

        Args:
            upstream: (R, H) gradient of what :meth:`forward` returned.

        Returns:
            One gradient for each parameter, and (N + B, D).
        """
        rows = self._computed() if self._recompute else self._rows
        wanted = [*self._model.parameters(), self._stacked]
        # The gradient of this sum is `upstream` to the bit. Given as such, PyTorch would compare
        # shapes by symbols, for which it loads 50 MB of a library.
        found = torch.autograd.grad(
            (rows * upstream).sum(), wanted, allow_unused=True, materialize_grads=True
        )
        del self._rows, self._stacked
        return list(found[:-1]), found[-1]

    def _computed(self) -> torch.Tensor:
        batch = self._make_batch(self._stacked)
        if self._model.is_last:
            return self._model.classify(batch, self._dropout)
        return self._model.embed(batch, self._dropout)
