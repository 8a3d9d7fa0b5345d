"""The model of one stage: a GNN layer with what RETEXO puts around it, and its flat form.

Stage m < K - 1 trains ``dropout, layer, LayerNorm, ReLU, Linear(H, C)``; the last stage trains
``dropout, layer`` with C outputs. What a stage passes on is ``ReLU(LayerNorm(layer))``; the
linear head serves the stage's own loss. Where the last layer is solved for instead of trained
(``solver = ridge``), the stages before it have no weights: they pass the rows on that their layer
reads, its sums over neighbours.

Source: RETEXO (Kolluri et al.), section 3.1 and its released code.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Final, Self

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.config import RunConfig
from retexo_fl.config.value_forms import ATTENDING
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.aggregate import AggregatedLayer
from retexo_fl.layers.base import GraphLayer, LayerShape, glorot
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.named import layer_class
from retexo_fl.layers.relational import RelSageLayer
from retexo_fl.relations import Relations, TypedStage
from retexo_fl.training.basis import basis_width
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.model_checks import (
    check_basis_rows,
    check_directed_links,
    check_second_rows,
    check_solved,
    is_solvable,
    relations_read,
    taught_types,
)
from retexo_fl.training.recipe import check_factors, objective_of
from retexo_fl.transfers import borrowed

#: Models that a thread has at once for clients in turn: those of a stage, of the one before, and of
#: a floor.
_MOST_SHARED: Final = 8
#: K of :mod:`.label_sums`: on graphs of three to ten classes a fourth length still helped on
#: validation nodes.
LABEL_HOPS: Final = 4


def label_columns_of(classes: int) -> int:
    """Return how many columns :mod:`.label_sums` makes of C ``classes``."""
    return LABEL_HOPS * (classes + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a K-layer GNN.

    Attributes:
        model: Layer name or ``module:attribute``.
        layers: K.
        inputs: H_0, width of what the first layer reads: the input features, or their coordinates.
        hidden: ``hidden`` of the configuration.
        heads: Attention heads.
        classes: C.
        dtype: ``float32`` or ``float64``.
        heads_between: Every layer but the last has a linear head for a loss of its own; a model
            that is trained end to end has none.
        features_before_basis: F where the first layer reads coordinates of a basis; 0 without one.
        basis_of_sums: The basis is of what the first layer sums, so that features cross.
        chooses_basis: It is of that, or of each node's own rows though features cross, as
            validation nodes decide while it is made.
        reads_all_far: It is of sums over two edges, too, with evened columns, in a graph of types.
        sends_layer_inputs: Peers are sent what a layer reads where that is narrower than what it
            makes, and compute the rest.
        crosses_once: Rows cross before the first stage alone, as they are: of what they become a
            peer computes what it can (``second-rows = none``, ``class``).
        class_bits: Before later stages owners say in so many bits which class they predict of a
            node (``second-rows = class``); 0 where they do not.
        tells_classes: Of a node a noised class of its own features crosses in place of its row, and
            nothing else (``row-dp``).
        passes_sums: Layers before the last have no weights, and pass on what they read.
        validates_penalty: The last layer is solved for with the penalty that validation nodes
            choose.
        clips_products: What it is solved for from has noise, and all train nodes add as much to it
            (:mod:`.clipped_products`).
        wants_floor: A model of the same rows that is solved for is compared with the trained one.
        edge_features: A, attributes of each edge; 0 for layers that read none.
        relations: Types of nodes and relations, of a model that reads them; None of others.
        predicted: Of these the relation whose edges are learned, a number; None of others.
        made_columns: Features made of edges (:mod:`.columns`) by ``column_steps``; 0 of others.
        num_bases: Matrices that relations share; 0: each has one of its own.
        taught: Types without labels whose weights are trained by the labels of nodes that their
            rows go to (:meth:`.RelSageLayer.examples`). What a layer reads of all nodes crosses
            before it is trained then, and nothing after it.
        refines: The last two layers are trained together at the end, where types are taught: peers
            have what the first of them reads, so that nothing but weights crosses (:mod:`.joint`).
        sums_labels: They are made of train labels along edges (:mod:`.label_sums`).
        is_weightless: No layer has weights: rows of C values come in, and go on.
        link_head: How links are scored from two embeddings, ``dot`` or ``mlp``; empty where nodes
            are classified.
        directed_links: Half of an embedding is of a node where an edge begins, half where one ends.
    """

    model: str
    layers: int
    inputs: int
    hidden: int
    heads: int
    classes: int
    dtype: str
    heads_between: bool = True
    features_before_basis: int = 0
    basis_of_sums: bool = False
    chooses_basis: bool = False
    reads_all_far: bool = False
    sends_layer_inputs: bool = False
    crosses_once: bool = False
    tells_classes: bool = False
    class_bits: int = 0
    passes_sums: bool = False
    validates_penalty: bool = False
    clips_products: bool = False
    wants_floor: bool = False
    edge_features: int = 0
    relations: Relations | None = None
    num_bases: int = 0
    taught: tuple[int, ...] = ()
    refines: bool = False
    predicted: int | None = None
    is_weightless: bool = False
    link_head: str = ""
    directed_links: bool = False
    made_columns: int = 0
    column_steps: int = 0
    sums_labels: bool = False

    @classmethod
    def of(
        cls,
        config: RunConfig,
        *,
        inputs: int,
        classes: int,
        edge_features: int = 0,
        relations: Relations | None = None,
        is_structural: bool = False,
    ) -> Self:
        """Take the sizes of a configuration for data with so many features (``inputs``).

        Raises:
            ConfigurationError: The model has no basis of such rows, or cannot be solved for, or
                trained on links.
        """
        check_factors(config)
        objective = objective_of(config)
        objective.check_model(config.model)
        algorithm = config.traits
        relations, predicted = relations_read(config, relations, inputs)
        check_second_rows(config, relations, is_structural=is_structural)
        directed_links = check_directed_links(config, relations, predicted)
        is_weightless = not algorithm.trains
        made_of = config.structure if is_structural and algorithm.trains else ""
        columns, steps = {
            "columns": (config.structure_columns, config.structure_steps),
            # What crosses before the first step is no other than what is known of a node.
            "labels": (label_columns_of(classes), LABEL_HOPS + 1),
        }.get(made_of, (0, 0))
        if is_weightless:
            inputs = classes
        before, solves = 0, config.solver == "ridge"
        taught = taught_types(config, relations)
        if algorithm.end_to_end or solves:
            taught = ()
        if solves:
            check_solved(config, relations)
        if config.basis != "none":
            before = inputs
            check_basis_rows(config)
            inputs = basis_width(blocks=config.basis_blocks, classes=classes, features=before)
        return cls(
            model=config.model,
            layers=config.layers,
            inputs=inputs,
            hidden=config.hidden,
            heads=config.heads,
            classes=classes,
            dtype=config.dtype,
            heads_between=not algorithm.end_to_end,
            features_before_basis=before,
            # Types without labels have no train nodes, of whose own rows it could be.
            basis_of_sums=before > 0 and (config.basis_rows != "own" or relations is not None),
            # Where it is the whole space, both span the same.
            chooses_basis=(inputs < before and config.basis_rows == "choose" and relations is None),
            reads_all_far=before > 0 and config.basis_rows == "far",
            # A sum that a peer would send is of rows behind a layer, not before it.
            sends_layer_inputs=(
                config.row_bits < 32
                and effective_plan(config) == "rows"
                # The model of a floor reads what crossed in a training.
                and (not solves or config.wants_floor)
            ),
            crosses_once=config.second_rows != "full",
            class_bits=max(1, (classes - 1).bit_length()) if config.second_rows == "class" else 0,
            tells_classes=config.row_dp > 0,
            passes_sums=solves,
            validates_penalty=solves and config.ridge_penalty == "validation",
            clips_products=solves and config.update_dp > 0,
            wants_floor=config.wants_floor and is_solvable(config.model) and relations is None,
            edge_features=0 if layer_class(config.model).attributes == "none" else edge_features,
            relations=relations,
            num_bases=config.num_bases,
            taught=taught,
            refines=bool(taught) and config.unlabelled_types == "refined",
            predicted=predicted,
            is_weightless=is_weightless,
            link_head=objective.link_head,
            directed_links=directed_links,
            made_columns=columns,
            column_steps=steps,
            sums_labels=made_of == "labels",
        )

    @classmethod
    def of_part(cls, config: RunConfig, part: GraphPartition) -> Self:
        """Take the sizes of a configuration for the data of a part; see :meth:`of`."""
        return cls.of(
            config,
            inputs=part.num_features,
            classes=config.goal.outputs or part.num_classes,
            edge_features=part.edge_values.num_attributes,
            relations=part.relations,
            is_structural=part.is_structural,
        )

    @property
    def features(self) -> int:
        """Width of the input features."""
        return self.features_before_basis or self.inputs

    @property
    def has_basis(self) -> bool:
        """Whether the first layer reads coordinates of the features."""
        return self.basis_blocks > 0

    @property
    def basis_blocks(self) -> int:
        """How many blocks of directions a basis is made of, C each but the last; 0 without one."""
        return -(-self.inputs // self.classes) if self.features_before_basis else 0

    @property
    def coordinates_cross(self) -> bool:
        """Whether what crosses before the first stage are coordinates, and not features."""
        return self.basis_blocks > 0 and not self.basis_of_sums

    @property
    def crosses_ahead(self) -> bool:
        """Whether a layer is trained one stage after the one before which its input rows crossed.

        What it reads of both ends of an edge crosses first then, as
        :attr:`.RunConfig.crosses_ahead` has it.
        """
        return bool(self.link_head) and self.model not in ATTENDING

    @property
    def joins_one_end(self) -> bool:
        """Whether of two nodes that are scored one is joined with neighbours, the other by itself.

        Otherwise both are, or none is scored.
        """
        return bool(self.link_head) and not self.crosses_ahead

    def stage_of(self, layer: int) -> int:
        """Return the stage that trains a layer, of a training layer by layer."""
        return layer + int(self.crosses_ahead)

    @property
    def stages(self) -> int:
        """Stages of a training layer by layer."""
        return self.stage_of(self.layers)

    @property
    def has_floor(self) -> bool:
        """Whether peers have what a floor reads: what the first of two layers reads."""
        is_trained = self.wants_floor and not self.passes_sums
        return (
            is_trained and self.layers == 2 and self.basis_blocks > 0 and self.crosses_as_inputs(1)
        )

    @property
    def floor(self) -> ModelShape:
        """What the trained model is compared with (:mod:`.floor`)."""
        return replace(self, passes_sums=True, validates_penalty=True)

    @property
    def beyond(self) -> Mapping[int, tuple[ModelShape, int]]:
        """Return what a question of a stage after the last is of, and which stage of that."""
        return {self.trained_stages: (self.floor, self.layers - 1)} if self.has_floor else {}

    @property
    def refinement(self) -> int | None:
        """The stage after all layers' own that trains the last two together, where there is one."""
        return self.stages if self.refines else None

    def refined_rounds(self, config: RunConfig) -> int:
        """Return how many rounds the refinement takes at most: as many as the last layer."""
        return (config.last_rounds or config.rounds) if self.refines else 0

    @property
    def trained_stages(self) -> int:
        """How many stages train: one for each layer, and the refinement."""
        return self.stages + self.refines

    @property
    def column_stages(self) -> range:
        """Stages after all others: before each crosses what a step makes of columns."""
        return range(self.trained_stages + 1, self.trained_stages + max(self.column_steps, 1))

    @property
    def far_types(self) -> tuple[int, ...]:
        """Types of whose rows a basis of sums is two edges away, too, as the next layer reads them.

        These sums cross before :attr:`far_stage`: of all types, or of those alone that labelled
        nodes do not read one edge away.
        """
        if self.relations is None or not self.basis_of_sums or self.layers < 2:
            return ()
        if self.reads_all_far:
            return tuple(range(len(self.relations.types)))
        return self.relations.far_from(self.relations.with_labels)

    @property
    def far_stage(self) -> int:
        """The stage after all others, before which sums of :attr:`far_types` cross."""
        return self.trained_stages + max(self.column_steps, 1)

    @property
    def later_stages(self) -> tuple[int, ...]:
        """Stages after all others before which anything crosses."""
        return (*self.column_stages, *([self.far_stage] if self.far_types else []))

    @property
    def made_degrees(self) -> int:
        """How many degrees there are beside columns made of edges."""
        return self.features - self.made_columns

    @property
    def mixed_columns(self) -> int:
        """Columns made of edges that are mixed, by what their products add up to."""
        return 0 if self.sums_labels else self.made_columns

    @property
    def outputs(self) -> int:
        """Width of what a stage's loss is of: C logits, or the embedding of a link's end."""
        return self.hidden if self.link_head else self.classes

    @property
    def state_width(self) -> int:
        """H_m for m >= 1: the width of the rows that a stage passes on."""
        return self.hidden // self.heads if layer_class(self.model).uses_heads else self.hidden

    @property
    def row_width(self) -> int:
        """Width of the rows that a stage makes: twice that of its layer's, if types are taught."""
        return self.state_width * (2 if self.taught else 1)

    def input_width(self, stage: int) -> int:
        """H_stage: the width of the rows that a stage's layer reads of each node."""
        if not self.passes_sums:
            return self.inputs if stage == 0 or self.is_weightless else self.row_width
        return self._read_width(stage - 1) if stage else self.inputs

    def _read_width(self, stage: int) -> int:
        """Return the width of the rows that a stage's layer makes of those that come in."""
        return layer_class(self.model).crossing_width(self.layer_shape(stage)) or 0

    @property
    def read_width(self) -> int:
        """Return the width of the rows that the last layer's trained part reads, if it is fixed."""
        return self._read_width(self.layers - 1)

    def exchange_width(self, stage: int) -> int:
        """Return the width of the vectors exchanged before a stage."""
        if stage in self.column_stages:
            return self.classes if self.sums_labels else self.made_columns
        if self.far_types and stage == self.far_stage:
            return self.features
        if stage and self.class_bits:
            return self.class_bits
        beside = 0 if self.crosses_once else layer_class(self.model).num_factors
        if not stage:
            return beside + (self.features if self.basis_of_sums else self.inputs)
        return self._layer_input_width(stage) or self.input_width(stage) + beside

    def read_into(self, stage: int) -> tuple[int, ...] | None:
        """Return the types into whose nodes a stage, or a layer end to end, reads rows along edges.

        None where rows cross along all edges: without types, and where edges are learned, of both
        of whose ends rows are needed. What crosses before :attr:`far_stage` is read by labelled
        nodes, as the last layer reads. No types where nothing crosses before a later stage.
        """
        if self.crosses_once and stage and not self.class_bits:
            return ()
        if self.relations is None or self.link_head:
            return None
        typed = self.layer_shape(min(stage, self.layers - 1)).typed
        return None if typed is None else typed.kinds

    @property
    def further_plans(self) -> range:
        """Stages, or layers, before which other rows may cross than before the first."""
        is_alike = self.read_into(0) is None and (not self.crosses_once or self.class_bits > 0)
        return range(1, 1 if is_alike else self.layers)

    def crosses_as_inputs(self, stage: int) -> bool:
        """Return whether what crosses before a stage is what the layer before it reads."""
        return stage > 0 and self._layer_input_width(stage) is not None

    def _layer_input_width(self, stage: int) -> int | None:
        """Return the width of what the layer before a stage reads, where that is sent."""
        layer, before = layer_class(self.model), self.layer_shape(stage - 1)
        if self.taught:
            return layer.crossing_width(before) if stage < self.layers else None
        width = layer.crossing_width(before) if self.link_head else layer.fixed_width(before.inputs)
        if not (self.sends_layer_inputs or self.link_head) or width is None:
            return None
        # A factor that the sender multiplies with goes along.
        width += layer.message_scale(np.zeros(1)) is not None
        return width if self.link_head or width < self.state_width else None

    def teaches(self, stage: int) -> bool:
        """Return whether what crosses before the next stage does so before this one is trained."""
        return bool(self.taught) and stage < self.layers - 1

    def has_weights(self, stage: int) -> bool:
        """Return whether a stage's layer has weights."""
        return not (self.is_weightless or (self.passes_sums and stage < self.layers - 1))

    def layer_shape(self, stage: int) -> LayerShape:
        """Return the sizes of a stage's layer."""
        outputs = self.outputs if stage == self.layers - 1 else self.state_width
        outputs = outputs if self.has_weights(stage) else 0
        return LayerShape(
            inputs=self.input_width(stage),
            outputs=outputs,
            hidden=self.hidden,
            heads=self.heads,
            edge_features=self.edge_features,
            typed=TypedStage.of(
                self.relations,
                self.predicted,
                reads_features=stage == 0 and not self.features_before_basis,
                hops=self.layers - 1 - stage,
                trains_all=not self.heads_between,
                num_bases=self.num_bases,
                taught=self.taught if stage < self.layers - 1 else (),
                doubled=self.taught if stage else (),
            ),
        )


class StageModel(torch.nn.Module):
    """The parameters of one stage, every one of them trained and saved.

    Parameter names: ``layer.*``, and before the last stage ``norm.weight``, ``norm.bias``, and
    where there are heads ``head.weight`` ((H, C)), ``head.bias``. Those of a layer without weights
    are empty. Where links are scored by an MLP, ``pair.*`` and ``link.*`` of it, which read a half
    of each embedding of links with directions.
    """

    def __init__(self, shape: ModelShape, stage: int) -> None:
        super().__init__()
        dtype = getattr(torch, shape.dtype)
        layer_shape = shape.layer_shape(stage)
        self.layer: GraphLayer = layer_class(shape.model)(layer_shape)
        self.is_last = stage == shape.layers - 1
        self.passes_sums = shape.passes_sums and not self.is_last
        self.teaches = shape.teaches(stage)
        self.has_weights = shape.has_weights(stage)
        self.has_norm = self.has_weights and not self.is_last
        if self.has_norm:
            self.norm = torch.nn.LayerNorm(layer_shape.outputs)
        self.has_head = shape.heads_between and self.has_norm
        if self.has_head:
            self.head = torch.nn.Linear(layer_shape.outputs, shape.outputs)
        self.scores_by_mlp, self.has_directions = shape.link_head == "mlp", shape.directed_links
        if self.scores_by_mlp:
            width = shape.outputs // 2 if self.has_directions else shape.outputs
            self.pair = torch.nn.Linear(width, width)
            self.link = torch.nn.Linear(width, 1)
        self.to(dtype)

    @cached_property
    def flat(self) -> FlatParameters:
        """Its parameters as one vector."""
        return FlatParameters(self)

    def reset_parameters(self, *, seed: int, stage: int) -> None:
        """Draw initial parameters, keyed by seed and stage; the same for every client count."""
        text = f"{seed}/{stage}/parameters".encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        generator = torch.Generator().manual_seed(number & (2**63 - 1))
        if self.has_weights:
            self.layer.reset_parameters(generator)
        if self.has_norm:
            self.norm.reset_parameters()
        if self.has_head:
            glorot(self.head.weight, generator)
            torch.nn.init.zeros_(self.head.bias)
        if self.scores_by_mlp:
            for linear in (self.pair, self.link):
                glorot(linear.weight, generator)
                torch.nn.init.zeros_(linear.bias)

    def embed(self, batch: object, dropout: KeyedDropout | None = None) -> torch.Tensor:
        """Return the (R, H) rows that the next layer reads; dropout only end to end.

        They are (R, 2 H) where types are taught: such a node's as drawn weights make it beside.
        """
        result: torch.Tensor = F.relu(self.norm(self.layer(batch, dropout)))
        if not self.teaches:
            return result
        assert isinstance(self.layer, RelSageLayer)
        beside = torch.zeros_like(result)
        for places, rows in self.layer.rows_as_drawn(batch):
            beside = beside.index_copy(0, places, F.relu(self.norm(rows)))
        return torch.cat([result, beside], dim=1)

    def classify(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Return (R, C) logits, or the (R, D) embeddings that links are scored by."""
        rows: torch.Tensor = self.layer(batch, dropout)
        if self.is_last:
            return rows
        result: torch.Tensor = self.head(F.relu(self.norm(rows)))
        return result

    def ends(self, rows: torch.Tensor, *, begins: bool | torch.Tensor) -> torch.Tensor:
        """Return what links are scored by of (n, D) embeddings: all of it, or (n, D / 2).

        Args:
            rows: Embeddings.
            begins: Whether links begin, or end, at the nodes; of each (n,), or of all.
        """
        if not self.has_directions:
            return rows
        at_source, at_target = rows.chunk(2, dim=-1)
        if isinstance(begins, bool):
            return at_source if begins else at_target
        return torch.where(begins[:, None], at_source, at_target)

    def score(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return the (n,) logits of links between nodes by what they are scored by; symmetric."""
        product = first * second
        if not self.scores_by_mlp:
            return product.sum(dim=-1)
        result: torch.Tensor = self.link(F.relu(self.pair(product)))[..., 0]
        return result

    def score_all(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return the (n, m) logits of links between n nodes and m others."""
        if not self.scores_by_mlp:
            return first @ second.T
        return self.score(first[:, None], second[None])


class _ModelsOfThread(threading.local):
    def __init__(self) -> None:
        self.of = lru_cache(maxsize=_MOST_SHARED)(_shared_model)


def _shared_model(layer: type[GraphLayer], shape: ModelShape, stage: int) -> StageModel:
    del layer  # Another one may come under a name.
    model = StageModel(shape, stage)
    model.flat.release()
    return model


_MODELS: Final = _ModelsOfThread()


def model_in_turn(shape: ModelShape, stage: int) -> StageModel:
    """Return a model that computes for one client after the other, each binding its weights.

    The clients of a process compute in turn, so all that are made in one thread have the same, and
    none has to be made for each. A layer that is not an :class:`.AggregatedLayer` may keep what it
    prepares: it is its client's own.
    """
    layer = layer_class(shape.model)
    if issubclass(layer, AggregatedLayer):
        return _MODELS.of(layer, shape, stage)
    return StageModel(shape, stage)


class FlatParameters:
    """Lets a module's parameters be views of a flat vector, which is never copied.

    Attributes:
        shapes: Of the parameters, in the module's order.
        size: P.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = list(module.parameters())
        self.shapes = tuple(parameter.shape for parameter in self._parameters)
        self.size = sum(shape.numel() for shape in self.shapes)

    def values(self) -> np.ndarray:
        """Return a copy of all parameters, in the module's order: (P,)."""
        return torch.cat([item.detach().reshape(-1) for item in self._parameters]).numpy()

    def bind(self, flat: np.ndarray) -> None:
        """Read the parameters from a (P,) vector, until the next call; it must not change."""
        self.bind_tensor(borrowed(flat))

    def bind_tensor(self, flat: torch.Tensor) -> None:
        """Do what :meth:`bind` does, on the device of the vector."""
        parts = torch.split(flat, [shape.numel() for shape in self.shapes])
        for parameter, part, shape in zip(self._parameters, parts, self.shapes, strict=True):
            parameter.data = part.view(shape)

    def release(self) -> None:
        """Hold no values, so that a waiting client costs no memory; shapes are kept."""
        for parameter in self._parameters:
            parameter.data = parameter.data.new_empty(0)


def num_weights(shape: ModelShape, stage: int) -> int:
    """Return P of a stage."""
    return _num_weights(layer_class(shape.model), shape, stage)


@lru_cache
def _num_weights(layer: type[GraphLayer], shape: ModelShape, stage: int) -> int:
    del layer  # Another one may come under a name.
    return FlatParameters(StageModel(shape, stage)).size


def initial_weights(
    shape: ModelShape, stage: int, *, seed: int, before: np.ndarray | None = None
) -> np.ndarray:
    """Return the (P,) weights a stage starts from.

    Args:
        shape: Sizes of the model.
        stage: Stage index.
        seed: Of what is drawn.
        before: Weights of the stage before, with whose head this one's classifier starts: its head,
            or the last layer where :meth:`.GraphLayer.start_as` can. None draws it.
    """
    model = StageModel(shape, stage)
    model.reset_parameters(seed=seed, stage=stage)
    if before is not None:
        last = StageModel(shape, stage - 1)
        FlatParameters(last).bind(before)
        if model.is_last:
            model.layer.start_as(last.head.weight.detach().T, last.head.bias.detach())
        else:
            model.head.load_state_dict(last.head.state_dict())
    return FlatParameters(model).values()


def named_weights(shape: ModelShape, stage: int, flat: np.ndarray) -> dict[str, np.ndarray]:
    """Split a stage's (P,) weights into its named tensors."""
    model = StageModel(shape, stage)
    FlatParameters(model).bind(flat)
    return {name: item.detach().numpy().copy() for name, item in model.named_parameters()}


def flat_weights(shape: ModelShape, stage: int, named: dict[str, np.ndarray]) -> np.ndarray:
    """Join named tensors to (P,) weights: the inverse of :func:`named_weights`."""
    names = [name for name, _ in StageModel(shape, stage).named_parameters()]
    return np.concatenate([named[name].reshape(-1) for name in names])
