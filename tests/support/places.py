"""What a deployment has, and where: addresses, folders, variables, settings, commands."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from retexo_fl.ledger import SERVER as SERVER_END
from tests.support.commands import FLOWER_ENVIRONMENT, ROOT, environment, search_path
from tests.support.hosts import Hosts
from tests.support.part import Command
from tests.support.predictions import predicted_tables

#: Port of the SuperLink, of every agent, and of an agent's meter (docs/deployment.md).
SUPERLINK_PORT, AGENT_PORT, METER_PORT = 8000, 7411, 7412
SERVER = "server"
#: Who asks the SuperLink for clients' messages: Flower's program, which starts another for each
#: message and hands it to the agent's socket, or the agent itself.
WAYS = ("SuperNodes", "own nodes")


def host_names(clients: int) -> list[str]:
    """Return the names of the hosts of a federation, the server first."""
    return [SERVER, *(f"client-{client}" for client in range(clients))]


def own_nodes(way: str, clients: int) -> Container[int]:
    """Return the clients that have no SuperNode, by one of :data:`WAYS`."""
    return range(clients) if way == WAYS[1] else ()


@dataclass(slots=True)
class Places:
    """Where everything of a federation lies.

    Args:
        hosts: From :func:`host_names`; they end whatever this leaves.
        folder: For keys, states, runs and logs.
        parts: Folder with ``part-0``, ``part-1``, ...; None for a federation without agents.
        clients: How many there are.
        agent_settings: Lines of each ``agent.toml`` over those that every client has.
        metered: SuperNodes reach the SuperLink through the meters of their agents.
        own_nodes: Clients whose agents ask the SuperLink themselves and have no SuperNode.
    """

    hosts: Hosts
    folder: Path
    parts: Path | None
    clients: int
    agent_settings: Mapping[str, object] = field(default_factory=dict)
    metered: bool = False
    own_nodes: Container[int] = ()

    @property
    def superlink_address(self) -> str:
        """Address of the SuperLink as clients know it."""
        return f"{self.hosts[SERVER].address}:{SUPERLINK_PORT}"

    @property
    def certificate_program(self) -> Path:
        """The program that makes an authority and a server's certificate."""
        return ROOT / "server" / "make-certificates.sh"

    @property
    def root_certificates(self) -> Path:
        """Certificate of the authority."""
        return self.folder / "tls" / "ca.crt"

    def client_folder(self, client: int) -> Path:
        """Folder of everything that a client owns."""
        return self.home(f"client-{client}")

    def supernode_key(self, client: int) -> Path:
        """Private key of a client's SuperNode."""
        return self.client_folder(client) / "supernode-key"

    def environment(self, host: str) -> dict[str, str]:
        """Return the variables of every program on a host: a home of its own, no network use."""
        home = self.home(host)
        own = {"HOME": str(home), "FLWR_HOME": str(home / "flower"), "PATH": search_path()}
        polling = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5", "PYTHONUNBUFFERED": "1"}
        return environment({**FLOWER_ENVIRONMENT, **own, **polling})

    def home(self, host: str) -> Path:
        home = self.folder / host
        home.mkdir(exist_ok=True, mode=0o700)
        return home

    def agent_settings_of(self, client: int) -> dict[str, object]:
        assert self.parts is not None
        folder = self.client_folder(client)
        values: dict[str, object] = {
            "partition": str(self.parts / f"part-{client}"),
            "state": str(folder / "state"),
            "socket": str(folder / "agent.sock"),
            "key": str(folder / "key.pem"),
            "certificate": str(folder / "certificate.pem"),
            "roster": str(self.folder / "roster.toml"),
            "listen": [f"tcp://{self.hosts[f'client-{client}'].address}:{AGENT_PORT}"],
        }
        if self.metered and client not in self.own_nodes:
            values["superlink"] = self.superlink_address
            values["meter"] = f"127.0.0.1:{METER_PORT}"
        if client in self.own_nodes:
            values["superlink"] = self.superlink_address
            values["root-certificates"] = str(self.root_certificates)
            values["supernode-key"] = str(self.supernode_key(client))
        return values

    def run_arguments(self, out: Path, *options: str) -> Command:
        """Return the arguments of a training over this federation."""
        place = ("--resume", out) if "--resume" in options else ("--out", out)
        options = tuple(option for option in options if option != "--resume")
        size = () if place[0] == "--resume" else ("--clients", str(self.clients))
        if size and "--secure-aggregation" not in options:
            # So that its bits are those of a simulation, whose default this is.
            options += ("--secure-aggregation", "none")
        return [
            *("run", "--superlink", self.superlink_address),
            *("--root-certificates", self.root_certificates, *place, *size, *options),
        ]

    def predict_arguments(self, run: Path) -> Command:
        """Return the arguments with which this federation predicts in place with a run's model."""
        return [
            *("predict", run, "--superlink", self.superlink_address),
            *("--root-certificates", self.root_certificates, "--quiet"),
        ]

    def kept_predictions(self) -> dict[str, bytes]:
        """Return the tables that clients keep in their folders ``predictions``, by name."""
        found: dict[str, bytes] = {}
        for client in range(self.clients):
            found |= predicted_tables(self.client_folder(client) / "predictions")
        return found


def end_of(host: str) -> int:
    """Return a host's number in the ledger and in links."""
    return SERVER_END if host == SERVER else int(host.removeprefix("client-"))
