"""Agents and commands as forks of a process that has imported what they need.

A start takes no two CPU seconds. Each is the real command in a process of its own, with memory that
no test has touched: what forks is a program that imports and does nothing else. That the installed
program starts is tested by deployments, and where an agent has a service manager, a program or an
environment of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import cpu_account
from tests.support.commands import ROOT, environment

_IMPORTED = (
    *("retexo_fl.agent.process", "retexo_fl.cli.agent", "retexo_fl.client.factory"),
    *("retexo_fl.cli.run", "torch"),
)
#: Of agents that exchange vectors by datagrams, with machine code; others load none of it.
_FOR_DATAGRAMS = (
    "retexo_fl.additions.kernel_path.carrying.endpoints",
    "retexo_fl.additions.kernel_path.carrying.path",
)
#: Of trainings and predictions in one process.
_FOR_COMMANDS = (
    *("retexo_fl.cli.predict", "retexo_fl.simulation.inline_engine", "retexo_fl.api.training"),
    *("retexo_fl.api.predicting", "retexo_fl.api.profile_choice", "retexo_fl.progress"),
)
_LOOK_S = 0.005
#: linux/sched.h, linux/mount.h and umount(2); Python has them from 3.12 on.
_NEW_MOUNTS, _NEW_NETWORK = 0x20000, 0x40000000
_RECURSIVE, _SLAVE = 0x4000, 0x80000
_DETACH = 2


class Born:
    """A process that the nursery forked, with what tests use of a ``subprocess.Popen``."""

    def __init__(self, pid: int, ending: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ending = ending

    def poll(self) -> int | None:
        """Return its exit code, as ``Popen.poll`` does."""
        if self.returncode is None and self._ending.exists():
            code, spent_s = self._ending.read_text().split()
            cpu_account.note_elsewhere(float(spent_s))
            self.returncode = int(code)
            self._ending.unlink()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_LOOK_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            # The nursery reaps it before its ending is written.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)


class BornCommand(Born):
    """A command, whose outputs are two files."""

    def __init__(self, pid: int, ending: Path, out: Path, log: Path) -> None:
        super().__init__(pid, ending)
        self._out, self._log = out, log

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end, and return what it wrote to standard output and standard error."""
        self.wait(timeout)
        return self._out.read_text(), self._log.read_text()


class _Nursery:
    def __init__(self, *imported: str) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *imported],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._end)

    def bear(self, order: Mapping[str, Any]) -> int:
        """Have a process forked, and return its id."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def _end(self) -> None:
        # Which ends what it forked, too.
        self._process.communicate()


_nursery = functools.cache(_Nursery)


def bear(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    ending: Path,
    namespace: str = "",
    datagrams: bool = False,
    before: Sequence[Any] = (),
) -> Born:
    """Run ``retexo ARGUMENTS`` in a process of its own.

    Args:
        arguments: Of the command.
        env: All variables that it has.
        log: What its output is appended to.
        ending: A file that is there once it has ended, for the one who asks.
        namespace: Of the network, where it is not this machine's.
        datagrams: It will need what sends and takes them.
        before: ``MODULE:FUNCTION`` of ``tests.support``, which it calls first, and its arguments.
    """
    places = {"log": log, "ending": ending, "cwd": Path.cwd()}
    order: dict[str, Any] = {name: str(place) for name, place in places.items()}
    order |= {"arguments": [*arguments], "env": dict(env), "namespace": namespace}
    order["before"] = [*before]
    return Born(_nursery(*(_FOR_DATAGRAMS if datagrams else ())).bear(order), ending)


_numbers = itertools.count()


def bear_command(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    folder: Path,
    before: Sequence[Any] = (),
    log: Path | None = None,
) -> BornCommand:
    """Run ``retexo ARGUMENTS``, a training or a prediction, in a process of its own.

    Args:
        arguments: Of the command.
        env: All variables that it has.
        folder: Of its outputs.
        before: ``MODULE:FUNCTION`` of ``tests.support``, which it calls first, and its arguments.
        log: What it writes to standard error is appended to, if not to a file of the folder.
    """
    number = next(_numbers)
    out, err, ending = (folder / f"command-{number}.{name}" for name in ("out", "err", "end"))
    log = log or err
    places = {"out": out, "log": log, "ending": ending, "cwd": Path.cwd()}
    order: dict[str, Any] = {name: str(place) for name, place in places.items()}
    order |= {"arguments": [*arguments], "env": dict(env), "namespace": "", "before": [*before]}
    return BornCommand(_nursery(*_FOR_COMMANDS).bear(order), ending, out, log)


class ForkedRuns:
    """Stands for ``subprocess`` where a sweep starts its runs: each is the same command, forked.

    Paths of modules that the process would be told are not read; a command with plug-ins wants a
    process of its own.
    """

    TimeoutExpired = subprocess.TimeoutExpired
    DEVNULL = subprocess.DEVNULL

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def Popen(
        self, command: Sequence[str], *, env: Mapping[str, str], stderr: Any, **_nothing: int
    ) -> BornCommand:
        assert command[:3] == [sys.executable, "-m", "retexo_fl"]
        log = Path(f"/proc/{os.getpid()}/fd/{stderr.fileno()}")
        return bear_command(command[3:], env=env, folder=self._folder, log=log)


# ---- the program that forks ----------------------------------------------------------------------


def _main() -> None:
    for name in (*_IMPORTED, *sys.argv[1:]):
        importlib.import_module(name)
    endings: dict[int, Path] = {}

    def reap(_number: int, _frame: object) -> None:
        for pid in [*endings]:
            ended, status, used = os.wait4(pid, os.WNOHANG)
            if ended:
                path = endings.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                made = path.with_name(f"{path.name}.part")
                made.write_text(f"{code} {used.ru_utime + used.ru_stime}")
                made.rename(path)

    # Ctrl-C is for the tests, which then close the input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        order = json.loads(line)
        # Nothing is reaped before its ending is known.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            _become(order)
        endings[pid] = Path(order["ending"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    for pid in endings:
        os.kill(pid, signal.SIGKILL)


def _become(order: Mapping[str, Any]) -> None:
    """Be the command, in the place of the process that forks."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    nothing = os.open(os.devnull, os.O_RDONLY)
    places = (order.get("out", order["log"]), order["log"])
    out, log = (os.open(at, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for at in places)
    for opened, number in ((nothing, 0), (out, 1), (log, 2)):
        os.dup2(opened, number)
    if order["namespace"]:
        _enter(order["namespace"])
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["retexo", *order["arguments"]]
    code: object = 1
    try:
        from retexo_fl.cli import main

        if order["before"]:
            place, *given = order["before"]
            module, _, name = place.partition(":")
            getattr(importlib.import_module(f"tests.support.{module}"), name)(*given)

        main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _enter(namespace: str) -> None:
    """Be in a network of its own, and see its interfaces in /sys, as by ``ip netns exec``."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")

    with Path("/run/netns", namespace).open("rb") as network:
        call("setns", network.fileno(), _NEW_NETWORK)
    call("unshare", _NEW_MOUNTS)
    call("mount", b"", b"/", b"none", _SLAVE | _RECURSIVE, None)
    call("umount2", b"/sys", _DETACH)
    call("mount", namespace.encode(), b"/sys", b"sysfs", 0, None)


if __name__ == "__main__":
    _main()
