"""A 64-bit Arm machine's Python on this one, under qemu-user: Debian's interpreter, PyPI's wheels.

Nothing of it needs root, a chroot or debootstrap: apt downloads Debian's packages for arm64 into a
folder of its own, dpkg-deb unpacks them, uv chooses and unpacks the wheels that pip would choose on
such a machine. All of that is made once and kept outside the repository.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from retexo_fl import __version__
from tests.support.agents import AgentProcess
from tests.support.commands import ROOT, ended, environment, program, run_command

#: Raspberry Pi OS takes Python from Debian: by its version, the release that has it.
RELEASES: Final = {"3.11": "bookworm", "3.13": "trixie"}
#: Of a Raspberry Pi 3 and Zero 2, the oldest that runs 64-bit programs: what it cannot do, `-cpu
#: max` hides (a wheel built for newer processors ends with SIGILL here, and there).
OLDEST_CPU: Final = "cortex-a53"
#: What a Pi installs: the project, with what the Bluetooth channel asks for.
EXTRAS: Final = ("bluetooth",)

QEMU: Final = "qemu-aarch64-static"
_PLATFORM: Final = "aarch64-manylinux_2_28"
_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SOURCE: Final = "deb [signed-by={keyring}] http://deb.debian.org/debian {release} main\n"
#: Of these, apt finds what else is needed; torch and scikit-learn bring no libstdc++ of their own.
_PACKAGES: Final = ("python{python}", "libgomp1", "libstdc++6")
_DOWNLOAD_S: Final = 600.0
_DAY_S: Final = 86_400.0
#: torch takes half a minute to load under qemu, many times that where others compute.
START_S: Final = 1200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Aarch64:
    """An interpreter for 64-bit Arm, and the project's wheels.

    Attributes:
        python: Its version, "3.11".
        root: Debian's files.
        site: What was installed.
        facts: Says which version of the project its source tree is, as an installation does.
    """

    python: str
    root: Path
    site: Path
    facts: Path

    def command(self, *arguments: str | Path) -> list[str]:
        """Return the command that starts Python with ``arguments`` on the oldest processor."""
        variables = {
            "PYTHONHOME": str(self.root / "usr"),
            "PYTHONPATH": f"{ROOT}:{self.facts}:{self.site}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        given = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
        interpreter = self.root / "usr" / "bin" / f"python{self.python}"
        qemu = [QEMU, "-cpu", OLDEST_CPU, "-L", str(self.root), *given]
        return [*qemu, str(interpreter), *map(str, arguments)]

    def run(self, *arguments: str | Path, timeout_s: float = START_S) -> str:
        """Run Python to its end, which must be good, and return what it printed."""
        return run_command(self.command(*arguments), timeout_s=timeout_s)


@dataclass(slots=True, kw_only=True)
class Aarch64Agent(AgentProcess):
    """An agent that runs as 64-bit Arm.

    Attributes:
        machine: What runs it.
    """

    machine: Aarch64
    start_s: float = START_S

    @property
    def command(self) -> list[str]:
        """The program, and what it is told."""
        begin = "from retexo_fl.cli import main; main()"
        return self.machine.command("-c", begin, "agent", "run", "--config", self.settings)


# ---- making it -----------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Return where it is kept: ``RETEXO_AARCH64_CACHE``, or below the home."""
    named = os.environ.get("RETEXO_AARCH64_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "retexo-aarch64"


def aarch64_machine(python: str) -> Aarch64:
    """Return the machine with a Python, made if it is not there.

    Skips the calling test where a program is not installed, or what is needed cannot be downloaded.
    """
    _need(QEMU, "qemu-user-static")
    _need("apt-get", "apt")
    _need("dpkg-deb", "dpkg")
    if not Path(_KEYRING).exists():
        pytest.skip(f"{_KEYRING} is missing (Debian: debian-archive-keyring)")
    root = _made(f"debian-{RELEASES[python]}", lambda folder: _fetch_debian(python, folder))
    locked = locked_wheels(python)
    stamp = hashlib.sha256(locked.encode()).hexdigest()[:16]
    site = _made(f"site-{python}-{stamp}", lambda folder: _install(python, locked, folder))
    _drop_others(site, f"site-{python}-*")
    facts = _made(f"facts-{__version__}", _tell_version)
    return Aarch64(python=python, root=root, site=site, facts=facts)


def locked_wheels(python: str, *, platform: str = _PLATFORM) -> str:
    """Return what the project needs on such a machine, as a lock file (PEP 751).

    Markers such as ``platform_machine == 'aarch64'`` are judged as on that machine, and only wheels
    that it takes are chosen.

    Args:
        python: Its version.
        platform: As uv names it.
    """
    wanted = "\n".join(_requirements())
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "requirements.in").write_text(wanted, encoding="utf-8")
        lock = Path(folder) / "pylock.toml"
        command = [
            *(program("uv"), "pip", "compile", "requirements.in", "--quiet", "--no-header"),
            *("--python-platform", platform, "--python-version", python),
            *("--only-binary", ":all:", "--format", "pylock.toml", "--output-file", str(lock)),
        ]
        _download(command, cwd=Path(folder))
        return lock.read_text(encoding="utf-8")


def packages_of(lock: str) -> dict[str, dict[str, Any]]:
    """Return the packages of a lock file, by name."""
    return {package["name"]: package for package in tomllib.loads(lock)["packages"]}


def _requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: Mapping[str, list[str]] = project["optional-dependencies"]
    return [*project["dependencies"], *(need for name in EXTRAS for need in extras[name])]


def _fetch_debian(python: str, folder: Path) -> None:
    """Unpack Debian's Python for arm64, as apt would choose it on an empty machine."""
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        for made in ("lists/partial", "archives/partial"):
            (own / made).mkdir(parents=True)
        (own / "status").touch()
        source = _SOURCE.format(keyring=_KEYRING, release=RELEASES[python])
        (own / "sources.list").write_text(source, encoding="utf-8")
        settings = {
            "APT::Architecture": "arm64",
            "APT::Architectures": "arm64",
            "APT::Sandbox::User": "",
            "Acquire::Languages": "none",
            "Debug::NoLocking": "true",
            "Dir::Cache::archives": own / "archives",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "Dir::Etc::parts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::Etc::sourcelist": own / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": own / "lists",
            "Dir::State::status": own / "status",
        }
        apt = [
            "apt-get",
            "-qq",
            *(word for key in settings for word in ("-o", f"{key}={settings[key]}")),
        ]
        names = [package.format(python=python) for package in _PACKAGES]
        _download([*apt, "update"], cwd=own)
        _download(
            [*apt, "install", "--download-only", "--no-install-recommends", "--yes", *names],
            cwd=own,
        )
        for package in sorted((own / "archives").glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True, timeout=60)
    if not (folder / "lib").exists():
        # Where Debian's packages have nothing in /lib any more, base-files makes it a link.
        (folder / "lib").symlink_to("usr/lib")


def _install(python: str, lock: str, folder: Path) -> None:
    # uv takes a lock file for the Python that runs it alone; names and versions it takes for any.
    pinned = [f"{name}=={package['version']}" for name, package in packages_of(lock).items()]
    command = [
        *(program("uv"), "pip", "install", "--quiet", "--no-deps", "--target", str(folder)),
        *("--python-platform", _PLATFORM, "--python-version", python),
        *("--only-binary", ":all:", *pinned),
    ]
    _download(command, cwd=folder)


def _tell_version(folder: Path) -> None:
    described = folder / f"retexo_fl-{__version__}.dist-info"
    described.mkdir()
    lines = ("Metadata-Version: 2.1", "Name: retexo-fl", f"Version: {__version__}", "")
    (described / "METADATA").write_text("\n".join(lines), encoding="utf-8")


def _download(command: Sequence[str], *, cwd: Path) -> None:
    """Run a program that downloads; skip the test where nothing can be reached."""
    variables = environment({"UV_CACHE_DIR": str(cache_folder() / "uv")})
    code, said = ended(command, cwd=cwd, env=variables, timeout_s=_DOWNLOAD_S)
    if code == 0:
        return
    unreachable = (
        "Temporary failure resolving",
        "Could not connect",
        "dns error",
        "error sending request",
    )
    if any(sign in said for sign in unreachable):
        pytest.skip(f"{command[0]} reaches nothing: {said.strip()[-200:]}")
    raise AssertionError(f"{command}: exit code {code}\n{said[-4000:]}")


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, whole or not at all."""
    folder = cache_folder() / name
    if not folder.exists():
        cache_folder().mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache_folder()))
        try:
            make(beside)
            beside.chmod(0o755)
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return folder


def _drop_others(kept: Path, pattern: str) -> None:
    """Remove what the index has newer versions of; of today, another run may be using it."""
    for folder in cache_folder().glob(pattern):
        if folder != kept and time.time() - folder.stat().st_mtime > _DAY_S:
            shutil.rmtree(folder, ignore_errors=True)


def _need(name: str, package: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed (Debian: {package})")
