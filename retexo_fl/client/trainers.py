"""What a client trains with: the trainers that its configuration asks for, on its devices."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from retexo_fl.client.log_lines import line
from retexo_fl.config import RunConfig
from retexo_fl.layers.base import StageInput
from retexo_fl.training.client_devices import ClientDevices, why_alone
from retexo_fl.training.device_stage import DevicePlan, DeviceStage
from retexo_fl.training.end_to_end import EndToEndPlan, EndToEndTrainer
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.rounds import Steps
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.tally import LayerUpdate, Tally

if TYPE_CHECKING:
    from retexo_fl.training.sampled_trainer import SampledTrainer

logger = logging.getLogger(__name__)

#: One worker in the client's own process: nothing to look for, and no other to share with.
_ALONE: Final = "cpu"


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
        self._shape = shape
        self._nodes = nodes
        self._client = client
        self._devices: ClientDevices | None = None
        self._made: DeviceStage | SampledTrainer | None = None

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
        """
        if not facts or facts == self.recipe.label_facts:
            return False
        self.close()
        self.recipe = Recipe.of(self._config, facts)
        return True

    def stage(self, stage: int, inputs: StageInput, *, predicts: bool = False) -> LayerTrainer:
        """Return the trainer of one stage.

        Args:
            stage: Index.
            inputs: What the stage reads.
            predicts: It only makes rows, which this process does by itself.
        """
        self._let_go()
        devices = None if predicts or self._config.devices == _ALONE else self._found()
        if devices is None or devices.in_process:
            config = self._config
            return LayerTrainer(
                self._shape, stage, inputs, self._nodes, seed=config.seed, recipe=self.recipe
            )
        made = DeviceStage(
            self._shape,
            stage,
            inputs,
            self._nodes,
            recipe=self.recipe,
            plan=DevicePlan.of(self._config, devices, client=self._client),
        )
        self._made = made
        return made

    def whole(self, inputs: StageInput, plan: EndToEndPlan) -> WholeTrainer:
        """Return the trainer of all layers.

        Args:
            inputs: Features of own and boundary nodes, edges, degrees.
            plan: How it trains without mini-batches, and judges in any case.
        """
        self._let_go()
        trainer = EndToEndTrainer(self._shape, inputs, self._nodes, plan=plan)
        if self._config.sampler == "none":
            if self._config.devices != _ALONE:
                why = why_alone(self._config)
                logger.info(line("devices", client=self._client, on="cpu", reason=why))
            return trainer
        # Samplers are machine code, whose compiler is loaded by those who sample.
        from retexo_fl.training.client_batches import client_graph, make_sampled_trainer

        self._made = made = make_sampled_trainer(
            self._config,
            client_graph(inputs, self._nodes),
            trainer,
            self._found(),
            recipe=self.recipe,
            client=self._client,
        )
        return made

    def close(self) -> None:
        """Release all devices; further training starts them again."""
        self._let_go()
        if self._devices is not None:
            self._devices.close()

    def _let_go(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def _found(self) -> ClientDevices:
        if self._devices is None:
            self._devices = ClientDevices.of(self._config)
            said = self._devices.settled.sentence.removeprefix("devices: ")
            logger.info(line("devices", client=self._client, found=said))
        return self._devices
