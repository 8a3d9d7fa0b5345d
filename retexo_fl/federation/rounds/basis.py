"""The rounds that find a supervised subspace of the features, before anything is exchanged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from retexo_fl.client.api import BasisRequest, Ticket
from retexo_fl.client.masked_answers import SumLengths
from retexo_fl.config import RunConfig
from retexo_fl.federation.asking import Round, named
from retexo_fl.federation.rounds.checked_answers import check_sums
from retexo_fl.federation.rounds.clients import Clients
from retexo_fl.training.basis import BasisBuilder, BasisForm, basis_width


def find_basis(clients: Clients, ticket: Ticket, config: RunConfig) -> Round[np.ndarray]:
    """Ask for the features' sums, then for one block after the other; return it as it travels.

    Raises:
        RemoteProtocolError: An answer has another length or count than the client's hello promised.
        TrainingDiverged: A sum is not finite.
    """
    hellos = clients.hellos
    one = next(iter(hellos.values()))
    width = basis_width(blocks=config.basis_blocks, classes=one.classes, features=one.features)
    form = BasisForm(features=one.features, dtype=config.dtype, bits=config.basis_bits)
    asking = _Asking(clients=clients, form=form)
    training = [client for client, hello in hellos.items() if hello.train]
    examples, sums = yield from asking.ask(BasisRequest(ticket=ticket), training, one.features)
    builder = BasisBuilder(sums / examples, width=width, form=form)
    number = 0
    while not builder.is_complete:
        number += 1
        block = builder.last
        columns = block.directions.shape[1] or one.classes
        request = BasisRequest(ticket=replace(ticket, round=number), weights=form.encode(block))
        examples, sums = yield from asking.ask(request, training, one.features * columns)
        builder.add(sums.reshape(one.features, columns))
    return builder.basis(examples)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """Asks clients for sums that travel in one form."""

    clients: Clients
    form: BasisForm

    def ask(
        self, request: BasisRequest, among: Iterable[int], size: int
    ) -> Round[tuple[int, np.ndarray]]:
        """Return how many train nodes there are and their (size,) sums, added in client order."""
        answers = yield from self.clients.sums(
            dict.fromkeys(sorted(among), request),
            lengths=SumLengths(update=size),
            stage=0,
            purpose="basis",
            weights=request.weights,
        )
        examples, total = 0, np.zeros(size)
        for who, answer in answers:
            sums = answer.sums
            if self.clients.masking is None:
                with named(who):
                    sums = self.form.decode_sums(answer.sums)
            check_sums(self.clients.hello(who), answer.examples, sums, size)
            examples += answer.examples
            total += sums
        return examples, total
