"""Copies of this machine on which root's commands can be tried: its files, and nothing kept.

Each is an overlay over `/` in a mount namespace of a test host. Programs that would download,
reboot or speak with systemd are stand-ins (`stand_ins/`): `systemctl` really starts what units say,
as the users they name, and `python3 -m venv` gives its environment what this one has installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.commands import ROOT, ended, environment, program, search_path
from tests.support.host import Host
from tests.support.part import wait_until

STAND_INS = Path(__file__).parent / "stand_ins"
#: Where a copy has its user's home, and what all copies of a test share.
HOME, SHARED = Path("/home/pi"), Path("/mnt")
#: pip finds what it needs in this environment, and asks nobody ("0" switches isolation off).
_PIP = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_FIND_LINKS": ""}
#: $1: empty folder for the copy; $2: folder that becomes /mnt; $3: folder that becomes the home;
#: $4: places that may lie on disks of their own; then the command to run there.
COPY = """
set -eu
mount -t tmpfs -o size=4g,mode=755 tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
root=$1/root
for place in $4; do
  # What is on a disk of its own is not in the copy.
  [ "$(stat -c %d "$place")" = "$(stat -c %d /)" ] || {
    mkdir -p "$root$place"
    mount --bind "$place" "$root$place"
  }
done
mount --bind "$2" "$root/mnt"
mkdir -p "$root/home/pi" "$root/boot/firmware" "$root/var/lib/retexo"
mount --bind "$3" "$root/home/pi"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
rmdir "$root/var/lib/retexo" 2> /dev/null || true
# This interpreter may be root's own, and units run as another user.
chmod a+x "$root/root"
echo "console=tty1 root=PARTUUID=1 rootwait" > "$root/boot/firmware/cmdline.txt"
rm -f "$root/etc/os-release"
echo VERSION_CODENAME=trixie > "$root/etc/os-release"
for stand_in in "$root"/mnt/stand_ins/*; do
  name=${stand_in##*/}
  for place in usr/bin usr/local/bin; do rm -f "$root/$place/$name"; done
  cp "$stand_in" "$root/usr/bin/$name"
done
getent group bluetooth > /dev/null || chroot "$root" groupadd --system bluetooth
shift 4
exec chroot "$root" "$@"
"""


def places() -> str:
    """Return what a copy needs of this machine, wherever it is mounted."""
    return " ".join(sorted({str(ROOT), sys.prefix, sys.base_prefix}))


def need_root() -> None:
    """Skip the calling test where no copy can be made."""
    if os.geteuid() != 0:
        pytest.skip("a copy of this machine is made by root")


@dataclass(slots=True)
class MachineCopy:
    """A copy of this machine that has the network of a test host.

    Attributes:
        host: Its network.
        folder: Empty; where its files appear, to itself.
        shared: What all copies have at ``/mnt``; their homes are in it.
    """

    host: Host
    folder: Path
    shared: Path
    _keeper: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def home(self) -> Path:
        """The home of its user, as this machine sees it."""
        return self.path(str(HOME))

    def start(self) -> None:
        """Make it; it is gone with the host's processes."""
        stand_ins = self.shared / "stand_ins"
        if not stand_ins.exists():
            write_stand_ins(stand_ins)
        home = self.shared / self.host.address
        home.mkdir()
        given = map(str, (self.folder, self.shared, home))
        command = ["unshare", "--mount", "--", "sh", "-c", COPY, "sh", *given, places()]
        keep = ["sh", "-c", "touch /mnt/copied-$1; exec sleep infinity", "sh", self.host.name]
        log = self.shared / f"{self.host.name}.log"
        self._keeper = self.host.popen([*command, *keep], log=log)
        made = self.shared / f"copied-{self.host.name}"
        wait_until(made.exists, f"{self.host.name} is not copied")

    def path(self, inside: str) -> Path:
        """Return a file of the copy as this machine sees it."""
        assert self._keeper is not None
        return Path(f"/proc/{self._keeper.pid}/root{inside}")

    def run(self, script: str, *, code: int = 0, timeout_s: float = 600.0) -> str:
        """Run a script in a new shell of root in the home, and return what it said.

        It must end with exit code ``code``.
        """
        assert self._keeper is not None
        enter = ["nsenter", f"--target={self._keeper.pid}", "--mount", "--net", "--root", "--wd"]
        found, said = ended(
            [*enter, "bash", "-euo", "pipefail", "-c", f"cd\n{script}"],
            env={**environment(_PIP, runs_this_checkout=False), "HOME": str(HOME), "PATH": _path()},
            timeout_s=timeout_s,
        )
        assert found == code, f"{self.host.name}: exit code {found}\n{script}\n{said[-6000:]}"
        return said


def write_stand_ins(folder: Path) -> None:
    """Write the stand-ins, with this interpreter's place, into ``folder``."""
    folder.mkdir()
    values = {
        "@PYTHON@": sys.executable,
        "@SITE@": str(Path(pytest.__file__).parents[1]),
        "@PROGRAMS@": str(Path(program("retexo")).parent),
    }
    for source in STAND_INS.iterdir():
        text = source.read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(name, value)
        target = folder / source.stem
        target.write_text(text, encoding="utf-8")
        target.chmod(0o755)


def _path() -> str:
    # Stand-ins before this environment's own programs.
    return f"{SHARED}/stand_ins:{search_path()}"
