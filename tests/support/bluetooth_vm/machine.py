"""One start of the virtual machine: a command, run as root, in a copy of this machine's tree."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.bluetooth_vm.kernel import PATH, Kernel, guest_kernel

#: What qemu exits with when the guest wrote 0x10 or 0x11 to its last port. 0 is a guest that
#: powered off, or panicked, and reported nothing.
_PASSED, _FAILED = 33, 35
_TAIL = 6000


_RUNNING: set[subprocess.Popen[bytes]] = set()


class GuestFailed(AssertionError):
    """The guest did not report, or not in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestEnd:
    """How a run in the guest ended.

    Attributes:
        status: Exit code of the command.
        output: What the command said, both streams.
        wall_s: From the emulator's start to its end, in seconds.
    """

    status: int
    output: str
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How the guest is started.

    Attributes:
        memory_mib: The guest's memory. What it writes is kept there, too.
        cores: Its processor's cores, each emulated by a thread.
        timeout_s: After so long the emulator is killed and the run has failed.
    """

    memory_mib: int = 384
    cores: int = 1
    timeout_s: float = 120.0

    def run(self, command: str, shared: Path) -> GuestEnd:
        """Boot, run a shell command, and return how it ended.

        Args:
            command: For ``/bin/sh``, as root. All paths are those of this machine; what it
                writes is lost, but for what is below ``/out``.
            shared: Empty folder that the guest sees as ``/out``.

        Raises:
            GuestFailed: It did not end in time, panicked, or did not say how it ended; with the
                tail of its output and console.
        """
        kernel = guest_kernel()
        (shared / "command.sh").write_text(command)
        begun = time.monotonic()
        code = self._boot(kernel, shared)
        wall_s = time.monotonic() - begun
        status = _text(shared / "status").strip()
        if code is None:
            raise GuestFailed(f"guest: no end within {self.timeout_s:g} s{_tails(shared)}")
        if code not in (_PASSED, _FAILED) or not status.isdecimal():
            raise GuestFailed(f"guest: reported nothing, qemu exited with {code}{_tails(shared)}")
        if (code == _PASSED) != (int(status) == 0):
            raise GuestFailed(f"guest: exit code {status}, but qemu's is {code}{_tails(shared)}")
        return GuestEnd(status=int(status), output=_text(shared / "output"), wall_s=wall_s)

    def _boot(self, kernel: Kernel, shared: Path) -> int | None:
        """Return the emulator's exit code, or nothing if it had to be killed."""
        command = self._command(kernel, shared)
        with (shared / "qemu.log").open("wb") as log:
            emulator = subprocess.Popen(
                # Should this process be killed, it ends nevertheless.
                ["timeout", "-s", "KILL", f"{self.timeout_s + 10:g}", *command],
                env={**os.environ, "PATH": PATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            _RUNNING.add(emulator)
            try:
                return emulator.wait(self.timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end(emulator)
                _RUNNING.discard(emulator)

    def _command(self, kernel: Kernel, shared: Path) -> list[str]:
        # Emulated on purpose: where the kvm device opens, a stock kernel may still hang in it.
        line = (
            "qemu-system-x86_64 -accel tcg,thread=multi,tb-size=256 -cpu max -M q35 "
            f"-smp {self.cores} -m {self.memory_mib} -nodefaults "
            "-no-user-config -display none -no-reboot "
            "-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap "
            "-device virtio-9p-pci,fsdev=root,mount_tag=root "
            "-device virtio-9p-pci,fsdev=out,mount_tag=out "
            "-device virtio-rng-pci -device isa-debug-exit,iobase=0xf4,iosize=4"
        )
        return [
            *shlex.split(line),
            *("-fsdev", f"local,id=out,path={shared},security_model=none,multidevs=remap"),
            *("-serial", f"file:{shared}/console"),
            *("-kernel", str(kernel.image), "-initrd", str(kernel.initrd)),
            *("-append", "console=ttyS0 panic=-1 oops=panic quiet loglevel=4 mitigations=off"),
        ]


def end_guests() -> None:
    """End every guest that another thread of this process waits for."""
    for emulator in list(_RUNNING):
        _end(emulator)


def _end(emulator: subprocess.Popen[bytes]) -> None:
    if emulator.poll() is None:
        os.killpg(emulator.pid, signal.SIGKILL)
        emulator.wait(30)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Make a folder for one run, and remove it."""
    with tempfile.TemporaryDirectory(prefix="retexo-vm-") as folder:
        yield Path(folder)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _tails(shared: Path) -> str:
    parts = []
    for name in ("qemu.log", "console", "output"):
        text = _text(shared / name)[-_TAIL:].strip()
        if text:
            parts.append(f"\n---- {name}\n{text}")
    return "".join(parts)
