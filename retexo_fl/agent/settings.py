"""Content of ``agent.toml``: where an agent's part, state and socket are, and who its peers are.

One flat TOML file for each agent, with the fields of :class:`AgentSettings` as keys, written with
hyphens.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import MISSING, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from retexo_fl.addition import ADDITIONS, DEVICES
from retexo_fl.agent.limits import Limits
from retexo_fl.errors import ConfigurationError
from retexo_fl.files import read_toml
from retexo_fl.plugins import TRANSPORTS, is_own_scheme, is_plugin, joined
from retexo_fl.server_address import ServerAddress, host_and_port

#: A Unix socket's path has this many bytes at most.
MAX_SOCKET_BYTES: Final = 107
_MOST_SHOWN: Final = 60
_MOST_NUMBER: Final = 10**15
_MOST_MIB: Final = 65_536
_BROADCASTS: Final = ("gso", "tc")
_EXPECTED: Final = {
    "str": "a string",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "tuple[str, ...]": "a list of strings",
}
_FILES: Final = ("partition", "state", "socket", "key", "certificate")
#: Files that may be absent; empty then.
_OTHER_FILES: Final = ("roster", "predictions", "root_certificates", "supernode_key")
#: Of an agent that asks the SuperLink itself.
_OF_OWN_NODE: Final = ("root_certificates", "supernode_key", "insecure")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings(Limits):
    """One agent: where things lie and, as :class:`Limits`, what runs may ask of it.

    Attributes:
        partition: Folder of its part.
        state: Folder for everything that it keeps.
        socket: Where ClientApps and ``retexo agent`` reach it.
        key: Its private key.
        certificate: Its certificate.
        roster: File of its peers' certificates and addresses, and of what their owners agreed on;
            empty only with ``introductions``.
        listen: Where peers reach it, such as ``tcp://0.0.0.0:7411``; ``bluetooth:`` for Bluetooth
            where there is any, ``bluetooth://any/CHANNEL`` where there must be; beside one of these
            ``udp://IP:PORT``, ``xdp://IP:PORT``, ``af-xdp://IP:PORT`` or ``auto://IP:PORT``, for
            vectors as datagrams.
        transports: Transports of the owner's, ``x-NAME=module:attribute``: a callable without
            arguments that returns a :class:`~retexo_fl.channels.streams.Transport` for addresses
            ``x-NAME:...``. Imported when the agent starts. An installed package may bring one for
            an address of ``listen`` (an entry point).
        introductions: Learn peers from the server.
        addresses: Where peers reach it, in the server's introductions; ``listen`` if empty.
        predictions: Folder for predictions; empty where this client makes none.
        superlink: HOST:PORT of the SuperLink, if the agent asks it for messages itself, in place of
            a SuperNode; or, beside ``meter``, forwards a SuperNode's connection to it.
        root_certificates: The SuperLink's CA, for an agent that asks it itself; empty for the
            authorities that certifi, or SSL_CERT_FILE, names.
        supernode_key: Private key by which the SuperLink then knows it; empty where that knows no
            keys.
        insecure: It does so without TLS.
        meter: HOST:PORT at which a SuperNode connects to the agent, which counts its bytes.
        look_every_s: About how often to retry an absent peer for which blocks wait; 0
            leaves it to the channel: 30 s for peers with a Bluetooth address, 60 s for others.
        datagram_memory_mib: For sums of vectors that come as datagrams, open and kept.
        metrics: Where ``/health``, ``/ready`` and Prometheus' ``/metrics`` are served: HOST:PORT,
            or the path of a Unix socket; empty for nowhere. Whoever reaches it may read them.
        broadcast: How several peers get the same vectors as datagrams: ``gso``, sent to each, or
            ``tc``, cloned in the kernel.
    """

    partition: str
    state: str
    socket: str
    key: str
    certificate: str
    roster: str = ""
    listen: tuple[str, ...] = ()
    transports: tuple[str, ...] = ()
    introductions: bool = False
    addresses: tuple[str, ...] = ()
    predictions: str = ""
    superlink: str = ""
    root_certificates: str = ""
    supernode_key: str = ""
    insecure: bool = False
    meter: str = ""
    metrics: str = ""
    look_every_s: float = 0.0
    datagram_memory_mib: float = 64.0
    broadcast: str = "gso"

    def __post_init__(self) -> None:
        """Check what keys demand of each other."""
        Limits.__post_init__(self)
        for name in _FILES:
            if not getattr(self, name):
                raise ConfigurationError(f"{name}: is empty; expected a path")
        _check_socket("socket", self.socket)
        if not self.roster and not self.introductions:
            raise ConfigurationError(
                "roster: missing; expected a file, or introductions = true to learn peers from "
                "the server"
            )
        self._check_superlink()
        if self.look_every_s and not 1.0 <= self.look_every_s < math.inf:
            raise ConfigurationError(
                f"look-every-s: got {self.look_every_s:g}; expected at least 1, or 0 for the "
                "channel's default"
            )
        self._check_metrics()
        self._check_transports()
        self._check_datagrams()
        self._check_additions()

    @property
    def is_own_node(self) -> bool:
        """Whether the agent asks the SuperLink for messages itself."""
        return bool(self.superlink) and not self.meter

    @property
    def without_tls(self) -> bool:
        """Whether it does so without TLS, as ``insecure`` or ``http://`` says."""
        return self.insecure or ServerAddress.parse(self.superlink, "superlink").tls is False

    @property
    def own_transports(self) -> dict[str, str]:
        """By scheme, the ``module:attribute`` of each transport of the owner's.

        Where ``transports`` has none for an address of ``listen``, an installed package may.
        """
        named = {scheme: plugin for scheme, _, plugin in map(_split_transport, self.transports)}
        others = {address.partition(":")[0] for address in self.listen} - named.keys()
        brought = {scheme: joined(TRANSPORTS, scheme) for scheme in filter(is_own_scheme, others)}
        return named | {scheme: it for scheme, it in brought.items() if it is not None}

    def _check_superlink(self) -> None:
        if self.meter and not self.superlink:
            raise ConfigurationError("superlink: missing; expected it beside meter, or neither")
        own = [_key_of(name) for name in _OF_OWN_NODE if getattr(self, name)]
        if own and not self.is_own_node:
            with_or_without = "without meter" if self.meter else "beside superlink"
            raise ConfigurationError(f"{own[0]}: expected only {with_or_without}")
        if not self.superlink:
            return
        server = ServerAddress.parse(self.superlink, "superlink")
        if self.meter:
            host_and_port(self.meter, "meter")
        elif self.without_tls and own != ["insecure"] * self.insecure:
            raise ConfigurationError(
                f"{own[0]}: expected none without TLS (insecure, or http:// in superlink)"
            )
        if self.insecure and server.tls:
            raise ConfigurationError(f"insecure: expected none with {self.superlink}")

    def _check_transports(self) -> None:
        for text in self.transports:
            scheme, _, plugin = _split_transport(text)
            if not is_own_scheme(scheme) or not is_plugin(plugin):
                raise ConfigurationError(
                    f"transports: got {text[:_MOST_SHOWN]!r}; expected strings of the form "
                    "x-NAME=module:attribute"
                )
        known = self.own_transports
        for address in self.listen:
            scheme = address.partition(":")[0]
            if is_own_scheme(scheme) and scheme not in known:
                raise ConfigurationError(
                    f"listen: {address[:_MOST_SHOWN]}: no such transport; expected "
                    f"{scheme}=module:attribute in transports"
                )

    def _check_metrics(self) -> None:
        if not self.metrics:
            return
        if not is_path(self.metrics):
            host_and_port(self.metrics, "metrics")
        else:
            _check_socket("metrics", self.metrics)
            if Path(self.metrics) == Path(self.socket):
                raise ConfigurationError("metrics: is that of socket; expected another path")

    def _check_datagrams(self) -> None:
        if not 1 <= self.datagram_memory_mib <= _MOST_MIB:
            raise ConfigurationError(
                f"datagram-memory-mib: got {self.datagram_memory_mib:g}; expected 1 to {_MOST_MIB}"
            )
        if self.broadcast not in _BROADCASTS:
            raise ConfigurationError(
                f"broadcast: got {self.broadcast[:_MOST_SHOWN]!r}; expected "
                f"{' or '.join(_BROADCASTS)}"
            )

    def _check_additions(self) -> None:
        for addition in ADDITIONS:
            for key in ("listen", "addresses"):
                for address in filter(addition.serves, getattr(self, key)):
                    addition.require(f"{key}: {address[:_MOST_SHOWN]}")
        if wanted := DEVICES.wanted_by({"devices": self.devices or "cpu"}):
            DEVICES.require(wanted)


def is_path(place: str) -> bool:
    """Return whether where something is served is a Unix socket's path, not HOST:PORT."""
    return "/" in place


def read_settings(path: Path, **given: Any) -> AgentSettings:
    """Read ``agent.toml``.

    Relative paths in it are relative to its folder.

    Args:
        path: The file.
        given: Fields that go before those of the file.

    Raises:
        ConfigurationError: The file cannot be read, a key is unknown, missing or of the wrong
            type, or what it needs is not installed here; the message names file and key.
    """
    values = read_toml(path)
    try:
        settings = settings_of(values, path.absolute().parent, **given)
        _check_installed(settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return settings


def settings_of(values: dict[str, Any], folder: Path, **before: Any) -> AgentSettings:
    """Return what the keys of an ``agent.toml`` in a folder say, and what goes before them.

    Raises:
        ConfigurationError: A key is unknown, missing or of the wrong type; the message names it.
    """
    _check_keys(values)
    given = {_field_of(key): _checked(key, value) for key, value in values.items()}
    for name in (*_FILES, *_OTHER_FILES):
        if given.get(name):
            given[name] = str(folder / given[name])
    if is_path(given.get("metrics", "")):
        given["metrics"] = str(folder / given["metrics"])
    settings = AgentSettings(**{**given, **before})
    for addition in ADDITIONS:
        for key in filter(values.__contains__, addition.settings):
            addition.require(key)
    return settings


def _check_installed(settings: AgentSettings) -> None:
    """Check for what the machine needs that has the file, not who wrote it for another."""
    if settings.metrics and find_spec("prometheus_client") is None:
        raise ConfigurationError(
            "metrics: needs prometheus-client, which is not installed; expected the extra "
            "'watch' of retexo-fl"
        )


def _check_socket(key: str, path: str) -> None:
    size = len(path.encode())
    if size > MAX_SOCKET_BYTES:
        raise ConfigurationError(
            f"{key}: {path[:_MOST_SHOWN]}... has {size} bytes; expected at most {MAX_SOCKET_BYTES}"
        )


def _split_transport(text: str) -> tuple[str, str, str]:
    scheme, sign, plugin = text.partition("=")
    return scheme.strip(), sign, plugin.strip()


def _key_of(field_name: str) -> str:
    return field_name.replace("_", "-")


def _field_of(key: str) -> str:
    return key.replace("-", "_")


def _check_keys(values: dict[str, Any]) -> None:
    names = [_key_of(item.name) for item in fields(AgentSettings)]
    for name in values:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; expected {', '.join(names)}"
            raise ConfigurationError(f"{name[:_MOST_SHOWN]}: unknown key{hint}")
    for item in fields(AgentSettings):
        if item.default is MISSING and _key_of(item.name) not in values:
            raise ConfigurationError(f"{_key_of(item.name)}: missing")


def _checked(key: str, value: Any) -> Any:
    wanted = next(str(item.type) for item in fields(AgentSettings) if item.name == _field_of(key))
    if wanted == "float" and type(value) is int and abs(value) < _MOST_NUMBER:
        value = float(value)
    is_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    found = "tuple[str, ...]" if is_texts else type(value).__name__
    if found != wanted:
        shown = repr(value)[:_MOST_SHOWN]
        raise ConfigurationError(f"{key}: got {shown}; expected {_EXPECTED[wanted]}")
    return tuple(value) if is_texts else value
