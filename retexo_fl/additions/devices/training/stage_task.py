"""What one device does in the training of a stage: some of its units, each by itself.

A unit is a fixed piece of the labelled nodes. Sums are returned by unit and added in their order,
so that the bits of a training depend on no device's share. Their number is bounded, since each has
a gradient of its own. Units that are the batches of a pass in one process leave the bits of that.

Symbols: U units, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Final, Literal

import numpy as np
import torch

from retexo_fl.additions.devices.training.shared_stage import nodes_of, prepared_of
from retexo_fl.additions.devices.workers.task import Share, ShareSums
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.recipe import Objective, Recipe
from retexo_fl.training.stage_model import ModelShape, StageModel
from retexo_fl.training.stage_pass import BOTH, NodeSets, StageFacts, StagePass, chunks
from retexo_fl.training.tally import Tally

#: Purposes of a share: the gradient of the train nodes and a tally of the validation nodes, or the
#: gradient alone; any use of nodes (``test``) is a purpose, too, and asks for its tally.
ROUND: Final = "round"
GRADIENT: Final = "gradient"
#: A unit has at least so many nodes of a use, or all there are.
LEAST_NODES: Final = 128
#: There are at most so many, since units that read the same rows each transform them: GAT in 8
#: units took 1.1 times the CPU time of one pass on GitHub's users and 1.5 times on PubMed, in 32
#: units 1.7 and 2.8 times. More devices than units have nothing to do.
MOST_UNITS: Final = 8
_USES: Final = ("train", "validation", "test")

#: How labelled nodes are cut: in pieces of any size; in the batches of a pass; in those of a pass
#: over train and validation nodes together. Of ``test`` nodes only pieces have any.
Cut = Literal["pieces", "batches", "pairs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """What a device needs beside the arrays.

    Attributes:
        shape: Of the model.
        stage: Stage index.
        objective: Has loss and metric.
        label_facts: What the loss knows of all clients' labels; may be empty.
        dropout: Rate.
        seed: Of the training.
        cut: What its units are.
    """

    shape: ModelShape
    stage: int
    objective: Objective
    label_facts: tuple[float, ...] = ()
    dropout: float
    seed: int
    cut: Cut = "pieces"


def unit_nodes(nodes: NodeSets, cut: Cut = "pieces") -> list[NodeSets]:
    """Cut labelled nodes, as they are ordered, whatever devices there are.

    Within a unit nodes are ascending.
    """
    none = np.zeros(0, np.int64)
    if cut == "pieces":
        units = zip_longest(*(_pieces(getattr(nodes, use)) for use in _USES), fillvalue=none)
    else:
        train, validation = chunks(nodes.train), chunks(nodes.validation)
        if cut == "batches":
            train, validation = (
                [*train, *[none] * len(validation)],
                [*[none] * len(train), *validation],
            )
        units = zip_longest(train, validation, [], fillvalue=none)
    return [
        replace(nodes, train=train, validation=validation, test=test)
        for train, validation, test in units
    ]


def unit_number(unit: int, name: str) -> str:
    """Name a sum of one unit among the numbers of a share."""
    return f"{unit}/{name}"


class StageTask:
    """Implements :class:`.Task`; items are numbers of units."""

    def __init__(
        self, device: torch.device, arrays: Mapping[str, np.ndarray], settings: StageSettings
    ) -> None:
        self._settings = settings
        model = StageModel(settings.shape, settings.stage)
        dtype = getattr(torch, settings.shape.dtype)
        recipe = Recipe(
            loss=settings.objective.loss(settings.label_facts),
            label_facts=settings.label_facts,
            metric=settings.objective.metric(settings.label_facts),
        )
        prepared = prepared_of(model.layer, arrays, dtype)
        self._facts = StageFacts(model, prepared, recipe, device)
        units = unit_nodes(nodes_of(arrays), settings.cut)
        self._passes = [StagePass(self._facts, nodes) for nodes in units]

    def prepare(self, share: Share) -> object:
        """Do nothing: what can be prepared is kept from round to round."""
        return share

    def sums(self, weights: torch.Tensor, prepared: object) -> ShareSums:
        """Compute each unit of a share."""
        assert isinstance(prepared, Share)
        numbers: dict[str, float] = {}
        if prepared.purpose not in {ROUND, GRADIENT}:
            for unit in prepared.items.tolist():
                found = self._passes[unit].tally(weights, prepared.purpose)
                numbers |= _tally_numbers(unit, found)
            return ShareSums(gradient_sum=None, numbers=numbers)
        dropout = KeyedDropout(
            rate=self._settings.dropout,
            seed=self._settings.seed,
            stage=self._settings.stage,
            round=prepared.numbers["round"],
            step=prepared.numbers["step"],
        )
        gradients = torch.zeros((len(self._passes), len(weights)), dtype=weights.dtype)
        for unit in prepared.items.tolist():
            gradient, found = self._unit_sums(unit, weights, dropout, prepared.purpose)
            numbers |= found
            if gradient is not None:
                gradients[unit] = torch.from_numpy(gradient)
        return ShareSums(gradient_sum=gradients.view(-1), numbers=numbers)

    def _unit_sums(
        self, unit: int, weights: torch.Tensor, dropout: KeyedDropout, purpose: str
    ) -> tuple[np.ndarray | None, dict[str, float]]:
        """Return the (P,) gradient of a unit, None without train nodes, and its numbers."""
        validate = purpose == ROUND
        in_one_pass = validate and self._facts.in_one_pass
        one = self._passes[unit]
        sums = one.sums(weights, dropout, BOTH) if in_one_pass else one.sums(weights, dropout)
        numbers = {
            unit_number(unit, "train-loss"): sums.train.loss_sum,
            unit_number(unit, "train-correct"): float(sums.train.correct),
            unit_number(unit, "infinite"): float(not sums.is_finite),
        }
        if in_one_pass:
            numbers |= _tally_numbers(unit, sums.validation)
        elif validate:
            numbers |= _tally_numbers(unit, one.tally(weights, "validation"))
        return sums.gradient_sum, numbers


def make_stage_task(
    device: torch.device, arrays: Mapping[str, np.ndarray], settings: StageSettings
) -> StageTask:
    """Make the task of a device; a :data:`.TaskFactory`."""
    return StageTask(device, arrays, settings)


def unit_tally(unit: int, numbers: Mapping[str, float], count: int) -> Tally:
    """Read the tally of a unit with ``count`` nodes: the inverse of how a device writes it."""
    return Tally(
        count=count,
        loss_sum=numbers[unit_number(unit, "loss")],
        correct=int(numbers[unit_number(unit, "correct")]),
        metric_sums=_sums(unit, numbers, "metric"),
        report_sums=_sums(unit, numbers, "report"),
    )


def _tally_numbers(unit: int, found: Tally) -> dict[str, float]:
    told = {"loss": found.loss_sum, "correct": float(found.correct)}
    for name, sums in (("metric", found.metric_sums), ("report", found.report_sums)):
        # Most of many sums are zero.
        told |= {f"{name}-{place}": sums[place] for place in np.flatnonzero(sums).tolist()}
        told[f"{name}-length"] = len(sums)
    return {unit_number(unit, name): value for name, value in told.items()}


def _sums(unit: int, numbers: Mapping[str, float], name: str) -> np.ndarray:
    begin = unit_number(unit, f"{name}-")
    found = np.zeros(int(numbers[f"{begin}length"]))
    for key, value in numbers.items():
        place = key.removeprefix(begin)
        if place != key and place.isdecimal():
            found[int(place)] = value
    return found


def _pieces(rows: np.ndarray) -> list[np.ndarray]:
    size = max(LEAST_NODES, -(-len(rows) // MOST_UNITS))
    starts = range(0, max(1, len(rows)), size)
    return [np.sort(rows[start : start + size]) for start in starts]
