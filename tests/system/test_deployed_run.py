"""`retexo run --superlink` over a real SuperLink and SuperNodes on this machine's loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from retexo_fl.api.flower_run import mark_of
from tests.support.cli import PROGRAM
from tests.support.commands import FLOWER_ENVIRONMENT, ROOT, environment, program, search_path
from tests.support.loopback import free_ports
from tests.support.runs import events_of, model_bytes, train

pytestmark = [pytest.mark.system, pytest.mark.deployed, pytest.mark.timeout(2400)]

CLIENTS = 2
KEYS = ("--clients", str(CLIENTS), "--hidden", "4", "--layers", "1")
#: A loaded machine starts a ClientApp in ten seconds.
WAIT_S = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A SuperLink, and where it is."""

    address: str
    process: subprocess.Popen[bytes]


@pytest.fixture
def superlink(tmp_path: Path) -> Iterator[Served]:
    """Run a SuperLink, and SuperNodes whose clients cut the graph themselves."""
    port = free_ports(1)[0]
    with ExitStack() as stack:
        command = [program("flower-superlink"), "--insecure", "--port", str(port)]
        process = stack.enter_context(running(tmp_path, "superlink", command))
        wait_for(lambda: answers(port))
        for client in range(CLIENTS):
            command = [
                *(program("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"),
                *("--port", str(free_ports(1)[0])),
                *("--node-config", f"partition-id={client} num-partitions={CLIENTS}"),
            ]
            stack.enter_context(running(tmp_path, f"supernode-{client}", command))
        yield Served(address=f"127.0.0.1:{port}", process=process)


@contextmanager
def running(folder: Path, name: str, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    home = folder / f"{name}-home"
    home.mkdir()
    variables = {
        **FLOWER_ENVIRONMENT,
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "FLWR_HOME": str(home),
        "PATH": search_path(),
        "PYTHONPATH": str(ROOT),
        "RETEXO_SCRATCH": str(folder / "scratch"),
    }
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def start(address: str, *more: str) -> subprocess.Popen[str]:
    command = [*PROGRAM, "run", "--superlink", address, "--insecure", *more]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(address: str, *more: str) -> tuple[int, str, str]:
    """Run to the end; return the exit code, and what was told and complained of."""
    with start(address, *more) as process:
        try:
            told, complaints = process.communicate(timeout=2 * WAIT_S)
        finally:
            process.kill()
    return process.returncode, told, complaints


def test_runs_end_with_their_superlink_or_are_resumed_to_the_same_bits(
    superlink: Served, tmp_path: Path
) -> None:
    # One after the other: the last leaves no SuperLink.
    check_replacing(superlink.address, tmp_path)
    check_killed_superlink(superlink, tmp_path)


def check_replacing(superlink: str, tmp_path: Path) -> None:
    """A run that replaces another is stopped, and resumed to the bits of an undisturbed one."""
    keys = {"clients": CLIENTS, "hidden": 4, "layers": 1}
    run = train(tmp_path / "run", **keys, rounds=1)
    new = (superlink, *KEYS, "--rounds", "2", "--out", str(run))
    code, _, complaints = ended(*new)
    assert code == 2
    assert "replace that run with --overwrite" in complaints
    checkpoint = run / "checkpoint.safetensors"
    replaced = mark_of(checkpoint)
    with start(*new, "--overwrite") as process:
        try:
            wait_for(lambda: mark_of(checkpoint) not in {replaced, None})
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert told.splitlines()[-1] == (
        f"retexo: interrupted; go on with: retexo run --resume {run} --superlink {superlink} "
        "--insecure"
    )
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert "`flwr stop`" in status["error"]

    code, told, complaints = ended(superlink, "--resume", str(run))
    assert code == 0, complaints
    assert told.startswith("test accuracy ")
    assert events_of(run)[-1]["event"] == "finish"
    assert model_bytes(run) == model_bytes(train(tmp_path / "alone", **keys, rounds=2))


def check_killed_superlink(superlink: Served, tmp_path: Path) -> None:
    """ServerApp and command end soon, and both say why."""
    run = tmp_path / "lost"
    with start(superlink.address, *KEYS, "--rounds", "500", "--out", str(run)) as process:
        try:
            wait_for((run / "checkpoint.safetensors").exists)
            superlink.process.kill()
            begun = time.monotonic()
            _, told = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    # Alone on the machine some ten seconds, most of which Flower's SuperExec takes to end.
    assert time.monotonic() - begun < 120
    assert process.returncode == 1
    assert "retexo: error: the SuperLink is gone; start it again, then resume the run" in told
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert status["error"].startswith("the SuperLink is gone")


def test_superlink_that_does_not_answer_is_told_in_a_line(tmp_path: Path) -> None:
    with start(f"127.0.0.1:{free_ports(1)[0]}", *KEYS, "--out", str(tmp_path / "run")) as process:
        _, told = process.communicate(timeout=500)
    assert process.returncode == 2
    assert told.count("\n") == 1
    assert "nothing listens there" in told
