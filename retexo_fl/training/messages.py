"""The messages between server and clients of a deployed training, and what they hold at most.

As the server asks them (:mod:`retexo_fl.federation.server_loop`), if no stage ends before its last
round and all vectors have arrived when they are first looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, TypeAlias

import numpy as np

from retexo_fl.config import RunConfig
from retexo_fl.masking.keys import KEY_BYTES
from retexo_fl.masking.ring import Ring
from retexo_fl.training.basis import masked_sum_bits
from retexo_fl.training.basis_choice import KINDS, choice_values, probe_blocks, probe_width
from retexo_fl.training.candidates import candidates_of
from retexo_fl.training.clipped_products import NOISED_SUM_BITS
from retexo_fl.training.cohorts import simulated_agreement, terms_of
from retexo_fl.training.columns import (
    MASKED_BITS,
    NUM_BOUNDS,
    degree_values,
    map_values,
    product_values,
)
from retexo_fl.training.ridge import MASKED_GRAM_BITS, gram_values
from retexo_fl.training.row_classes import told_values
from retexo_fl.training.stage_model import ModelShape, num_weights
from retexo_fl.training.volume import Forecast, masked_update_bytes, solved_bits, solved_values

#: By client, how many nodes, or with task ``links`` edges, it has of each use.
Counts: TypeAlias = Mapping[int, Mapping[str, int]]

#: Of an array in few bits: its head, and values that share a step of one byte.
_HEAD_BYTES: Final = 8
_STEP_VALUES: Final = 256
#: Of the length of an array in few bits that another one follows.
_LENGTH_BYTES: Final = 4
#: Of a value in the mean of a basis in few bits.
_MEAN_BYTES: Final = 2
#: Of a value of what makes classes in place of rows, beside such a basis.
_TOLD_BYTES: Final = 4
#: Before sums of products with a block: the trace of what lies along it.
_TRACE_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of a message: its settings or metrics, which are few bytes, and maybe an array.

    Attributes:
        coded_bytes: Of an array in few bits, which is one of its values.
        array_bytes: Of an array beside it; None if there is none.
    """

    coded_bytes: int = 0
    array_bytes: int | None = None

    def times(self, count: int) -> Record:
        """Return it with ``count`` such arrays as one (:func:`.joined`)."""
        if self.array_bytes is not None:
            return replace(self, array_bytes=count * self.array_bytes)
        return replace(self, coded_bytes=count * self.coded_bytes + _LENGTH_BYTES * (count - 1))

    @property
    def more_bytes(self) -> int:
        """Bytes of its array."""
        return self.coded_bytes + (self.array_bytes or 0)


#: What names weights that clients hold.
_NAME: Final = Record(coded_bytes=8)
_length: Final = attrgetter("more_bytes")
#: Without an array.
_FEW: Final = (Record(),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Messages of one kind, and the replies.

    Attributes:
        stage: Stage index, -1 before the first.
        purpose: What is asked.
        clients: Who is asked, ascending.
        count: How often.
        first: What is asked before it in the same message.
        down: Records of a message.
        up: Records of the reply of those who train.
        training: Who replies with arrays.
    """

    stage: int
    purpose: str
    clients: Sequence[int]
    count: int = 1
    first: tuple[str, ...] = ()
    down: tuple[Record, ...] = _FEW
    up: tuple[Record, ...] = _FEW
    training: frozenset[int] = frozenset()

    def reply_of(self, client: int) -> tuple[Record, ...]:
        """Return the records of a client's reply."""
        return self.up if client in self.training else _FEW * len(self.up)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all arrays, both ways."""
        up = [record for client in self.clients for record in self.reply_of(client)]
        down = sum(record.more_bytes for record in self.down) * len(self.clients)
        return self.count * (down + sum(record.more_bytes for record in up))


def training_messages(
    config: RunConfig, shape: ModelShape, counts: Counts, forecast: Forecast
) -> list[Asked]:
    """Return the messages of a training in their order.

    Args:
        config: Of the run.
        shape: Of its model.
        counts: Of all clients.
        forecast: Of its method.
    """
    return [*_Messages(config, shape, counts, forecast).all()]


class _Messages:
    def __init__(
        self, config: RunConfig, shape: ModelShape, counts: Counts, forecast: Forecast
    ) -> None:
        self._config, self._shape = config, shape
        self._parameters = forecast.parameters(shape)
        self._item = np.dtype(config.dtype).itemsize
        together = forecast.exchanges_in_rounds
        self._everyone = tuple(range(len(counts)))
        self._training = tuple(c for c, of in counts.items() if together or of["train"])
        self._validating = tuple(c for c, of in counts.items() if together or of["validation"])
        #: Who answers with sums over train nodes, and who with updates.
        self._summing = self._updating = self._training
        self._terms, self._cohort = len(self._training), 0
        self._masked = config.secure_aggregation == "masked"
        if self._masked:
            agreement = simulated_agreement(config, counts)
            self._summing = agreement.members("train")
            self._validating = agreement.members(*() if together else ("validation",))
            self._updating = agreement.members(*() if together else ("train", "validation"))
            self._terms = terms_of(agreement, config, counts)
            self._cohort = max(len(cohort.members) for cohort in agreement.cohorts)
        self._sends_changes = config.weight_bits < 32
        self._go_along = (
            self._sends_changes and not (together or config.relay) and not config.min_clients
        )
        # Clients keep as many weights as the best of a stage with patience may be old.
        self._names_selected = self._sends_changes and config.patience > 0 and not together

    def all(self) -> Iterator[Asked]:
        sizes = self._parameters
        yield Asked(stage=-1, purpose="hello", clients=self._everyone)
        if self._masked:
            keys = (Record(coded_bytes=KEY_BYTES * self._cohort),)
            yield Asked(stage=-1, purpose="keys", clients=self._everyone, down=keys)
            yield Asked(stage=-1, purpose="counts", clients=self._everyone)
            yield Asked(stage=-1, purpose="labels", clients=self._everyone)
        yield from self._columns()
        yield from self._basis()
        if self._shape.passes_sums:
            yield from self._solved(sizes[-1])
        else:
            for stage, size in enumerate(sizes):
                yield from self._stage(stage, size, before=sizes[stage - 1] if stage else None)
        tested = self._selected(len(sizes) - 1, sizes[-1])
        if self._shape.refinement is not None:
            both = sum(sizes[-2:])
            yield from self._refined(self._shape.refinement, both)
            tested = self._coded(both, 32)
        after = len(sizes) + self._shape.refines
        if self._shape.has_floor:
            floor = self._shape.floor
            tested = max(tested, self._coded(num_weights(floor, floor.layers - 1), 32), key=_length)
            yield self._products(floor)
            yield Asked(stage=after, purpose="validate", clients=self._validating, down=(tested,))
        yield Asked(stage=after - 1, purpose="test", clients=self._everyone, down=(tested,))
        if self._masked:
            yield Asked(stage=after - 1, purpose="end", clients=self._everyone)

    def _columns(self) -> Iterator[Asked]:
        """Yield the questions for columns of the edges; a step's vectors follow those before."""
        shape, everyone = self._shape, self._everyone
        stages = shape.column_stages
        if not stages:
            return
        interval = Record(array_bytes=NUM_BOUNDS * self._item)
        yield self._structure(stages[0], degree_values(shape.made_degrees), Record())
        for stage in stages[:-1]:
            ahead = Asked(stage=stage, purpose="publish", clients=everyone, down=(interval,))
            if self._go_along:
                yield from self._after_exchange(interval, ahead)
            else:
                yield from self._exchange(stage, interval)
        mapped = map_values(shape.made_degrees, shape.mixed_columns)
        make = Asked(
            stage=stages[-1],
            purpose="structure",
            clients=everyone,
            down=(Record(array_bytes=self._item * mapped),),
        )
        if shape.mixed_columns:
            last = self._structure(stages[-1], product_values(shape.mixed_columns), interval)
            yield from self._after_exchange(interval, last)
            yield make
        else:
            yield from self._after_exchange(interval, make)

    def _structure(self, stage: int, values: int, down: Record) -> Asked:
        return Asked(
            stage=stage,
            purpose="structure",
            clients=self._everyone,
            down=(down,),
            up=(self._summed(values, 32, masked_bits=MASKED_BITS),),
            training=frozenset(self._everyone),
        )

    def _basis(self) -> Iterator[Asked]:
        """Yield the questions for a basis: the mean, then one block after the other."""
        shape, classes = self._shape, self._shape.classes
        if not shape.basis_blocks:
            return
        both = probe_blocks(shape)
        kinds = len(KINDS) if both else 1
        mean = self._sums(1, down=Record(), masked_bits=64, kinds=kinds + shape.reads_all_far)
        if shape.reads_all_far and not self._masked and self._config.basis_bits < 32:
            # Squares take two bytes each.
            (one,) = self._sums(1, down=Record()).up
            squares = _LENGTH_BYTES + _MEAN_BYTES * shape.features
            mean = replace(mean, up=(replace(one, coded_bytes=one.coded_bytes + squares),))
        first = self._sums(classes, down=self._basis_record(0, kinds), kinds=kinds)
        # Under noise there is no mean.
        opening, *rest = [first] if shape.clips_products else [mean, first]
        if shape.far_types:
            yield from self._exchange(0, Record())
            opening = replace(opening, stage=shape.far_stage)
        yield from self._after_exchange(Record(), opening) if shape.basis_of_sums else [opening]
        yield from rest
        if both > 1:
            down = self._basis_record(classes, kinds)
            more = self._sums(classes, down=down, kinds=kinds, has_block=True)
            yield replace(more, count=both - 1)
        if both:
            yield self._comparison()
        if left := shape.basis_blocks - (both or 1):
            more = self._sums(classes, down=self._basis_record(classes), has_block=True)
            yield replace(more, count=left)
        if shape.tells_classes:
            size = gram_values(shape.inputs, classes)
            yield Asked(
                stage=0,
                purpose="choice",
                clients=self._summing,
                down=(self._basis_record(shape.inputs),),
                up=(self._summed(size, 32, masked_bits=MASKED_GRAM_BITS),),
                training=frozenset(self._summing),
            )

    def _comparison(self) -> Asked:
        """Return the question of which rows the basis is to be."""
        products = self._summed(choice_values(self._shape), 32, masked_bits=MASKED_GRAM_BITS)
        asked = sorted({*self._updating, *self._validating})
        return Asked(
            stage=0,
            purpose="choice",
            clients=asked,
            down=(self._basis_record(probe_width(self._shape), len(KINDS)),),
            up=(products,),
            training=frozenset(asked),
        )

    def _stage(self, stage: int, size: int, *, before: int | None) -> Iterator[Asked]:
        """Yield the messages of a stage of ``size`` weights, after one of so many ``before``."""
        rounds = self._config.stage_rounds[stage]
        made_by = self._made_by_features() if before is None else self._selected(stage - 1, before)
        if rounds:
            yield from self._rounds(stage, size, rounds, made_by)
        else:
            yield from self._exchange(stage, made_by)
        if rounds or stage == len(self._parameters) - 1:
            yield self._validated(stage, size)
        for _ in candidates_of(self._config, self._shape, stage):
            yield from self._further(stage, size, rounds)
            yield self._validated(stage, size)

    def _validated(self, stage: int, size: int) -> Asked:
        """Return the question for how the last weights of a stage do."""
        return Asked(
            stage=stage,
            purpose="validate",
            clients=self._validating,
            down=(self._coded(size, self._config.weight_bits),),
        )

    def _further(self, stage: int, size: int, rounds: int) -> Iterator[Asked]:
        """Yield the messages of a stage's rounds as something else."""
        train = self._trained(stage, size)
        # Clients compute what it starts from, too.
        first = replace(train, down=(_NAME,)) if self._sends_changes else train
        yield replace(first, up=(self._update(size, 32),)) if self._masked else first
        if rounds > 1:
            yield replace(train, count=rounds - 1)

    def _refined(self, stage: int, size: int) -> Iterator[Asked]:
        """Yield the messages of the last two layers' rounds together, to whom whole weights go."""
        train, rounds = self._trained(stage, size), self._shape.refined_rounds(self._config)
        first = replace(train, down=(self._coded(size, 32),))
        yield replace(first, up=(self._update(size, 32),)) if self._masked else first
        if rounds > 1:
            yield replace(train, count=rounds - 1)
        yield self._validated(stage, size)

    def _trained(self, stage: int, size: int) -> Asked:
        """Return the question of a round."""
        return Asked(
            stage=stage,
            purpose="train",
            clients=sorted({*self._updating, *self._validating}),
            down=(self._coded(size, self._config.weight_bits),),
            up=(self._update(size, self._config.update_bits),),
            training=frozenset(self._updating),
        )

    def _rounds(self, stage: int, size: int, rounds: int, made_by: Record) -> Iterator[Asked]:
        """Yield the messages of a stage's rounds, and of its exchange, which the first may join."""
        train = self._trained(stage, size)
        # Steps of masked updates follow from the round before.
        first = replace(train, up=(self._update(size, 32),)) if self._masked else train
        # Clients compute the weights that a stage starts from.
        first = replace(first, down=(_NAME,)) if self._sends_changes else first
        if self._sends_changes and not self._shape.teaches(stage):
            yield from self._after_exchange(made_by, first)
            rounds -= 1
        else:
            yield from self._exchange(stage, made_by)
            if self._shape.teaches(stage):
                yield from self._exchange(stage + 1, Record())
            if first != train:
                yield first
                rounds -= 1
        if rounds:
            yield replace(train, count=rounds)

    def _solved(self, size: int) -> Iterator[Asked]:
        """Yield the messages of stages without rounds, the last of which has ``size`` weights."""
        shape, last = self._shape, self._shape.layers - 1
        made_by = self._made_by_features()
        for stage in range(last):
            ahead = Asked(stage=stage, purpose="publish", clients=self._everyone)
            yield from self._after_exchange(made_by, ahead)
            made_by = Record()
        yield from self._after_exchange(made_by, self._products(shape))
        found = (self._coded(size, 32),)
        yield Asked(stage=last, purpose="validate", clients=self._validating, down=found)

    def _products(self, shape: ModelShape) -> Asked:
        """Return the question for what a last layer is solved from."""
        return Asked(
            stage=shape.layers - 1,
            purpose="gram",
            clients=self._everyone,
            up=(self._summed(solved_values(shape), 32, masked_bits=solved_bits(shape)),),
            training=frozenset(self._everyone),
        )

    def _after_exchange(self, made_by: Record, asked: Asked) -> Iterator[Asked]:
        """Yield the messages of an exchange and of what follows, in one if they may go along."""
        if not self._go_along or tuple(asked.clients) != self._everyone:
            yield from self._exchange(asked.stage, made_by)
            yield asked
            return
        yield replace(
            asked,
            first=("publish", "collect"),
            down=(made_by, *_FEW, *asked.down),
            up=(*_FEW, *_FEW, *asked.up),
        )

    def _exchange(self, stage: int, made_by: Record) -> Iterator[Asked]:
        yield Asked(stage=stage, purpose="publish", clients=self._everyone, down=(made_by,))
        yield Asked(stage=stage, purpose="collect", clients=self._everyone)

    def _sums(
        self,
        columns: int,
        *,
        down: Record,
        masked_bits: int = 0,
        kinds: int = 1,
        has_block: bool = False,
    ) -> Asked:
        """Return the question for the sums of F x ``columns`` values of bases of some kinds.

        Of products with a block the coded ones have a trace before them.
        """
        values, bits = self._shape.features * columns, self._config.basis_bits
        noised_bits = NOISED_SUM_BITS if self._shape.clips_products else 0
        masked_bits = noised_bits or masked_bits or masked_sum_bits(bits)
        before = _TRACE_BYTES if has_block else 0
        up = self._summed(values, bits, masked_bits=masked_bits, kinds=kinds, before=before)
        return Asked(
            stage=0,
            purpose="basis",
            clients=self._summing,
            down=(down,),
            up=(up,),
            training=frozenset(self._summing),
        )

    def _made_by_features(self) -> Record:
        """Return what the rows of the first stage are made by: a whole basis, or nothing."""
        if not self._shape.basis_blocks:
            return Record()
        whole = self._basis_record(self._shape.inputs, is_whole=True)
        told = told_values(self._shape)
        if whole.array_bytes is None:
            return replace(whole, coded_bytes=whole.coded_bytes + _TOLD_BYTES * told)
        return replace(whole, array_bytes=whole.array_bytes + self._item * told)

    def _basis_record(self, columns: int, kinds: int = 1, *, is_whole: bool = False) -> Record:
        """Return means, and so many directions, of bases of some kinds."""
        features, bits = self._shape.features, self._config.basis_bits
        # Of a block, while it is made; a byte each, or a value.
        scales = int(self._shape.reads_all_far and not is_whole)
        if bits == 32:
            return self._coded(features * (1 + columns + scales), bits).times(kinds)
        directions = self._coded(features * columns, bits).coded_bytes if columns else 0
        return Record(coded_bytes=(_MEAN_BYTES + scales) * features + directions).times(kinds)

    def _selected(self, stage: int, size: int) -> Record:
        """Return the selected weights of a stage that is over.

        After rounds as something else clients hold no more what the stage was before.
        """
        is_named = self._names_selected and not candidates_of(self._config, self._shape, stage)
        return _NAME if is_named else self._coded(size, 32)

    def _update(self, values: int, bits: int) -> Record:
        if not self._masked:
            return self._coded(values, bits)
        return Record(coded_bytes=masked_update_bytes(values, bits, self._terms))

    def _summed(
        self, values: int, bits: int, *, masked_bits: int, kinds: int = 1, before: int = 0
    ) -> Record:
        """Return sums of some kinds, with so many bytes before each where they are coded."""
        if not self._masked:
            found = self._coded(values, bits)
            if found.coded_bytes:
                found = replace(found, coded_bytes=found.coded_bytes + before)
            return found.times(kinds)
        return Record(coded_bytes=Ring(masked_bits).size(kinds * values))

    def _coded(self, values: int, bits: int) -> Record:
        """Return an array in so many bits a value, as long as it is at most."""
        if bits == 32:
            return Record(array_bytes=values * self._item)
        steps = -(-values // _STEP_VALUES)
        return Record(coded_bytes=_HEAD_BYTES + steps + -(-values * bits // 8))
