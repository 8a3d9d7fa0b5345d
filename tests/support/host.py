"""One test machine: a network namespace with one interface, its processes and its counters."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tests.support.commands import ended

#: Begins the name of every namespace of ours; the id of the test's process follows.
PREFIX = "rtx"
_COMMAND_S = 30.0
_END_S = 60.0
ETHERNET_BYTES = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What went through a host's interface since it was made, as the kernel counted it.

    Attributes:
        rx_bytes: Bytes that arrived, with all headers down to Ethernet's.
        tx_bytes: Bytes that left.
        rx_packets: Packets that arrived.
        tx_packets: Packets that left.
        resent_packets: Of those that left, how many TCP sent once more. It does so on good links,
            too: when the other end is too busy to acknowledge soon.
    """

    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int
    resent_packets: int

    def __sub__(self, before: Counters) -> Counters:
        """Return what went through between two moments."""
        names = (entry.name for entry in fields(self))
        return Counters(**{name: getattr(self, name) - getattr(before, name) for name in names})

    @property
    def sent_ip_bytes(self) -> int:
        """Bytes of the IP packets that left."""
        return self.tx_bytes - ETHERNET_BYTES * self.tx_packets

    @property
    def received_ip_bytes(self) -> int:
        """Bytes of the IP packets that arrived."""
        return self.rx_bytes - ETHERNET_BYTES * self.rx_packets


@dataclass(slots=True, kw_only=True)
class Host:
    """One machine: a namespace with one interface.

    Attributes:
        name: As the test calls it.
        namespace: As the kernel calls it.
        address: IPv4 address.
        mac: Ethernet address.
        port: Name of the other end of its cable, in the switch.
    """

    name: str
    namespace: str
    address: str
    mac: str
    port: str
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def command(self, command: Sequence[str | Path]) -> list[str]:
        """Return the command that runs ``command`` on this host, under its own process id."""
        return ["ip", "netns", "exec", self.namespace, *map(str, command)]

    def run(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_s: float = 60.0,
    ) -> str:
        """Run a program to its end and return what it said; fail unless it exits with 0."""
        code, said = ended(self.command(command), env=env, cwd=cwd, timeout_s=timeout_s)
        assert code == 0, f"{self.name}: {command}: exit code {code}\n{said[-6000:]}"
        return said

    def popen(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program that writes to ``log``; it is ended with the hosts at the latest."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(command),
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process

    def counters(self) -> Counters:
        """Return the counters of the interface."""
        (link,) = json.loads(ip("-netns", self.namespace, "-s", "-j", "link", "show", "eth0"))
        stats = link["stats64"]
        return Counters(
            rx_bytes=stats["rx"]["bytes"],
            tx_bytes=stats["tx"]["bytes"],
            rx_packets=stats["rx"]["packets"],
            tx_packets=stats["tx"]["packets"],
            resent_packets=self._resent_packets(),
        )

    def _resent_packets(self) -> int:
        text = call(self.command(["cat", "/proc/net/snmp"]))
        names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
        return int(dict(zip(names, values, strict=True))["RetransSegs"])

    def processes(self) -> list[int]:
        """Return the ids of all processes on this host."""
        return processes_of(self.namespace)

    def end(self) -> None:
        """Kill every process on this host."""
        end_processes(self.namespace)
        for process in self._started:
            process.wait(timeout=_END_S)


def call(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


def ip(*arguments: str) -> str:
    return call(["ip", *arguments])


def namespaces() -> list[str]:
    told: list[dict[str, Any]] = json.loads(ip("-j", "netns", "list") or "[]")
    return [str(entry["name"]) for entry in told]


def processes_of(namespace: str) -> list[int]:
    """Return the ids of the processes in a namespace; none where it is gone."""
    return processes_by_namespace([namespace])[namespace]


def processes_by_namespace(namespaces: Iterable[str]) -> dict[str, list[int]]:
    """Return the ids of the processes in each namespace, after one look at all processes."""
    found: dict[str, list[int]] = {}
    by_inode: dict[int, list[int]] = {}
    for namespace in namespaces:
        found[namespace] = []
        with contextlib.suppress(FileNotFoundError):
            by_inode[os.stat(f"/run/netns/{namespace}").st_ino] = found[namespace]  # noqa: PTH116
    for name in os.listdir("/proc"):  # noqa: PTH208 - a thousand names, several times a second
        if name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                inode = os.stat(f"/proc/{name}/ns/net").st_ino  # noqa: PTH116
                by_inode.get(inode, []).append(int(name))
    return found


def end_processes(namespace: str) -> None:
    """Kill what runs in a namespace of ours: nobody else can have started anything there."""
    deadline = time.monotonic() + _END_S
    while left := processes_of(namespace):
        assert time.monotonic() < deadline, f"processes {left} in {namespace} do not end"
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def remove_leftovers() -> None:
    """Remove the hosts of test processes that were killed."""
    for name in namespaces():
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and owner.isdigit() and not Path("/proc", owner).exists():
            end_processes(name)
            ip("netns", "del", name)
