"""A client that works against the training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from retexo_fl.agent.api import ClientApi, TrainAnswer, TrainRequest
from sims.training import Change


class PoisonedClient:
    """Does all that its client does, but multiplies every update by a number.

    Its counts, losses and validation stay the client's own: nothing but the update gives it away.
    """

    def __init__(self, client: ClientApi, factor: float) -> None:
        self._client = client
        self._factor = factor

    def train_layer(self, request: TrainRequest) -> TrainAnswer:
        """Return the client's answer with another update."""
        answer = self._client.train_layer(request)
        factor = answer.update_sum.dtype.type(self._factor)
        return replace(answer, update_sum=answer.update_sum * factor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def poisoning(victim: int, factor: float) -> Change:
    """Return a change that poisons the client of one index."""

    def change(index: int, client: ClientApi) -> ClientApi:
        if index != victim:
            return client
        return cast(ClientApi, PoisonedClient(client, factor))

    return change
