"""The guest's kernel: Debian's, with the few modules that Bluetooth needs, unpacked once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_INIT = Path(__file__).with_name("init.sh")
#: In the order in which they are loaded; what they depend on comes before each.
_MODULES = (
    "virtio_pci",
    "virtio-rng",
    "9pnet_virtio",
    "9p",
    "overlay",
    "hci_vhci",
    "bluetooth",
    "rfcomm",
    "bnep",
    "uhid",
    "cmac",
    "ecb",
    "ecdh_generic",
    "algif_skcipher",
    "algif_hash",
)
_COMMAND_S = 120.0
#: A user's PATH leaves out what depmod and modprobe are in.
PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
_PROGRAMS = (
    "qemu-system-x86_64",
    "busybox",
    "cpio",
    "depmod",
    "modprobe",
    "dpkg-deb",
    "apt-get",
    "btvirt",
    "hciconfig",
    "dbus-daemon",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What qemu boots: two files."""

    image: Path
    initrd: Path


def missing_programs() -> tuple[str, ...]:
    """Return the programs that making and running a guest needs and this machine has not."""
    return tuple(name for name in _PROGRAMS if shutil.which(name, path=PATH) is None)


def cache_folder() -> Path:
    """Return where kernels are kept between runs: ``RETEXO_VM_CACHE``, or below the home."""
    return Path(os.environ.get("RETEXO_VM_CACHE") or Path.home() / ".cache" / "retexo-bluetooth-vm")


def guest_kernel() -> Kernel:
    """Return the kernel of Debian's release, fetched with apt if this machine has not kept it."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    package = _package()
    version = _said(["apt-cache", "show", "--no-all-versions", package])
    stamp = hashlib.sha256()
    for part in (version, _INIT.read_text(), " ".join(_MODULES)):
        stamp.update(part.encode())
    folder = cache / f"{package}-{stamp.hexdigest()[:16]}"
    # Several machines may start at once.
    with (cache / "kernel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _make(folder, package)
    return Kernel(image=folder / "vmlinuz", initrd=folder / "initrd")


def _package() -> str:
    """Return the name of the package of the release's own kernel.

    Where apt knows several versions the lowest is the release's, and the others are its security
    updates: one of those (6.1.192) stops for ever when a device is called that is not there.
    """
    told = _said(["apt-cache", "show", "linux-image-amd64"])
    found = re.findall(r"^Depends: (linux-image-\S+)", told, re.MULTILINE)
    assert found, f"apt knows no kernel behind linux-image-amd64 (apt-get update?):\n{told}"
    names: list[str] = sorted(found, key=_numbers)
    return names[0]


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _make(folder: Path, package: str) -> None:
    # Made beside and renamed: a run may be ended at any time.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as place:
        scratch = Path(place)
        scratch.chmod(0o755)
        _said(["apt-get", "-qq", "-o", "APT::Sandbox::User=", "download", package], cwd=scratch)
        (archive,) = scratch.glob("*.deb")
        tree = scratch / "tree"
        _said(["dpkg-deb", "-x", archive, tree])
        made = scratch / "made"
        made.mkdir()
        shutil.copyfile(next((tree / "boot").glob("vmlinuz-*")), made / "vmlinuz")
        (made / "initrd").write_bytes(_initrd(tree, scratch / "root"))
        made.rename(folder)


def _initrd(tree: Path, root: Path) -> bytes:
    """Return an archive of the first process, busybox, and the modules in their order."""
    busybox = shutil.which("busybox", path=PATH)
    assert busybox
    (root / "bin").mkdir(parents=True)
    (root / "modules").mkdir()
    shutil.copy(busybox, root / "bin" / "busybox")
    shutil.copyfile(_INIT, root / "init")
    (root / "init").chmod(0o755)
    order = _module_files(tree)
    for module in order:
        shutil.copyfile(module, root / "modules" / module.name)
    (root / "modules" / "order").write_text("\n".join(module.name for module in order) + "\n")
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    packed = subprocess.run(
        ["cpio", "--quiet", "--create", "--format=newc"],
        cwd=root,
        input="\n".join(names).encode(),
        stdout=subprocess.PIPE,
        timeout=_COMMAND_S,
        check=True,
    )
    return packed.stdout


def _module_files(tree: Path) -> list[Path]:
    release = next((tree / "lib" / "modules").iterdir()).name
    _said(["depmod", "-b", tree, release])
    files: dict[Path, None] = {}
    for module in _MODULES:
        shown = _said(["modprobe", "-d", tree, "-S", release, "--show-depends", module])
        for line in shown.splitlines():
            verb, _, rest = line.partition(" ")
            if verb == "insmod":
                files[Path(rest.split()[0])] = None
    return list(files)


def _said(command: Sequence[str | Path], *, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**os.environ, "PATH": PATH, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_COMMAND_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout[-2000:]}"
    return done.stdout
