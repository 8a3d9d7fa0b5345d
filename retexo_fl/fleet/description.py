"""``FLEET.toml``: the clients of a federation, their machines and limits, in one file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from retexo_fl.agent.settings import AgentSettings, is_path, settings_of
from retexo_fl.channels.addresses import check_address, parse_tcp
from retexo_fl.channels.roster import MAX_CLIENT
from retexo_fl.errors import ConfigurationError, IdentityError
from retexo_fl.files import parse_toml, read_toml_bytes
from retexo_fl.masking.agreement import LEAST
from retexo_fl.server_address import ServerAddress, host_and_port

#: So many clients are one file's at most.
MOST_CLIENTS: Final = 10_000
#: Of `retexo-superlink.service`.
SUPERLINK_PORT: Final = 8000
AGENT_PORT: Final = 7411
NODE_PORT: Final = 9094
_MOST_SHOWN: Final = 60
_MAX_PORT: Final = 65_535
#: A user of the system has 32 letters at most; units with names have one `retexo-NAME` each.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")
_HOLE: Final = re.compile(r"\{([^{}]*)\}")
_SERVICES: Final = ("none", "systemd", "containers", "kubernetes")
#: Whose programs find all that is theirs in places of their own.
_IN_CONTAINERS: Final = ("containers", "kubernetes")
#: Names of the server's own objects of Kubernetes.
_TAKEN: Final = ("server", "register")
#: By services: an agent's settings and keys, what it keeps, its socket.
_PLACES: Final = {
    "none": ("", "", ""),
    "systemd": (
        "/etc/retexo/{name}/",
        "/var/lib/retexo-agents/{name}/",
        "/run/retexo-agents/{name}/",
    ),
    # Each container has its own.
    **dict.fromkeys(_IN_CONTAINERS, ("/etc/retexo/", "/var/lib/retexo/", "/run/retexo/")),
}
#: Keys of ``agent.toml`` that follow from the rest of the file.
_GIVEN: Final = ("state", "socket", "key", "certificate", "roster", "listen", "partition")
#: Others that say who the peers are, or lead the SuperNode elsewhere.
_ELSEWHERE: Final = (
    *("introductions", "addresses", "superlink", "meter"),
    *("root-certificates", "supernode-key", "insecure"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What owners agree on, as ``retexo keys member`` and ``retexo keys roster`` take it."""

    least: int
    tolerated: int
    cohort_size: int
    links: bool
    relation: str

    @property
    def for_file(self) -> dict[str, int]:
        """Those of the federation file."""
        return {
            "least": self.least,
            "tolerated": self.tolerated,
            "cohort_size": self.cohort_size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetClient:
    """One client.

    Attributes:
        client: Client index.
        name: Of its bundle, and of its units.
        host: Its machine.
        addresses: Where peers reach its agent, the best first.
        agent: Content of its ``agent.toml``.
        settings: The same as its agent reads it: relative paths are below the root, since where
            the bundle will be is not known; of a rehearsal they are below its bundle.
        node_port: Where its ClientApps reach its SuperNode.
        part_here: Its part on this machine, for a promise of it; None where it is elsewhere.
    """

    client: int
    name: str
    host: str
    addresses: tuple[str, ...]
    agent: Mapping[str, Any]
    settings: AgentSettings
    node_port: int
    part_here: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A federation.

    Attributes:
        name: Its name.
        keys_here: All keys are made by who has the file; else each owner makes its own.
        services: What keeps programs running: ``systemd``, ``containers``, ``kubernetes``, or
            ``none``, where they are started by hand.
        server: Where SuperNodes reach the SuperLink.
        own_nodes: Each agent is its own SuperNode; else Flower's program is beside it.
        terms: None where owners agree on no masked sums.
        clients: In the order of their indices.
        text: The file's content, which its folder has a copy of.
    """

    name: str
    keys_here: bool
    services: str
    server: ServerAddress
    own_nodes: bool
    terms: Terms | None
    clients: tuple[FleetClient, ...]
    text: bytes

    @property
    def has_units(self) -> bool:
        """Whether programs are services of systemd."""
        return self.services == "systemd"


def read_fleet(path: Path) -> Fleet:
    """Read ``FLEET.toml``; paths ``part-here`` in it are relative to its folder.

    Raises:
        ConfigurationError: It cannot be read, or a key is unknown, missing or of no use; the
            message names file, client and key.
        IdentityError: An address is none, or two clients have the same.
    """
    text = read_toml_bytes(path)
    try:
        return _fleet(text, parse_toml(text, path), path.absolute().parent)
    except ConfigurationError as error:
        told = str(error)
        raise ConfigurationError(
            told if told.startswith(f"{path}: ") else f"{path}: {told}"
        ) from error
    except IdentityError as error:
        raise IdentityError(f"{path}: {error}") from error


class _Table:
    """Keys of a table, each read once; what is left is unknown."""

    def __init__(self, values: Any, where: str) -> None:
        self._where = where
        if not isinstance(values, dict):
            raise self.wrong("", values, "a table")
        self._left: dict[str, Any] = dict(values)

    def __contains__(self, key: str) -> bool:
        return key in self._left

    def wrong(self, key: str, value: object, expected: str) -> ConfigurationError:
        """Return the error of a value."""
        place = ": ".join(filter(None, (self._where, key)))
        return ConfigurationError(f"{place}: got {_shown(value)}; expected {expected}")

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text that is not empty; it may be missing where there is a default."""
        value = self._taken(key, default, "a text")
        if not isinstance(value, str) or (not value and default is None):
            raise self.wrong(key, value, "a text")
        return value

    def choice(self, key: str, default: str, choices: tuple[str, ...]) -> str:
        """Return one of some words."""
        value = self._taken(key, default, "")
        if value not in choices:
            raise self.wrong(key, value, " or ".join(f'"{choice}"' for choice in choices))
        return str(value)

    def number(self, key: str, default: int | None, least: int, most: int) -> int:
        """Return a whole number in a range."""
        expected = f"a whole number from {least} to {most}"
        value = self._taken(key, default, expected)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(key, value, expected)
        return value

    def flag(self, key: str) -> bool:
        """Return true or false, the default."""
        value = self._taken(key, False, "")
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def texts(self, key: str, default: list[str] | None) -> list[str]:
        """Return a list of texts."""
        value = self._taken(key, default, "a list of texts")
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(key, value, "a list of texts")
        return value

    def table(self, key: str) -> _Table | None:
        """Return a table; None where there is none."""
        if key not in self._left:
            return None
        return _Table(self._left.pop(key), ": ".join(filter(None, (self._where, f"[{key}]"))))

    def rest(self) -> dict[str, Any]:
        """Return what was not read, which is somebody else's to check."""
        left, self._left = self._left, {}
        return left

    def end(self, *known: str) -> None:
        """Refuse what was not read."""
        for key in self._left:
            raise ConfigurationError(
                ": ".join(filter(None, (self._where, key[:_MOST_SHOWN])))
                + f": unknown key; expected some of {', '.join(known)}"
            )

    def _taken(self, key: str, default: Any, expected: str) -> Any:
        if key not in self._left and default is None:
            place = ": ".join(filter(None, (self._where, key)))
            raise ConfigurationError(f"{place}: missing; expected {expected}")
        return self._left.pop(key, default)


def _fleet(text: bytes, values: dict[str, Any], folder: Path) -> Fleet:
    top = _Table(values, "")
    name = _checked_name(top.text("name"), top, "name")
    keys_here = top.choice("keys", "theirs", ("here", "theirs")) == "here"
    services = top.choice("services", "none", _SERVICES)
    own_nodes = _own_nodes(top, services)
    server = _server(top.table("server"), services)
    terms = _masks(top.table("masks"))
    if services in _IN_CONTAINERS and terms and not keys_here:
        raise top.wrong("services", services, 'keys = "here" with [masks], or other services')
    common = top.table("agent")
    general = {} if common is None else _settings_told(common)
    tables = values.get("client", [])
    if not isinstance(tables, list) or not tables:
        raise top.wrong("client", tables, "[[client]] tables, one at least")
    top.rest()
    known = ("name", "keys", "services", "supernode", "server", "masks", "agent", "client")
    _Table({key: None for key in values if key not in known}, "").end(*known)
    clients: list[FleetClient] = []
    for place, table in enumerate(tables, 1):
        first = clients[-1].client + 1 if clients else 0
        link = {"superlink": str(server)} if own_nodes else {}
        reader = _ClientTable(
            _Table(table, f"[[client]] {place}"), {**general, **link}, folder, services
        )
        clients += reader.clients(first)
        if len(clients) > MOST_CLIENTS:
            raise top.wrong("client", f"{len(clients)} clients", f"at most {MOST_CLIENTS}")
    _refuse_twice(clients)
    _refuse_shared(clients, services)
    if services == "kubernetes":
        _refuse_names(clients)
    return Fleet(
        name=name,
        keys_here=keys_here,
        services=services,
        server=server,
        own_nodes=own_nodes,
        terms=terms,
        clients=tuple(sorted(clients, key=lambda one: one.client)),
        text=text,
    )


def _own_nodes(top: _Table, services: str) -> bool:
    """Return whether agents are their own SuperNodes."""
    usual = "agent" if services == "kubernetes" else "flower"
    own_nodes = top.choice("supernode", usual, ("flower", "agent")) == "agent"
    if not own_nodes and services == "kubernetes":
        raise top.wrong("supernode", "flower", '"agent": a Pod is one container')
    return own_nodes


def _refuse_twice(clients: list[FleetClient]) -> None:
    for kind in ("client", "name"):
        seen: set[object] = set()
        for one in clients:
            if (value := getattr(one, kind)) in seen:
                raise ConfigurationError(
                    f"client: two with the {'index' if kind == 'client' else kind} {value!r}; "
                    "expected another for each"
                )
            seen.add(value)


def _refuse_names(clients: list[FleetClient]) -> None:
    """Refuse what no object of Kubernetes is called: each client is a Service beside the server."""
    for one in clients:
        if not one.name[0].isalpha() or one.name in _TAKEN:
            raise ConfigurationError(
                f"client {one.client}: name: got {one.name!r}; expected a letter at its beginning, "
                f"and none of {', '.join(_TAKEN)}"
            )


def _server(table: _Table | None, services: str) -> ServerAddress:
    if table is None:
        raise ConfigurationError("[server]: missing; expected a table with address")
    host = table.text("address")
    port = table.number("port", SUPERLINK_PORT, 1, _MAX_PORT)
    table.end("address", "port")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    told = f"[{bare}]" if ":" in bare else bare
    address = ServerAddress.parse(f"{told}:{port}", "[server]: address")
    if services != "none" and port != SUPERLINK_PORT:
        raise table.wrong("port", port, f"{SUPERLINK_PORT}, that of the server's unit or image")
    return address


def _masks(table: _Table | None) -> Terms | None:
    if table is None:
        return None
    most = MOST_CLIENTS
    terms = Terms(
        least=table.number("least", LEAST, LEAST, most),
        tolerated=table.number("tolerated", 0, 0, most),
        cohort_size=table.number("cohort-size", 0, 0, most),
        links=table.flag("links"),
        relation=table.text("relation", ""),
    )
    table.end("least", "tolerated", "cohort-size", "links", "relation")
    if terms.relation and not terms.links:
        raise table.wrong("relation", terms.relation, "links = true beside it")
    return terms


def _settings_told(table: _Table) -> dict[str, Any]:
    for key in (*_GIVEN, *_ELSEWHERE):
        if key in table:
            raise table.wrong(
                key, table.rest()[key], "it not to be here: it follows from the clients' tables"
            )
    return table.rest()


class _ClientTable:
    """One ``[[client]]`` table: a client, or several that differ in number."""

    def __init__(
        self, table: _Table, general: Mapping[str, Any], folder: Path, services: str
    ) -> None:
        self._table, self._folder, self._places = table, folder, _PLACES[services]
        own = table.table("agent")
        self._agent = {**general, **({} if own is None else _settings_told(own))}

    def clients(self, first: int) -> list[FleetClient]:
        """Return them; ``first`` is the index of the first one, if the table does not say."""
        table = self._table
        first = table.number("client", first, 0, MAX_CLIENT)
        count = table.number("count", 1, 1, MOST_CLIENTS)
        name = table.text("name", "client-{client}")
        host = table.text("host")
        port = table.number("port", AGENT_PORT, 1, _MAX_PORT)
        node_port = table.number("node-port", NODE_PORT, 1, _MAX_PORT)
        own_addresses = "addresses" in table
        addresses = table.texts("addresses", ["tcp://{host}:{port}"])
        any_host = "tcp://[::]:{port}" if ":" in host else "tcp://0.0.0.0:{port}"
        listen = table.texts("listen", None if own_addresses else [any_host])
        part = table.text("part", f"{self._places[1]}part")
        part_here = table.text("part-here", "")
        table.end(
            *("client", "count", "name", "host", "port", "node-port", "addresses", "listen"),
            *("part", "part-here", "agent"),
        )
        # Several on one machine need a port each.
        step = 0 if "{" in host else 1
        if max(port, node_port) + step * (count - 1) > _MAX_PORT:
            raise table.wrong("count", count, f"ports up to {_MAX_PORT} for all of them")
        if first + count - 1 > MAX_CLIENT:
            raise table.wrong("count", count, f"indices up to {MAX_CLIENT} for all of them")
        made = []
        for number in range(count):
            filling = _Filling(table, {"client": str(first + number)})
            filling = filling.having("name", _checked_name(filling(name, "name"), table, "name"))
            filling = filling.having("host", filling(host, "host"))
            filling = filling.having("port", str(port + step * number))
            agent = self._content(
                filling, filling(part, "part"), [filling(one, "listen") for one in listen]
            )
            made.append(
                FleetClient(
                    client=first + number,
                    name=filling("{name}", "name"),
                    host=filling("{host}", "host"),
                    addresses=tuple(
                        _checked_address(filling(one, "addresses"), table) for one in addresses
                    ),
                    agent=MappingProxyType(agent),
                    settings=self._checked(agent, first + number),
                    node_port=node_port + step * number,
                    part_here=self._folder / filling(part_here, "part-here") if part_here else None,
                )
            )
        return made

    def _content(self, filling: _Filling, part: str, listen: list[str]) -> dict[str, Any]:
        """Return all of an ``agent.toml``, whose paths are those on the client's machine."""
        own, kept, run = (filling(place, "") for place in self._places)
        return {
            "partition": part,
            "state": f"{kept}state",
            "socket": f"{run}agent.sock",
            "key": f"{own}key.pem",
            "certificate": f"{own}certificate.pem",
            "roster": f"{own}roster.toml",
            "listen": listen,
            **(
                {"root-certificates": f"{own}ca.crt", "supernode-key": f"{own}supernode-key"}
                if "superlink" in self._agent
                else {}
            ),
            **{key: filling.within(value, key) for key, value in self._agent.items()},
        }

    def _checked(self, agent: dict[str, Any], client: int) -> AgentSettings:
        try:
            return settings_of(agent, Path("/"))
        except ConfigurationError as error:
            raise ConfigurationError(f"client {client}: [agent]: {error}") from error


@dataclass(frozen=True, slots=True)
class _Filling:
    """The values of ``{client}``, ``{name}``, ``{host}`` and ``{port}`` for one client."""

    table: _Table
    values: Mapping[str, str]

    def __call__(self, text: str, key: str) -> str:
        """Fill a text."""

        def filled(hole: re.Match[str]) -> str:
            if hole[1] not in self.values:
                names = ", ".join(f"{{{name}}}" for name in self.values)
                raise self.table.wrong(key, text, f"no braces but {names}")
            return self.values[hole[1]]

        return _HOLE.sub(filled, text)

    def within(self, value: Any, key: str) -> Any:
        """Fill a text, or the texts of a list; leave others."""
        if isinstance(value, list):
            return [self.within(one, key) for one in value]
        return self(value, key) if isinstance(value, str) else value

    def having(self, name: str, value: str) -> _Filling:
        """Return one that knows one more."""
        return _Filling(self.table, {**self.values, name: value})


def _checked_name(name: str, table: _Table, key: str) -> str:
    if not _NAME.fullmatch(name):
        raise table.wrong(key, name, "1 to 20 small letters, digits and hyphens")
    return name


def _checked_address(address: str, table: _Table) -> str:
    try:
        check_address(address)
    except IdentityError as error:
        raise table.wrong("addresses", address, str(error)) from error
    return address


def _refuse_shared(clients: list[FleetClient], services: str) -> None:
    """Refuse what two programs of one machine cannot both have."""
    owners: dict[tuple[str, str], int] = {}
    for one in clients:
        # Of a container, others of its machine have the agent's port alone.
        claims = _agent_ports(one) if services in _IN_CONTAINERS else _claims(one)
        for thing, expected in claims:
            if (owner := owners.get((one.host, thing))) is not None:
                raise ConfigurationError(
                    f"client {one.client}: {thing} of {one.host} is taken by client {owner}; "
                    f"expected {expected}"
                )
            owners[one.host, thing] = one.client


def _claims(one: FleetClient) -> Iterator[tuple[str, str]]:
    """Yield what is a client's alone on its machine, and what else there could be."""
    yield from _agent_ports(one)
    yield _port(one.node_port)
    # Relative paths are below each client's own folder.
    metrics = one.settings.metrics
    if not is_path(metrics):
        if metrics:
            yield _port(host_and_port(metrics, "metrics")[1])
    elif Path(one.agent["metrics"]).is_absolute():
        yield f"metrics {os.path.normpath(metrics)}", "a path with {name} in it"
    if Path(one.agent["partition"]).is_absolute():
        part = os.path.normpath(one.settings.partition)
        yield f"part {part}", "another part, such as one with {name} in it"


def _agent_ports(one: FleetClient) -> Iterator[tuple[str, str]]:
    addresses = (it for it in one.settings.listen if it.startswith("tcp:"))
    for port in filter(None, (parse_tcp(it, least_port=0).port for it in addresses)):
        yield _port(port)


def _port(number: int) -> tuple[str, str]:
    return f"port {number}", "another port or node-port, or metrics at another place"


def _shown(value: object) -> str:
    return repr(value)[:_MOST_SHOWN]
