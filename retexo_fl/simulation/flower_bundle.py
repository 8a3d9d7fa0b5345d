"""Write the Flower app bundle of one run: a ``pyproject.toml`` and two one-line components."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import tomli_w

from retexo_fl.errors import ConfigurationError

if TYPE_CHECKING:
    from retexo_fl.config.profiles import Fitting
    from retexo_fl.federation.prediction_app import PredictionTask
    from retexo_fl.federation.prediction_in_place import InPlaceTask
    from retexo_fl.federation.recipe_app import RecipeTask
    from retexo_fl.run_log.profile import ChosenProfile

Scalar = bool | int | float | str

#: Flower refuses app directories and project names with an underscore.
BUNDLE_NAME: Final = "retexo-fl"
#: Ray puts the user's present directory before the bundle on its workers' path, so the bundle's
#: packages have names that no folder there is likely to have.
_SERVER_PACKAGE: Final = "retexo_bundle_server"
_CLIENT_PACKAGE: Final = "retexo_bundle_client"

_COMPONENT: Final = "from retexo_fl.federation import make_{kind}_app; app = make_{kind}_app()\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleApps:
    """Python source of the two components of a bundle; each defines ``app``.

    Attributes:
        server: Source of the ServerApp's module; ``app`` is a ``flwr.serverapp.ServerApp``.
        client: Source of the ClientApp's module; ``app`` is a ``flwr.clientapp.ClientApp``.
    """

    server: str = _COMPONENT.format(kind="server")
    client: str = _COMPONENT.format(kind="client")


def prediction_apps(task: PredictionTask) -> BundleApps:
    """Return the components of an inference.

    Their source says what to do, since paths do not belong in a run configuration.

    Args:
        task: What the server predicts with.
    """
    return BundleApps(server=_component("prediction", task))


def with_folders(apps: BundleApps, **folders: Path) -> BundleApps:
    """Return components whose clients get their folders as arguments, wherever Ray starts them.

    Args:
        apps: Of a run.
        folders: Existing ones, as :func:`~retexo_fl.federation.make_client_app` takes them.
    """
    given = ", ".join(f"{name}={str(folder)!r}" for name, folder in folders.items())
    source = f"from retexo_fl.federation import make_client_app\napp = make_client_app({given})\n"
    return replace(apps, client=source)


def finding_modules(apps: BundleApps, places: Sequence[str]) -> BundleApps:
    """Return components that also find modules at some places, after all others.

    Behind what is installed: a user's ``queue.py`` is then not imported in place of Python's own.

    Args:
        apps: Of a run.
        places: Absolute folders. Where one does not exist, as on another machine, nothing is found.
    """
    found = f"import sys; sys.path += [p for p in {[*places]!r} if p not in sys.path]\n"
    return BundleApps(server=found + apps.server, client=found + apps.client)


def training_apps(
    profile: ChosenProfile | None, *, fitting: Fitting | None = None, overwrite: bool = False
) -> BundleApps:
    """Return the components of a training that shows its profile.

    Args:
        profile: None of a resumed one.
        fitting: What of it is fitted to the clients' graph; None where that is done.
        overwrite: The training may replace a run that is in its directory.
    """
    if profile is None:
        return BundleApps()
    also: dict[str, object] = {"overwrite": True} if overwrite else {}
    if fitting is not None:
        also |= {"fits": fitting.profile, "chosen": fitting.chosen}
    return BundleApps(server=_component("server", profile, **also))


def recipe_apps(task: RecipeTask) -> BundleApps:
    """Return the components of a run that makes a feature recipe; clients answer as ever."""
    return BundleApps(server=_component("recipe", task))


def in_place_apps(task: InPlaceTask) -> BundleApps:
    """Return the components of an inference whose clients keep what they predict."""
    return BundleApps(server=_component("prediction_in_place", task))


def _component(kind: str, task: PredictionTask | RecipeTask | ChosenProfile, **also: object) -> str:
    """Return the source of a ServerApp that is made with the fields of a task, and others."""
    given = ", ".join(f"{name}={value!r}" for name, value in {**asdict(task), **also}.items())
    return f"from retexo_fl.federation import make_{kind}_app\napp = make_{kind}_app({given})\n"


def write_bundle(
    directory: Path, run_config: Mapping[str, Scalar], *, apps: BundleApps | None = None
) -> Path:
    """Write the bundle that ``flwr run`` packs and starts.

    The run configuration is in the bundle itself, so nothing has to be quoted for a command
    line and nothing can be overridden by accident.

    Args:
        directory: Existing folder; the bundle becomes ``directory/retexo-fl``.
        run_config: Flat kebab-case keys, as the components find them in ``context.run_config``.
        apps: Source of the components; by default those of ``retexo_fl.federation``.

    Returns:
        The folder of the bundle.

    Raises:
        ConfigurationError: A value is not of a type that Flower's run configuration carries.
    """
    apps = apps or BundleApps()
    for key, value in run_config.items():
        _check_value(key, value)
    bundle = directory / BUNDLE_NAME
    for package, source in ((_SERVER_PACKAGE, apps.server), (_CLIENT_PACKAGE, apps.client)):
        (bundle / package).mkdir(parents=True)
        (bundle / package / "__init__.py").touch()
        (bundle / package / "app.py").write_text(source, encoding="utf-8")
    (bundle / "pyproject.toml").write_text(tomli_w.dumps(_project(run_config)), encoding="utf-8")
    return bundle


def _check_value(key: str, value: object) -> None:
    if not isinstance(value, bool | int | float | str):
        raise ConfigurationError(
            f"{key}: got {value!r} of type {type(value).__name__}; expected bool, int, float or str"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{key}: got {value!r}; expected a finite number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigurationError(f"{key}: got {value!r}; expected a whole number of 64 bits")


def _project(run_config: Mapping[str, Scalar]) -> dict[str, object]:
    return {
        "project": {
            "name": BUNDLE_NAME,
            # The bundle lives for one run, so its version has no meaning.
            "version": "0.0.0",
            "description": "One run of retexo_fl",
            "license": "Apache-2.0",
            # What the components import is installed already; Flower must not install again.
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "retexo",
                    "fab-include": [f"{_SERVER_PACKAGE}/*.py", f"{_CLIENT_PACKAGE}/*.py"],
                    "components": {
                        "serverapp": f"{_SERVER_PACKAGE}.app:app",
                        "clientapp": f"{_CLIENT_PACKAGE}.app:app",
                    },
                    "config": dict(run_config),
                }
            }
        },
    }
