"""A whole Debian for 64-bit Arm on this machine, in which root's commands run under qemu-user.

debootstrap makes it. Programs start through the kernel's binfmt_misc of a user namespace, so that
nothing is registered on this machine, and nothing is left when a command has ended but the folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import pytest

from tests.support.aarch64 import OLDEST_CPU, QEMU
from tests.support.commands import environment

#: What a Raspberry Pi's system has before `edge/install.sh`, or gets by its apt-get.
_PACKAGES: Final = (
    *("systemd", "python3-venv", "bluez", "dbus", "rfkill"),
    *("openssh-client", "ca-certificates"),
)
_MIRROR: Final = "http://deb.debian.org/debian"
_DOWNLOAD_S: Final = 600.0
#: Thousands of programs start, each under qemu.
_UNPACK_S: Final = 2400.0
#: ELF files for 64-bit Arm, by their first bytes; F: qemu is opened here, not in the chroot.
_FORMAT: Final = (
    r":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:{qemu}:F"
)
#: In a chroot the real one only enables and links; but it fails where it is to start, too.
_SYSTEMCTL: Final = """#!/bin/sh
for word; do
  shift
  [ "$word" = --now ] || set -- "$@" "$word"
done
exec /usr/bin/systemctl "$@"
"""
#: $1: the root; $2: how its programs start; $3: of which processor; then the command. A namespace's
#: root makes no devices: those of this machine are put in place.
_ENTER: Final = r"""
set -eu
echo ready
read -r _
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf %s "$2" > /proc/sys/fs/binfmt_misc/register
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
mkdir "$1/dev/pts" "$1/dev/shm"
for device in null zero full random urandom tty; do
  touch "$1/dev/$device"
  mount --bind "/dev/$device" "$1/dev/$device"
done
mount -t proc proc "$1/proc"
root=$1 cpu=$3
shift 3
# Not by exec: systemctl sees by its first process that this is a chroot, and starts nothing there.
path=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
chroot "$root" /usr/bin/env -i HOME=/root PATH="$path" LANG=C.UTF-8 \
  QEMU_CPU="$cpu" container=lxc "$@" || exit $?
"""


@dataclass(frozen=True, slots=True)
class EmulatedRoot:
    """A Debian system in a folder, without any network.

    Attributes:
        folder: Its files.
    """

    folder: Path

    @classmethod
    def make(cls, folder: Path, release: str) -> Self:
        """Make one; skips the calling test where a program or root's rights are missing."""
        if os.geteuid() != 0:
            pytest.skip("the files of a system are made by root")
        for name in ("debootstrap", QEMU, "unshare"):
            if shutil.which(name) is None:
                pytest.skip(f"{name} is not installed")
        subprocess.run(
            [
                *("debootstrap", "--arch=arm64", "--foreign", "--variant=minbase"),
                *(f"--include={','.join(_PACKAGES)}", release, str(folder), _MIRROR),
            ],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=_DOWNLOAD_S,
            check=True,
        )
        made = cls(folder)
        made.run("/debootstrap/debootstrap --second-stage", timeout_s=_UNPACK_S)
        systemctl = folder / "usr" / "local" / "sbin" / "systemctl"
        systemctl.write_text(_SYSTEMCTL, encoding="utf-8")
        systemctl.chmod(0o755)
        return made

    def run(self, script: str, *, code: int = 0, timeout_s: float) -> str:
        """Run a script as root, and return what it said; it must end with exit code ``code``."""
        qemu = _FORMAT.format(qemu=shutil.which(QEMU))
        spaces = ["--user", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        entering = ["unshare", *spaces, "sh", "-c", _ENTER, "sh", str(self.folder), qemu]
        with subprocess.Popen(
            [*entering, OLDEST_CPU, "sh", "-euc", script],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    pytest.skip("user namespaces are not permitted here")
                for ids in ("uid_map", "gid_map"):
                    # Owners of files are those of this machine.
                    Path(f"/proc/{process.pid}/{ids}").write_text("0 0 65536\n")
                said, _ = process.communicate("\n", timeout=timeout_s)
            finally:
                process.kill()
        assert process.returncode == code, f"exit code {process.returncode}\n{said[-6000:]}"
        return said
