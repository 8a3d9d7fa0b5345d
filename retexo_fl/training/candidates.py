"""Candidates: what else a stage is trained as, of which the best on validation nodes is kept.

Each is the stage as it is with some of its weights fixed. The server alone sees to that: the
candidate starts with them, and no step is taken along them. To clients it is further rounds of the
stage, and what it leaves is an ordinary layer.

The last layer without nodes' own rows: the layer before was fitted to the train nodes' labels, so
that their own rows predict these, and the last layer trusts own rows too much where the layer
before fits its train nodes far better than others. Weights of types without labels that these
labels have taught (``unlabelled-types``) may distinguish train nodes in the same way; rows of such
types as drawn weights make them are there, too, and the last layer may read these alone.

The first layer with few blocks: of a basis that is the whole space of the features no direction is
left out, so that little but weight decay keeps the layer from fitting noise, which the gap between
its train and its validation nodes announces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np
import torch

from retexo_fl.config import RunConfig
from retexo_fl.layers.relational import RelSageLayer
from retexo_fl.training.stage_model import FlatParameters, ModelShape, StageModel
from retexo_fl.updates.grid import BLOCK

#: By how much more of its train than of its validation nodes a stage has right that has fitted
#: labels which own rows then predict.
_LEAST_GAP: Final = 0.1
#: The same of one that fits noise in all of its columns, or teaches it to types.
_LEAST_GAP_OF_NOISE: Final = 0.05
#: Blocks that the first layer reads of a basis, and its weight decay.
_FEW_BLOCKS: Final = 3
_FEW_WEIGHT_DECAY: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FixedWeights:
    """Weights of a stage that stay as they are.

    Attributes:
        places: (P,) bool, where they are.
        values: (P,) what they are there.
    """

    places: np.ndarray
    values: np.ndarray

    @property
    def blocks(self) -> np.ndarray:
        """(k,) blocks of values that share a step, of which all stay as they are."""
        starts = np.arange(0, len(self.places), BLOCK)
        found: np.ndarray = np.flatnonzero(np.logical_and.reduceat(self.places, starts))
        return found

    def set_in(self, weights: np.ndarray) -> np.ndarray:
        """Return (P,) weights with these."""
        return np.where(self.places, self.values, weights)

    def left_out_of(self, update: np.ndarray) -> np.ndarray:
        """Return a (P,) update that leaves them as they are."""
        return np.where(self.places, update.dtype.type(0), update)


class Candidate(ABC):
    """One thing that a stage may be trained as.

    Attributes:
        name: Of it, in logs and results.
        key: Value of ``candidates`` that asks for it alone.
        weight_decay: That it is trained with; None: as configured.
    """

    name: ClassVar[str]
    key: ClassVar[str]
    weight_decay: ClassVar[float | None] = None

    @abstractmethod
    def is_of(self, shape: ModelShape, stage: int) -> bool:
        """Return whether a stage may be trained as this."""

    @abstractmethod
    def may_pay(self, own: float, before: float) -> bool:
        """Return whether to train it.

        Args:
            own: By how much more of its train than of its validation nodes the stage as it is has
                right (:attr:`.Score.gap`).
            before: The same of the stage before; -inf of the first.
        """

    @abstractmethod
    def _fixed(self, model: StageModel, shape: ModelShape) -> Iterable[tuple[torch.Tensor, float]]:
        """Yield views of the fixed parameters, and their values."""

    def fixed(self, shape: ModelShape, stage: int) -> FixedWeights:
        """Return the fixed weights of a stage."""
        model = StageModel(shape, stage)
        flat = FlatParameters(model)
        values = np.full(flat.size, np.nan, shape.dtype)
        flat.bind(values)
        with torch.no_grad():
            for weights, value in self._fixed(model, shape):
                weights.fill_(value)
        return FixedWeights(places=~np.isnan(values), values=np.nan_to_num(values))


class NoOwnRow(Candidate):
    """The last layer without nodes' own rows."""

    name = "no own rows"
    key = "own-row"

    def is_of(self, shape: ModelShape, stage: int) -> bool:
        """See :class:`Candidate`: the last of several, if it reads own rows apart."""
        is_last = 0 < stage == shape.layers - 1
        return is_last and any(True for _ in StageModel(shape, stage).layer.own_weights())

    def may_pay(self, own: float, before: float) -> bool:
        """See :class:`Candidate`: where the stage before fits its train nodes far better."""
        del own
        return before >= _LEAST_GAP

    def _fixed(self, model: StageModel, shape: ModelShape) -> Iterable[tuple[torch.Tensor, float]]:
        """See :class:`Candidate`."""
        del shape
        return model.layer.own_weights()


class DrawnTypes(NoOwnRow):
    """The last layer without own rows, and of types that were taught with rows as drawn alone."""

    name = "types as drawn"
    key = "drawn-types"

    def is_of(self, shape: ModelShape, stage: int) -> bool:
        """See :class:`Candidate`: the last, if types were taught."""
        return bool(shape.taught) and stage == shape.layers - 1

    def may_pay(self, own: float, before: float) -> bool:
        """See :class:`Candidate`: where labels have taught noise, or what identifies nodes."""
        del own
        return before >= _LEAST_GAP_OF_NOISE

    def _fixed(self, model: StageModel, shape: ModelShape) -> Iterable[tuple[torch.Tensor, float]]:
        """See :class:`Candidate`."""
        assert isinstance(model.layer, RelSageLayer)
        yield from super()._fixed(model, shape)
        yield from model.layer.taught_weights()


class FewBlocks(Candidate):
    """The first layer with few blocks of a basis that is the whole space, and more weight decay."""

    name = "few blocks"
    key = "few-blocks"
    weight_decay = _FEW_WEIGHT_DECAY

    def is_of(self, shape: ModelShape, stage: int) -> bool:
        """See :class:`Candidate`: the first, if its columns have weights of their own."""
        few = _FEW_BLOCKS * shape.classes
        if stage or not shape.features_before_basis or shape.inputs < shape.features:
            return False
        beyond = StageModel(shape, stage).layer.weights_beyond(few)
        return few < shape.inputs and any(True for _ in beyond)

    def may_pay(self, own: float, before: float) -> bool:
        """See :class:`Candidate`: where the stage as it is fits noise."""
        del before
        return own >= _LEAST_GAP_OF_NOISE

    def _fixed(self, model: StageModel, shape: ModelShape) -> Iterator[tuple[torch.Tensor, float]]:
        """See :class:`Candidate`: blocks nest, so that the first are those of fewer."""
        for weights in model.layer.weights_beyond(_FEW_BLOCKS * shape.classes):
            yield weights, 0.0


#: All, by their names, in the order in which they are trained.
CANDIDATES: Final[Mapping[str, Candidate]] = MappingProxyType(
    {one.name: one for one in (FewBlocks(), NoOwnRow(), DrawnTypes())}
)


def further_rounds(config: RunConfig, shape: ModelShape) -> tuple[int, ...]:
    """Return how many rounds each stage may take beyond its own, as something else."""
    return tuple(
        rounds * len(candidates_of(config, shape, stage))
        for stage, rounds in enumerate(config.stage_rounds)
    )


def candidates_of(config: RunConfig, shape: ModelShape, stage: int) -> tuple[Candidate, ...]:
    """Return what else a stage of a run may be trained as."""
    if not config.has_candidates:
        return ()
    wanted = (one for one in CANDIDATES.values() if config.candidates in {"auto", one.key})
    return tuple(one for one in wanted if one.is_of(shape, stage))


def starts_of(
    config: RunConfig, shape: ModelShape, stage: int, first: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the (P,) weights that a stage starts from as each of its candidates.

    Args:
        config: Of the run.
        shape: Of its model.
        stage: Which.
        first: (P,) what it starts from as it is.
    """
    for candidate in candidates_of(config, shape, stage):
        yield candidate.fixed(shape, stage).set_in(first)
