"""A client that trains on edges: which pairs of nodes have one (task ``links``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retexo_fl.client.api import (
    HelloAnswer,
    HelloRequest,
    PredictAnswer,
    PredictRequest,
    PublishRequest,
    Ticket,
)
from retexo_fl.client.crossing import Crossing, TrainerOf
from retexo_fl.client.part import ClientPart, node_sets
from retexo_fl.client.stage_rows import layer_inputs, with_layer_outputs
from retexo_fl.config import RunConfig
from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange import Vectors
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.plan.stage_edges import StageEdges
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.methods.predict.files import LinkPredictions
from retexo_fl.methods.predict.tables import MOST_SUGGESTED, predict_links
from retexo_fl.training.columns import with_structure
from retexo_fl.training.label_facts import uses_of
from retexo_fl.training.layer_trainer import LayerTrainer, StageTrainer
from retexo_fl.training.link_split import USES, LinkSplit
from retexo_fl.training.link_trainer import LinkTrainer
from retexo_fl.training.model_checks import predicted_relation
from retexo_fl.training.recipe import objective_of
from retexo_fl.training.stage_model import num_weights


class LinkCrossing(Crossing):
    """What crosses where stages are trained on pairs of nodes: what the layer before them reads.

    Of layers that attend to neighbours it is what the layer behind reads, as of nodes.
    """

    def read(self, part: GraphPartition) -> None:
        """Have layers read the edges of a part alone: those that are trained on."""
        self.part = part
        self.plan = replace(self.plan, edges=StageEdges.of_rows(part))

    def _made_rows(self, request: PublishRequest, trainer_of: TrainerOf) -> Vectors:
        del trainer_of
        if not self._shape.crosses_ahead:
            return super()._made_rows(request, self._layer_of)
        ticket, weights = request.ticket, request.weights
        layer = ticket.stage - 1
        if weights is None:
            raise LocalProtocolError(
                f"stage {ticket.stage}: the message has no weights; expected those of stage "
                f"{layer}, by which its rows are computed"
            )
        expected = num_weights(self._shape, layer - 1) if layer else 0
        self._weights.check(ticket, weights, expected)
        inputs = self.crossed(layer, request.previous_digest)
        if layer:
            inputs = with_layer_outputs(self._shape, layer, weights, inputs)
        return self._put(ticket, layer_inputs(self._shape, layer, inputs))

    def _layer_of(self, stage: int, digest: bytes) -> LayerTrainer:
        """Return what makes rows of all nodes; it trains nothing."""
        inputs, nodes = self.crossed(stage, digest), node_sets(self.part)
        return LayerTrainer(self._shape, stage, inputs, nodes, seed=self._config.seed)

    def _can_be_read(self, ticket: Ticket) -> bool:
        """Return True: rows that crossed are trained on as they are."""
        del ticket
        return True


class LinkPart(ClientPart):
    """A part without the edges that are held out; pairs of nodes are counted, not nodes."""

    def __init__(self, whole: ClientPart, split: LinkSplit, config: RunConfig) -> None:
        super().__init__(with_structure(split.part, config), config.model)
        self.edge_values = whole.edge_values
        self._pairs = split.pairs
        self._group_size = objective_of(config).group_size

    def counts(self) -> dict[str, int]:
        """Return how many pairs it counts of each use."""
        return {use: len(self._pairs[use]) * self._group_size(use) for use in USES}

    def label_uses(self) -> tuple[int, ...]:
        """Return the uses of edges, which are of one class."""
        return (uses_of(self.counts()),)

    def class_counts(self) -> tuple[int, ...]:
        """Return counts of edges by use, which are of one class."""
        return tuple(count * (use in self.uses) for use, count in self.counts().items())


class LinkClient(LazyClient):
    """Answers as a :class:`.LazyClient` does; what it counts are pairs of nodes.

    Layers read train edges alone. Rows cross along all edges, since both clients of an edge between
    them need the rows of both of its ends. Before stage 0 features cross, and nothing is trained;
    before stage m those rows cross that layer m - 1 reads, which stage m trains. Layers that attend
    to neighbours are trained by the stage before which their input rows cross, as on nodes.
    """

    crossing_class = LinkCrossing

    def __init__(self, partition: GraphPartition, config: RunConfig, **kept: Any) -> None:
        super().__init__(partition, config, **kept)
        if self._predictions is None:
            split = LinkSplit.asked(self.part.graph, config)
        else:
            predicted = predicted_relation(config, self.part.graph.relations)
            split = LinkSplit.whole(self.part.graph, predicted)
        self._links = split
        self.part = LinkPart(self.part, split, config)
        assert isinstance(self.crossing, LinkCrossing)
        self.crossing.read(self.part.graph)

    def hello(self, request: HelloRequest) -> HelloAnswer:
        """See :class:`~retexo_fl.client.api.ClientApi`.

        Raises:
            PartitionError: Every pair of nodes that it knows has an edge.
        """
        if self._predictions is None:
            for non_edges in (self._links.unseen, self._links.known):
                non_edges.check(self.part.graph.client)
        return replace(super().hello(request), classes=1)

    def _predicted(
        self, trainer: StageTrainer, request: PredictRequest
    ) -> tuple[LinkPredictions, PredictAnswer]:
        """Find the likeliest links of each node that ranks others; none of them is judged."""
        assert isinstance(trainer, LinkTrainer)
        found = trainer.suggested(request.weights, MOST_SUGGESTED)
        answer = PredictAnswer(
            nodes=sum(len(side.rows) for side in self._links.known.ranking),
            train=0,
            train_correct=0,
            validation=0,
            validation_correct=0,
            test=0,
            test_correct=0,
        )
        return predict_links(self.part.graph, *found), answer

    def _new_trainer(self, stage: int, digest: bytes) -> LinkTrainer:
        if stage < self.shape.stage_of(0):
            raise LocalProtocolError(
                "stage 0: asked to train; expected stage 1, of links the first"
            )
        config = self._config
        return LinkTrainer(
            self.shape,
            stage,
            self.crossing.crossed(stage, digest),
            self._links.only(self.part.uses),
            seed=config.seed,
            recipe=self._made.recipe,
            negatives=config.negatives,
        )
