"""The Flower side: strategy, server loop, message handlers, checkpoints.

The factories import what they need when they are called, so that a ClientApp's process does not
load the server's half, nor torch.
"""

from __future__ import annotations

from typing import Any

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp


def make_server_app(
    *,
    overwrite: bool = False,
    fits: str | None = None,
    chosen: tuple[str, ...] = (),
    **profile: Any,
) -> ServerApp:
    """Return the ServerApp that trains by lazy message passing.

    Args:
        overwrite: Replace a run that is in the run's directory.
        fits: Profile of which keys follow from the clients' graph; None where nothing does.
        chosen: Keys that stay as they are.
        profile: Fields of :class:`~retexo_fl.run_log.profile.ChosenProfile`; without any, it
            follows from the keys of Flower's run configuration, as for ``retexo run``.
    """
    from retexo_fl.config.profiles import Fitting
    from retexo_fl.federation import server_app
    from retexo_fl.run_log.profile import ChosenProfile

    if not profile:
        return server_app.make_app_of_keys(overwrite=overwrite)
    fitting = None if fits is None else Fitting(profile=fits, chosen=tuple(chosen))
    return server_app.make_server_app(
        profile=ChosenProfile(**profile), fitting=fitting, overwrite=overwrite
    )


def make_prediction_app(*, run: str, folder: str, form: str) -> ServerApp:
    """Return the ServerApp that predicts with the layers of a finished run.

    Args:
        run: Directory of the run.
        folder: Existing folder for the server's reports on the inference.
        form: What clients write: ``csv``, ``parquet`` or ``npz``.
    """
    from retexo_fl.federation.prediction_app import PredictionTask, make_prediction_app

    return make_prediction_app(PredictionTask(run=run, folder=folder, form=form))


def make_prediction_in_place_app(**task: Any) -> ServerApp:
    """Return the ServerApp of an inference whose clients keep what they predict.

    Args:
        task: Fields of :class:`~retexo_fl.federation.prediction_in_place.InPlaceTask`.
    """
    from retexo_fl.federation import prediction_in_place as in_place

    return in_place.make_prediction_in_place_app(in_place.InPlaceTask(**task))


def make_recipe_app(**task: Any) -> ServerApp:
    """Return the ServerApp that makes a feature recipe of clients' summaries.

    Args:
        task: Fields of :class:`~retexo_fl.federation.recipe_app.RecipeTask`.
    """
    from retexo_fl.federation import recipe_app

    return recipe_app.make_recipe_app(recipe_app.RecipeTask(**task))


def make_client_app(predictions: str = "", scratch: str = "", parts: str = "") -> ClientApp:
    """Return the ClientApp that answers for one client.

    Args:
        predictions: Folder that clients write their predictions to; empty where they make none.
        scratch: Folder that all processes of a simulation share, likewise ``parts``; empty where
            each finds it by itself.
        parts: Folder of all clients' parts.
    """
    from retexo_fl.federation import client_app

    return client_app.make_client_app(predictions, scratch, parts)


__all__ = [
    "make_client_app",
    "make_prediction_app",
    "make_prediction_in_place_app",
    "make_recipe_app",
    "make_server_app",
]
