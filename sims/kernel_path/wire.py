"""Two network namespaces and the wire between them: a pair of virtual Ethernet interfaces."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, Self

from retexo_fl.additions.kernel_path.xdp.probe import probe
from retexo_fl.errors import ConfigurationError
from sims.kernel_path.offloads import JOINING, SEGMENTATION, set_features

_CLONE_NEWNET: Final = 0x40000000
_COMMAND_S: Final = 30.0
_NUMBERS: Final = count()
#: Addresses of the network beyond the receiver's own, for those who receive copies.
FURTHER_ADDRESSES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of the wire.

    Attributes:
        namespace: Its network namespace.
        interface: Its interface, named like no other of this machine.
        address: Its IPv4 address.
        mac: Its Ethernet address.
    """

    namespace: str
    interface: str
    address: str
    mac: str


class Wire:
    """Two ends of one receive queue each, for a ``with`` block; nothing is left of it.

    Each end takes packets in a kernel thread of its own (threaded NAPI), whose time can be read;
    where frames hold several packets, the kernel hands them over without it, in the sender's time.

    Raises:
        ConfigurationError: This machine cannot make it.
    """

    def __init__(self) -> None:
        group = f"{os.getpid()}-{next(_NUMBERS)}"
        # The prefix is that of the tests' hosts: leftovers of a killed process go with theirs.
        self.sender, self.receiver = (
            End(
                namespace=f"rtx{group}-{name}",
                interface=f"{name}{group}",
                address=f"10.78.0.{number}",
                mac=f"02:00:0b:00:00:{number:02x}",
            )
            for number, name in enumerate(("tx", "rx"), start=1)
        )

    def __enter__(self) -> Self:
        """Lay it."""
        require_privileges()
        try:
            self._lay()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Take it away."""
        self._remove()

    @property
    def further(self) -> list[str]:
        """Addresses that the receiver's interface gets frames for, besides its own."""
        return [f"10.78.0.{100 + number}" for number in range(FURTHER_ADDRESSES)]

    def carry_super_frames(self, allowed: bool) -> None:
        """Say whether a frame may hold more than one packet."""
        for end in (self.sender, self.receiver):
            with inside(end.namespace):
                set_features(end.interface, SEGMENTATION, on=allowed)

    def use_threads(self, used: bool) -> None:
        """Say whether kernel threads take what arrives; else whoever runs at that moment."""
        for end in (self.sender, self.receiver):
            path = f"/sys/class/net/{end.interface}/threaded"
            _in(end, "sh", "-c", f"echo {int(used)} > {path}")

    def _lay(self) -> None:
        sender, receiver = self.sender, self.receiver
        for end in (sender, receiver):
            _call("ip", "netns", "add", end.namespace)
            off = ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
            _in(end, "sysctl", "-qw", *off)
            _ip(end, "link", "set", "lo", "up")
        one = ("numtxqueues", "1", "numrxqueues", "1")
        pair = ("add", sender.interface, "address", sender.mac, *one, "type", "veth")
        other = ("peer", "name", receiver.interface, "address", receiver.mac, *one)
        _ip(sender, "link", *pair, *other, "netns", receiver.namespace)
        for end, peer in ((sender, receiver), (receiver, sender)):
            _ip(end, "addr", "add", f"{end.address}/24", "dev", end.interface)
            _ip(end, "link", "set", end.interface, "up")
            with inside(end.namespace):
                set_features(end.interface, JOINING, on=True)
            self._introduce(end, peer.address, peer.mac)
        for address in self.further:
            self._introduce(sender, address, receiver.mac)
        self.use_threads(True)

    def _introduce(self, end: End, address: str, mac: str) -> None:
        entry = ("replace", address, "lladdr", mac, "dev", end.interface, "nud", "permanent")
        _ip(end, "neigh", *entry)

    def _remove(self) -> None:
        for end in (self.sender, self.receiver):
            if Path("/run/netns", end.namespace).exists():
                _call("ip", "netns", "del", end.namespace)


def require_privileges() -> None:
    """Refuse where namespaces or the kernel path cannot be had.

    Raises:
        ConfigurationError: What is missing.
    """
    missing = [name for name in ("ip", "sysctl") if shutil.which(name) is None]
    if missing:
        raise ConfigurationError(
            f"kernel_path: needs {', '.join(missing)} (packages iproute2, procps)"
        )
    if os.geteuid() != 0:
        raise ConfigurationError("kernel_path: needs root, who makes network namespaces")
    found = probe()
    if not found.ok:
        raise ConfigurationError(f"kernel_path: needs root and BPF: {found.reason}")


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Have this thread work in a network namespace; what it opens there stays there."""
    with Path("/proc/thread-self/ns/net").open("rb") as own:
        enter(namespace)
        try:
            yield
        finally:
            _set(own.fileno())


def enter(namespace: str) -> None:
    """Have this thread, and processes that it starts, work in a network namespace from now on."""
    with Path("/run/netns", namespace).open("rb") as other:
        _set(other.fileno())


def _set(fd: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(end: End, *arguments: str) -> None:
    _call("ip", "-netns", end.namespace, *arguments)


def _in(end: End, *command: str) -> None:
    _call("ip", "netns", "exec", end.namespace, *command)


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    if done.returncode:
        raise ConfigurationError(f"{' '.join(command)}: {done.stderr.strip()}")
