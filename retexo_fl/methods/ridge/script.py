"""The round that finds the last layer without training: by ridge regression, from sums."""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import GramRequest, Ticket
from retexo_fl.federation.asking import Ask, Round
from retexo_fl.federation.rounds.checked_answers import check_array
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.masking.step import SharedStep
from retexo_fl.training.ridge import MASKED_GRAM_BITS, fit, gram_values
from retexo_fl.training.stage_model import ModelShape, flat_weights

#: The mean square of a coordinate over a client's train nodes, which is near 1 on average, is less.
#: Numbers then have steps of 2**-28 for each train node.
_MOST_SQUARE: Final = 2.0**11


def solve_last(clients: Clients, ticket: Ticket, shape: ModelShape) -> Round[np.ndarray]:
    """Ask for the sums of the last stage's products; return the (P,) weights that they give.

    Clients without train nodes are asked, too, and answer zeros: so the question can go in the
    messages of the exchange before it.

    Raises:
        RemoteProtocolError: An answer has another length or count than the client's hello promised.
        TrainingDiverged: A sum is not finite.
    """
    width, classes = shape.read_width, shape.classes
    training = frozenset(client for client, hello in clients.hellos.items() if hello.has("train"))
    total = np.zeros(gram_values(width, classes))
    request = GramRequest(ticket=ticket)
    if clients.masking is not None:
        terms, most = len(clients.hellos), clients.most_train
        step = SharedStep.of_sum(_MOST_SQUARE * terms * most, terms=terms, bits=MASKED_GRAM_BITS)
        request = GramRequest(ticket=ticket, steps=step.told)
    answers = yield Ask(
        requests=dict.fromkeys(clients.hellos, request),
        sums=SumFacts(update=len(total)),
        stage=ticket.stage,
        purpose="gram",
        counted=training,
    )
    for who, answer in answers:
        check_array(who, answer.sums, len(total))
        total += answer.sums
    found = fit(total, width=width, classes=classes)
    tensors = {"layer.weight": found.weight, "layer.bias": found.bias}
    return flat_weights(shape, ticket.stage, tensors).astype(shape.dtype)
