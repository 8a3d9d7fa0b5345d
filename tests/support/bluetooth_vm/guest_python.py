"""Which Pythons run in the guest: one that has Bluetooth sockets, and one that has none."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.bluetooth_vm.kernel import cache_folder

REPOSITORY = Path(__file__).parents[3]
#: Debian's own, built with Bluetooth.
_SYSTEM_PYTHON = Path("/usr/bin/python3")
_HAS_SOCKETS = "import socket, sys; sys.exit(not hasattr(socket, 'AF_BLUETOOTH'))"
_VERSION = "import sys; print(sys.version_info[:2] + (sys.implementation.cache_tag,))"
#: Run by Python when it starts, before anybody asks for the sockets.
_HIDE_SOCKETS = "import socket\ndel socket.AF_BLUETOOTH\n"
_ASK_S = 60.0
_BUILD_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestPython:
    """An interpreter that finds this environment's packages.

    Attributes:
        program: Its path, here as in the guest.
        says: What it is, for whoever reads the outcome.
        folders: Where it looks for packages before it looks in this environment.
        script: Lines of shell that it needs before it is started.
    """

    program: Path
    says: str
    folders: tuple[Path, ...] = field(default=())
    script: str = ""

    def environment(self) -> dict[str, str]:
        """Return the variables it is started with."""
        return guest_environment(self.folders)


def guest_environment(folders: tuple[Path, ...] = ()) -> dict[str, str]:
    """Return the variables with which a Python of our version finds our packages."""
    packages = Path(sysconfig.get_path("purelib"))
    return {
        "PYTHONPATH": ":".join(map(str, (*folders, REPOSITORY, packages))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def python_with_sockets(*, has_pybluez: bool = False) -> GuestPython:
    """Return a Python that was built with Bluetooth: this one, or the system's."""
    folders = (_pybluez(),) if has_pybluez else ()
    for program in (Path(sys.executable), _SYSTEM_PYTHON):
        # Compiled packages of one version load in no other.
        if _has_sockets(program) and _answer(program, _VERSION) == _answer(
            sys.executable, _VERSION
        ):
            says = f"{program}, built with Bluetooth"
            return GuestPython(program=program, says=says, folders=folders)
    raise AssertionError(
        f"neither {sys.executable} nor {_SYSTEM_PYTHON} is a Python "
        f"{sys.version_info.major}.{sys.version_info.minor} that was built with Bluetooth"
    )


def python_with_pybluez() -> GuestPython:
    """Return this Python with PyBluez, and without sockets of its own, built so or made so."""
    program, built = Path(sys.executable), _pybluez()
    if not _has_sockets(program):
        says = f"{program}, built without Bluetooth, with PyBluez"
        return GuestPython(program=program, says=says, folders=(built,))
    hidden = Path("/run/hidden")
    script = f"mkdir -p {hidden}; printf '{_escaped(_HIDE_SOCKETS)}' >{hidden}/sitecustomize.py"
    says = f"{program}, its Bluetooth sockets hidden, with PyBluez"
    return GuestPython(program=program, says=says, folders=(hidden, built), script=script)


def _pybluez() -> Path:
    """Return a folder with PyBluez for this Python; it is built where there is none yet."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"pybluez-{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    with (cache / "pybluez.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as scratch:
                made = Path(scratch) / "made"
                _build(made)
                shutil.move(made, folder)
    return folder


def _build(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    built = subprocess.run(
        [*pip, "--target", folder, "platypush-pybluez>=0.30"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    assert built.returncode == 0, (
        "PyBluez was not built (libbluetooth-dev and a compiler are needed):\n"
        f"{built.stdout[-4000:]}"
    )


def _has_sockets(program: Path) -> bool:
    return program.exists() and _run(program, _HAS_SOCKETS).returncode == 0


def _answer(program: str | Path, code: str) -> str:
    return _run(program, code).stdout


def _run(program: str | Path, code: str) -> subprocess.CompletedProcess[str]:
    environment: Mapping[str, str] = {"PATH": os.environ.get("PATH", "")}
    return subprocess.run(
        [program, "-c", code],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_ASK_S,
        check=False,
    )


def _escaped(text: str) -> str:
    return text.replace("\n", "\\n")
