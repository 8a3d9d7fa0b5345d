"""How much memory the programs on test hosts take, looked at again and again."""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.host import Host, processes_by_namespace

#: Adding up a process's pages takes milliseconds.
_LOOK_S = 1.5
_KIB = 1024


@dataclass(slots=True, kw_only=True)
class Usage:
    """The most that the processes of one kind on one host took.

    Attributes:
        processes: How many of them were seen, one after the other or at once.
        pss_bytes: Most of one process, with its share of what it has in common with others.
        resident_bytes: Most of one process, with all of it (the kernel's own peak).
    """

    processes: int = 0
    pss_bytes: int = 0
    resident_bytes: int = 0


class Looking(ABC):
    """Looks at processes again and again, for a ``with`` block.

    Args:
        every_s: Pause between two looks.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking."""
        self._over.set()
        self._thread.join()

    @abstractmethod
    def look(self) -> None:
        """Look once."""

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            self.look()


class MemoryWatch(Looking):
    """Looks at the processes of hosts.

    Args:
        hosts: Whose processes.

    Attributes:
        usage: By host and program, e.g. ``("client-0", "flwr-clientapp")``.
    """

    def __init__(self, hosts: Iterable[Host]) -> None:
        super().__init__(_LOOK_S)
        self.usage: dict[tuple[str, str], Usage] = {}
        self._hosts = {host.namespace: host.name for host in hosts}
        self._seen: set[tuple[str, int]] = set()

    def table(self) -> str:
        """Return what was seen, one line for each host and program."""
        head = f"{'host':<12}{'program':<24}{'processes':>9}{'PSS, MB':>10}{'peak RSS, MB':>14}"
        lines = [
            f"{host:<12}{name:<24}{usage.processes:>9}{usage.pss_bytes / 1e6:>10.1f}"
            f"{usage.resident_bytes / 1e6:>14.1f}"
            for (host, name), usage in sorted(self.usage.items())
        ]
        return "\n".join((head, *lines))

    def look(self) -> None:
        """Look once."""
        running = processes_by_namespace(self._hosts)
        for namespace, host in self._hosts.items():
            for pid in running[namespace]:
                self._note(host, pid)

    def _note(self, host: str, pid: int) -> None:
        try:
            name = _program_of(pid)
            resident = bytes_of(Path(f"/proc/{pid}/status"), "VmHWM")
            pss = bytes_of(Path(f"/proc/{pid}/smaps_rollup"), "Pss")
        except OSError:  # it ended meanwhile
            return
        usage = self.usage.setdefault((host, name), Usage())
        if (name, pid) not in self._seen:
            self._seen.add((name, pid))
            usage.processes += 1
        usage.pss_bytes = max(usage.pss_bytes, pss)
        usage.resident_bytes = max(usage.resident_bytes, resident)


def _program_of(pid: int) -> str:
    """Return the name of a program; of a Python script its own, with its first words."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    if "python" in Path(words[0]).name:
        if "-c" in words:
            return "python -c"
        words = [word for word in words[1:] if not word.startswith("-")]
    commands = [word for word in words[1:3] if re.fullmatch(r"[a-z]+", word)]
    own = Path(words[0]).name == "retexo"
    return " ".join((Path(words[0]).name, *commands)) if own else Path(words[0]).name


def bytes_of(file: Path, name: str) -> int:
    """Return a line in kB of a file of the kernel, in bytes; 0 where it has none."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", file.read_text(encoding="ascii"), re.M)
    return int(found[1]) * _KIB if found else 0
