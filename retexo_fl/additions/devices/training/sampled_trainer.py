"""Training of the whole model by mini-batches on one client, on all of its devices.

The mini-batches of a client are an endless sequence: its train nodes in an order that is drawn for
each epoch, cut into batches of equal size. Step k of round r, both from 0, takes batch ``r L + k``
with L local steps a round. So a round is a function of its number and the configuration, and a
resumed training continues where it was.

Validation and test are exact: over all edges, as without a sampler.

Symbols: P parameters of all layers, n train nodes, W devices.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retexo_fl.additions.devices.sampling.workloads import root_workloads
from retexo_fl.additions.devices.training.cache_counts import CacheCounter
from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.additions.devices.training.measured_balance import MeasuredBalance
from retexo_fl.additions.devices.training.sampled_task import (
    ROUND,
    STEP,
    ClientGraph,
    SampledSettings,
    make_sampled_task,
)
from retexo_fl.additions.devices.workers.plan import EpochPlan, epoch_plan
from retexo_fl.additions.devices.workers.pool import OpenTask
from retexo_fl.additions.devices.workers.task import Share
from retexo_fl.additions.devices.workers.timings import StepSums
from retexo_fl.errors import RetexoError
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.training.end_to_end import EndToEndTrainer
from retexo_fl.training.linear_step import all_finite
from retexo_fl.training.local_steps import take_steps
from retexo_fl.training.recipe import LocalSteps
from retexo_fl.training.rounds import Steps, run_alone, without_exchange
from retexo_fl.training.tally import LayerUpdate, PassSums, Tally

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatches:
    """How a client's train nodes become mini-batches, and who computes them.

    Attributes:
        settings: Model, sampler, loss.
        client: Index, for its log.
        local: Steps of a round.
        batch_nodes: Train nodes of a mini-batch.
        balance: ``dynamic``, ``static`` or ``equal``.
        workloads: Folder in which measured workloads are kept; None keeps none.
    """

    settings: SampledSettings
    client: int
    local: LocalSteps
    batch_nodes: int
    balance: str
    workloads: Path | None = None


class SampledTrainer:
    """Does what :class:`EndToEndTrainer` does, but trains on one mini-batch in each step."""

    def __init__(
        self,
        whole: EndToEndTrainer,
        graph: ClientGraph,
        devices: ClientDevices,
        *,
        batches: MiniBatches,
    ) -> None:
        """Set up; nothing is sampled yet.

        Args:
            whole: Evaluates.
            graph: The client's.
            devices: The client's.
            batches: How to train.
        """
        self._whole = whole
        self._graph = graph
        self._devices = devices
        self._batches = batches
        self._balance = MeasuredBalance(
            devices.num_workers, mode=batches.balance, client=batches.client, unit="epoch"
        )
        self._counter = CacheCounter(batches.client)
        self._per_epoch = -(-len(graph.train) // batches.batch_nodes)
        self._workloads: np.ndarray | None = None
        self._task: OpenTask | None = None
        self._plan: EpochPlan | None = None
        #: By mini-batch of the epoch, the (W,) seconds that devices were busy.
        self._spent: dict[int, list[float]] = {}

    @property
    def num_weights(self) -> int:
        """P."""
        return self._whole.num_weights

    def update_steps(
        self,
        weights: np.ndarray,
        *,
        round_number: int,
        dropout: float,
        correction: np.ndarray | None = None,
    ) -> Steps[LayerUpdate]:
        """Train from the incoming weights, and validate them.

        With one local step the update is the gradient of the mini-batch, and ``train.count`` its
        size; with more, a change of weights times n, and the loss is that of the first mini-batch
        as if all n nodes had its mean.

        Args:
            weights: (P,) of the model's dtype, layer after layer.
            round_number: From 1.
            dropout: That of the settings.
            correction: (P,) what is added to the mean gradient of each of several local steps.

        Raises:
            TrainingDiverged: A loss or a gradient is not finite.
            DeviceFailed: A device did not answer.
        """
        assert dropout == self._batches.settings.dropout, "devices know the rate beforehand"
        # What a round that failed has read is in the log alone.
        self._counter.taken()
        update_sum, train = self._trained(weights, round_number, correction)
        cached = self._counter.taken()
        validation = yield from self._whole.tally_steps(weights, "validation")
        return LayerUpdate(update_sum=update_sum, train=train, validation=validation, cached=cached)

    def tally_steps(self, weights: np.ndarray, which: str) -> Steps[Tally]:
        """Judge weights on the ``train``, ``validation`` or ``test`` nodes, without dropout."""
        return self._whole.tally_steps(weights, which)

    def close(self) -> None:
        """Let the devices go; the next round asks for them again."""
        self._counter.log()
        if self._task is not None:
            self._task.close()
            self._task = None

    def _trained(
        self, weights: np.ndarray, round_number: int, correction: np.ndarray | None
    ) -> tuple[np.ndarray, Tally]:
        local, nodes = self._batches.local, len(self._graph.train)
        if not nodes:
            return np.zeros_like(weights), Tally()
        place = KeyedDropout(rate=0.0, seed=0, stage=0, round=round_number, step=0)
        first = self._step(weights, place)
        update = take_steps(
            local,
            weights,
            first,
            place,
            nodes=nodes,
            sums_at=lambda weights, place: without_exchange(self._step(weights, place)),
            correction=correction,
        )
        train = first.train
        if local.count > 1:
            # The change counts for all train nodes, and so does the loss of the first mini-batch.
            train = Tally(count=nodes, loss_sum=train.loss_sum / train.count * nodes)
        return run_alone(update), train

    def _step(self, weights: np.ndarray, place: KeyedDropout) -> PassSums:
        """Return the sums of one mini-batch; see the module for which."""
        step = place.step
        number = (place.round - 1) * self._batches.local.count + step
        epoch, batch = divmod(number, self._per_epoch)
        plan = self._plan_of(epoch, batch, step)
        try:
            found = self._opened().step(weights, self._shares(plan, batch))
        except RetexoError:
            # The devices have ended; a resumed training asks for new ones.
            self._task = self._plan = None
            raise
        for note in found.notes:
            logger.warning("devices client=%d %s", self._batches.client, note)
        assert found.gradient_sum is not None, "a mini-batch has at least one root"
        assert found.numbers["count"] == plan.count(batch), "every root is computed once"
        self._counter.add(found.numbers)
        self._learn(plan, batch, found)
        return PassSums(
            gradient_sum=found.gradient_sum,
            is_finite=all_finite(found.gradient_sum),
            train=Tally(count=plan.count(batch), loss_sum=found.numbers["loss_sum"]),
        )

    def _plan_of(self, epoch: int, batch: int, step: int) -> EpochPlan:
        """Return the plan of an epoch; it is announced to the devices, so that they prepare it."""
        is_new = self._plan is None or self._plan.epoch != epoch
        if self._plan is None or is_new:
            self._plan = epoch_plan(
                self._graph.train,
                self._costs(),
                batch_size=self._batches.batch_nodes,
                ratios=self._balance.ratios,
                seed=self._batches.settings.choice.seed,
                epoch=epoch,
            )
            self._spent = {}
        last = self._per_epoch
        in_process = self._devices.in_process
        if in_process:
            # Many clients may share this process: none leaves a batch in memory after its round.
            last = min(last, batch + self._batches.local.count - step)
        if (is_new or (in_process and step == 0)) and last > batch + 1:
            coming = [self._shares(self._plan, later) for later in range(batch, last)]
            self._opened().announce(list(zip(*coming, strict=True)))
        return self._plan

    def _shares(self, plan: EpochPlan, batch: int) -> tuple[Share, ...]:
        """Return each device's share of a mini-batch, with the round and the step that it is of."""
        number = plan.epoch * self._per_epoch + batch
        rounds, step = divmod(number, self._batches.local.count)
        numbers = {ROUND: rounds + 1, STEP: step}
        return tuple(replace(share, numbers=numbers) for share in plan.shares(batch))

    def _learn(self, plan: EpochPlan, batch: int, found: StepSums) -> None:
        """Let the balancer see an epoch of which every mini-batch was computed here."""
        self._spent[batch] = [times.busy_s for times in found.times]
        if len(self._spent) < plan.num_batches:
            return
        seconds = np.sum(list(self._spent.values()), axis=0).tolist()
        self._spent = {}
        self._balance.learn(plan.epoch, seconds=seconds, work=plan.work.tolist())

    def _costs(self) -> np.ndarray | None:
        """Return the (n,) workload of each train node, where several devices share it."""
        if self._devices.num_workers == 1:
            return None
        if self._workloads is None:
            graph = self._graph
            sampler = self._batches.settings.choice.make(graph.adjacency, graph.train)
            kept = self._batches.workloads
            self._workloads = root_workloads(sampler, graph.train, cache=kept)
        return self._workloads

    def _opened(self) -> OpenTask:
        if self._task is None:
            self._task = self._devices.open(
                make_sampled_task,
                self._graph.arrays(),
                self._batches.settings,
                num_weights=self.num_weights,
                dtype=self._graph.rows.dtype,
            )
        return self._task
