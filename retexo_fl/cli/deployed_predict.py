"""``retexo predict --superlink``: clients predict on machines of their own, and keep that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retexo_fl.api.flower_run import mark_of
from retexo_fl.cli.superlink import Address
from retexo_fl.config import RunConfig

if TYPE_CHECKING:
    from retexo_fl.federation.prediction_in_place import InPlaceTask


def predict_deployed(
    config: RunConfig,
    task: InPlaceTask,
    *,
    address: Address,
    quiet: bool,
    tell: Callable[[str], None],
) -> tuple[Path, dict[str, Any] | None]:
    """Have the clients of a SuperLink predict, and show the progress.

    Args:
        config: Of the inference.
        task: What to predict with, and where the server writes.
        address: Of the SuperLink.
        quiet: Show no progress.
        tell: Is handed a sentence where nothing had to be made.

    Returns:
        Where the server's summary is, on the SuperLink's machine; and what is in it, if that is
        this machine.

    Raises:
        RetexoError: A named failure of the inference.
        ConfigurationError: The SuperLink cannot be reached.
        EngineFailed: It was lost, or its run was stopped.
    """
    from retexo_fl.cli.deployed_run import EventFile, check_superlink, run_apps
    from retexo_fl.federation.prediction_app import EVENTS_NAME
    from retexo_fl.federation.prediction_in_place import SUMMARY_NAME
    from retexo_fl.progress.prediction import PredictionTable
    from retexo_fl.run_log.events import PREDICTION_EVENTS
    from retexo_fl.simulation.flower_bundle import in_place_apps

    check_superlink(address)
    folder = Path(task.folder)
    path = folder / SUMMARY_NAME
    before = mark_of(path)
    is_here = run_apps(
        config,
        folder,
        PredictionTable(
            partitions="parts in place", model=config.model, engine=config.engine, quiet=quiet
        ),
        address=address,
        quiet=quiet,
        apps=in_place_apps(task),
        events=EventFile(name=EVENTS_NAME, kinds=PREDICTION_EVENTS),
    )
    if not is_here:
        return path, None
    if mark_of(path) == before:
        tell("made already; --overwrite makes them again")
    return path, json.loads(path.read_bytes())
