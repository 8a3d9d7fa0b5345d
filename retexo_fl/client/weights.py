"""The weights that a client computes with: those of a message, or held ones that it changes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from retexo_fl.client.api import EvaluateRequest, Ticket, TrainRequest
from retexo_fl.client.store import ClientStore
from retexo_fl.config import RunConfig
from retexo_fl.errors import LocalProtocolError
from retexo_fl.training.candidates import starts_of
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.tally import LayerUpdate
from retexo_fl.updates import (
    DigestedArray,
    UpdateCodec,
    UpdateKey,
    array_digest,
    most_held,
    update_codec,
    weights_name,
)


def updates_of(config: RunConfig) -> UpdateCodec:
    """Return how updates and weights travel in a run: the same at both ends."""
    return update_codec(
        update_bits=config.update_bits,
        weight_bits=config.weight_bits,
        keeps_zeros=config.codec == "dense",
        masked=config.secure_aggregation == "masked",
        clip=config.update_dp_clip if config.update_dp else None,
    )


class ClientWeights:
    """Reads the weights of messages to one client of one job, and writes its updates.

    Args:
        config: Of the run.
        shape: Sizes of the model.
        store: Keeps what the client holds.
        client: Its index.

    Attributes:
        shape: Of the model.
        store: Of the client.
        updates: As the server has it.
    """

    def __init__(
        self,
        config: RunConfig,
        shape: ModelShape,
        store: ClientStore,
        *,
        client: int,
    ) -> None:
        self._config = config
        self._client = client
        self.shape = shape
        self._beyond = shape.beyond
        self.store = store
        self.updates = updates_of(config)
        self._most_held = most_held(config.patience)

    def of_request(self, request: TrainRequest | EvaluateRequest, size: int) -> np.ndarray | None:
        """Return the (size,) weights of a request; None if it changes those that are not held.

        Raises:
            LocalProtocolError: They are of another size or dtype.
        """
        ticket = request.ticket
        held = None
        if name := self.updates.weights.changed(request.weights):
            held = self.held(ticket.stage, ticket.weights_digest, name)
            if held is None:
                return None
        weights = self.updates.weights.decode(request.weights, held)
        self.check(ticket, weights, size)
        return weights

    def check(self, ticket: Ticket, weights: np.ndarray, size: int) -> None:
        """Refuse weights that are not those of a stage.

        Raises:
            LocalProtocolError: They are of another size or dtype.
        """
        if weights.shape != (size,) or weights.dtype != self._config.dtype:
            raise LocalProtocolError(
                f"stage {ticket.stage}: got {weights.dtype} weights of shape {weights.shape}; "
                f"expected {self._config.dtype} of shape ({size},)"
            )

    def hold(self, ticket: Ticket, weights: np.ndarray) -> None:
        """Keep the weights of a message, which a later one may change."""
        name = weights_name(weights)
        self.store.hold_weights(ticket.stage, name, weights, most=self._most_held)

    def named(self, weights: np.ndarray | None, stage: int, digest: bytes) -> np.ndarray | None:
        """Return selected weights of a stage; None if there are none, or only a name of others."""
        if weights is None or not (name := self.updates.weights.changed(weights)):
            return weights
        held = self.held(stage, digest, name)
        return None if held is None else self.updates.weights.decode(weights, held)

    def held(self, stage: int, digest: bytes, name: bytes) -> np.ndarray | None:
        """Return the weights of this name: of a message of the stage, or those it starts from.

        It may start from them as something else, too.
        """
        held = self.store.held_weights(stage, name)
        if held is not None and weights_name(held) == name:
            return held
        first = self.first(stage, digest)
        if first is None or weights_name(first) == name:
            return first
        own = DigestedArray(array_digest(first), first)
        starts = _starts_as_candidates(self._config, self.shape, stage, own)
        return next((start for start in starts if weights_name(start) == name), None)

    def first(self, stage: int, digest: bytes) -> np.ndarray | None:
        """Return the weights that a stage starts from; None if they follow from those not held.

        Likewise of a floor, which starts from none, and of a refinement: which weights of the last
        stage it starts from, the server says.
        """
        if stage in self._beyond or stage == self.shape.refinement:
            return None
        before = None
        if stage and self._config.warm_start:
            before = self.store.weights(stage, digest)
            if before is None:
                return None
        named = None if before is None else DigestedArray(array_digest(before), before)
        return _initial(self.shape, stage, self._config.seed, named)

    def coded(self, request: TrainRequest, update: LayerUpdate) -> np.ndarray:
        """Return the update of a round as it travels."""
        ticket = request.ticket
        key = UpdateKey(
            seed=self._config.seed,
            job=ticket.job,
            stage=ticket.stage,
            round=ticket.round,
            client=self._client,
        )
        return self.updates.encode_update(
            update.update_sum, key, request.steps or b"", update.spans
        )


# Drawing them takes longer than a round of a small client, and all of a process start alike.
@lru_cache(maxsize=1)
def _initial(shape: ModelShape, stage: int, seed: int, before: DigestedArray | None) -> np.ndarray:
    """Return :meth:`.Schedule.initial`; nobody can write to it."""
    weights = None if before is None else before.values
    first = Schedule(shape=shape).initial(stage, seed=seed, before=weights)
    # Of bytes, which are hashed once.
    return np.frombuffer(first.tobytes(), first.dtype)


@lru_cache(maxsize=1)
def _starts_as_candidates(
    config: RunConfig, shape: ModelShape, stage: int, first: DigestedArray
) -> tuple[np.ndarray, ...]:
    """Return all of :func:`.starts_of`; nobody can write to them."""
    starts = starts_of(config, shape, stage, first.values)
    return tuple(np.frombuffer(start.tobytes(), start.dtype) for start in starts)
