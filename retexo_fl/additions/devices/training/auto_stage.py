"""Training of one stage by ``devices = auto``: no slower than in the client's process alone.

Rounds begin there. Where :class:`.Trial` says that it may pay, worker processes (or GPUs) start
beside them, and get rounds once they are ready. On a CPU their units are the batches that the
client's process computes, with its number of threads, so that no bit depends on who computes.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

import numpy as np
import torch

from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.additions.devices.training.device_stage import DevicePasses, DevicePlan
from retexo_fl.additions.devices.training.stage_task import GRADIENT, ROUND, Cut, unit_nodes
from retexo_fl.additions.devices.training.trial import Experience, Trial
from retexo_fl.additions.devices.workers.balancer import assign
from retexo_fl.additions.devices.workers.shared_arrays import free_bytes
from retexo_fl.client.log_lines import line
from retexo_fl.config import RunConfig
from retexo_fl.device_names import Machine, available_cores, processes_for
from retexo_fl.errors import RetexoError
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.process_memory import WORKER_BYTES, available_bytes
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.tally import PassSums
from retexo_fl.units import format_bytes

logger = logging.getLogger(__name__)

#: Of what is free, workers and their copies of a stage's rows may take so much.
_PART_OF_FREE: Final = 0.5
#: Cores that are to be idle beside this process: the load of a minute is never quite whole.
_LEAST_IDLE: Final = 0.5
#: Commands of this package, which do nothing where a child imports them.
_COMMANDS: Final = frozenset({"retexo"})


class AutoStage(LayerTrainer):
    """Does what :class:`LayerTrainer` does, with the same bits, and on workers where they pay."""

    def __init__(
        self,
        shape: ModelShape,
        stage: int,
        inputs: StageInput,
        nodes: NodeSets,
        *,
        recipe: Recipe,
        spare: SpareDevices,
    ) -> None:
        """Prepare the stage; nothing is started.

        Args:
            shape: Of the model.
            stage: Stage index.
            inputs: What the stage reads.
            nodes: Labelled nodes by use.
            recipe: Loss, metric and local steps.
            spare: Where rounds may go.
        """
        config, client = spare.config, spare.client
        super().__init__(shape, stage, inputs, nodes, seed=config.seed, recipe=recipe)
        facts = self._facts
        cut: Cut = "pairs" if facts.in_one_pass else "batches"
        # Test nodes are judged once, in this process.
        nodes = nodes.only(frozenset({"train", "validation"}))
        devices = spare.of_units(len(unit_nodes(nodes, cut)))
        plan = DevicePlan.of(config, devices, client=client)
        settings = plan.settings(shape, stage, recipe, cut=cut)
        size = self.num_weights
        self._passes = DevicePasses(facts.prepared, inputs, nodes, settings, plan, size=size)
        rounds = config.rounds
        if config.last_rounds and stage == shape.stages - 1:
            rounds = config.last_rounds
        self._trial = Trial(rounds, share=self._largest_share(), before=spare.experience)
        self._spare = spare
        self._bytes = _bytes_of(inputs)
        self._where = {"client": client, "stage": stage}
        self._opening: threading.Thread | None = None
        self._failure: RetexoError | None = None
        #: Whether the devices have the stage, and whether this round is theirs.
        self._is_open = self._is_shared = False

    def close(self) -> None:
        """Let the devices go."""
        if self._opening is not None:
            self._opening.join()
            self._opening = None
        self._is_open = False
        self._passes.close()

    def _begun(self, weights: np.ndarray, place: KeyedDropout) -> PassSums:
        self._is_shared = self._goes_to_workers(place.round)
        begun = time.perf_counter()
        if self._is_shared and (sums := self._on_workers(weights, place, ROUND)) is not None:
            if self._trial.shared_round(time.perf_counter() - begun):
                self._decided(place.round)
            return sums
        sums = super()._begun(weights, place)
        self._trial.own_round(time.perf_counter() - begun)
        if self._is_open and self._trial.is_over:
            self._decided(place.round)
        return sums

    def _sums(self, weights: np.ndarray, place: KeyedDropout) -> PassSums:
        if self._is_shared and (sums := self._on_workers(weights, place, GRADIENT)) is not None:
            return sums
        return super()._sums(weights, place)

    def _on_workers(
        self, weights: np.ndarray, place: KeyedDropout, purpose: str
    ) -> PassSums | None:
        """Return what the devices add up; None where one has failed, and this process goes on."""
        try:
            return self._passes.sums(weights, place, purpose)
        except RetexoError as error:
            self._is_shared = False
            self._give_up(place.round, str(error))
            return None

    def _goes_to_workers(self, number: int) -> bool:
        """Return whether a round does; has workers start where they may pay."""
        if self._is_open:
            return self._trial.goes_to_workers(number)
        if self._opening is None:
            if self._trial.wants_workers(number - 1) and self._spare.are_idle():
                self._open(number)
            return False
        if self._opening.is_alive():
            return False
        self._opening = None
        if self._failure is not None:
            self._give_up(number, str(self._failure))
            return False
        self._is_open = True
        return True

    def _open(self, number: int) -> None:
        """Have the devices start and make the stage, while rounds go on here."""
        if reason := self._why_not():
            self._give_up(number, reason)
            return
        tried = ",".join(self._passes.devices.settled.names)
        facts = {**self._where, "round": number, "tries": tried, "own_s": self._trial.own_s}
        logger.info(line("devices", **facts))

        def open_passes() -> None:
            try:
                self._passes.open()
            except RetexoError as error:
                self._failure = error

        self._opening = threading.Thread(target=open_passes, name="open devices", daemon=True)
        self._opening.start()

    def _why_not(self) -> str:
        """Return why no worker can be started here; empty: it can."""
        if not _main_can_be_imported():
            return "a script without a guard would run again in each worker; name devices=cpu:N"
        workers = self._passes.devices.num_workers
        needed = workers * WORKER_BYTES + (1 + workers) * self._bytes
        if needed > _PART_OF_FREE * min(free_bytes() or available_bytes(), available_bytes()):
            return f"workers would take {format_bytes(needed)} of memory"
        return ""

    def _decided(self, number: int) -> None:
        trial = self._trial
        names = ",".join(self._passes.devices.settled.names)
        facts = {**self._where, "round": number, "on": "cpu" if trial.is_over else names}
        logger.info(line("devices", **facts, own_s=trial.own_s, shared_s=trial.shared_s))
        if trial.is_over:
            self._release()

    def _give_up(self, number: int, reason: str) -> None:
        self._trial.fail()
        logger.info(line("devices", **self._where, round=number, on="cpu", reason=reason))
        self._release()

    def _release(self) -> None:
        self.close()
        self._passes.devices.close()

    def _largest_share(self) -> float:
        """Return the part of a round's work that one device has, at equal speeds."""
        devices = self._passes.devices
        if not all(name.startswith("cpu") for name in devices.settled.names):
            return 0.0  # Nothing is known of a GPU.
        costs = self._passes.costs(ROUND)
        shares = assign(costs, [1.0] * devices.num_workers)
        return float(max(costs[own].sum() for own in shares) / max(costs.sum(), 1.0))


class SpareDevices:
    """What a client may use beside its own process, and what its stages have shown of it.

    Args:
        config: Of the run.
        client: Index.
    """

    def __init__(self, config: RunConfig, *, client: int) -> None:
        self.config = config
        self.client = client
        self.experience = Experience()
        self._threads = config.threads
        processes = processes_for(config.clients) if config.engine == "flower" else 1
        self._cores = available_cores() // processes // config.threads
        self._num_gpus = Machine.here().num_gpus
        self._made: dict[str, ClientDevices] = {}

    @property
    def are_any(self) -> bool:
        """Whether there are any."""
        return self._num_gpus > 0 or self._cores > 1

    def are_idle(self) -> bool:
        """Return whether nobody else computes on what this process would take.

        The load of the last minute counts this process itself, and others that wait for a core.
        """
        return self._num_gpus > 0 or os.getloadavg()[0] < available_cores() - _LEAST_IDLE

    def of_units(self, units: int) -> ClientDevices:
        """Return the devices for so many units: the GPUs, or workers on the cores."""
        gpus = ",".join(f"cuda:{gpu}" for gpu in range(self._num_gpus))
        text = gpus or f"cpu:{max(1, min(self._cores, units))}"
        if text not in self._made:
            self._made[text] = ClientDevices(text, threads=self._threads)
        return self._made[text]

    def close(self) -> None:
        """End what runs."""
        for devices in self._made.values():
            devices.close()


def _main_can_be_imported() -> bool:
    """Return whether a child may import what this process was started with, as it will.

    A command of this package does nothing then. Whether a script does cannot be seen.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    return file is None or main.__spec__ is not None or Path(file).name in _COMMANDS


def _bytes_of(inputs: StageInput) -> int:
    rows = (inputs.own, inputs.received)
    sizes = (
        r.nbytes if isinstance(r, torch.Tensor) else r.data.nbytes + r.indices.nbytes for r in rows
    )
    return sum(sizes) + inputs.indices.nbytes
