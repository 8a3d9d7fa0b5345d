"""What each party of a training really receives: what the server is answered, what peers are sent.

Stands between the server and the clients of one process, and keeps what attacks read. It changes no
message, so that a watched training has the bits of the same training alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from retexo_fl.client.api import (
    AnswerT,
    BasisAnswer,
    BasisRequest,
    ClientApi,
    CollectAnswer,
    CollectRequest,
    Request,
    TrainAnswer,
    TrainRequest,
)
from retexo_fl.client.client import GraphClient
from retexo_fl.client.stage_rows import summed_rows
from retexo_fl.graph.features import Features
from retexo_fl.layers.base import StageInput
from retexo_fl.training.basis import parted
from retexo_fl.training.stage_model import ModelShape, num_weights
from retexo_fl.updates import UpdateKey
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
    """

    number: int
    weights: np.ndarray
    updates: dict[int, np.ndarray] = field(default_factory=dict)
    examples: dict[int, int] = field(default_factory=dict)

    @property
    def total(self) -> np.ndarray:
        """(P,) the sum, which is all that masked sums tell; in client order."""
        total: np.ndarray = np.sum([self.updates[c] for c in sorted(self.updates)], axis=0)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSums:
    """What a client answers first where features become coordinates.

    Attributes:
        sums: (F,) over its train nodes, as the server decodes them.
        rows: (n, F) what they are of, which the server is not told.
    """

    sums: np.ndarray
    rows: Features


class Watch:
    """Keeps what the parties of one training in the clear receive.

    Args:
        seed: Of the run, by which few-bit updates are decoded.
        keeps_updates: Updates are kept, too, of which attacks are played on single nodes' losses.

    Attributes:
        shape: Of the model; None until a client has been asked anything.
        rounds: By stage, its first two rounds and its last, in the order of their numbers.
        inputs: By stage and client, what its layer reads: own rows, and what peers sent.
        crossed: By exchange, a number that counts up, and client: rows as they crossed.
        first_sums: By client, its first answer towards a basis.
    """

    def __init__(self, seed: int, *, keeps_updates: bool) -> None:
        self._seed = seed
        self._keeps_updates = keeps_updates
        self.shape: ModelShape | None = None
        self.rounds: dict[int, list[WatchedRound]] = defaultdict(list)
        self.inputs: dict[int, dict[int, StageInput]] = defaultdict(dict)
        self.crossed: dict[int, dict[int, StageInput]] = defaultdict(dict)
        self.first_sums: dict[int, FirstSums] = {}

    def watching(self, find: Callable[[str, int], GraphClient]) -> Callable[[str, int], ClientApi]:
        """Return what finds the same clients, watched."""
        return lambda job, client: _WatchedClient(self, find(job, client))

    def asked(self, client: GraphClient, request: Request[object]) -> np.ndarray | None:
        """Return the (P,) weights of a round's request, which are known before it is answered."""
        self.shape = client.shape
        if not (self._keeps_updates and isinstance(request, TrainRequest)):
            return None
        size = num_weights(client.shape, request.ticket.stage)
        return client.weights.of_request(request, size)

    def answered(
        self,
        client: GraphClient,
        request: Request[object],
        answer: object,
        weights: np.ndarray | None,
    ) -> None:
        """Keep what an answer tells, and what its client has received by then."""
        index = client.part.graph.client
        if isinstance(request, CollectRequest) and isinstance(answer, CollectAnswer):
            if answer.complete or request.close:
                ticket = request.ticket
                self.crossed[ticket.stage][index] = client.crossing.crossed(
                    ticket.stage, ticket.weights_digest
                )
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
        # Of both kinds of rows, where one is chosen, own ones stand first.
        coded = parted(answer.sums, len(request.rows.split()) or 1)[0]
        if client.shape.basis_of_sums and not client.shape.chooses_basis:
            crossed = client.crossing.crossed(0, request.ticket.weights_digest)
            rows = summed_rows(client.shape, crossed)
        else:
            rows = client.crossing.features()
        self.first_sums[index] = FirstSums(
            sums=np.array(client.crossing.basis_form.decode_sums(coded)),
            rows=rows[client.part.nodes.train],
        )

    def _note_update(
        self, client: GraphClient, request: TrainRequest, answer: TrainAnswer, weights: np.ndarray
    ) -> None:
        ticket, index = request.ticket, client.part.graph.client
        rounds = self.rounds[ticket.stage]
        if not rounds or rounds[-1].number != ticket.round:
            del rounds[_FIRST_ROUNDS:]
            rounds.append(WatchedRound(ticket.round, weights.copy()))
        key = UpdateKey(
            seed=self._seed,
            job=ticket.job,
            stage=ticket.stage,
            round=ticket.round,
            client=index,
        )
        update = client.weights.updates.decode_update(answer.update_sum, key, request.steps or b"")
        dense = update.dense() if isinstance(update, Groups) else update
        rounds[-1].updates[index] = np.array(dense)
        rounds[-1].examples[index] = answer.examples
        if index not in self.inputs[ticket.stage]:
            self.inputs[ticket.stage][index] = client.crossing.stage_input(
                ticket.stage, ticket.weights_digest
            )


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
