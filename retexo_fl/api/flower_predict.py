"""``retexo predict --engine flower``: the same inference in Flower's simulation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from retexo_fl.api.flower_run import follow, named_error
from retexo_fl.config import RunConfig, config_values
from retexo_fl.errors import EngineFailed
from retexo_fl.federation.prediction_app import EVENTS_NAME, PredictionTask, read_outcome
from retexo_fl.progress.prediction import PredictionTable
from retexo_fl.run_log.events import PREDICTION_EVENTS

if TYPE_CHECKING:
    from retexo_fl.simulation.prediction_set import Workshop


def predict_on_flower(
    config: RunConfig,
    task: PredictionTask,
    place: Workshop,
    table: PredictionTable,
    *,
    ray_address: str = "",
) -> None:
    """Run an inference in Flower's simulation, and show its progress.

    ``ray_address`` is that of a Ray cluster that is there; empty for a private one.

    Raises:
        RetexoError: A named failure of the inference.
        EngineFailed: Flower itself failed; the message points to the end of its log.
    """
    from retexo_fl.simulation.flower_bundle import prediction_apps, with_folders
    from retexo_fl.simulation.flower_engine import run_flower_simulation

    with table:
        try:
            run_flower_simulation(
                config_values(config),
                num_clients=config.clients,
                tick=follow(place.server / EVENTS_NAME, table.handle, kinds=PREDICTION_EVENTS),
                apps=with_folders(
                    prediction_apps(task),
                    predictions=place.clients.absolute(),
                    scratch=place.scratch.absolute(),
                    parts=Path(config.partitions),
                ),
                ray_address=ray_address,
            )
        except EngineFailed as failure:
            try:
                read_outcome(place.server)
            except EngineFailed:
                # Nothing is at this place yet; the end of Flower's log is put beside it now.
                raise named_error(failure, place.out / "predictions", None) from failure
            raise
