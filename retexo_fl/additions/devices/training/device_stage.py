"""Training of one stage on several devices of a client.

The labelled nodes are cut in units that do not depend on the devices (see ``stage_task``); each
round every device computes some of them. Rows for the next stage are made by the client's own
process, once per stage.

Source: Lin, Deng and Prasanna, "A Unified CPU-GPU Protocol for GNN Training" (CF'24), section 4,
with sums in place of means: the gradient is that of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.additions.devices.training.locality import near_together
from retexo_fl.additions.devices.training.measured_balance import MeasuredBalance
from retexo_fl.additions.devices.training.shared_stage import shared_arrays
from retexo_fl.additions.devices.training.stage_task import (
    GRADIENT,
    ROUND,
    Cut,
    StageSettings,
    make_stage_task,
    unit_nodes,
    unit_number,
    unit_tally,
)
from retexo_fl.additions.devices.workers.balancer import assign
from retexo_fl.additions.devices.workers.pool import OpenTask
from retexo_fl.additions.devices.workers.task import Share
from retexo_fl.additions.devices.workers.timings import StepSums
from retexo_fl.config import RunConfig
from retexo_fl.errors import RetexoError
from retexo_fl.layers.aggregate import AggregatedInput
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.layer_trainer import LayerTrainer
from retexo_fl.training.recipe import Objective, Recipe, objective_of
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.stage_pass import NodeSets
from retexo_fl.training.tally import PassSums, Tally

#: What a node's gradient costs where its tally costs 1: a pass forward and two of it backward.
_GRADIENT_COST: Final = 3.0
#: A device too slow for a unit gets one in every so many rounds, so that it is noticed when it has
#: become faster. A unit that takes it as long as all others take the rest costs under 2 %.
_ROUNDS_PER_PROBE: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """Who computes a stage, and by which names processes find loss and metric.

    Attributes:
        devices: The client's.
        client: Index, for its log.
        balance: ``dynamic``, ``static`` or ``equal``.
        objective: Has loss and metric.
        dropout: Rate.
        seed: Of the training.
    """

    devices: ClientDevices
    client: int
    balance: str
    objective: Objective
    dropout: float
    seed: int

    @classmethod
    def of(cls, config: RunConfig, devices: ClientDevices, *, client: int) -> Self:
        """Read a configuration."""
        return cls(
            devices=devices,
            client=client,
            balance=config.balance,
            objective=objective_of(config),
            dropout=config.dropout,
            seed=config.seed,
        )

    def settings(
        self, shape: ModelShape, stage: int, recipe: Recipe, *, cut: Cut = "pieces"
    ) -> StageSettings:
        """Return what devices know of a stage."""
        return StageSettings(
            shape=shape,
            stage=stage,
            objective=self.objective,
            label_facts=recipe.label_facts,
            dropout=self.dropout,
            seed=self.seed,
            cut=cut,
        )


class DeviceStage(LayerTrainer):
    """Does what :class:`LayerTrainer` does, with passes over labelled nodes on all devices."""

    def __init__(
        self,
        shape: ModelShape,
        stage: int,
        inputs: StageInput,
        nodes: NodeSets,
        *,
        recipe: Recipe,
        plan: DevicePlan,
    ) -> None:
        """Prepare the stage; devices are asked for at the first pass.

        Args:
            shape: Of the model.
            stage: Stage index.
            inputs: What the stage reads.
            nodes: Labelled nodes by use.
            recipe: Loss, metric and local steps.
            plan: Devices.
        """
        super().__init__(shape, stage, inputs, nodes, seed=plan.seed, recipe=recipe)
        settings = plan.settings(shape, stage, recipe)
        prepared = self._facts.prepared
        self.passes = DevicePasses(prepared, inputs, nodes, settings, plan, size=self.num_weights)

    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Count over the ``train``, ``validation`` or ``test`` nodes, without dropout."""
        return self.passes.evaluate(weights, which)

    def close(self) -> None:
        """Let the devices go; the next pass asks for them again."""
        self.passes.close()

    def _begun(self, weights: np.ndarray, dropout: KeyedDropout) -> PassSums:
        return self.passes.sums(weights, dropout, ROUND)

    def _sums(self, weights: np.ndarray, dropout: KeyedDropout) -> PassSums:
        return self.passes.sums(weights, dropout, GRADIENT)


class DevicePasses:
    """Passes of a stage over labelled nodes, in units that devices share."""

    def __init__(
        self,
        prepared: object,
        inputs: StageInput,
        nodes: NodeSets,
        settings: StageSettings,
        plan: DevicePlan,
        *,
        size: int,
    ) -> None:
        """Cut the nodes; devices are asked for at the first pass.

        Args:
            prepared: What the stage's layer made of its inputs.
            inputs: What the stage reads.
            nodes: Labelled nodes by use.
            settings: Of the stage.
            plan: Devices.
            size: P.
        """
        self.devices = plan.devices
        self._prepared = prepared
        self._inputs = inputs
        self._settings = settings
        self._size = size
        # A node costs its row and, where messages are passed in every round, its edges.
        messages = not isinstance(prepared, AggregatedInput)
        near = messages and settings.cut == "pieces"
        self._ordered = near_together(nodes, inputs) if near else nodes
        self.units = unit_nodes(self._ordered, settings.cut)
        self._costs = np.ones(inputs.num_nodes) + messages * np.diff(inputs.indptr)
        self._balance = MeasuredBalance(
            plan.devices.num_workers,
            mode=plan.balance,
            client=plan.client,
            unit=f"stage={settings.stage} round",
            speeds=plan.devices.speeds,
        )
        self._work = np.zeros(plan.devices.num_workers)
        self._task: OpenTask | None = None

    def costs(self, purpose: str) -> np.ndarray:
        """Return what each unit costs, relative to each other, for a purpose of a share."""
        if purpose not in {ROUND, GRADIENT}:
            return np.array([self._costs[getattr(unit, purpose)].sum() for unit in self.units])
        costs = self.costs("train") * _GRADIENT_COST
        return costs + self.costs("validation") if purpose == ROUND else costs

    def open(self) -> OpenTask:
        """Have the devices make the task, if they have not.

        Raises:
            DeviceFailed: One cannot.
        """
        if self._task is None:
            self._task = self.devices.open(
                make_stage_task,
                shared_arrays(self._inputs, self._prepared, self._ordered),
                self._settings,
                num_weights=self._size,
                num_sums=self._size * len(self.units),
                dtype=np.dtype(self._settings.shape.dtype),
            )
        return self._task

    def close(self) -> None:
        """Let the devices go; the next pass asks for them again."""
        if self._task is not None:
            self._task.close()
            self._task = None

    def evaluate(self, weights: np.ndarray, which: str) -> Tally:
        """Count over the ``train``, ``validation`` or ``test`` nodes, without dropout."""
        return self._tallied(self._computed(weights, which), which)

    def sums(self, weights: np.ndarray, dropout: KeyedDropout, purpose: str) -> PassSums:
        """Return the gradient at (P,) ``weights``, for a ``ROUND`` with their validation."""
        assert dropout.rate == self._settings.dropout, "devices know the rate beforehand"
        numbers = {"round": dropout.round, "step": dropout.step}
        step = self._computed(weights, purpose, numbers)
        sums = self._added(step)
        if purpose == ROUND:
            seconds = [each.busy_s for each in step.times]
            self._balance.learn(dropout.round, seconds=seconds, work=self._work.tolist())
            self.devices.speeds = self._balance.speeds or self.devices.speeds
            sums.validation = self._tallied(step, "validation")
        return sums

    def _computed(
        self, weights: np.ndarray, purpose: str, numbers: dict[str, int] | None = None
    ) -> StepSums:
        """Have the units computed, so that the last device is done as early as can be."""
        costs = self.costs(purpose)
        units = assign(costs, self._balance.ratios)
        if numbers and numbers["round"] % _ROUNDS_PER_PROBE == 0:
            _let_idle_try(units, costs)
        self._work = np.array([costs[own].sum() for own in units])
        shares = [
            Share(epoch=0, batch=0, items=own, purpose=purpose, numbers=numbers or {})
            for own in units
        ]
        try:
            return self.open().step(weights, shares)
        except RetexoError:
            # The devices have ended; a resumed training asks for new ones.
            self._task = None
            raise

    def _added(self, step: StepSums) -> PassSums:
        """Add the units' sums in their order."""
        total = PassSums()
        assert step.gradient_sum is not None
        gradients = step.gradient_sum.reshape(len(self.units), -1)
        for unit, gradient in enumerate(gradients):
            nodes = len(self.units[unit].train)
            loss_sum = step.numbers[unit_number(unit, "train-loss")]
            correct = int(step.numbers[unit_number(unit, "train-correct")])
            total.add(
                PassSums(
                    gradient_sum=gradient.copy() if nodes else None,
                    is_finite=not step.numbers[unit_number(unit, "infinite")],
                    train=Tally(count=nodes, loss_sum=loss_sum, correct=correct),
                )
            )
        return total

    def _tallied(self, step: StepSums, which: str) -> Tally:
        counts: Sequence[int] = [len(getattr(unit, which)) for unit in self.units]
        tallies = [unit_tally(u, step.numbers, count) for u, count in enumerate(counts)]
        return sum(tallies, Tally())


def _let_idle_try(units: list[np.ndarray], costs: np.ndarray) -> None:
    """Give each device without a unit the lightest of the device that has most, if it has two."""
    for device, own in enumerate(units):
        most = max(range(len(units)), key=lambda other: len(units[other]))
        if len(own) or len(units[most]) < 2:
            continue
        given = costs[units[most]].argmin()
        units[device] = units[most][given : given + 1]
        units[most] = np.delete(units[most], given)
