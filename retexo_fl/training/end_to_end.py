"""A round of the whole model on one client: all layers forward, all layers backward.

Between two layers the client and its peers pass embeddings forward and their gradients back; the
sum of all clients' gradients is then that of one client with the whole graph. Without peers
(``drop``, ``central``) nothing is passed.

Symbols: K layers, N inner nodes, B slots, H width of a hidden state, P parameters of all layers.

Source: RETEXO (Kolluri et al.), section 2.2, standard training; Wan et al. (BNS-GCN), MLSys 2022,
algorithm 1, with sampled boundary nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from retexo_fl.graph.plan.boundary import BoundaryPlan
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.boundary_rows import BoundaryRows
from retexo_fl.training.boundary_sampling import BoundaryDraw, BoundarySampling, with_slots
from retexo_fl.training.judging import label_tensor
from retexo_fl.training.layer_pass import LayerPass
from retexo_fl.training.layer_trainer import NodeSets
from retexo_fl.training.linear_step import all_finite
from retexo_fl.training.local_steps import take_steps
from retexo_fl.training.losses import check_loss, cross_entropy
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.rounds import Steps
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel
from retexo_fl.training.tally import LayerUpdate, PassSums, Tally, tally

#: Makes a layer's batch from the rows of own nodes above those of slots.
_MakeBatch = Callable[[torch.Tensor], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEndPlan:
    """How the whole model is trained.

    Attributes:
        boundary: By layer from the second on, what crosses before it inside rounds: no more than
            before the second, of which ``sampling`` draws for all.
        seed: Of the training.
        recipe: Loss, metric, local steps; more than one only where no peer takes part.
        sampling: How boundary nodes are sampled; None for all.
        recompute: Save memory by computing every layer twice.
    """

    boundary: Sequence[BoundaryPlan]
    seed: int
    recipe: Recipe
    sampling: BoundarySampling | None = None
    recompute: bool = False


class EndToEndTrainer:
    """Holds what is fixed in a training of the whole model: edges and the first layer's input.

    Attributes:
        shape: Of the model.
    """

    def __init__(
        self, shape: ModelShape, inputs: StageInput, nodes: NodeSets, *, plan: EndToEndPlan
    ) -> None:
        """Prepare the first layer.

        Args:
            shape: Of a model without heads between its layers.
            inputs: Features of own and boundary nodes, edges, degrees.
            nodes: Labelled nodes by use.
            plan: How to train.
        """
        self.shape = shape
        self._plan = plan
        self._nodes = nodes
        self._models = torch.nn.ModuleList(StageModel(shape, m) for m in range(shape.layers))
        self._flat = FlatParameters(self._models)
        self._flat.release()
        first = self._layer(0)
        self._prepared = first.layer.prepare(inputs)
        scale = first.layer.message_scale(inputs.degrees)
        self._boundary = [BoundaryRows(one, scale, plan.sampling) for one in plan.boundary]
        nothing = torch.empty(0, dtype=inputs.dtype)
        self._inputs = replace(inputs, own=nothing, received=nothing)
        self._makers: dict[tuple[int, str], _MakeBatch] = {}
        self._loss_checked = plan.recipe.loss is cross_entropy

    @property
    def num_weights(self) -> int:
        """P."""
        return self._flat.size

    def update_steps(
        self,
        weights: np.ndarray,
        *,
        round_number: int,
        dropout: float,
        correction: np.ndarray | None = None,
    ) -> Steps[LayerUpdate]:
        """Train from the incoming weights, and validate them.

        Args:
            weights: (P,) of the model's dtype, layer after layer.
            round_number: From 1.
            dropout: Rate in [0, 1).
            correction: (P,) what is added to the mean gradient of each of several local steps.

        Raises:
            TrainingDiverged: A loss, an embedding or a gradient is not finite.
        """
        keyed = KeyedDropout(rate=dropout, seed=self._plan.seed, stage=0, round=round_number)
        sums = yield from self._sums(weights, keyed)
        update_sum = yield from take_steps(
            self._plan.recipe.local,
            weights,
            sums,
            keyed,
            nodes=len(self._nodes.train),
            sums_at=self._sums,
            correction=correction,
        )
        validation = yield from self.tally_steps(weights, "validation")
        return LayerUpdate(update_sum=update_sum, train=sums.train, validation=validation)

    def tally_steps(self, weights: np.ndarray, which: str) -> Steps[Tally]:
        """Judge weights on the ``train``, ``validation`` or ``test`` nodes, without dropout."""
        self._flat.bind(weights)
        stacked = self._no_rows()
        for m in range(len(self._models)):
            model = self._layer(m)
            with torch.no_grad():
                batch = self._maker(m, which)(stacked)
                rows = model.classify(batch, None) if model.is_last else model.embed(batch)
            if not model.is_last:
                received = yield from self._boundary[m].forward(
                    rows.numpy(), None, label=f"{which}-{m + 1}", purpose="evaluate"
                )
                stacked = torch.cat([rows, torch.from_numpy(received)])
        self._flat.release()
        of_types = self._nodes.types_of(self._nodes.by_use[which])
        return tally(rows, self._labels(which), self._plan.recipe, which, of_types=of_types)

    def _sums(self, weights: np.ndarray, dropout: KeyedDropout) -> Steps[PassSums]:
        """Return the gradient at ``weights`` of all clients' losses with respect to own rows."""
        self._flat.bind(weights)
        draw = None
        if self._boundary:
            draw = yield from self._boundary[0].draw(self._inputs.slot_hashes, dropout.round)
        passes: list[LayerPass] = []
        stacked = self._no_rows()
        for m in range(len(self._models)):
            one = LayerPass(
                self._layer(m),
                self._maker(m, "train", draw),
                replace(dropout, stage=m),
                recompute=self._plan.recompute,
            )
            passes.append(one)
            rows = one.forward(stacked)
            if not self._layer(m).is_last:
                received = yield from self._crossing(m, draw).forward(
                    rows.numpy(), draw, label=f"forward-{m + 1}", purpose="train"
                )
                stacked = torch.cat([rows, torch.from_numpy(received)])
        loss, upstream = self._loss(rows)
        gradients = yield from self._backward(passes, upstream, draw)
        self._flat.release()
        flat = torch.cat([part.reshape(-1) for part in gradients]).numpy()
        train = Tally(count=len(self._nodes.train), loss_sum=loss)
        return PassSums(gradient_sum=flat, is_finite=all_finite(flat), train=train)

    def _backward(
        self, passes: list[LayerPass], upstream: torch.Tensor, draw: BoundaryDraw | None
    ) -> Steps[list[torch.Tensor]]:
        """Return the gradients of all parameters, in the model's order."""
        found: list[list[torch.Tensor]] = []
        for m in reversed(range(len(passes))):
            of_layer, of_input = passes[m].backward(upstream)
            found.insert(0, of_layer)
            if m:
                nodes = self._inputs.num_nodes
                own = of_input[:nodes].numpy()
                yield from self._crossing(m - 1, draw).backward(
                    of_input[nodes:].numpy(), own, draw, label=f"backward-{m}"
                )
                upstream = torch.from_numpy(own)
        return [part for of_layer in found for part in of_layer]

    def _loss(self, logits: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Return the train nodes' summed loss and its gradient at the (R, C) logits."""
        labels, loss = self._labels("train"), self._plan.recipe.loss
        if not len(labels):
            # A loss of the user's own need not be defined for no nodes.
            return 0.0, torch.zeros_like(logits)
        if not self._loss_checked:
            check_loss(loss, logits, labels)
            self._loss_checked = True
        leaf = logits.requires_grad_()
        value = loss(leaf, labels)
        (upstream,) = torch.autograd.grad(value, leaf)
        return float(value.detach()), upstream

    def _maker(self, m: int, which: str, draw: BoundaryDraw | None = None) -> _MakeBatch:
        """Return what makes the batch of layer ``m``: all nodes, or of the last one ``which``."""
        model = self._layer(m)
        target = which if model.is_last else "inner"
        if m and draw is not None and not model.layer.sums_messages:
            # A sum takes zeros for what was not drawn; attention must not see those edges.
            inputs = with_slots(self._inputs, self._boundary[0].plan, draw)
            return model.layer.trained_batches(inputs, self._rows(target))
        if (m, target) not in self._makers:
            self._makers[m, target] = self._made(m, target)
        return self._makers[m, target]

    def _made(self, m: int, target: str) -> _MakeBatch:
        layer = self._layer(m).layer
        if m:
            return layer.trained_batches(self._inputs, self._rows(target))
        batch = layer.batch(self._prepared, self._rows(target))
        return lambda stacked: batch

    def _crossing(self, m: int, draw: BoundaryDraw | None) -> BoundaryRows:
        """Return what carries the rows of layer ``m``, or those that were drawn of them."""
        return self._boundary[m if draw is None else 0]

    def _layer(self, m: int) -> StageModel:
        model = self._models[m]
        assert isinstance(model, StageModel)
        return model

    def _rows(self, target: str) -> np.ndarray:
        if target == "inner":
            return np.arange(self._inputs.num_nodes)
        nodes: np.ndarray = getattr(self._nodes, target)
        return nodes

    def _labels(self, which: str) -> torch.Tensor:
        return label_tensor(self._nodes.labels[self._rows(which)])

    def _no_rows(self) -> torch.Tensor:
        return torch.empty(0, dtype=self._inputs.dtype)
