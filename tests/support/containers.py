"""Containers without a daemon: images of buildah, their programs as a Compose file has them.

Programs are started as a container's are: in namespaces of mounts and processes of their own, in
the network of a test host, under the image's user, with its environment, entry point and root,
which is read-only, without capabilities or new privileges. Limits of memory are not set.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from retexo_fl.simulation.flower_processes import children_of, process_table
from tests.support.commands import ended, environment, run_command
from tests.support.host import Host
from tests.support.part import wait_until

_MIRROR: Final = "http://deb.debian.org/debian"
_BASE: Final = "localhost/debian"
#: Where pip of this machine may look, besides indices: the same for pip in a build.
_WHEELS: Final = Path("/opt")
_BUILD_S: Final = 2400.0
_END_S: Final = 60.0
_NODES: Final = ("null", "zero", "full", "random", "urandom")
#: $1: the image's root; $2: an empty folder; $3: user; then pairs of source and place, with the
#: mode `ro` or `rw`, and `tmpfs` as a source; then, after `--`, the command.
_CONTAINER: Final = """
set -eu
image=$1 work=$2 user=$3
shift 3
mount -t tmpfs -o mode=755 tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=$image,upperdir=$work/upper,workdir=$work/work" "$work/root"
root=$work/root
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir -m 1777 "$root/dev/shm"
for node in NODES; do
  touch "$root/dev/$node"
  mount --bind "/dev/$node" "$root/dev/$node"
done
mount -t proc proc "$root/proc"
while [ "$1" != -- ]; do
  source=$1 place=$root$2 mode=$3
  shift 3
  if [ -f "$source" ]; then mkdir -p "${place%/*}" && touch "$place"; else mkdir -p "$place"; fi
  if [ "$source" = tmpfs ]; then
    mount -t tmpfs -o mode=1777 tmpfs "$place"
  else
    mount --bind "$source" "$place"
    [ "$mode" = rw ] || mount -o remount,bind,ro "$place"
  fi
done
shift
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs \
  --bounding-set=-all --inh-caps=-all "$@"
""".replace("NODES", " ".join(_NODES))


@dataclass(frozen=True, slots=True)
class Image:
    """An image whose files are mounted.

    Attributes:
        root: Where.
        config: What it says of its programs.
        size: Of its files, in bytes.
    """

    root: Path
    config: Mapping[str, Any]
    size: int

    @property
    def user(self) -> str:
        """The number of its user, whose group has the same."""
        user, _, group = str(self.config["User"]).partition(":")
        assert user == group
        return user


@dataclass(slots=True)
class Builder:
    """buildah with a store of its own.

    Attributes:
        folder: For all that it keeps.
    """

    folder: Path

    @classmethod
    def new(cls, folder: Path) -> Builder:
        """Make one, with a Debian as its only image; skips where something is missing."""
        if os.geteuid() != 0:
            pytest.skip("images are made by root")
        for name in ("buildah", "debootstrap"):
            if shutil.which(name) is None:
                pytest.skip(f"{name} is not installed")
        made = cls(folder)
        (folder / "tmp").mkdir()
        base = folder / "debian"
        command = ["debootstrap", "--variant=minbase", "bookworm", str(base), _MIRROR]
        run_command(command, cwd=folder, timeout_s=_BUILD_S)
        for place in ("var/cache/apt/archives", "var/lib/apt/lists"):
            for path in (base / place).rglob("*"):
                if path.is_file():
                    path.unlink()
        container = made.run("from", "scratch").strip()
        made.run("copy", "--quiet", container, str(base), "/")
        made.run("commit", "--quiet", "--rm", container, _BASE)
        shutil.rmtree(base)
        return made

    def run(self, *words: str, cwd: Path | None = None) -> str:
        """Run buildah."""
        done = subprocess.run(
            [
                *("buildah", "--root", str(self.folder / "store")),
                *("--runroot", str(self.folder / "run"), *words),
            ],
            cwd=cwd or self.folder,
            env=environment({"TMPDIR": str(self.folder / "tmp")}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
            check=False,
        )
        assert done.returncode == 0, f"buildah {words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def build(self, clone: Path, build: Mapping[str, Any], name: str) -> None:
        """Build what a service of a Compose file in ``clone/containers`` is an image of.

        pip looks where that of this machine does.
        """
        context = (clone / "containers" / build["context"]).resolve()
        told = self.folder / "pip"
        told.mkdir(exist_ok=True)
        authorities = "/etc/ssl/certs/ca-certificates.crt"
        pip = [f"cert = {told}/ca.crt"] if Path(authorities).exists() else []
        if pip:
            shutil.copy(authorities, told / "ca.crt")
        command = ["python3", "-m", "pip", "config", "list"]
        listed = run_command(command, cwd=self.folder).replace("'", "").replace("\\n", " ")
        lines = [line.removeprefix("global.") for line in listed.splitlines()]
        pip += [line for line in lines if line.startswith(("find-links", "extra-index", "index"))]
        (told / "pip.conf").write_text("\n".join(["[global]", *pip, ""]))
        volumes = [f"{told}:{told}:ro", f"{told}/pip.conf:/etc/pip.conf:ro"]
        # Not all of it, where the images have /opt/retexo.
        places = (place for place in _WHEELS.glob("*") if place.is_dir())
        volumes += [f"{place}:{place}:ro" for place in places if place.name != "retexo"]
        self.run(
            *("build", "--layers", "--format", "docker", "--isolation", "chroot"),
            *("--network", "host", "--target", build["target"], "--tag", name),
            *("--build-arg", f"BASE={_BASE}", "--build-arg", "TORCH_INDEX="),
            *(word for volume in volumes for word in ("--volume", volume)),
            *("--file", str(context / build["dockerfile"]), str(context)),
            cwd=clone,
        )

    @contextmanager
    def image(self, name: str) -> Iterator[Image]:
        """Mount an image."""
        container = self.run("from", "--pull-never", name).strip()
        try:
            told = json.loads(self.run("inspect", "--type", "image", name))
            root = Path(self.run("mount", container).strip())
            size = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file())
            yield Image(root=root, config=told["Docker"]["config"], size=size)
        finally:
            self.run("rm", container)


@dataclass(slots=True)
class Container:
    """A program of an image on a test host.

    Attributes:
        name: Of its service.
        host: Its network.
        image: What it is of.
        service: Its part of the Compose file.
        mounts: Source, place, and ``ro`` or ``rw`` of each.
        folder: For its mounts and its log.
    """

    name: str
    host: Host
    image: Image
    service: Mapping[str, Any]
    mounts: Sequence[tuple[str, str, str]]
    folder: Path
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Start it."""
        work = self.folder / self.name
        work.mkdir(exist_ok=True)
        config = self.image.config
        command = [*config["Entrypoint"], *self.service.get("command", config["Cmd"])]
        words = [word for mount in self.mounts for word in mount]
        self.process = self.host.popen(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _CONTAINER),
                *("sh", str(self.image.root), str(work), self.image.user, *words, "--"),
                *(*self._environment(), *command),
            ],
            log=self.log,
            env=environment(),
        )
        wait_until(lambda: bool(self._first()), f"{self.name} does not start", within_s=120.0)

    def _first(self) -> int:
        """Return the process of its entry point as this machine sees it; 0 before there is one."""
        program = Path(self.image.config["Entrypoint"][0]).name
        for pid in children_of(process_table(), {self.process.pid}):
            with suppress(OSError):
                if Path(f"/proc/{pid}/exe").readlink().name == program:
                    return pid
        return 0

    def run(self, *command: str, timeout_s: float = 120.0) -> tuple[int, str]:
        """Run a program in it, as ``docker exec`` does; return its exit code and what it said."""
        first = self._first()
        assert first, f"{self.name} has ended: {self.log.read_text()[-3000:]}"
        user = self.image.user
        return ended(
            [
                *("nsenter", "--target", str(first), "--mount", "--pid", "--net", "--root"),
                *("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"),
                *("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
                *(*self._environment(), *command),
            ],
            timeout_s=timeout_s,
        )

    def kill(self) -> None:
        """End it at once, as a lack of memory does."""
        os.kill(self._first(), signal.SIGKILL)
        self.process.wait(_END_S)

    def stop(self, within_s: float) -> int:
        """Send the image's signal to its first process; return how it ended."""
        assert self.image.config.get("StopSignal") == "SIGTERM"
        first = self._first()
        assert first, f"{self.name} has ended: {self.log.read_text()[-3000:]}"
        os.kill(first, signal.SIGTERM)
        return self.process.wait(within_s)

    def wait_healthy(self, within_s: float) -> None:
        """Wait until the image's health check is content."""

        def is_healthy() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            kind, *command = self.image.config["Healthcheck"]["Test"]
            assert kind == "CMD"
            return self.run(*command)[0] == 0

        wait_until(is_healthy, f"{self.name} is not healthy", within_s=within_s)

    def _environment(self) -> list[str]:
        config = self.image.config
        told = [*config["Env"], *map("=".join, self.service.get("environment", {}).items())]
        return ["env", "-i", "-C", config["WorkingDir"], *told]
