"""The rounds that find a supervised subspace of the features, before anything is exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import BasisRequest, ChoiceRequest, Ticket
from retexo_fl.client.noise import releases_of
from retexo_fl.config import RunConfig
from retexo_fl.federation.asking import Ask, Round, members, named
from retexo_fl.federation.rounds.checked_answers import check_array
from retexo_fl.federation.rounds.clients import Clients, MaskedClients
from retexo_fl.federation.training import Training
from retexo_fl.gaussian_privacy import NoisedReleases
from retexo_fl.masking.step import SharedStep
from retexo_fl.run_log.chosen_rows import ChosenRows
from retexo_fl.training.basis import Basis, BasisBuilder, BasisForm, joined, masked_sum_bits, parted
from retexo_fl.training.basis_choice import KINDS, choice_errors, choice_values, probe_blocks
from retexo_fl.training.clipped_products import noised_step
from retexo_fl.training.recipe import objective_of
from retexo_fl.training.ridge import MASKED_GRAM_BITS, MOST_SQUARE, gram_values
from retexo_fl.training.row_classes import RowClasses, told_with_basis
from retexo_fl.training.stage_model import ModelShape


def find_basis(training: Training) -> None:
    """Find the subspace that features are mapped to, where one is wanted and not yet known."""
    config, joined = training.config, training.joined
    job = joined.job
    if config.basis == "none" or job.basis is not None:
        return
    units = objective_of(config).label_facts.units(job.label_facts)
    shape = joined.schedule.shape
    asking = ask_for_basis(joined.clients, job.ticket(0), config, shape, units)
    if shape.basis_of_sums:
        # Of what the first layer adds up: features cross first.
        after = 0
        if shape.far_types:
            after = shape.far_stage
            training.joined.exchanges.run_first(0, after)
        _, (basis, choice) = joined.exchanges.run_with(after, joined.rounds.wrapped(asking))
    else:
        basis, choice = joined.rounds.carry_out(asking)
    job.basis, job.basis_rows = basis, choice
    training.follower.basis_found(basis, choice)


def ask_for_basis(
    clients: Clients,
    ticket: Ticket,
    config: RunConfig,
    shape: ModelShape,
    label_facts: tuple[float, ...] = (),
) -> Round[tuple[np.ndarray, ChosenRows | None]]:
    """Ask for the features' sums, then for one block after the other.

    Where it is to be chosen of which rows it is, the first blocks of both are made, in the same
    messages; the chosen ones are gone on with.

    Args:
        clients: Who is asked.
        ticket: Of stage 0.
        config: Of the run.
        shape: Of its model.
        label_facts: Of a regression, mean and scale of the labels.

    Returns:
        The basis as it travels, and how its rows were chosen.

    Raises:
        RemoteProtocolError: An answer has another length or count than the client's hello promised.
        TrainingDiverged: A sum is not finite.
    """
    form = BasisForm(features=shape.features, dtype=config.dtype, bits=config.basis_bits)
    kinds = KINDS if shape.chooses_basis else ("",)
    asking = _Asking(
        clients=clients,
        form=form,
        ticket=ticket,
        label_facts=label_facts,
        noise=releases_of(config),
    )
    if config.update_dp:
        # No mean is asked for, nor subtracted.
        first = asking.nothing(shape.features)
    else:
        first = yield from asking.sums(kinds, shape.features, evens=shape.reads_all_far)
    builders = {
        kind: BasisBuilder(
            sums / (first.examples or 1), width=shape.inputs, form=form, squares=first.columns
        )
        for kind, sums in first.sums.items()
    }
    examples, choice = first.examples, None
    for number in range(1, shape.basis_blocks + 1):
        found = yield from asking.block(number, builders, first, shape.classes)
        for kind, builder in builders.items():
            builder.add(found.sums[kind].reshape(shape.features, -1))
        examples = found.examples
        if number == probe_blocks(shape):
            bases = [builder.basis(examples) for builder in builders.values()]
            choice = yield from asking.choice(number, bases, shape)
            builders = {choice.rows: builders[choice.rows]}
    (builder,) = builders.values()
    basis = builder.basis(examples)
    if shape.tells_classes:
        classes = yield from asking.classes(basis, shape, config.row_dp)
        basis = told_with_basis(classes.told(), basis)
    return basis, choice


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Sums over the train nodes of some clients.

    Attributes:
        clients: Whose, ascending.
        examples: How many nodes.
        sums: By kind of rows, (size,) float64, added in client order.
        squares: Under masks, by kind what :func:`.square_sums` adds up.
        columns: What :func:`.column_squares` adds up, where columns are evened.
    """

    clients: list[int]
    examples: int
    sums: Mapping[str, np.ndarray]
    squares: Mapping[str, tuple[float, ...]]
    columns: np.ndarray | None = None

    def parted(self) -> _Found:
        """Return sums of features apart from those of their squares behind them."""
        ((kind, both),) = self.sums.items()
        sums, columns = np.split(both, 2)
        return replace(self, sums={kind: sums}, columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asking:
    """Asks clients for sums.

    Attributes:
        clients: All of them.
        form: How a basis and sums for it travel.
        ticket: Of stage 0.
        label_facts: Of a regression, mean and scale of the labels.
        noise: That clients add to sums; None for none.
    """

    clients: Clients
    form: BasisForm
    ticket: Ticket
    label_facts: tuple[float, ...]
    noise: NoisedReleases | None = None

    def _having(self, *uses: str) -> Sequence[int]:
        """Return the clients with nodes of some uses; under masks, of whole cohorts."""
        if isinstance(self.clients, MaskedClients):
            return self.clients.masking.clients(*uses)
        hellos = self.clients.hellos
        return [c for c, hello in hellos.items() if any(map(hello.has, uses))]

    def nothing(self, size: int) -> _Found:
        """Return what is known before any block where nothing is asked for that."""
        clients = list(self._having("train"))
        return _Found(clients=clients, examples=0, sums={"": np.zeros(size)}, squares={})

    def sums(self, kinds: Sequence[str], size: int, *, evens: bool) -> Round[_Found]:
        """Return the (size,) sums of features of some kinds of rows.

        Args:
            kinds: Of rows; one where ``evens``.
            size: F.
            evens: Their squares are added up, too.
        """
        request = BasisRequest(
            ticket=self.ticket, rows=" ".join(kinds), label_facts=self.label_facts
        )
        among, of = self._having("train"), dict.fromkeys(kinds)
        found = yield from self._ask(request, among, of, size * (1 + evens), has_squares=evens)
        return found.parted() if evens else found

    def block(
        self, number: int, builders: Mapping[str, BasisBuilder], first: _Found, classes: int
    ) -> Round[_Found]:
        """Return the (F c,) sums that the next block of each kind is made of.

        Args:
            number: Of the block, from 1.
            builders: By kind.
            first: What :meth:`sums` returned.
            classes: C.
        """
        last = {kind: builder.last for kind, builder in builders.items()}
        blocks = list(last.values())
        columns = blocks[0].directions.shape[1] or classes
        request = BasisRequest(
            ticket=replace(self.ticket, round=number),
            weights=joined([self.form.encode(block) for block in blocks]),
            rows=" ".join(builders),
            label_facts=self.label_facts,
        )
        among = self._having("train")
        size = len(blocks[0].mean) * columns
        if self.noise is not None:
            among = first.clients
            request = replace(request, steps=noised_step(self.noise.clip, size).told)
        elif isinstance(self.clients, MaskedClients):
            # What other cohorts would add is not bounded by these.
            among = first.clients
            reach = max(
                builder.reach(first.squares[kind], first.sums[kind], first.examples)
                for kind, builder in builders.items()
            )
            bits = masked_sum_bits(self.form.bits)
            step = SharedStep.of_sum(reach, terms=len(among), bits=bits)
            request = replace(request, steps=step.told)
        return (yield from self._ask(request, among, last, size))

    def _ask(
        self,
        request: BasisRequest,
        among: Iterable[int],
        blocks: Mapping[str, Basis | None],
        size: int,
        *,
        has_squares: bool = False,
    ) -> Round[_Found]:
        """Ask for sums of some kinds: products with a block of each, or of features alone."""
        count = len(blocks)
        answers = yield Ask(
            requests=dict.fromkeys(sorted(among), request),
            stage=0,
            purpose="basis",
            sums=SumFacts(update=count * size),
        )
        examples, total = 0, np.zeros(count * size)
        there: list[int] = []
        squares: tuple[float, ...] = ()
        for who, answer in answers:
            sums = answer.sums
            if not isinstance(self.clients, MaskedClients):
                with named(who):
                    parts = parted(sums, count + has_squares)
                    of = zip(parts, blocks.values(), strict=not has_squares)
                    found = [self.form.decode_sums(*part) for part in of]
                    found += map(self.form.decode_squares, parts[count:])
                    sums = np.concatenate(found)
            check_array(who, sums, count * size)
            examples += answer.examples
            total += sums
            there += members(who)
            squares = answer.squares
        return _Found(
            clients=there,
            examples=examples,
            sums=dict(zip(blocks, np.split(total, count), strict=True)),
            squares={kind: squares[2 * at : 2 * at + 2] for at, kind in enumerate(blocks)},
        )

    def choice(
        self, number: int, bases: Sequence[np.ndarray], shape: ModelShape
    ) -> Round[ChosenRows]:
        """Return of which rows a basis explains the labels of validation nodes better.

        Args:
            number: Of the blocks that they have.
            bases: Of each of :data:`.KINDS`, as they travel.
            shape: Of the model.
        """
        among = self._having("train", "validation")
        sums = yield from self._products(number, bases, among, choice_values(shape))
        return ChosenRows.of(*choice_errors(sums, shape))

    def classes(self, basis: np.ndarray, shape: ModelShape, epsilon: float) -> Round[RowClasses]:
        """Return the classes that clients send in place of nodes' first rows.

        Args:
            basis: As it travels.
            shape: Of the model.
            epsilon: Of ``row-dp``.
        """
        size = gram_values(shape.inputs, shape.classes)
        among = self._having("train")
        sums = yield from self._products(shape.basis_blocks, [basis], among, size)
        return RowClasses.of_sums(sums, shape, epsilon)

    def _products(
        self, number: int, bases: Sequence[np.ndarray], among: Sequence[int], size: int
    ) -> Round[np.ndarray]:
        """Return (size,) sums of products of what clients read by bases of so many blocks."""
        request = ChoiceRequest(
            ticket=replace(self.ticket, round=number),
            weights=joined(bases),
            label_facts=self.label_facts,
        )
        if isinstance(self.clients, MaskedClients):
            most, terms = self.clients.most_judged, len(among)
            step = SharedStep.of_sum(MOST_SQUARE * terms * most, terms=terms, bits=MASKED_GRAM_BITS)
            request = replace(request, steps=step.told)
        answers = yield Ask(
            requests=dict.fromkeys(sorted(among), request),
            stage=0,
            purpose="choice",
            sums=SumFacts(update=size),
        )
        total = np.zeros(size)
        for who, answer in answers:
            check_array(who, answer.sums, size)
            total += answer.sums
        return total
