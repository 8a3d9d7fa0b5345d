"""What a client trains with: the trainers that its configuration asks for, on its devices."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from retexo_fl.addition import DEVICES
from retexo_fl.config import RunConfig
from retexo_fl.layers.base import StageInput
from retexo_fl.layers.named import layer_class
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.recipe import Recipe, objective_of
from retexo_fl.training.rounds import Steps
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.stage_pass import ROWS_PER_BATCH
from retexo_fl.training.tally import LayerUpdate, Tally

#: Nodes and edges that a stage reads in all of its rounds, below which no worker pays: on one core
#: attention over 38,000 nodes and 578,000 edges took .1 s a round, so that this is ten seconds.
_LEAST_READ: Final = 60_000_000


class WholeTrainer(Protocol):
    """Trains all layers of a model at once."""

    @property
    def num_weights(self) -> int:
        """P."""
        ...

    def update_steps(
        self,
        weights: np.ndarray,
        *,
        round_number: int,
        dropout: float,
        correction: np.ndarray | None = None,
    ) -> Steps[LayerUpdate]:
        """Train from the incoming weights, and validate them."""
        ...

    def tally_steps(self, weights: np.ndarray, which: str) -> Steps[Tally]:
        """Judge weights."""
        ...


class DeviceTrainers(Protocol):
    """Makes the trainers of a client that has several devices, or trains on mini-batches."""

    def stage(
        self, shape: ModelShape, stage: int, inputs: StageInput, nodes: NodeSets, *, recipe: Recipe
    ) -> LayerTrainer:
        """Return the trainer of one stage."""
        ...

    def whole(
        self, trainer: WholeTrainer, inputs: StageInput, nodes: NodeSets, *, recipe: Recipe
    ) -> WholeTrainer:
        """Return the trainer of all layers, which judges as ``trainer`` does."""
        ...

    def let_go(self) -> None:
        """Release what the latest trainer holds."""
        ...

    def close(self) -> None:
        """Release all devices; further training starts them again."""
        ...


class ClientTrainers:
    """Makes the trainers of one client; the latest holds devices until another is made."""

    def __init__(
        self,
        config: RunConfig,
        shape: ModelShape,
        nodes: NodeSets,
        *,
        client: int,
    ) -> None:
        """Set up; nothing is looked for yet.

        Args:
            config: Of the run.
            shape: Of its model.
            nodes: The client's labelled nodes.
            client: Index.
        """
        self.recipe = Recipe.of(config)
        self._config = config
        self._shape, self._beyond = shape, shape.beyond
        self._nodes = nodes
        self._client = client
        self._devices: DeviceTrainers | None = None

    def follow(self, config: RunConfig) -> bool:
        """Take over ``devices`` and ``balance``; say whether trainers must be made anew."""
        before = self._config
        if (config.devices, config.balance) == (before.devices, before.balance):
            return False
        self.close()
        self._config = replace(before, devices=config.devices, balance=config.balance)
        self._devices = None
        return True

    def follow_labels(self, facts: tuple[float, ...]) -> bool:
        """Take over what follows for the loss from all clients' labels, if anything does.

        Returns:
            Whether trainers must be made anew.

        Raises:
            LocalProtocolError: Nothing of the kind can follow.
        """
        objective_of(self._config).label_facts.check(facts, self._shape.classes)
        if not facts or facts == self.recipe.label_facts:
            return False
        self.close()
        self.recipe = Recipe.of(self._config, facts)
        return True

    def label_sums(self, labels: np.ndarray) -> tuple[float, ...]:
        """Return what is added up of train nodes' labels for the loss of all clients."""
        return objective_of(self._config).label_facts.sums(labels, self._shape.classes)

    def stage(self, stage: int, inputs: StageInput, *, predicts: bool = False) -> LayerTrainer:
        """Return the trainer of one stage.

        Args:
            stage: Index; the one after the last is the floor's.
            inputs: What the stage reads.
            predicts: It only makes rows, which this process does by itself.
        """
        # A floor is only judged, beside the stage whose rows it reads.
        is_floor = stage in self._beyond
        if not is_floor:
            self._let_go()
        is_alone = predicts or is_floor or self._config.update_dp > 0
        devices = None if is_alone else self._shared(self._is_long(inputs))
        shape, stage = self._beyond.get(stage, (self._shape, stage))
        if devices is not None:
            return devices.stage(shape, stage, inputs, self._nodes, recipe=self.recipe)
        return LayerTrainer(
            shape,
            stage,
            inputs,
            self._nodes,
            seed=self._config.seed,
            recipe=self.recipe,
            clip=self._config.update_dp_clip if self._config.update_dp else None,
        )

    def whole(self, trainer: WholeTrainer, inputs: StageInput) -> WholeTrainer:
        """Return the trainer of all layers.

        Args:
            trainer: Trains without mini-batches, and judges in any case.
            inputs: Features of own and boundary nodes, edges, degrees.
        """
        self._let_go()
        devices = self._shared()
        if devices is None:
            return trainer
        return devices.whole(trainer, inputs, self._nodes, recipe=self.recipe)

    def close(self) -> None:
        """Release all devices; further training starts them again."""
        if self._devices is not None:
            self._devices.close()

    def _let_go(self) -> None:
        if self._devices is not None:
            self._devices.let_go()

    def _is_long(self, inputs: StageInput) -> bool:
        """Return whether workers might pay for a stage, by what its rounds read."""
        config = self._config
        if config.devices != "auto":
            return False
        rounds = max(config.rounds, config.last_rounds)
        if rounds * (inputs.num_nodes + len(inputs.indices)) < _LEAST_READ:
            return False
        passes_once = layer_class(config.model).fixed_width(1) is not None
        if passes_once and len(self._nodes.train) <= ROWS_PER_BATCH:
            return False
        # Last: a room is looked for in the file system, which takes longer than a small stage.
        return os.cpu_count() != 1 and DEVICES.is_here

    def _shared(self, is_long: bool = False) -> DeviceTrainers | None:
        """Return who trains otherwise than on all rows in this process, where that is asked for.

        Args:
            is_long: A stage may be shared without being asked for.
        """
        keys = (key for key, _ in DEVICES.keys)
        wanted = DEVICES.wanted_by({key: getattr(self._config, key) for key in keys})
        wanted = wanted or ("devices: auto" if is_long else "")
        if not wanted:
            return None
        if self._devices is None:
            made = DEVICES.module("trainers", wanted).DeviceTrainers
            self._devices = made(self._config, client=self._client)
        return self._devices
