"""What a training moves in theory: closed forms that share no code with the ledger.

Those of each way of training are in its folder, in a subclass of :class:`Forecast`.

Symbols of RETEXO, section 3.2: n clients, K layers, R rounds (of each layer, or end to end), H_m
width of state m (H_0 the input features), V vectors of one exchange over all ordered pairs of
clients (n B with B boundary nodes per client), M parameters of the whole model without heads, C_m
of layer m's head. Of masked sums see :func:`masked_volume`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from retexo_fl.config import RunConfig
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.masking.agreement import Cohort, members_of
from retexo_fl.masking.keys import KEY_BYTES, SIGNED_BYTES
from retexo_fl.masking.ring import Ring
from retexo_fl.training.basis import masked_sum_bits
from retexo_fl.training.basis_choice import KINDS, choice_values, probe_blocks, probe_width
from retexo_fl.training.clipped_products import NOISED_SUM_BITS, clipped_values
from retexo_fl.training.columns import (
    MASKED_BITS,
    NUM_BOUNDS,
    bits_of_step,
    degree_values,
    map_values,
    product_values,
)
from retexo_fl.training.floor import read_columns
from retexo_fl.training.ridge import MASKED_GRAM_BITS, gram_values, judged_values
from retexo_fl.training.row_classes import told_values
from retexo_fl.training.stage_model import ModelShape, num_weights
from retexo_fl.updates.masked import NOISED_BITS

#: Of what names an agreement.
_DIGEST_BYTES: Final = 32
#: Of a masked count, and of a masked number that is none; values of an update that share one of the
#: latter.
_COUNT_BYTES: Final = 4
_WIDE_BYTES: Final = 8
_BLOCK: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSize:
    """What the bytes of a training depend on.

    Attributes:
        clients: n.
        training_clients: Clients with train nodes.
        asked_clients: Clients with train or validation nodes: weights go to them in every round.
        validation_clients: Clients with validation nodes.
        vectors: V.
        rounds: R of each stage.
        later: Of a graph with types, V of each stage after the first, or of each layer end to end,
            where not all rows that cross before the first are read; empty: V.
        sampled_vectors: Vectors that BNS draws in a round, over all ordered pairs of clients (see
            :func:`sampled_vectors`); None where the pairs are not known.
        further: Rounds of each stage as something else (:mod:`.candidates`), after its own: they
            end with a validation. Empty: none.
        refined: Rounds of the last two layers together (:mod:`.joint`), which end so, too.
        tests_floor: Whether the floor of the model (:mod:`.floor`) is what is tested.
        corrected: Whether SCAFFOLD's corrections go beside the weights of every round but the first
            of a stage, to the clients that train.
    """

    clients: int
    training_clients: int
    asked_clients: int
    validation_clients: int
    vectors: int
    rounds: tuple[int, ...]
    later: tuple[int, ...] = ()
    sampled_vectors: int | None = None
    further: tuple[int, ...] = ()
    refined: int = 0
    corrected: bool = False
    tests_floor: bool = False

    @property
    def further_rounds(self) -> tuple[int, ...]:
        """What ``further`` says of each stage."""
        return self.further or (0,) * len(self.rounds)

    def vectors_before(self, stage: int) -> int:
        """Return V of the exchange before a stage, or before a layer end to end."""
        return (self.vectors, *self.later)[min(stage, len(self.later))]

    def weights_of_rounds(self, rounds: int, parameters: int) -> int:
        """Return how many values go to clients with the rounds of a stage of so many parameters."""
        corrections = self.training_clients * (rounds - 1) if self.corrected else 0
        return (self.asked_clients * rounds + corrections) * parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedVolume:
    """Raw bytes, each counted once, at its sender.

    Attributes:
        boundary_training: Vectors between clients that training needs.
        boundary_evaluation: Vectors between clients for the validation of each round's weights and
            for the test.
        updates_up: Updates.
        weights_training: Weights that begin a round, and corrections beside them.
        weights_beyond: Weights that are validated or tested without a round after it, or that make
            the vectors of the next exchange.
    """

    boundary_training: int
    boundary_evaluation: int
    updates_up: int
    weights_training: int
    weights_beyond: int

    @property
    def boundary(self) -> int:
        """All vectors between clients."""
        return self.boundary_training + self.boundary_evaluation

    @property
    def weights_down(self) -> int:
        """All weights."""
        return self.weights_training + self.weights_beyond

    @property
    def total(self) -> int:
        """All kinds together; messages without tensors have no raw bytes."""
        return self.boundary + self.updates_up + self.weights_down

    @property
    def paper(self) -> int:
        """The volume that RETEXO counts, at the clients.

        A vector is sent and received, weights come down, updates go up; evaluation is left out.

        Source: RETEXO, section 3.2 and appendix A.1.
        """
        return 2 * self.boundary_training + self.weights_training + self.updates_up


def stage_parameters(shape: ModelShape) -> tuple[list[int], list[int]]:
    """Return each layer's parameters with its head, and those of its head alone.

    End to end there are no heads: M is the sum of the differences.
    """
    bare = [num_weights(replace(shape, heads_between=False), m) for m in range(shape.layers)]
    whole = [num_weights(replace(shape, heads_between=True), m) for m in range(shape.layers)]
    return whole, [one - other for one, other in zip(whole, bare, strict=True)]


def model_parameters(shape: ModelShape) -> int:
    """Return M."""
    whole = replace(shape, heads_between=False, passes_sums=False)
    return sum(num_weights(whole, m) for m in range(shape.layers))


def item_bytes(shape: ModelShape) -> int:
    """Return the bytes of a value."""
    return np.dtype(shape.dtype).itemsize


def sampled_vectors(pairs: Iterable[int], rate: float) -> int:
    """Return how many vectors BNS draws in a round.

    Args:
        pairs: Boundary vectors of each ordered pair of clients.
        rate: p. A pair with b of them draws ``max(1, floor(p b))``, so the sum is not p V.

    Source: BNS-GCN (Wan et al.), section 3.2; the least of one is ours.
    """
    return sum(max(1, math.floor(rate * vectors)) for vectors in pairs if vectors)


def parameters_by_stage(shape: ModelShape) -> list[int]:
    """Return those of each stage of a training layer by layer: 0 where nothing but rows crosses."""
    return [*[0] * shape.stage_of(0), *stage_parameters(shape)[0]]


def basis_values(shape: ModelShape) -> tuple[int, int, int]:
    """Return what a basis of the features takes in values; nothing without one.

    Returns:
        Sums from each client with train nodes; what each of them gets for those; the whole basis,
        which all clients get with the first exchange, and what makes classes in place of rows.
    """
    features, classes, blocks = shape.features, shape.classes, shape.basis_blocks
    if not blocks:
        return 0, 0, 0
    # Of which the first are made of own rows, too, where these are chosen between.
    both = probe_blocks(shape)
    up = features * (1 + bool(both) + classes * (blocks + both))
    down = features * (blocks + both + classes * (blocks - 1 + max(0, both - 1)))
    if shape.reads_all_far:
        # Sums of squares, and scales with each block.
        up, down = up + features, down + features * blocks
    if shape.tells_classes:
        up += _products(shape)
        down += features * (1 + shape.inputs)
    return up, down, told_values(shape) + features * (1 + shape.inputs)


def _products(shape: ModelShape) -> int:
    """Return how many values a client sends for classes that replace rows; 0 without these."""
    return gram_values(shape.inputs, shape.classes) if shape.tells_classes else 0


def column_values(shape: ModelShape) -> tuple[int, int, int]:
    """Return what columns of the edges take in values; nothing where nodes have features.

    Returns:
        Sums from each client; what each of them gets; what crosses for each vector of an exchange.
    """
    if not shape.made_columns:
        return 0, 0, 0
    degrees, mixed, stages = shape.made_degrees, shape.mixed_columns, shape.column_stages
    up = degree_values(degrees) + product_values(mixed)
    # The interval goes with each exchange, and with the second sums.
    down = NUM_BOUNDS * (len(stages) + bool(mixed)) + map_values(degrees, mixed)
    return up, down, sum(shape.exchange_width(stage) for stage in stages)


def column_bits(config: RunConfig, shape: ModelShape, stage: int) -> int:
    """Return the bits of a value in the vectors that cross before a stage of columns."""
    if shape.sums_labels:
        return 32
    step = stage - shape.column_stages[0] + 1
    return bits_of_step(step, steps=shape.column_steps, bits=config.structure_bits)


def comparison_values(shape: ModelShape) -> tuple[int, int]:
    """Return what a comparison of bases takes in values: of each client, and sent to each."""
    if not shape.chooses_basis:
        return 0, 0
    return choice_values(shape), len(KINDS) * shape.features * (1 + probe_width(shape))


def solved_values(shape: ModelShape) -> int:
    """Return how many values each client sends for the last layer, where that is solved for."""
    if shape.clips_products:
        return 2 * clipped_values(len(read_columns(shape)), shape.classes) + 1
    values = judged_values if shape.validates_penalty else gram_values
    return values(len(read_columns(shape)), shape.classes)


def solved_bits(shape: ModelShape) -> int:
    """Return the bits of one of these under masks."""
    return NOISED_SUM_BITS if shape.clips_products else MASKED_GRAM_BITS


class Forecast(ABC):
    """What a way of training says of itself before it has run: a subclass in its own folder.

    Attributes:
        samples_vectors: A round moves some of the vectors, drawn anew.
        exchanges_in_rounds: Vectors cross in every round, in which all take part, and gradients of
            them come back to who sent these.
        ignores_peers: Edges to nodes of other clients are left out.
        predicts_links: It trains on links, too.
        trains: Layers have weights: other ways train the same shape, though they move more or less.
        profiles: Names of those that it can be trained by, where there are several.
    """

    samples_vectors: ClassVar[bool] = False
    exchanges_in_rounds: ClassVar[bool] = False
    ignores_peers: ClassVar[bool] = False
    predicts_links: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    profiles: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def volume(self, shape: ModelShape, size: TrainingSize) -> PredictedVolume | None:
        """Predict the bytes; None where a size that they depend on is not known."""

    @abstractmethod
    def sentence(self, config: RunConfig, *, vectors: int, drawn: int | None) -> str:
        """Return what it is, for who compares it with others.

        Args:
            config: Of the run.
            vectors: Of one exchange over all pairs of clients.
            drawn: :attr:`TrainingSize.sampled_vectors`.
        """

    @abstractmethod
    def parameters(self, shape: ModelShape) -> Sequence[int]:
        """Return how many weights each stage has; 0 where nothing but rows crosses."""

    @abstractmethod
    def first_reach(self, shape: ModelShape) -> int:
        """Return how many edges a gradient of the first layer's weights goes back, beyond its own.

        They are counted from a node whose label it is of.
        """

    def is_comparable(self, shape: ModelShape) -> bool:
        """Return whether lazy and standard training of the same shape would move other bytes alone.

        That is so where both would read the same rows, and clients know what they would exchange.
        """
        del shape
        return not self.ignores_peers

    def part_as_read(self, part: GraphPartition) -> GraphPartition:
        """Return a client's part with the features that its layers read."""
        return part

    def adds_nothing(self, config: RunConfig) -> bool:
        """Return whether vectors go as numbers that can be added on arrival, but none are."""
        del config
        return False

    def rounds_alike(self, config: RunConfig) -> int:
        """Return in how many rounds the same vectors cross; 0 where none do, or others in each."""
        del config
        return 0

    def exchanges(self, config: RunConfig, shape: ModelShape) -> Sequence[int]:
        """Return by stage, or by layer inside a round, how often the vectors that it reads cross.

        Empty where clients exchange nothing.
        """
        del config, shape
        return ()

    def boundary_at_most(
        self, shape: ModelShape, size: TrainingSize, coded: Callable[[int], int]
    ) -> int:
        """Return what clients send each other at most.

        Args:
            shape: Of the model.
            size: What the closed form takes.
            coded: Returns what the vectors that a stage reads take in a codec.
        """
        del coded
        volume = self.volume(shape, size)
        assert volume is not None, "all sizes are known of a configuration that was checked"
        return volume.boundary


def gamma(volume: PredictedVolume, lazy: PredictedVolume) -> float:
    """Return how many times more an algorithm moves than lazy training, as the paper counts.

    Source: RETEXO, section 3.2, equation 2, with the heads C_m.
    """
    return volume.paper / lazy.paper


# ---- masked sums --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedSize:
    """What the bytes of masked sums depend on, beside the model.

    Attributes:
        cohorts: Clients that are added up together.
        later: Numbers of vectors that they send beside those of the first exchange.
        terms: How many clients have train nodes that count.
        together: All take part in every round.
        counts_train: Rounds count right train nodes.
        stages: Weights and rounds of each stage; likewise, as something else and of the last two
            layers together, ``further``.
        update_bits: Of a value from the second round of a stage on.
        has_noise: Clients add noise to updates.
        basis_bits: Of a value of a basis.
        classes: C'; of each, nodes by use are counted.
        label_numbers: Of 64 bits, that a loss needs of all labels.
        metric: Numbers of a metric other than accuracy; counts, or numbers of 64 bits.
        report: The same of the report of the test.
        cached: Numbers of 64 bits that say at the test what was read by caches.
        moved: Numbers of 64 bits that say what was moved: for an exchange; where vectors cross in
            rounds, inside a round and inside an evaluation, too.
    """

    cohorts: tuple[Cohort, ...]
    terms: int
    together: bool
    stages: tuple[tuple[int, int], ...]
    further: tuple[tuple[int, int], ...]
    counts_train: bool
    update_bits: int
    basis_bits: int
    classes: int
    label_numbers: int
    metric: Beside
    report: Beside
    cached: int = 0
    later: int = 0
    moved: tuple[int, ...]
    has_noise: bool = False

    def told_blocks(self, values: int) -> int:
        """Return of how many blocks of an update the sizes are sent."""
        return 0 if self.has_noise else -(-values // _BLOCK)

    def update_bytes(self, values: int, bits: int) -> int:
        """Return the bytes of so many values of so many bits; under noise they have their own."""
        if self.has_noise:
            return Ring(NOISED_BITS).size(values)
        return masked_update_bytes(values, bits, self.terms)

    def asked(self, *uses: str) -> int:
        """Return how many clients are asked for sums of some uses."""
        return len(members_of(self.cohorts, *(() if self.together else uses)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Numbers of an answer beside its array.

    Attributes:
        counts: Of 32 bits.
        wide: Of 64 bits.
    """

    counts: int = 0
    wide: int = 0

    @classmethod
    def of(cls, count: int, *, counts: bool) -> Beside:
        """Return so many counts, or numbers of 64 bits."""
        return cls(counts=count) if counts else cls(wide=count)

    def __add__(self, other: Beside) -> Beside:
        """Return both."""
        return Beside(counts=self.counts + other.counts, wide=self.wide + other.wide)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedVolume:
    """Payload bytes of masked sums; the first two take the place of numbers in the clear.

    Attributes:
        updates_up: Updates, and sums for a basis or for ridge regression.
        beside: Counts, losses, metrics, and sizes of updates; bytes and vectors of exchanges.
        keys: Public keys, and who is added up with whom.
        signatures: Of the keys, in a deployment.
    """

    updates_up: int = 0
    beside: int = 0
    keys: int = 0
    signatures: int = 0

    def __add__(self, other: MaskedVolume) -> MaskedVolume:
        """Return the sum of two volumes."""
        return MaskedVolume(
            updates_up=self.updates_up + other.updates_up,
            beside=self.beside + other.beside,
            keys=self.keys + other.keys,
            signatures=self.signatures + other.signatures,
        )


def masked_volume(shape: ModelShape, size: MaskedSize) -> MaskedVolume:
    """Predict what masked sums move, if no stage ends early and no client is missing."""
    total = MaskedVolume()
    for cohort in size.cohorts:
        clients, uses = len(cohort.members), " ".join(cohort.uses)
        names = len("mask-keymask-agreementmask-cohortkeys")
        # An empty text is left out.
        names += len("mask-uses") + len(uses) if uses else 0
        numbers = KEY_BYTES + _DIGEST_BYTES + clients * (_WIDE_BYTES + KEY_BYTES)
        signed = len("mask-signaturesignatures") + (1 + clients) * SIGNED_BYTES
        total += MaskedVolume(keys=clients * (names + numbers), signatures=clients * signed)
    for question in _masked_questions(shape, size):
        total += question
    # Where what crossed is mapped later, that it is there is asked twice.
    twice = shape.basis_of_sums + sum(map(shape.teaches, range(shape.stages)))
    exchanges = len(size.stages) + twice + len(shape.later_stages)
    told = size.asked() * exchanges * _moved_bytes(size.moved[0])
    return total + MaskedVolume(beside=told)


def _moved_bytes(numbers: int) -> int:
    # As many say under which keys they are.
    return len("moved") + _WIDE_BYTES * (1 + numbers) if numbers else 0


def _masked_questions(shape: ModelShape, size: MaskedSize) -> Iterator[MaskedVolume]:
    """Yield what the questions move that are answered under masks, in their order."""

    def asked(
        clients: int, beside: Beside, *, count: int = 1, numbers_bytes: int = 0, moved: int = 0
    ) -> Iterator[MaskedVolume]:
        more = len("beside") + _COUNT_BYTES * beside.counts + _WIDE_BYTES * beside.wide
        # One number says how many values were cut.
        more += _WIDE_BYTES + _moved_bytes(moved)
        answers = clients * count
        yield MaskedVolume(updates_up=answers * numbers_bytes, beside=answers * more)

    everyone, training = size.asked(), size.asked("train")
    validating, in_rounds = size.asked("validation"), size.asked("train", "validation")
    # Nodes, of each use, too; vectors out, in and drawn.
    yield from asked(everyone, Beside(wide=7 + size.later))
    yield from asked(everyone, Beside(counts=3 * size.classes, wide=size.label_numbers))
    nodes, (in_round, in_evaluation) = Beside(counts=1), size.moved[1:] or (0, 0)
    if shape.made_columns:
        added = (degree_values(shape.made_degrees), product_values(shape.mixed_columns))
        for values in filter(None, added):
            numbers_bytes = Ring(MASKED_BITS).size(values)
            yield from asked(size.asked("nodes"), nodes, numbers_bytes=numbers_bytes)
    for beside, numbers_bytes in _masked_basis(shape, size):
        yield from asked(training, beside, numbers_bytes=numbers_bytes)
    for clients, values in ((in_rounds, comparison_values(shape)[0]), (training, _products(shape))):
        numbers_bytes = Ring(MASKED_GRAM_BITS).size(values)
        yield from asked(clients, nodes, count=int(values > 0), numbers_bytes=numbers_bytes)
    # Nodes and right ones; loss.
    judged = Beside(counts=2, wide=1) + size.metric
    if shape.passes_sums:
        numbers_bytes = Ring(solved_bits(shape)).size(solved_values(shape))
        yield from asked(everyone, nodes, numbers_bytes=numbers_bytes)
        yield from asked(validating, judged)
    trained = [
        one
        for stage, one in enumerate(size.stages, start=1)
        if not shape.passes_sums and (one[1] or stage == len(size.stages))
    ]
    for parameters, rounds in (*trained, *(one for one in size.further if one[1])):
        # Of train nodes their loss, too, and maybe right ones; sizes of blocks; cut values.
        beside = judged + nodes + Beside(wide=1 + size.told_blocks(parameters) + 1)
        beside += Beside(counts=int(size.counts_train))
        for bits, count in ((32, min(1, rounds)), (size.update_bits, max(0, rounds - 1))):
            numbers_bytes = size.update_bytes(parameters, bits)
            yield from asked(
                in_rounds, beside, count=count, numbers_bytes=numbers_bytes, moved=in_round
            )
        yield from asked(validating, judged, moved=in_evaluation)
    if shape.has_floor:
        numbers_bytes = Ring(MASKED_GRAM_BITS).size(solved_values(shape.floor))
        yield from asked(everyone, nodes, numbers_bytes=numbers_bytes)
        yield from asked(validating, judged)
    tested = judged + size.report + Beside(wide=size.cached)
    yield from asked(everyone, tested, moved=in_evaluation)


def _masked_basis(shape: ModelShape, size: MaskedSize) -> Iterator[tuple[Beside, int]]:
    """Yield what is beside the sums for a basis, and their bytes, of each question."""
    blocks, features, nodes = shape.basis_blocks, shape.features, Beside(counts=1)
    if not blocks:
        return
    both = probe_blocks(shape)
    kinds = len(KINDS) if both else 1
    ring, values = Ring(masked_sum_bits(size.basis_bits)), features * shape.classes
    if shape.clips_products:
        ring = Ring(NOISED_SUM_BITS)
    else:
        first = features * (kinds + shape.reads_all_far)
        yield nodes + Beside(wide=2 * kinds), _WIDE_BYTES * first
    for block in range(blocks):
        yield nodes, ring.size((kinds if block < both else 1) * values)


def masked_update_bytes(values: int, bits: int, terms: int) -> int:
    """Return the bytes of so many values, as whole numbers that a sum of ``terms`` leaves whole.

    Args:
        values: P.
        bits: 32: as many as fit the sum.
        terms: How many clients train.
    """
    most = (2**31 - 1) // terms if bits == 32 else max(1, 2 ** (bits - 1) - 1)
    return Ring.of_sums(most, terms).size(values)
