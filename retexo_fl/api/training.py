"""One training on this machine: where it goes, what it needs, its engine, and how it ends early."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retexo_fl.addition import DEVICES
from retexo_fl.api.settling import Asked, fitted
from retexo_fl.config import RunConfig, config_values, make_config
from retexo_fl.errors import ConfigurationError, Interrupted, NotBegun, PluginError, RetexoError
from retexo_fl.files import FileStamp, file_stamp
from retexo_fl.plugins import named_plugin_errors

if TYPE_CHECKING:
    from retexo_fl.graph.parts.partition import GraphPartition
    from retexo_fl.progress import LiveTable
    from retexo_fl.run_log.events import Event
    from retexo_fl.run_log.profile import ChosenProfile
    from retexo_fl.run_log.result import Result


logger = logging.getLogger(__name__)

#: Beside a run directory, while it trains: rows that do not fit into memory.
_ROWS_NAME: Final = ".{run}.rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training that is about to start on this machine.

    Attributes:
        config: From :func:`placed`.
        run_path: Its run directory.
        asked: What the user asked for, by which the rest is fitted to the graph.
        tell: Is handed sentences for the user, one at a time.
        quiet: Say nothing except about devices, and show no progress.
        force: Train even if memory is not enough.
        ray_address: Of a Ray cluster that is there; empty for one of the run's own.
    """

    config: RunConfig
    run_path: Path
    asked: Asked
    tell: Callable[[str], None]
    quiet: bool = False
    force: bool = False
    ray_address: str = ""

    def run(self, table: LiveTable, listeners: Sequence[Callable[[Event], None]] = ()) -> None:
        """Train to the end.

        Args:
            table: Shows the events.
            listeners: Called with every event.

        Raises:
            RetexoError: Any named failure.
        """
        listeners = [table.handle, *listeners]
        if self.config.engine == "flower":
            from retexo_fl.api.flower_run import run_on_flower
            from retexo_fl.simulation.ray_cluster import check_answers

            if self.ray_address:
                check_answers(self.ray_address)
            self._tell_devices()
            run_on_flower(
                self.run_path,
                self._fitted,
                table,
                listeners,
                overwrite=self.asked.overwrite,
                ray_address=self.ray_address,
            )
            return
        from retexo_fl.client.preparation import keep_recipe
        from retexo_fl.client.run_memory import (
            GraphSize,
            check_memory,
            memory_sentence,
            rows_are_on_disk,
        )
        from retexo_fl.simulation.inline_engine import run_inline

        foreseen = GraphSize.foreseen(self.config)
        if foreseen is not None and not self.force:
            check_memory(self.config, foreseen, self.run_path)
        config, parts, profile = self._fitted()
        size = GraphSize.of(parts)
        if not self.force:
            check_memory(config, size, self.run_path)
        if not self.quiet:
            self.tell(memory_sentence(config, size))
        self._tell_devices()
        folder = (
            self.run_path.with_name(_ROWS_NAME.format(run=self.run_path.name))
            if rows_are_on_disk(config, size)
            else None
        )
        with table:
            run_inline(
                config,
                parts,
                listeners,
                folder=folder,
                profile=profile,
                overwrite=self.asked.overwrite,
            )
        keep_recipe(parts[0].recipe, self.run_path)

    def _fitted(self) -> tuple[RunConfig, list[GraphPartition], ChosenProfile | None]:
        """Return the configuration with what nobody chose fitted to all parts, these, the profile.

        A resumed run has its own.
        """
        from retexo_fl.api.plan_exchanges import PlannedParts
        from retexo_fl.api.profile_choice import chosen_profile

        loaded = self.asked.load(self.config, quiet=self.quiet)
        if self.config.resume:
            return self.config, loaded.parts, None
        counted = PlannedParts(loaded.parts)
        config, fit = fitted(loaded.config, counted, self.asked)
        profile = chosen_profile(config, counted, self.asked, fit=fit, masks=loaded.masks)
        return config, loaded.parts, _with_counts(profile, config, loaded.parts)

    def _tell_devices(self) -> None:
        """Say what of the devices is here, where the clients are."""
        wanted = DEVICES.wanted_by(config_values(self.config))
        if wanted and self.config.devices != "cpu":
            self.tell(DEVICES.module("trainers", wanted).devices_told(self.config))


def _with_counts(
    profile: ChosenProfile, config: RunConfig, parts: Sequence[GraphPartition]
) -> ChosenProfile:
    """Add what is counted where all parts are here: features of one client, links by degrees."""
    from retexo_fl.api.plan_masked import single_contributors
    from retexo_fl.methods.forecasts import forecast_of
    from retexo_fl.training.stage_model import ModelShape

    if forecast_of(config).trains:
        shape = ModelShape.of_part(config, parts[0])
        profile = replace(profile, of_one_client=single_contributors(config, shape, parts))
    return _with_baselines(profile, config, parts)


def _with_baselines(
    profile: ChosenProfile, config: RunConfig, parts: Sequence[GraphPartition]
) -> ChosenProfile:
    """Add what degrees alone make of test edges; warn of a bipartite graph."""
    if config.goal.splits_nodes:
        return profile
    from retexo_fl.training.link_baselines import link_baselines

    found = link_baselines(parts, config)
    if found is None:
        return profile
    if found.sides is not None:
        logger.warning(
            "task links: the graph is bipartite, and edges are judged beside pairs of any two "
            "nodes, many of which its sides rule out: the side alone has ROC AUC %.4f, degrees "
            "%.4f; compare a model with these, or say on which side a node is: a table of nodes "
            "for each (--nodes twice) or a column of types, and --model rel-sage; pairs are then "
            "of both",
            *(found.sides, found.degrees),
        )
    return replace(
        profile,
        degrees_auc=found.degrees,
        sides_auc=found.sides,
        degrees_metric=found.ranked,
    )


def placed(
    config: RunConfig, *, made_here: bool = True, overwrite: bool = False
) -> tuple[RunConfig, Path]:
    """Return the configuration with an absolute run directory, and that.

    Args:
        config: Names the directory, or a run to resume.
        made_here: The directory is made on this machine; in a deployment, where the SuperLink runs.
        overwrite: A run that is in the directory is to be replaced.

    Raises:
        ConfigurationError: There is nothing that could be replaced.
        RunDirectoryError: The directory holds something already, or cannot be made.
    """
    from retexo_fl.federation.run_directory import check_free, default_path

    if overwrite and not config.out:
        raise ConfigurationError("overwrite: expected --out with it, the run that is replaced")
    if config.resume:
        path = Path(config.resume).absolute()
        return make_config({**config_values(config), "resume": str(path)}), path
    path = Path(config.out).absolute() if config.out else default_path(config)
    if made_here or os.path.exists(path):  # noqa: PTH110 - never raises
        check_free(path, overwrite=overwrite)
    return make_config({**config_values(config), "out": str(path)}), path


@named_plugin_errors(PluginError)
def check_plugins(config: RunConfig) -> None:
    """Find what the configuration names while nothing is written yet.

    Raises:
        InputError: It is not there, or is none of its kind.
    """
    from retexo_fl.federation.aggregators import make_aggregator
    from retexo_fl.layers.named import layer_class
    from retexo_fl.simulation.links import read_links
    from retexo_fl.training.recipe import Recipe

    Recipe.of(config)
    try:
        layer_class(config.model)
    except PluginError as error:
        raise PluginError(f"model: {error}") from error
    make_aggregator(config.aggregator).check_clients(config.min_clients or config.clients)
    read_links(config.links, clients=config.clients)
    _check_devices(config)


def _check_devices(config: RunConfig) -> None:
    """Check what a text's form does not show."""
    from retexo_fl.device_names import parse_devices

    parse_devices(config.devices)
    if wanted := DEVICES.wanted_by(config_values(config)):
        DEVICES.module("trainers", wanted).check_sampler(config)


@contextmanager
def named_end(what_now: Callable[[], str]) -> Iterator[None]:
    """Have failures of the body, and Ctrl-C, end with a sentence on what can be done now.

    Nothing is added to errors from before anything began, nor where there is nothing to say.

    Raises:
        Interrupted: The user stopped it.
        RetexoError: Of the class that the body raised.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(_joined("interrupted", what_now())) from None
    except RetexoError as error:
        if error.exit_code != 1 or isinstance(error, NotBegun):
            raise
        raise type(error)(_joined(str(error), what_now())) from error


def _joined(*sentences: str) -> str:
    return "; ".join(filter(None, sentences))


def what_now(run_path: Path, resume: str, *, replaced: FileStamp | None = None) -> str:
    """Say what can be done with a run on this machine that ended early; nothing if none began.

    Args:
        run_path: Its directory, which may not have been made.
        resume: What resumes it.
        replaced: :func:`.file_stamp` of the ``status.json`` of the run that it was to replace.
    """
    if replaced is not None and file_stamp(run_path / "status.json") == replaced:
        return f"the run that was in {run_path} before is there as it was"
    if (run_path / "result.json").exists():
        return f"the training is finished; its results are in {run_path}"
    if (run_path / "checkpoint.safetensors").exists():
        return f"go on with: {resume}"
    return "there is no checkpoint to resume from" if run_path.exists() else ""


def result_of(run_path: Path) -> Result:
    """Return the result of a finished run.

    Raises:
        RunDirectoryError: It is damaged.
    """
    from retexo_fl.run_log.result import read_result

    path = run_path / "result.json"
    return read_result(path.read_text(encoding="utf-8"), str(path))


def say(sentence: str) -> None:
    """Print a line for a user of Python on standard error, as the command does."""
    from retexo_fl.outlet import Outlet

    Outlet().write(f"retexo: {sentence}\n")
