"""Flower on a Ray cluster that is there: both of its nodes compute, to the same bits.

Two of Ray's nodes are a minute and a half of CPU: each night. By day tests/system/test_engines.py
trains over the Ray that a run starts, and tests/unit/simulation/ tests which one it takes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import retexo_fl
from retexo_fl.errors import ConfigurationError, EngineFailed
from retexo_fl.run_log.events import RoundClosed
from retexo_fl.simulation.flower_daemon import free_port
from retexo_fl.simulation.flower_processes import process_table
from retexo_fl.simulation.ray_cluster import check_answers
from tests.support.runs import model_bytes
from tests.system.test_flower_engine import arguments_of, wait_for

pytestmark = [pytest.mark.system, pytest.mark.slow]

KEYS: dict[str, Any] = {
    **{"profile": "retexo", "clients": 4, "hidden": 8, "rounds": 2, "layers": 2, "quiet": True}
}
#: Of ``ray start``, for as little as can be had.
SMALL = ("--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block")


class Cluster:
    """A head and another node of one CPU each, both on this machine.

    Attributes:
        other: Process of the node that is not the head.
    """

    def __init__(self, stack: ExitStack, folder: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        port = self.address.rpartition(":")[2]
        head = (f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false")
        self._start(stack, lambda: self._answers() and len(self.raylets()) == 1, "--head", *head)
        head_nodes = self.raylets()
        self._start(stack, lambda: len(self.raylets()) == 2, f"--address={self.address}")
        (self.other,) = self.raylets() - head_nodes

    def _start(self, stack: ExitStack, is_up: Callable[[], bool], *words: str) -> None:
        """Start a node; Ray gives it 30 s, which is too little where others take the cores."""
        for _ in range(3):
            process = self._begun(stack, *words)
            wait_for(lambda: process.poll() is not None or is_up(), 200)  # noqa: B023 - at once
            if process.poll() is None:
                return
        pytest.fail("Ray does not start")

    def _begun(self, stack: ExitStack, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "ray"), "start", *words, *SMALL],
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=subprocess.DEVNULL,
        )
        stack.callback(process.wait, 60)
        stack.callback(process.terminate)
        return process

    def _answers(self) -> bool:
        try:
            check_answers(self.address)
        except ConfigurationError:
            return False
        return True

    def raylets(self) -> set[int]:
        """Return the processes of its nodes."""
        found = {pid: arguments_of(pid) for pid in process_table()}
        return {pid for pid, words in found.items() if self._is_raylet(words)}

    def _is_raylet(self, words: list[str]) -> bool:
        port = self.address.rpartition(":")[2]
        head = [word for word in words if word.startswith("--gcs-address=")]
        return Path([*words, ""][0]).name == "raylet" and head[0].endswith(f":{port}")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    # Ray's sockets have short paths only.
    folder = tempfile.mkdtemp(prefix="rayc", dir="/tmp")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield Cluster(stack, folder)


def test_a_cluster_that_is_there_trains_the_same_bits_on_both_nodes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a folder that its workers do not start in; parts are named as seen from there."""
    nodes = cluster.raylets()
    at_work: set[int] = set()

    def look(_event: object) -> None:
        for pid, process in process_table().items():
            if process.parent in nodes and "Actor" in "".join(arguments_of(pid)[:1]):
                at_work.add(process.parent)

    monkeypatch.chdir(tmp_path)
    parts = subprocess.run(
        [
            sys.executable,
            "-m",
            "retexo_fl",
            "partition",
            "make",
            "--out",
            "parts",
            "--clients",
            "4",
        ],
        check=True,
        capture_output=True,
        timeout=200,
    )
    assert parts.returncode == 0
    keys = {**KEYS, "partitions": "parts"}
    retexo_fl.run(out="inline", **keys)
    retexo_fl.run(out="ray", engine="flower", callbacks=[look], ray_address=cluster.address, **keys)
    assert at_work == nodes
    assert model_bytes(tmp_path / "ray") == model_bytes(tmp_path / "inline")
    # What clients shared is gone, the cluster is there.
    assert {path.name for path in tmp_path.iterdir()} == {"parts", "inline", "ray"}
    assert cluster.raylets() == nodes


def test_a_lost_node_is_named(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended: list[int] = []

    def end_one(event: object) -> None:
        if isinstance(event, RoundClosed) and not ended:
            ended.append(cluster.other)
            os.kill(cluster.other, signal.SIGKILL)

    # Whoever finds it out first, Ray by an error or the server by looking at nodes.
    with pytest.raises(EngineFailed, match=r"client \d: Ray lost (the worker|a node)"):
        retexo_fl.run(
            out="lost",
            engine="flower",
            callbacks=[end_one],
            ray_address=cluster.address,
            **{**KEYS, "rounds": 2000},
        )
    wait_for(lambda: not set(ended) & cluster.raylets(), 60)
