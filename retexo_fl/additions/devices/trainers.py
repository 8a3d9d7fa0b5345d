"""What the core asks of this room: a client's trainers, and what a run says of devices."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from retexo_fl.additions.devices.training.auto_stage import AutoStage, SpareDevices
from retexo_fl.additions.devices.training.client_devices import ClientDevices, why_alone
from retexo_fl.additions.devices.training.device_stage import DevicePlan, DeviceStage
from retexo_fl.client.log_lines import line
from retexo_fl.config import RunConfig
from retexo_fl.layers.base import StageInput
from retexo_fl.training.end_to_end import EndToEndTrainer
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.recipe import Recipe
from retexo_fl.training.stage_model import ModelShape

if TYPE_CHECKING:
    from retexo_fl.additions.devices.training.sampled_trainer import SampledTrainer

logger = logging.getLogger(__name__)


def check_sampler(config: RunConfig) -> None:
    """Check that a model can be trained on what a configuration's sampler draws.

    Raises:
        ConfigurationError: It cannot.
        PluginError: The model is no layer.
    """
    if config.sampler != "none":
        from retexo_fl.additions.devices.training.sampler_choice import SamplerChoice

        SamplerChoice.of(config, client=0)


def devices_told(config: RunConfig) -> str:
    """Return what a run's devices are, for its user, where it names them or samples.

    Raises:
        ConfigurationError: ``devices`` cannot be read, or names a device twice.
    """
    return ClientDevices.of(config).settled.sentence


class DeviceTrainers:
    """Makes the trainers of one client; the latest holds its devices until another is made.

    Args:
        config: Of the run.
        client: Index.
    """

    def __init__(self, config: RunConfig, *, client: int) -> None:
        self._config = config
        self._client = client
        self._devices: ClientDevices | None = None
        self._spare: SpareDevices | None = None
        self._made: AutoStage | DeviceStage | SampledTrainer | None = None

    def stage(
        self, shape: ModelShape, stage: int, inputs: StageInput, nodes: NodeSets, *, recipe: Recipe
    ) -> LayerTrainer:
        """Return the trainer of one stage.

        Args:
            shape: Of the model.
            stage: Index.
            inputs: What the stage reads.
            nodes: The client's labelled nodes.
            recipe: Loss, metric and local steps.
        """
        config, client = self._config, self._client
        if config.devices == "auto":
            spare = self._spare = self._spare or SpareDevices(config, client=client)
            if spare.are_any and not why_alone(config):
                auto = AutoStage(shape, stage, inputs, nodes, recipe=recipe, spare=spare)
                self._made = auto
                return auto
        elif not (devices := self._found()).in_process:
            plan = DevicePlan.of(config, devices, client=client)
            self._made = made = DeviceStage(shape, stage, inputs, nodes, recipe=recipe, plan=plan)
            return made
        return LayerTrainer(shape, stage, inputs, nodes, seed=config.seed, recipe=recipe)

    def whole(
        self, trainer: EndToEndTrainer, inputs: StageInput, nodes: NodeSets, *, recipe: Recipe
    ) -> EndToEndTrainer | SampledTrainer:
        """Return the trainer of all layers at once.

        Args:
            trainer: Trains without mini-batches, and judges in any case.
            inputs: Features of own and boundary nodes, edges, degrees.
            nodes: The client's labelled nodes.
            recipe: Loss, metric and local steps.
        """
        if self._config.sampler == "none":
            why = why_alone(self._config)
            logger.info(line("devices", client=self._client, on="cpu", reason=why))
            return trainer
        # Samplers are machine code, whose compiler is loaded by those who sample.
        from retexo_fl.additions.devices.training.client_batches import (
            client_graph,
            make_sampled_trainer,
        )

        self._made = made = make_sampled_trainer(
            self._config,
            client_graph(inputs, nodes),
            trainer,
            self._found(),
            recipe=recipe,
            client=self._client,
        )
        return made

    def let_go(self) -> None:
        """Release what the latest trainer holds; its devices stay ready for the next."""
        made, self._made = self._made, None
        if made is not None:
            made.close()

    def close(self) -> None:
        """Release all devices; further training starts them again."""
        self.let_go()
        for devices in (self._devices, self._spare):
            if devices is not None:
                devices.close()

    def _found(self) -> ClientDevices:
        if self._devices is None:
            self._devices = ClientDevices.of(self._config)
            said = self._devices.settled.sentence.removeprefix("devices: ")
            logger.info(line("devices", client=self._client, found=said))
        return self._devices
