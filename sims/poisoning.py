"""A client that works against the training."""

from __future__ import annotations

from dataclasses import replace

from retexo_fl.client.api import AnswerT, ClientApi, Request, TrainAnswer
from retexo_fl.updates import with_zeros
from sims.training import Change


class PoisonedClient:
    """Does all that its client does, but multiplies every update by a number.

    Its counts, losses and validation stay the client's own: nothing but the update gives it away.
    """

    def __init__(self, client: ClientApi, factor: float) -> None:
        self._client = client
        self._factor = factor

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Return the client's answer; an update is another one."""
        answer = self._client.ask(request)
        if not isinstance(answer, TrainAnswer):
            return answer
        update = with_zeros(answer.update_sum)
        return replace(answer, update_sum=update * update.dtype.type(self._factor))


def poisoning(victim: int, factor: float) -> Change:
    """Return a change that poisons the client of one index."""

    def change(index: int, client: ClientApi) -> ClientApi:
        if index != victim:
            return client
        return PoisonedClient(client, factor)

    return change
