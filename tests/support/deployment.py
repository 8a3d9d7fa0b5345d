"""A deployed federation on test hosts: SuperLink, SuperNodes, agents, all of them real programs.

Each part is started as the units in `server/` and `clients/` start it, can be killed as a machine
kills it, and comes back as systemd brings it back. What each says is in a file of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from retexo_fl.masking.agreement import LEAST
from retexo_fl.simulation.links import Link, Links
from tests.support.commands import program
from tests.support.host import Counters
from tests.support.part import Command, Part, connects, wait_until
from tests.support.places import (
    AGENT_PORT,
    METER_PORT,
    SERVER,
    SUPERLINK_PORT,
    Places,
    end_of,
)

CONNECTION = "federation"
#: The SuperLink listens on every interface of its host, which are the loopback's and `eth0`.
_EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 - inside a namespace
#: Flower refuses a SuperNode's key for 60 s after its process was killed; our unit waits this long.
SUPERNODE_RESTART_S = 65.0
#: Ends with 0 when the SuperLink at this address answers over a TLS that the authority vouches for.
_ASK_HEALTH = """
import http.client, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[2])
connection = http.client.HTTPSConnection(sys.argv[1], timeout=2.0, context=context)
connection.request("GET", "/health")
sys.exit(connection.getresponse().status >= 300)
"""


@dataclass(slots=True)
class Deployment(Places):
    """The federation of the hosts ``server``, ``client-0``, ``client-1``, ...

    Attributes:
        programs: By client, what is run in the place of ``retexo`` as its agent.
        start_s: How long a part may take to answer at first.
        running: Its programs: ``superlink``, ``agent-0``, ``supernode-0``, ...
    """

    programs: dict[int, Command] = field(default_factory=dict)
    start_s: float = 300.0
    running: dict[str, Part] = field(default_factory=dict)

    # ---- starting --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything, in the order of docs/deployment.md."""
        self.start_superlink()
        for client in range(self.clients):
            self.register(client)
        if self.parts is not None:
            self.make_identities()
            for client in range(self.clients):
                self.start_agent(client)
        for client in range(self.clients):
            if client not in self.own_nodes:
                self.start_supernode(client)
        self.wait_for_supernodes()

    def start_superlink(self) -> None:
        """Make the certificates and start the SuperLink; return when it answers."""
        server = self.hosts[SERVER]
        home = self.home(SERVER)
        certificates = self.folder / "tls"
        if not certificates.exists():
            server.run([self.certificate_program, certificates, server.address])
            (home / "flower").mkdir()
            (home / "flower" / "config.toml").write_text(
                f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
                f'address = "{self.superlink_address}"\n'
                f'root-certificates = "{self.root_certificates}"\n',
                encoding="utf-8",
            )
        command: Command = [
            *(
                program("flower-superlink"),
                "--host",
                _EVERY_INTERFACE,
                "--port",
                str(SUPERLINK_PORT),
            ),
            *("--ssl-ca-certfile", certificates / "ca.crt"),
            *("--ssl-certfile", certificates / "server.pem"),
            *("--ssl-keyfile", certificates / "server.key"),
            *("--enable-supernode-auth", "--database", home / "superlink.db"),
        ]
        self._start("superlink", SERVER, command)
        wait_until(self.superlink_answers, "the SuperLink does not answer", part=self["superlink"])

    def make_identities(self) -> None:
        """Make every client's key, and the roster that all of them have."""
        for client in range(self.clients):
            host = self.hosts[f"client-{client}"]
            address = f"tcp://{host.address}:{AGENT_PORT}"
            self.retexo(
                *("keys", "new", "--client", str(client), "--address", address),
                *("--out", self.client_folder(client)),
                host=host.name,
            )
            self.write_settings(client)
        folders = [self.client_folder(client) for client in range(self.clients)]
        entries, roster = (
            [folder / "member.toml" for folder in folders],
            self.folder / "roster.toml",
        )
        if self.clients < LEAST:
            self.retexo("keys", "roster", *entries, "--out", roster)
            return
        # The owners agree on masked sums, too.
        self._at_each_client("member")
        proposed = self.folder / "proposed.toml"
        self.retexo("keys", "roster", *entries, "--out", proposed)
        self._at_each_client("sign", proposed)
        signatures = [path for folder in folders for path in folder.glob("signature-*.toml")]
        self.retexo("keys", "roster", proposed, *signatures, "--out", roster)

    def _at_each_client(self, command: str, *arguments: str | Path) -> None:
        for client in range(self.clients):
            config = self.client_folder(client) / "agent.toml"
            self.retexo("keys", command, *arguments, "--config", config, host=f"client-{client}")

    def start_agent(self, client: int, **settings: object) -> None:
        """Write a client's ``agent.toml`` and start its agent; return when it is ready."""
        path = self.write_settings(client, **settings)
        ours = self.programs.get(client, [program("retexo")])
        command: Command = [*ours, "agent", "run", "--config", path]
        name = f"agent-{client}"
        self._start(name, f"client-{client}", command)
        self._wait_for_agent(client)

    def write_settings(self, client: int, **settings: object) -> Path:
        """Write a client's ``agent.toml``, and return it."""
        values = self.agent_settings_of(client) | dict(self.agent_settings) | settings
        path = self.client_folder(client) / "agent.toml"
        path.write_text(tomli_w.dumps(values), encoding="utf-8")
        return path

    def register(self, client: int) -> None:
        """Make a SuperNode's key and tell the SuperLink."""
        key = self.supernode_key(client)
        if not key.exists():
            self.hosts[f"client-{client}"].run(
                ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", key]
            )
        self.flwr("supernode", "register", f"{key}.pub", CONNECTION)

    def start_supernode(self, client: int) -> None:
        """Start a client's SuperNode."""
        agent = self.client_folder(client) / "agent.sock"
        meter = f"127.0.0.1:{METER_PORT}"
        command: Command = [
            *(program("flower-supernode"), "--root-certificates", self.root_certificates),
            *("--superlink", meter if self.metered else self.superlink_address),
            *("--auth-supernode-private-key", self.supernode_key(client)),
            *("--node-config", f'agent="{agent}"'),
        ]
        self._start(f"supernode-{client}", f"client-{client}", command)

    def wait_for_supernodes(self, within_s: float | None = None) -> None:
        """Return when every SuperNode of the federation is known to the SuperLink."""
        within_s = within_s or self.start_s
        for client in range(self.clients):
            part = self[f"{'agent' if client in self.own_nodes else 'supernode'}-{client}"]
            wait_until(
                part.is_online, f"{part.log.stem} is not online", part=part, within_s=within_s
            )

    # ---- faults ----------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Part:
        """Return a part: ``superlink``, ``agent-0``, ``supernode-0``, ..."""
        return self.running[name]

    def kill(self, name: str) -> None:
        """Kill a part with everything under it (SIGKILL)."""
        self[name].kill()

    def restart(self, name: str) -> None:
        """Start a killed part again, after the time that its unit waits."""
        kind, _, client = name.partition("-")
        if kind == "supernode":
            time.sleep(SUPERNODE_RESTART_S)
        self[name].start()
        if kind == "agent":
            self._wait_for_agent(int(client))
        if kind == "superlink":
            wait_until(self.superlink_answers, f"{name} does not answer", part=self[name])

    def shape(self, links: Links, *, seed: int = 0) -> None:
        """Give the federation's links rates, delays and losses, as ``--links`` models them."""

        def between(one: str, other: str) -> Link:
            return links.between(end_of(one), end_of(other))

        self.hosts.shape(between, seed=seed)

    # ---- using it --------------------------------------------------------------------------------

    def run(self, out: Path, *options: str, timeout_s: float = 400.0) -> str:
        """Train with ``retexo run --superlink`` on the server's host; return what it printed."""
        return self.retexo(*self.run_arguments(out, *options), timeout_s=timeout_s)

    def start_run(self, out: Path, *options: str) -> Part:
        """Begin a training and return its command, which runs."""
        return self.start_command(f"run-{out.name}", *self.run_arguments(out, *options))

    def start_command(self, name: str, *arguments: str | Path) -> Part:
        """Begin ``retexo`` on the server's host and return it as the part ``name``, which runs."""
        self._start(name, SERVER, [program("retexo"), *arguments])
        return self[name]

    def retexo(self, *arguments: str | Path, host: str = SERVER, timeout_s: float = 60.0) -> str:
        """Run ``retexo`` on a host and return what it printed."""
        return self.hosts[host].run(
            [program("retexo"), *arguments],
            env=self.environment(host),
            cwd=self.home(host),
            timeout_s=timeout_s,
        )

    def agent_status(self, client: int) -> dict[str, Any]:
        """Return what ``retexo agent status --json`` says."""
        config = self.client_folder(client) / "agent.toml"
        said = self.retexo(
            *("agent", "status", "--json", "--config", config), host=f"client-{client}"
        )
        told: dict[str, Any] = json.loads(said)
        return told

    def flwr(self, *arguments: str | Path, timeout_s: float = 60.0) -> str:
        """Run ``flwr`` on the server's host and return what it printed."""
        return self.hosts[SERVER].run(
            [program("flwr"), *arguments],
            env=self.environment(SERVER),
            cwd=self.home(SERVER),
            timeout_s=timeout_s,
        )

    def interface_bytes(self) -> dict[str, Counters]:
        """Return the counters of every host's interface, by the host's name."""
        return {host.name: host.counters() for host in self.hosts}

    def superlink_answers(self) -> bool:
        """Say whether the SuperLink answers, asked from its own host."""
        arguments = (self.superlink_address, self.root_certificates)
        command: Command = [sys.executable, "-P", "-c", _ASK_HEALTH, *arguments]
        done = subprocess.run(
            self.hosts[SERVER].command(command),
            capture_output=True,
            timeout=self.start_s,
            check=False,
        )
        return done.returncode == 0

    def _start(self, name: str, host: str, command: Command) -> None:
        self.running[name] = Part(
            host=self.hosts[host],
            command=command,
            environment=self.environment(host),
            log=self.folder / f"{name}.log",
        )
        self.running[name].start()

    def _wait_for_agent(self, client: int) -> None:
        name = f"agent-{client}"
        socket = self.client_folder(client) / "agent.sock"
        wait_until(
            lambda: connects(socket),
            f"{name} is not ready",
            part=self[name],
            within_s=self.start_s,
        )
