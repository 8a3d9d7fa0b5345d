"""The rounds that find a supervised subspace of the features, before anything is exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import BasisRequest, Ticket
from retexo_fl.config import RunConfig
from retexo_fl.federation.asking import Ask, Round, members, named
from retexo_fl.federation.rounds.checked_answers import check_array
from retexo_fl.federation.rounds.clients import Clients, MaskedClients
from retexo_fl.federation.training import Training
from retexo_fl.masking.step import SharedStep
from retexo_fl.training.basis import BasisBuilder, BasisForm, basis_width, masked_sum_bits
from retexo_fl.training.recipe import objective_of


def find_basis(training: Training) -> None:
    """Find the subspace that features are mapped to, where one is wanted and not yet known."""
    config, joined = training.config, training.joined
    job = joined.job
    if config.basis == "none" or job.basis is not None:
        return
    units = objective_of(config).label_facts.units(job.label_facts)
    asking = ask_for_basis(joined.clients, job.ticket(0), config, units)
    if config.basis_rows == "sums":
        # Of what the first layer adds up: features cross first.
        _, basis = joined.exchanges.run_with(0, joined.rounds.wrapped(asking))
    else:
        basis = joined.rounds.carry_out(asking)
    job.basis = basis
    training.follower.basis_found(basis)


def ask_for_basis(
    clients: Clients, ticket: Ticket, config: RunConfig, label_facts: tuple[float, ...] = ()
) -> Round[np.ndarray]:
    """Ask for the features' sums, then for one block after the other; return it as it travels.

    Args:
        clients: Who is asked.
        ticket: Of stage 0.
        config: Of the run.
        label_facts: Of a regression, mean and scale of the labels.

    Raises:
        RemoteProtocolError: An answer has another length or count than the client's hello promised.
        TrainingDiverged: A sum is not finite.
    """
    hellos = clients.hellos
    one = next(iter(hellos.values()))
    width = basis_width(blocks=config.basis_blocks, classes=one.classes, features=one.features)
    form = BasisForm(features=one.features, dtype=config.dtype, bits=config.basis_bits)
    asking = _Asking(clients=clients, form=form)
    training: Sequence[int] = [c for c, hello in hellos.items() if hello.has("train")]
    if isinstance(clients, MaskedClients):
        training = clients.masking.clients("train")
    opening = BasisRequest(ticket=ticket, label_facts=label_facts)
    first = yield from asking.ask(opening, training, one.features)
    builder = BasisBuilder(first.sums / first.examples, width=width, form=form)
    number, examples = 0, first.examples
    while not builder.is_complete:
        number += 1
        block = builder.last
        columns = block.directions.shape[1] or one.classes
        request = replace(opening, ticket=replace(ticket, round=number), weights=form.encode(block))
        among = training
        if isinstance(clients, MaskedClients):
            # What other cohorts would add is not bounded by these.
            among = first.clients
            reach = builder.reach(first.squares, first.sums, first.examples)
            bits = masked_sum_bits(config.basis_bits)
            step = SharedStep.of_sum(reach, terms=len(among), bits=bits)
            request = replace(request, steps=step.told)
        found = yield from asking.ask(request, among, one.features * columns)
        builder.add(found.sums.reshape(one.features, columns))
        examples = found.examples
    return builder.basis(examples)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Sums over the train nodes of some clients.

    Attributes:
        clients: Whose, ascending.
        examples: How many nodes.
        sums: (size,) float64, added in client order.
        squares: Under masks, what :func:`.square_sums` adds up.
    """

    clients: list[int]
    examples: int
    sums: np.ndarray
    squares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """Asks clients for sums that travel in one form."""

    clients: Clients
    form: BasisForm

    def ask(self, request: BasisRequest, among: Iterable[int], size: int) -> Round[_Found]:
        """Return the (size,) sums of clients."""
        answers = yield Ask(
            requests=dict.fromkeys(sorted(among), request),
            stage=0,
            purpose="basis",
            sums=SumFacts(update=size),
        )
        examples, total = 0, np.zeros(size)
        there: list[int] = []
        squares: tuple[float, ...] = ()
        for who, answer in answers:
            sums = answer.sums
            if not isinstance(self.clients, MaskedClients):
                with named(who):
                    sums = self.form.decode_sums(answer.sums)
            check_array(who, sums, size)
            examples += answer.examples
            total += sums
            there += members(who)
            squares = answer.squares
        return _Found(clients=there, examples=examples, sums=total, squares=squares)
