"""Machines for tests: network namespaces joined by a switch, with links that can be bad.

Each host has one interface, `eth0`, whose other end lies in a namespace of its own, with a bridge
or, where links have delays, with `shaper.py`. Nothing of this machine's own network is touched.
Addresses of neighbours are fixed, so that nothing but the hosts' own packets is on the wire.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, count
from pathlib import Path
from typing import Self

import pytest

from retexo_fl.simulation.links import Link
from tests.support.host import PREFIX, Host, call, ip, namespaces, remove_leftovers
from tests.support.shaper import Orders, Way

_SUPPORT = Path(__file__).parent
_GROUPS = count()
_END_S = 60.0
#: Frames with this address reach nobody: the bridge does not flood, the shaper drops them.
_NOBODY = "02:ff:ff:ff:ff:ff"


class Hosts:
    """A network of hosts, for a ``with`` block; at its end no process and no namespace is left.

    Args:
        names: Names of the hosts, in the order of their addresses.
        network: First three numbers of the addresses; only the hosts see them.
    """

    def __init__(self, names: Sequence[str], *, network: str = "10.77.0") -> None:
        require_namespaces()
        self._group = f"{PREFIX}{os.getpid()}-{next(_GROUPS)}"
        self._switch = f"{self._group}-switch"
        self._hosts = {
            name: Host(
                name=name,
                namespace=f"{self._group}-{name}",
                address=f"{network}.{number}",
                mac=f"02:00:0a:00:00:{number:02x}",
                port=f"port{number}",
            )
            for number, name in enumerate(names, start=1)
        }
        self._shaper: subprocess.Popen[str] | None = None
        self._cut: set[frozenset[str]] = set()

    def __enter__(self) -> Self:
        """Make the namespaces and connect them."""
        remove_leftovers()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes on the hosts and remove them."""
        self._remove()

    def __getitem__(self, name: str) -> Host:
        """Return a host by its name."""
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        """Go through the hosts in the order of their addresses."""
        return iter(self._hosts.values())

    # ---- links that are bad ----------------------------------------------------------------------

    def limit(self, name: str, rate_bit_s: int | None) -> None:
        """Give a host's cable a rate in each direction (kernel's tbf); None takes it away."""
        host = self._hosts[name]
        for namespace, interface in ((host.namespace, "eth0"), (self._switch, host.port)):
            tc = ("tc", "-netns", namespace, "qdisc")
            if rate_bit_s is None:
                call([*tc, "del", "dev", interface, "root"])
                continue
            burst = max(3_028, rate_bit_s // 8 // 250)
            shape = ("tbf", "rate", f"{rate_bit_s}bit", "burst", str(burst), "latency", "1s")
            call([*tc, "replace", "dev", interface, "root", *shape])

    def shape(
        self, between: Callable[[str, str], Link], *, seed: int = 0, record: Path | None = None
    ) -> None:
        """Put `shaper.py` in the place of the bridge.

        Args:
            between: The link from one host to another, by their names.
            seed: Decides which frames are lost.
            record: File for a line for each frame that arrives; `packets.py` reads it.
        """
        self.unshape()
        orders = Orders(
            ports={host.port: host.mac for host in self},
            ways={
                f"{one.port}>{other.port}": _way(between(one.name, other.name))
                for one in self
                for other in self
                if one is not other
            },
            seed=seed,
            record="" if record is None else str(record),
        )
        for host in self:
            ip("-netns", self._switch, "link", "set", host.port, "nomaster")
        self._shaper = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                self._switch,
                sys.executable,
                "-P",
                str(_SUPPORT / "shaper.py"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._shaper.stdin is not None
        assert self._shaper.stdout is not None
        self._shaper.stdin.write(orders.to_json() + "\n")
        self._shaper.stdin.flush()
        assert self._shaper.stdout.readline() == "ready\n"

    def unshape(self) -> None:
        """Put the bridge back: every link carries anything at once."""
        if self._shaper is None:
            return
        shaper, self._shaper = self._shaper, None
        _end_shaper(shaper)
        for host in self:
            ip("-netns", self._switch, "link", "set", host.port, "master", "bridge")
            self._set_port(host)

    def cut(self, one: str, other: str | None = None) -> None:
        """Lose every packet between two hosts, or between one and all others, and say nothing."""
        self._change(one, other, self._cut.add)

    def mend(self, one: str, other: str | None = None) -> None:
        """Undo :meth:`cut`."""
        self._change(one, other, self._cut.discard)

    def isolate(self, *names: str) -> None:
        """Leave these hosts no way to each other, only to the others.

        So stand clients behind routers that translate addresses: they reach a server, and no
        connection to them can be opened.
        """
        for one, other in combinations(names, 2):
            self.cut(one, other)

    def _change(
        self, one: str, other: str | None, change: Callable[[frozenset[str]], None]
    ) -> None:
        others = [name for name in self._hosts if name != one] if other is None else [other]
        for name in others:
            change(frozenset((one, name)))
        for host in (self._hosts[one], *(self._hosts[name] for name in others)):
            self._introduce(host)

    def send_nothing_twice(self) -> None:
        """Have TCP wait long before it repeats a packet: on good links none has been lost.

        A machine with more to do than cores acknowledges late. For tests that count bytes; where
        packets are lost, it makes everything slow.
        """
        for host in self:
            call(host.command(["sysctl", "-qw", "net.ipv4.tcp_early_retrans=0"]))
            network = f"{host.address.rpartition('.')[0]}.0/24"
            route = ("route", "replace", network, "dev", "eth0", "src", host.address)
            ip(
                "-netns",
                host.namespace,
                *route,
                "proto",
                "kernel",
                "scope",
                "link",
                "rto_min",
                "5s",
            )

    # ---- building and removing -------------------------------------------------------------------

    def _build(self) -> None:
        for namespace in (self._switch, *(host.namespace for host in self)):
            ip("netns", "add", namespace)
            off = ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
            call(["ip", "netns", "exec", namespace, "sysctl", "-qw", *off])
            ip("-netns", namespace, "link", "set", "lo", "up")
        switch = ("-netns", self._switch)
        ip(*switch, "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
        ip(*switch, "link", "set", "bridge", "up")
        for host in self:
            peer = ("peer", "name", "eth0", "netns", host.namespace, "address", host.mac)
            ip(*switch, "link", "add", host.port, "type", "veth", *peer)
            ip("-netns", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-netns", host.namespace, "link", "set", "eth0", "up")
            ip(*switch, "link", "set", host.port, "up", "master", "bridge")
            self._set_port(host)
            self._introduce(host)
            _offloads_off(host.namespace, "eth0")
            _keep_in_order(host.namespace, "eth0")
        ports = [host.port for host in self]
        _offloads_off(self._switch, *ports)
        _keep_in_order(self._switch, *ports)

    def _set_port(self, host: Host) -> None:
        quiet = ("flood", "off", "mcast_flood", "off", "bcast_flood", "off", "learning", "off")
        call(["bridge", "-netns", self._switch, "link", "set", "dev", host.port, *quiet])
        entry = ("fdb", "replace", host.mac, "dev", host.port, "master", "static")
        call(["bridge", "-netns", self._switch, *entry])

    def _introduce(self, host: Host) -> None:
        """Tell a host the addresses of all others, wrong ones where the way is cut."""
        for other in self:
            if other is not host:
                mac = _NOBODY if frozenset((host.name, other.name)) in self._cut else other.mac
                entry = ("neigh", "replace", other.address, "lladdr", mac, "dev", "eth0")
                ip("-netns", host.namespace, *entry, "nud", "permanent")

    def _remove(self) -> None:
        if self._shaper is not None:
            _end_shaper(self._shaper)
        present = set(namespaces())
        for host in self:
            if host.namespace in present:
                host.end()
        for namespace in (self._switch, *(host.namespace for host in self)):
            if namespace in present:
                ip("netns", "del", namespace)


def require_namespaces() -> None:
    """Skip the calling test where namespaces cannot be made; `CI=true` makes that a failure."""
    missing = [name for name in ("ip", "tc", "bridge", "sysctl") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"test hosts need {', '.join(missing)} (iproute2, procps)")
    if os.geteuid() != 0:
        pytest.skip("test hosts are network namespaces, which root makes")


def _keep_in_order(namespace: str, *interfaces: str) -> None:
    """Have one core take all packets of an interface: two overtake each other, as no cable does."""
    files = " ".join(f"/sys/class/net/{name}/queues/rx-*/rps_cpus" for name in interfaces)
    write = f"for file in {files}; do echo 1 > $file || exit 1; done"
    call(["ip", "netns", "exec", namespace, "sh", "-c", write])


def _way(link: Link) -> Way:
    rate = None if link.rate_bit_s is None else float(link.rate_bit_s)
    return Way(rate_bit_s=rate, delay_s=float(link.delay_s), loss=link.loss)


def _end_shaper(shaper: subprocess.Popen[str]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        shaper.communicate(timeout=_END_S)
    if shaper.poll() is None:
        shaper.kill()
        shaper.wait(timeout=_END_S)


def _offloads_off(namespace: str, *interfaces: str) -> None:
    program = [sys.executable, "-P", "-S", str(_SUPPORT / "offloads.py"), *interfaces]
    call(["ip", "netns", "exec", namespace, *program])
