"""The rule that rebuilds the BPF objects: ``python -m retexo_fl.additions.kernel_path.xdp.build``.

The objects lie beside their sources and are part of the package, so that loading them takes no
compiler. Building takes clang, llvm-strip, the kernel's user-space headers and libbpf's
(Debian: ``clang llvm libbpf-dev linux-libc-dev``).
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: The compiler of the committed objects: others may make other bytes of the same source.
CLANG_VERSION: Final = 14
PROGRAMS: Final = Path(__file__).with_name("programs")
_SUFFIX: Final = ".bpf.c"
_COMPILE: Final = ("clang", "-O2", "-g", "-target", "bpf", "-mcpu=v3")
_WARNINGS: Final = ("-Wall", "-Wextra", "-Werror")
_TIMEOUT_S: Final = 60.0


def sources() -> Sequence[Path]:
    """Return the sources of all programs."""
    return sorted(PROGRAMS.glob(f"*{_SUFFIX}"))


def object_of(source: Path) -> Path:
    """Return where the object of a source lies."""
    return source.with_name(f"{source.name.removesuffix(_SUFFIX)}.bpf.o")


def build(source: Path, target: Path) -> None:
    """Compile one program, and leave of its debugging information what loading needs (BTF).

    Raises:
        subprocess.CalledProcessError: The compiler failed; its reason is on stderr.
        FileNotFoundError: It is not installed.
    """
    # The object holds no path of this machine: it is the same wherever it was built.
    headers = f"-I/usr/include/{platform.machine()}-linux-gnu"
    here = "-fdebug-compilation-dir=."
    command = (
        *_COMPILE,
        *_WARNINGS,
        headers,
        here,
        "-c",
        source.name,
        "-o",
        str(target.absolute()),
    )
    subprocess.run(command, cwd=source.parent, check=True, timeout=_TIMEOUT_S)  # noqa: S603
    strip = ("llvm-strip", "-g", str(target.absolute()))
    subprocess.run(strip, check=True, timeout=_TIMEOUT_S)  # noqa: S603


def clang_version() -> int | None:
    """Return the major version of the compiler that is installed; None if none is."""
    if shutil.which("clang") is None or shutil.which("llvm-strip") is None:
        return None
    command = ("clang", "-dumpversion")
    told = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S)  # noqa: S603
    return int(told.stdout.split(b".")[0])


def main() -> None:
    """Build all objects in place."""
    for source in sources():
        build(source, object_of(source))


if __name__ == "__main__":
    main()
