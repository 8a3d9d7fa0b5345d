"""A SuperLink, reached through Flower's own command line with a home of its own."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import tomli_w
import typer

from retexo_fl.cli.options import Values
from retexo_fl.errors import ConfigurationError, EngineFailed, NotBegun
from retexo_fl.server_address import ServerAddress
from retexo_fl.simulation.flower_processes import FLOWER_SETTINGS

#: Heading of the options of a deployment, which are no keys: they say where to go, once.
DEPLOYMENT: Final = "Deployment"
RootCertificates = Annotated[
    Path | None,
    typer.Option(help="CA of the SuperLink.", metavar="FILE", rich_help_panel=DEPLOYMENT),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Connect to the SuperLink without TLS.", rich_help_panel=DEPLOYMENT
    ),
]
#: Name of the connection in Flower's configuration file.
_CONNECTION: Final = "retexo"
#: Longest time that one of Flower's commands may take; starting a run uploads the bundle.
_COMMAND_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a SuperLink is, and how it proves to be it.

    Attributes:
        superlink: ``HOST:PORT``, an IPv6 address in brackets.
        root_certificates: Its CA; None for that of the operating system.
        insecure: Without TLS.
    """

    superlink: str
    root_certificates: Path | None = None
    insecure: bool = False

    def options(self) -> str:
        """Return the options that name it."""
        words = f"--superlink {self.superlink}"
        if self.insecure:
            return f"{words} --insecure"
        if self.root_certificates is None:
            return words
        return f"{words} --root-certificates {shlex.quote(str(self.root_certificates))}"

    @property
    def url(self) -> str:
        """``https://HOST:PORT``, or with ``http``."""
        return f"http{'' if self.insecure else 's'}://{self.superlink}"

    def connection(self) -> dict[str, Any]:
        """Return it as Flower's configuration file writes it."""
        entry: dict[str, Any] = {"address": self.superlink}
        if self.insecure:
            entry["insecure"] = True
        elif self.root_certificates is not None:
            entry["root-certificates"] = str(self.root_certificates.absolute())
        return entry


def deployment_address(
    superlink: str | None, root_certificates: Path | None, *, insecure: bool
) -> Address | None:
    """Return where the SuperLink of a deployment is; None where none is named.

    Raises:
        ConfigurationError: What belongs to a SuperLink is given without one, or contradicts.
    """
    if superlink is None:
        if root_certificates is not None or insecure:
            name = "insecure" if insecure else "root-certificates"
            raise ConfigurationError(f"{name}: expected only with --superlink HOST:PORT")
        return None
    server = ServerAddress.parse(superlink, "superlink")
    if insecure and server.tls:
        raise ConfigurationError(
            f"insecure: cannot be given with {superlink}; expected one of the two"
        )
    insecure = insecure or server.tls is False
    if insecure and root_certificates is not None:
        name = "insecure" if server.tls is None else "http://"
        raise ConfigurationError(
            f"{name}: cannot be given with root-certificates; expected one of the two"
        )
    return Address(superlink=str(server), root_certificates=root_certificates, insecure=insecure)


def deployed_values(values: Values) -> Values:
    """Return options that choose the engine of a SuperLink's clients.

    Raises:
        ConfigurationError: They choose another one.
    """
    if values.get("engine", "deployment") != "deployment":
        raise ConfigurationError(
            f"engine: {values['engine']!r} does not go with --superlink; expected deployment"
        )
    return {**values, "engine": "deployment"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a SuperLink reports about a run.

    Attributes:
        status: ``pending``, ``starting``, ``running``, or ``finished`` with how.
        details: Why it ended so.
    """

    status: str
    details: str

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.status.startswith("finished")

    @property
    def completed(self) -> bool:
        """Whether it has finished without a failure."""
        return self.status == "finished:completed"


class SuperLink:
    """Submits runs to a SuperLink, asks after them and stops them.

    Args:
        address: Where it is.
        home: New folder for Flower's files, so that those of the user are left alone.

    Raises:
        ConfigurationError: Flower's program is not installed.
    """

    def __init__(self, address: Address, home: Path) -> None:
        self._flwr = _program()
        self._environment = {
            key: value for key, value in os.environ.items() if not key.startswith("FLWR_")
        }
        self._environment |= FLOWER_SETTINGS | {"FLWR_HOME": str(home)}
        home.mkdir(mode=0o700)
        table = {"superlink": {"default": _CONNECTION, _CONNECTION: address.connection()}}
        (home / "config.toml").write_text(tomli_w.dumps(table), encoding="utf-8")

    def submit(self, bundle: Path) -> str:
        """Start a run of a bundle and return its id.

        Raises:
            NotBegun: The SuperLink did not take it; the message holds Flower's reason.
        """
        try:
            return str(self._ask("run", str(bundle), _CONNECTION)["run-id"])
        except EngineFailed as error:
            raise NotBegun(str(error)) from error

    def state(self, run_id: str) -> RunState:
        """Return how a run is.

        Raises:
            EngineFailed: The SuperLink does not answer, or has no such run.
        """
        (row,) = self._ask("list", "--run-id", run_id, _CONNECTION)["runs"]
        return RunState(status=str(row["status"]), details=str(row["status-details"]))

    def stop(self, run_id: str) -> None:
        """Stop a run.

        Raises:
            EngineFailed: The SuperLink does not answer, or the run has ended.
        """
        self._ask("stop", run_id, _CONNECTION)

    def follow_log(self, run_id: str, log: BinaryIO) -> subprocess.Popen[bytes]:
        """Start a process that writes the log of a run to ``log`` until the run ends."""
        return subprocess.Popen(  # noqa: S603 - Flower's own program, and no shell
            [self._flwr, "log", run_id, _CONNECTION, "--stream"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C goes to this process alone, which ends the other when it is done with it.
            start_new_session=True,
        )

    def _ask(self, *arguments: str) -> Mapping[str, Any]:
        """Run one of Flower's commands and return what it answers."""
        try:
            ended = subprocess.run(  # noqa: S603 - Flower's own program, and no shell
                [self._flwr, *arguments, "--format", "json"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            raise EngineFailed(
                f"the SuperLink has not answered flwr {arguments[0]} for {_COMMAND_TIMEOUT_S:g} s"
            ) from error
        told = ended.stdout.decode(errors="replace")
        try:
            answer: Mapping[str, Any] = json.loads(told[told.index("{") :])
        except ValueError as error:
            words = " ".join((told + ended.stderr.decode(errors="replace")).split())
            raise EngineFailed(f"flwr {arguments[0]}: {words[-300:]}") from error
        if not answer.get("success"):
            # Before its reason, Flower repeats what it was asked to do.
            reason = str(answer.get("error-message", "")).strip().rpartition("\n")[2]
            raise EngineFailed(f"flwr {arguments[0]}: {reason}")
        return answer


def _program() -> str:
    # Not PATH: it may lead to another environment's Flower.
    places = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    found = shutil.which("flwr", path=os.pathsep.join(places))
    if found is None:
        raise ConfigurationError(f"engine: 'deployment' needs the program flwr in {places[0]}")
    return found
