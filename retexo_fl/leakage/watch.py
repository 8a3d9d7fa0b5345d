"""What each party of a training really receives: the server's answers, and peers' vectors.

It is called between the server and the clients of one process, and keeps what attacks read. It
changes no message, so that a watched training has the bits of the same training alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch

from retexo_fl.client.api import (
    AnswerT,
    BasisAnswer,
    BasisRequest,
    ClientApi,
    CollectAnswer,
    CollectRequest,
    GramAnswer,
    GramRequest,
    Request,
    Ticket,
    TrainAnswer,
    TrainRequest,
    question_of,
)
from retexo_fl.client.client import GraphClient
from retexo_fl.client.masks import ClientMasks
from retexo_fl.client.stage_rows import summed_rows, with_far_sums
from retexo_fl.config import RunConfig
from retexo_fl.graph.features import Features
from retexo_fl.layers.base import StageInput
from retexo_fl.masking.agreement import Agreement
from retexo_fl.masking.step import SharedStep
from retexo_fl.masking.streams import Sums
from retexo_fl.methods.ridge.answers import RidgeClient
from retexo_fl.training.basis import parted
from retexo_fl.training.clipped_products import clipped_rows
from retexo_fl.training.stage_model import ModelShape, num_weights
from retexo_fl.updates import UpdateKey
from retexo_fl.updates.masked import step_of
from retexo_fl.updates.zeros import Groups

#: Rounds of a stage that are kept from its beginning; besides, its last.
_FIRST_ROUNDS = 2


@dataclass(slots=True)
class WatchedRound:
    """One round of a stage as the server has it.

    Attributes:
        number: From 1.
        weights: (P,) that were sent to all.
        updates: (P,) by client, decoded.
        examples: Train nodes by client, as answered.
        noise: (P,) that each client added before its update was masked; nothing without any.
    """

    number: int
    weights: np.ndarray
    updates: dict[int, np.ndarray] = field(default_factory=dict)
    examples: dict[int, int] = field(default_factory=dict)
    noise: dict[int, np.ndarray] = field(default_factory=dict)

    def total_of(self, clients: Sequence[int]) -> np.ndarray:
        """Return the (P,) sum over those that answered, with its noise; in the given order."""
        shares = [
            of[client] for of in (self.updates, self.noise) for client in clients if client in of
        ]
        total: np.ndarray = np.sum(shares, axis=0)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSums:
    """What a client answers first where features become coordinates.

    Attributes:
        sums: (F,) over its train nodes, as the server decodes them.
        rows: (n, F) what they are of, which the server does not get.
    """

    sums: np.ndarray
    rows: Features


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """What a client answers where a last layer is solved for.

    Attributes:
        sums: (S,) as :func:`.gram_sums`: of ``A`` and ``Y``, whose ``S = (D + 1) (D + 2) / 2 +
            (D + 1) C`` values come first, and maybe more behind.
            Those of nodes that all add as much (:mod:`~retexo_fl.training.clipped_products`) are
            fewer.
        rows: (n, D) what they are of, scaled where all add as much; likewise ``labels``: the server
            gets neither.
        labels: (n,) classes.
        others: (m, D) rows of its validation and test nodes, as they would be added; likewise
            ``other_labels``.
        noise: (S,) that the client added before they were masked; None without any, where rows are
            as they are.
    """

    sums: np.ndarray
    rows: np.ndarray
    labels: np.ndarray
    others: np.ndarray
    other_labels: np.ndarray
    noise: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        client: RidgeClient,
        ticket: Ticket,
        sums: np.ndarray,
        *,
        noise: np.ndarray | None = None,
        clip: float | None = None,
    ) -> Products:
        """Return a client's sums beside what they are of, scaled to ``clip`` if one is named."""
        rows, nodes = client.rows_of_products(ticket), client.part.nodes
        labels = np.asarray(nodes.labels)
        scaled = rows if clip is None else clipped_rows(rows, clip)
        others = np.concatenate([nodes.validation, nodes.test])
        return cls(
            sums=sums,
            rows=scaled[nodes.train],
            labels=labels[nodes.train],
            others=scaled[others],
            other_labels=labels[others],
            noise=noise,
        )

    @property
    def told(self) -> np.ndarray:
        """The (S,) sums as they are masked."""
        return self.sums if self.noise is None else self.sums + self.noise


class Watch:
    """Keeps what the parties of one training in the clear receive.

    Args:
        config: Of the training.
        keeps_updates: Updates are kept, too, of which attacks are played on single nodes' losses.
        agreement: Of the same training under masks; None where there can be none, or nobody asks.

    Attributes:
        agreement: As given.
        shape: Of the model; None until a client has been asked anything.
        rounds: By stage, its first two rounds and its last, in the order of their numbers.
        inputs: By stage and client, what its layer reads: own rows, and what peers sent.
        crossed: By exchange, a number that counts up, and client: rows as they crossed.
        first_sums: By client, its first answer towards a basis.
        products: By client, its sums of products for the last layer, or for a floor.
    """

    def __init__(
        self, config: RunConfig, *, keeps_updates: bool, agreement: Agreement | None = None
    ) -> None:
        self.agreement = agreement
        self._clients = range(config.clients)
        self._seed = config.seed
        self._clip = config.update_dp_clip
        self._keeps_updates = keeps_updates
        self.shape: ModelShape | None = None
        self.rounds: dict[int, list[WatchedRound]] = defaultdict(list)
        self.inputs: dict[int, dict[int, StageInput]] = defaultdict(dict)
        self.crossed: dict[int, dict[int, StageInput]] = defaultdict(dict)
        self.first_sums: dict[int, FirstSums] = {}
        self.products: dict[int, Products] = {}

    def together(self, client: int) -> Sequence[int]:
        """Return with whom a client's sums over train nodes are opened under masks.

        All clients where there are no masks, and of a client whose cohort adds up no train nodes:
        masks leave it out of the training.
        """
        if self.agreement is None:
            return self._clients
        cohort = self.agreement.cohort_of(client)
        return cohort.members if "train" in cohort.uses else self._clients

    def watching(self, find: Callable[[str, int], GraphClient]) -> Callable[[str, int], ClientApi]:
        """Return what finds the same clients, watched."""
        return lambda job, client: _WatchedClient(self, find(job, client))

    def asked(self, client: GraphClient, request: Request[object]) -> np.ndarray | None:
        """Return the (P,) weights of a round's request, which are known before it is answered."""
        self.shape = client.shape
        if not self._keeps_updates:
            return None
        weights = None
        if isinstance(request, TrainRequest):
            if request.ticket.stage == client.shape.refinement:
                # Both layers' at once: what is made of an update is made of one layer's.
                return None
            size = num_weights(client.shape, request.ticket.stage)
            weights = client.weights.of_request(request, size)
            if weights is None:
                return None
        masks = client.masks
        if isinstance(masks, ClientMasks) and masks.noise is not None:
            # What is masked next is noted as the server would have it of this client alone.
            adding = masks.noise
            if isinstance(adding, _NotedNoise):
                adding = adding.adding
            masks.noise = _NotedNoise(self, client, weights, adding)
        return weights

    def answered(
        self,
        client: GraphClient,
        request: Request[object],
        answer: object,
        weights: np.ndarray | None,
    ) -> None:
        """Keep what an answer reveals, and what its client has received by then."""
        index = client.part.graph.client
        if isinstance(request, CollectRequest) and isinstance(answer, CollectAnswer):
            if answer.complete or request.close:
                stage, digest = request.ticket.stage, request.ticket.weights_digest
                crossed = client.crossing.crossed(stage, digest)
                self.crossed[stage][index] = crossed
                if stage in client.crossing.classes:
                    place = client.shape.stages + stage
                    self.crossed[place][index] = _classes_of(client, stage, digest, crossed)
        elif isinstance(answer, GramAnswer):
            self._note_products(client, cast("GramRequest", request), answer)
        elif isinstance(answer, BasisAnswer):
            self._note_sums(client, cast("BasisRequest", request), answer)
        elif (
            isinstance(request, TrainRequest)
            and isinstance(answer, TrainAnswer)
            and weights is not None
            and not answer.lacks_weights
        ):
            self._note_update(client, request, answer, weights)

    def _note_sums(self, client: GraphClient, request: BasisRequest, answer: BasisAnswer) -> None:
        index = client.part.graph.client
        if request.weights is not None or index in self.first_sums:
            return
        # Of both kinds of rows, where one is chosen, own ones come first; then come squares.
        count = (len(request.rows.split()) or 1) + client.shape.reads_all_far
        coded = parted(answer.sums, count)[0]
        if client.shape.basis_of_sums and not client.shape.chooses_basis:
            crossed = client.crossing.crossed(0, request.ticket.weights_digest)
            rows = summed_rows(client.shape, crossed)
            if client.shape.far_types:
                far = client.crossing.crossed(client.shape.far_stage, request.ticket.weights_digest)
                rows = with_far_sums(client.shape, rows, far)
        else:
            rows = client.crossing.features()
        self.first_sums[index] = FirstSums(
            sums=np.array(client.crossing.basis_form.decode_sums(coded)),
            rows=rows[client.part.nodes.train],
        )

    def _note_products(self, client: GraphClient, request: GramRequest, answer: GramAnswer) -> None:
        assert isinstance(client, RidgeClient)
        sums = np.array(answer.sums, dtype=float)
        self.products[client.part.graph.client] = Products.of(client, request.ticket, sums)

    def _note_update(
        self, client: GraphClient, request: TrainRequest, answer: TrainAnswer, weights: np.ndarray
    ) -> None:
        ticket, index = request.ticket, client.part.graph.client
        key = UpdateKey(
            seed=self._seed,
            job=ticket.job,
            stage=ticket.stage,
            round=ticket.round,
            client=index,
        )
        update = client.weights.updates.decode_update(answer.update_sum, key, request.steps or b"")
        dense = update.dense() if isinstance(update, Groups) else update
        noted = self._round(client, request, weights)
        noted.updates[index] = np.array(dense)
        noted.examples[index] = answer.examples

    def note_noised_products(
        self, client: GraphClient, request: GramRequest, numbers: tuple[Sums, Sums]
    ) -> None:
        """Keep sums of products before noise was added to them, and that noise."""
        assert isinstance(client, RidgeClient)
        unit = SharedStep.read(request.steps).unit
        before, after = (one.form.ring.signed(one.narrow) * unit for one in numbers)
        self.products[client.part.graph.client] = Products.of(
            client, request.ticket, before, noise=after - before, clip=self._clip
        )

    def note_noise(
        self,
        client: GraphClient,
        request: TrainRequest,
        weights: np.ndarray,
        numbers: tuple[Sums, Sums],
    ) -> None:
        """Keep an update before noise was added to it, and that noise."""
        index = client.part.graph.client
        noted = self._round(client, request, weights)
        before, after = (
            one.form.ring.signed(one.narrow) * step_of(self._clip, len(one.narrow))
            for one in numbers
        )
        noted.updates[index] = before
        noted.noise[index] = after - before
        noted.examples[index] = len(client.part.nodes.train)

    def without_noise(self) -> Watch:
        """Return the same with sums as they were before noise was added."""
        same = copy(self)
        same.rounds = defaultdict(
            list,
            {
                stage: [replace(one, noise={}) for one in rounds]
                for stage, rounds in self.rounds.items()
            },
        )
        same.products = {
            client: one if one.noise is None else replace(one, noise=np.zeros_like(one.noise))
            for client, one in self.products.items()
        }
        return same

    def _round(
        self, client: GraphClient, request: TrainRequest, weights: np.ndarray
    ) -> WatchedRound:
        ticket, index = request.ticket, client.part.graph.client
        rounds = self.rounds[ticket.stage]
        if not rounds or rounds[-1].number != ticket.round:
            del rounds[_FIRST_ROUNDS:]
            rounds.append(WatchedRound(ticket.round, weights.copy()))
        if index not in self.inputs[ticket.stage]:
            self.inputs[ticket.stage][index] = client.crossing.stage_input(
                ticket.stage, ticket.weights_digest
            )
        return rounds[-1]


@dataclass(frozen=True, slots=True)
class _NotedNoise:
    """Adds the noise of a client, and has it noted."""

    watch: Watch
    client: GraphClient
    weights: np.ndarray | None
    adding: Callable[[Request[Any], Sums, bytes, int], Sums]

    def __call__(self, request: Request[Any], numbers: Sums, told: bytes, honest: int) -> Sums:
        noised = self.adding(request, numbers, told, honest)
        if question_of(request).answer is GramAnswer:
            asked = cast("GramRequest", request)
            self.watch.note_noised_products(self.client, asked, (numbers, noised))
        elif isinstance(request, TrainRequest) and self.weights is not None:
            self.watch.note_noise(self.client, request, self.weights, (numbers, noised))
        return noised


def _classes_of(client: GraphClient, stage: int, digest: bytes, crossed: StageInput) -> StageInput:
    """Return classes that cross beside rows that are made here, as rows of indicators."""
    crossing, each = client.crossing, torch.eye(client.shape.classes, dtype=crossed.dtype)
    rows = crossing.rows(stage, digest)
    assert rows is not None, "an exchange is closed after they were made"
    own = crossing.own_classes(stage, digest, rows)
    return replace(crossed, own=each[own], received=each[crossing.peers_classes(stage, digest)])


class _WatchedClient:
    def __init__(self, watch: Watch, client: GraphClient) -> None:
        self._watch = watch
        self._client = client

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """See :class:`~retexo_fl.client.api.ClientApi`."""
        asked = cast("Request[object]", request)
        weights = self._watch.asked(self._client, asked)
        answer = self._client.ask(request)
        self._watch.answered(self._client, asked, answer, weights)
        return answer
