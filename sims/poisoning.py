"""A client that works against the training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from retexo_fl.client.api import Request, TrainAnswer
from retexo_fl.updates import with_zeros
from sims.training import Change


def poisoning(victim: int, factor: float) -> Change:
    """Return a change that multiplies every update of one client by a number.

    Its counts, losses and validation stay the client's own: nothing but the update gives it away.
    """

    def change(index: int, request: Request[Any], answer: Any) -> Any:
        del request
        if index != victim or not isinstance(answer, TrainAnswer):
            return answer
        update = with_zeros(answer.update_sum)
        return replace(answer, update_sum=update * update.dtype.type(factor))

    return change
