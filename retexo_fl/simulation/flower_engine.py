"""Run a training in Flower's own simulation, from any directory, and leave nothing behind.

Flower's ``flwr run`` starts daemons that outlive it, shares one home directory and one port
between all runs of a user, installs packages from the network, and joins any Ray cluster it finds.
Here each run has a private home, port and temporary directory, needs no network (but where it is
to join a Ray cluster, which it leaves as it was), and has a supervisor
(``flower_daemon.py``) that ends whatever Flower started.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from retexo_fl.device_names import processes_for
from retexo_fl.errors import ConfigurationError, EngineFailed
from retexo_fl.proxies import unusable_variables
from retexo_fl.simulation import flower_daemon
from retexo_fl.simulation.flower_bundle import (
    BundleApps,
    Scalar,
    finding_modules,
    write_bundle,
)
from retexo_fl.simulation.flower_processes import FLOWER_SETTINGS, end_recorded, how

logger = logging.getLogger(__name__)

TICK_S: Final = 0.2
_NO_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({})
#: The supervisor's own bound on killing, and some time to remove files and report.
_END_TIMEOUT_S: Final = flower_daemon.KILL_TIMEOUT_S + 10.0
#: Ray's sockets lie 81 characters deeper, and their paths may have 103 (macOS; Linux 107).
_LONGEST_TEMPORARY: Final = 22

#: Of a Ray of the run's own.
_RAY_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Only on the "cluster" platforms does Ray listen on the machine's address, not the loopback's.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


def run_flower_simulation(
    run_config: Mapping[str, Scalar],
    *,
    num_clients: int,
    tick: Callable[[], None],
    start_timeout_s: float = 180.0,
    extra_environment: Mapping[str, str] = _NO_ENVIRONMENT,
    apps: BundleApps | None = None,
    ray_address: str = "",
) -> None:
    """Run the components in Flower's simulation and return when the run completed.

    All of Flower's processes inherit the current directory, so relative paths in the run
    configuration mean what they mean here. The components also find modules where this process
    does. When the function returns or raises, no process is left, and neither is their directory;
    the same holds some seconds after this process is killed.

    Args:
        run_config: Flat kebab-case keys, as the components find them in ``context.run_config``.
        num_clients: Number of SuperNodes; as many ClientApps run at once as there are CPUs.
        tick: Called about every 0.2 s during the run, and once when it has ended. What it
            raises ends the run.
        start_timeout_s: Bound on the time until Flower's simulation process has started.
        extra_environment: Variables for all of Flower's processes; they win over the engine's,
            but for those that say where the run lives (FLWR_HOME, RAY_TMPDIR, TMPDIR).
        apps: Source of the components; by default those of ``retexo_fl.federation``.
        ray_address: ``HOST:PORT`` of a Ray cluster that is there, of which this machine is a node;
            its workers have their own environment and current directory. Empty for a Ray of the
            run's own.

    Raises:
        ConfigurationError: Ray or Flower's programs are not installed, the platform is not
            supported, or the run configuration holds a value that Flower cannot carry.
        EngineFailed: The run failed or a process of Flower died; the message holds the last lines
            of the log.
        KeyboardInterrupt: The user interrupted; raised after everything has ended.
    """
    superlink, flwr = _find_programs()
    directory = Path(tempfile.mkdtemp(prefix="rtx-", dir=_temporary_place()))
    try:
        assignment = flower_daemon.Assignment(
            directory=str(directory),
            superlink=superlink,
            flwr=flwr,
            bundle=str(
                write_bundle(
                    directory, run_config, apps=finding_modules(apps or BundleApps(), _own_places())
                )
            ),
            federation_config=_federation_config(num_clients, ray_address),
            start_timeout_s=start_timeout_s,
        )
        environment = _environment(
            directory, Path(flwr).parent, extra_environment, ray_address=ray_address
        )
        outcome = _supervise(assignment, environment, tick)
    finally:
        # The supervisor has removed it, unless the supervisor itself was killed.
        shutil.rmtree(directory, ignore_errors=True)
    tick()
    _judge(outcome)


def _find_programs() -> tuple[str, str]:
    """Return the paths of ``flower-superlink`` and ``flwr`` of this Python environment."""
    if os.name != "posix":
        raise ConfigurationError("engine: 'flower' needs Linux or macOS; expected engine 'inline'")
    if importlib.util.find_spec("ray") is None:
        raise ConfigurationError(
            "engine: 'flower' needs Ray, which is not installed; pip install 'flwr[simulation]'"
        )
    # Not PATH: it may lead to another environment's Flower.
    places = [
        Path(sys.executable).parent,
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", "posix_user"),
    ]
    path = os.pathsep.join(map(str, places))
    superlink, flwr = shutil.which("flower-superlink", path=path), shutil.which("flwr", path=path)
    if superlink is None or flwr is None:
        raise ConfigurationError(
            f"engine: 'flower' needs the programs flwr and flower-superlink in {path}; "
            "pip install 'flwr[simulation]'"
        )
    return superlink, flwr


def _temporary_place() -> str:
    """Return a folder for temporary directories that is short enough for Ray's sockets."""
    place = tempfile.gettempdir()
    short = "/tmp"  # noqa: S108 - only the parent of a directory that mkdtemp makes
    if len(place) > _LONGEST_TEMPORARY and os.access(short, os.W_OK):
        return short
    return place


def _federation_config(num_clients: int, ray_address: str = "") -> str:
    # Flower starts one actor per CPU at once: no more of them than there are clients. A cluster
    # that is there has the CPUs that it has.
    cpus = "" if ray_address else f"init-args-num-cpus={processes_for(num_clients)} "
    return (
        f"num-supernodes={num_clients} client-resources-num-cpus=1 "
        f'{cpus}init-args-logging-level="ERROR"'
    )


def _environment(
    directory: Path, programs: Path, extra: Mapping[str, str], *, ray_address: str = ""
) -> dict[str, str]:
    """Return the environment of all of Flower's processes."""
    # A variable meant for the user's other runs of Flower or Ray (an address, a hook, a home)
    # must not reach this one. On a cluster that is there, Ray's (certificates, a token) are of it.
    foreign = ("FLWR_",) if ray_address else ("FLWR_", "RAY_")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    ours = {} if ray_address else _RAY_SETTINGS
    environment = inherited | FLOWER_SETTINGS | ours | dict(extra)
    environment |= {"RAY_ADDRESS": ray_address} if ray_address else {"RAY_TMPDIR": str(directory)}
    environment |= {
        "FLWR_HOME": str(directory / "home"),
        "TMPDIR": str(directory),
        # Flower starts its own programs by name.
        "PATH": os.pathsep.join(filter(None, (str(programs), environment.get("PATH")))),
        "PYTHONPATH": _python_path(environment.get("PYTHONPATH", "")),
    }
    # Flower's HTTP client would not start with one of these, whatever no_proxy says.
    for key in unusable_variables(environment):
        del environment[key]
    for key in ("no_proxy", "NO_PROXY"):
        environment[key] = ",".join(filter(None, (environment.get(key), "127.0.0.1,localhost")))
    return environment


def _python_path(wanted: str) -> str:
    """Return a PYTHONPATH on which ``retexo_fl`` is found also when it is not installed."""
    root = str(Path(__file__).resolve().parents[2])
    installed = root in {str(Path(place).resolve()) for place in site.getsitepackages()}
    return os.pathsep.join(filter(None, (wanted, "" if installed else root)))


def _own_places() -> list[str]:
    """Return where this process finds modules that are not installed, such as its directory."""
    installed = (
        *(sysconfig.get_path("stdlib"), sysconfig.get_path("scripts")),
        *site.getsitepackages(),
    )
    found = dict.fromkeys(str(Path(place).absolute()) for place in sys.path)
    return [place for place in found if Path(place).is_dir() and not place.startswith(installed)]


def _supervise(
    assignment: flower_daemon.Assignment,
    environment: Mapping[str, str],
    tick: Callable[[], None],
) -> flower_daemon.Outcome:
    """Run the supervisor to its end and return what it reports."""
    command = [sys.executable, "-P", "-m", flower_daemon.__name__, assignment.to_json()]
    with (
        tempfile.TemporaryFile() as report,
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(  # noqa: S603 - our own program, and no shell
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=report,
            stderr=complaints,
            # Ctrl-C goes to this process alone, which then closes the lifeline.
            start_new_session=True,
        ) as supervisor,
    ):
        try:
            _tick_until_ended(supervisor, tick)
        finally:
            _let_go(supervisor)
        report.seek(0)
        complaints.seek(0)
        text, complaint = report.read().decode(), complaints.read().decode(errors="replace")
    if text:
        return flower_daemon.Outcome(**json.loads(text))
    record = Path(assignment.directory, flower_daemon.RECORD)
    return flower_daemon.Outcome(
        failure=f"the supervisor of Flower's processes ended ({how(supervisor.returncode)})",
        log=complaint,
        left=end_recorded(record, flower_daemon.KILL_TIMEOUT_S),
    )


def _tick_until_ended(supervisor: subprocess.Popen[bytes], tick: Callable[[], None]) -> None:
    while True:
        tick()
        try:
            supervisor.wait(TICK_S)
        except subprocess.TimeoutExpired:
            continue
        return


def _let_go(supervisor: subprocess.Popen[bytes]) -> None:
    """Close the lifeline and wait for the supervisor, which then ends everything."""
    assert supervisor.stdin is not None
    supervisor.stdin.close()
    try:
        supervisor.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        logger.warning("the supervisor of Flower's processes, %d, does not end", supervisor.pid)
        supervisor.kill()


def _judge(outcome: flower_daemon.Outcome) -> None:
    if outcome.left:
        logger.warning("processes of Flower did not end: %s", ", ".join(map(str, outcome.left)))
    if outcome.failure:
        raise EngineFailed(f"{outcome.failure}\n{outcome.log}".rstrip())
