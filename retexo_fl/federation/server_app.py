"""The ServerApp that Flower starts: ``server/app.py`` is one call of this."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO
from pathlib import Path
from typing import Final

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from retexo_fl.config import (
    RunConfig,
    Scalar,
    config_values,
    default_values,
    free_keys,
    make_config,
)
from retexo_fl.config.profiles import SETTLED, Fitting, default_profile, leaving, profile_values
from retexo_fl.errors import ConfigurationError, InputError
from retexo_fl.federation.asking import THIS_MACHINE, Clock
from retexo_fl.federation.ending import noted_ending
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.modelled import check_links
from retexo_fl.federation.run_directory import (
    RunDirectory,
    check_free,
    default_path,
    stored_config,
)
from retexo_fl.federation.server_loop import ServerLoop
from retexo_fl.methods.keys import check_algorithm
from retexo_fl.outlet import standard_error
from retexo_fl.plugins import named_plugin_errors
from retexo_fl.progress import LiveTable
from retexo_fl.run_log.events import Event
from retexo_fl.run_log.profile import ChosenProfile

Listener = Callable[[Event], None]
#: Key of Flower's run configuration that is none of a run's.
_PROFILE: Final = "profile"
#: Flower's simulation registers all its nodes at once, while its ServerApp begins.
_NODES_SETTLE_S: Final = 10.0
_NODES_POLL_S: Final = 0.1


def make_server_app(
    listeners: Sequence[Listener] | None = None,
    *,
    profile: ChosenProfile | None = None,
    fitting: Fitting | None = None,
    overwrite: bool = False,
) -> ServerApp:
    """Return the ServerApp: one run of it is one attempt of a job.

    Args:
        listeners: Called with every event, for callers in the same process. Without any, progress
            goes to Flower's log as plain lines.
        profile: Of a new job, to be shown and noted.
        fitting: What of a new job follows from the clients' graph; None where nothing does.
        overwrite: As in :func:`run_training`.
    """
    app = ServerApp()
    how = _How(profile=profile, fitting=fitting, overwrite=overwrite)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = make_config(dict(context.run_config))
        if listeners is None:
            _run_by_flower(grid, config, how)
        else:
            run_training(
                grid, config, listeners, profile=profile, fitting=fitting, overwrite=overwrite
            )

    return app


def make_app_of_keys(*, overwrite: bool = False) -> ServerApp:
    """Return the ServerApp whose profile follows from Flower's run configuration.

    Flower gives all keys, those of ``flwr run -c`` and the app's own. What has the value that it
    has by default was not chosen, and ``profile`` names a profile, as for ``retexo run``.

    Args:
        overwrite: As in :func:`run_training`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        values = dict(context.run_config)
        name = str(values.pop(_PROFILE, ""))
        by_default = default_values()
        chosen = {key: value for key, value in values.items() if value != by_default.get(key)}
        if values.get("resume"):
            # With the keys that it began with, of which its directory has those that were settled.
            path = Path(str(values["resume"])).absolute()
            stored = config_values(stored_config(path))
            _check_repeated(values, stored, path)
            settled = {key: stored[key] for key in SETTLED}
            how = _How(fitting=Fitting(known=values), overwrite=overwrite)
            _run_by_flower(grid, make_config({**values, **settled, **chosen}), how)
            return
        left = None if name else leaving(chosen)
        name = name or default_profile(chosen)
        how = _How(
            profile=ChosenProfile.by(name, left, chosen),
            fitting=Fitting(profile=name, chosen=tuple(sorted(chosen)), known=values),
            overwrite=overwrite,
        )
        _run_by_flower(grid, make_config({**values, **profile_values(name, chosen), **chosen}), how)

    return app


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """Arguments of :func:`run_training` beside the configuration."""

    profile: ChosenProfile | None = None
    fitting: Fitting | None = None
    overwrite: bool = False


def _run_by_flower(grid: Grid, config: RunConfig, how: _How) -> None:
    """Train, with progress in Flower's log."""
    if config.engine == "inline":
        # Flower runs this app, whatever the default of a key that was not given.
        config = replace(config, engine="flower")
    _check_simulated_nodes(grid, config)
    path = run_training(
        grid,
        config,
        [_flower_log(config)],
        profile=how.profile,
        fitting=how.fitting,
        overwrite=how.overwrite,
    )
    log(INFO, "report: %s", path / "report.html")


def _check_simulated_nodes(grid: Grid, config: RunConfig, clock: Clock = THIS_MACHINE) -> None:
    """Refuse a simulation of another number of nodes, which would be waited for in vain.

    On machines of their own, nodes come when they come.
    """
    # By name: Flower does not publish the class.
    if type(grid).__name__ != "InMemoryGrid":
        return
    end_s = clock.now_s() + _NODES_SETTLE_S
    while (nodes := len([*grid.get_node_ids()])) < config.clients and clock.now_s() < end_s:
        clock.pause(_NODES_POLL_S)
    if nodes > config.clients or 0 < nodes < (config.min_clients or config.clients):
        raise ConfigurationError(
            f"clients: {config.clients}, but Flower simulates {nodes} SuperNodes; expected as "
            f"many: --federation-config 'num-supernodes={config.clients}', or -c "
            f"'clients={nodes}'"
        )


def _flower_log(config: RunConfig) -> Listener:
    """Return a listener that writes what `flwr run --stream` and `flwr log` show."""
    table = LiveTable.of_run(config, console=standard_error(force_terminal=False))
    return table.handle


def run_training(
    grid: Grid,
    config: RunConfig,
    listeners: Sequence[Listener] = (),
    *,
    clock: Clock = THIS_MACHINE,
    profile: ChosenProfile | None = None,
    fitting: Fitting | None = None,
    overwrite: bool = False,
) -> Path:
    """Train, or resume a training, and return the run directory.

    Nothing is written before every client has answered and their parts fit together. A run that
    ends early says so in ``status.json`` and can be resumed from its last checkpoint. What only the
    first exchange shows (parts that list other edges) leaves no run directory either.

    Args:
        grid: The way to the clients' Flower nodes.
        config: What to train; ``resume`` names a run to continue.
        listeners: Called with every event.
        clock: For all deadlines.
        profile: Of a new job; a resumed one has its own.
        fitting: What of a new job is fitted to the clients' graph; a resumed one has its keys,
            which clients may not know.
        overwrite: Replace a run in the new job's directory, once that has its first checkpoint
            after the first exchange, or has finished; until then that run stays.

    Raises:
        RetexoError: Any named failure.
    """
    check_algorithm(config_values(config))
    check_links(grid, config)
    if config.resume:
        run = RunDirectory(Path(config.resume).absolute())
        checkpoint = run.reopen(config.last_rounds)
        try:
            _check_same_job(config, stored_config(run.path), run.path)
            job = JobState.resume(checkpoint, run.read_ledger(checkpoint))
        except BaseException:
            run.close()
            raise
    else:
        run = RunDirectory(Path(config.out).absolute() if config.out else default_path(config))
        check_free(run.path, overwrite=overwrite)
        job = JobState.begin(profile)
    left = replace(fitting, profile="") if config.resume and fitting is not None else fitting
    loop = ServerLoop(grid=grid, config=config, run=run, job=job, clock=clock, fitting=left)
    try:
        loop.greet()
        if config.resume:
            run.go_on(checkpoint, config)
    except BaseException:
        run.close()
        raise
    if not config.resume:
        run.create(loop.config, overwrite=overwrite)
    for listener in listeners:
        run.log.listen(listener)
    try:
        _train(loop, run)
    except InputError:
        if not (config.resume or job.missing):
            run.remove()
        raise
    return run.path


def _train(loop: ServerLoop, run: RunDirectory) -> None:
    run.write_status("running")

    def note(reason: str) -> None:
        if not (run.path / "result.json").exists():
            run.write_status("interrupted", reason)

    with noted_ending(note) as ending:
        try:
            with named_plugin_errors():
                loop.train()
        except Exception as error:
            run.write_status("failed", f"{type(error).__name__}: {error}")
            raise
        except BaseException:
            # Ctrl-C, or Flower ends its ServerApp.
            run.write_status("interrupted", ending.reason)
            raise
        finally:
            run.close()


def _check_repeated(given: Mapping[str, Scalar], stored: Mapping[str, Scalar], path: Path) -> None:
    """Refuse a resume by Flower without the keys of the run, which it does not give its clients.

    All of them are named at once, as Flower takes them.
    """
    by_default = default_values()
    left = {
        key: stored[key]
        for key in sorted(stored.keys() - free_keys() - SETTLED)
        if given.get(key) == by_default.get(key) != stored[key]
    }
    if left:
        again = " ".join(f"{key}={json.dumps(value)}" for key, value in left.items())
        raise ConfigurationError(
            f"resume: Flower's clients do not know the keys of the run in {path}; expected them "
            f"beside resume: -c '{again} resume={json.dumps(str(path))}'"
        )


def _check_same_job(asked: RunConfig, stored: RunConfig, path: Path) -> None:
    """Refuse to resume with a configuration that would train something else."""
    stored_values = config_values(stored)
    for key, value in config_values(asked).items():
        if key not in free_keys() and value != stored_values[key]:
            raise ConfigurationError(
                f"{key}: {value!r}, but the run in {path} has {stored_values[key]!r}; a resume "
                f"takes the configuration of {path / 'config.toml'}"
            )
