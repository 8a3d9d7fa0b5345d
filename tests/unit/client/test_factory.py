from __future__ import annotations

import os
import platform
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.client import factory
from retexo_fl.client.api import (
    CollectRequest,
    EvaluateRequest,
    PublishRequest,
    Ticket,
    TrainRequest,
    chain_digest,
)
from retexo_fl.client.factory import SCRATCH_VARIABLE, WorkerClients, scratch_folder
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError, PartitionError
from retexo_fl.training.stage_model import ModelShape, initial_weights

CONFIG = make_config({"clients": 2, "hidden": 8, "layers": 1})
TICKET = Ticket(job="job-1", attempt=1, weights_digest=chain_digest(b"", None))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(SCRATCH_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def weights() -> np.ndarray:
    return initial_weights(ModelShape.of(CONFIG, inputs=64, classes=10), 0, seed=0)


def test_workers_share_parts_and_vectors_through_the_folder(temporary: Path) -> None:
    one, other = WorkerClients(), WorkerClients()
    for worker, client in ((one, 0), (other, 1)):
        found = worker.find(CONFIG, job="job-1", client=client, run_id=7)
        found.publish(PublishRequest(ticket=TICKET))
    # Each client's next message reaches the other worker.
    for worker, client in ((other, 0), (one, 1)):
        found = worker.find(CONFIG, job="job-1", client=client, run_id=7)
        assert found.collect(CollectRequest(ticket=TICKET)).complete
        answer = found.ask(TrainRequest(ticket=TICKET, weights=weights()))
        assert answer.examples > 0
    folder = temporary / f"retexo-fl-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in (folder / "7").iterdir()} >= {"parts", "spool"}


def test_last_client_to_leave_removes_what_they_shared(temporary: Path) -> None:
    worker = WorkerClients()
    clients = [worker.find(CONFIG, job="job-1", client=c, run_id=7) for c in (0, 1)]
    for client in clients:
        client.publish(PublishRequest(ticket=TICKET))
    for client in clients:
        client.collect(CollectRequest(ticket=TICKET))
    last = EvaluateRequest(ticket=TICKET, weights=weights(), nodes="test", last=True)
    clients[0].ask(last)
    scratch = temporary / f"retexo-fl-{os.getuid()}" / "7"
    assert not (scratch / "parts" / "part-0").exists()
    assert (scratch / "parts" / "part-1").exists()
    clients[1].ask(last)
    assert not scratch.exists()


def test_worker_keeps_as_many_clients_as_its_share_of_the_memory_holds(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config({"clients": 80, "hidden": 8, "layers": 1})

    def kept(memory_bytes: int) -> set[int]:
        """Ask every client of 80 twice; return those that were made once."""
        monkeypatch.setattr(factory, "available_bytes", lambda: memory_bytes)
        worker = WorkerClients()
        found = [
            [worker.find(config, job=f"job-{memory_bytes}", client=c, run_id=7) for c in range(80)]
            for _ in range(2)
        ]
        return {c for c in range(80) if found[0][c] is found[1][c]}

    assert kept(40_000_000_000) == {*range(80)}
    # Of those that are asked in turn, the least recently used is the next to be asked.
    assert kept(1_000_000) == set()


def test_scratch_folder_that_was_put_there_by_a_link_is_refused(temporary: Path) -> None:
    (temporary / "mine").mkdir()
    (temporary / f"retexo-fl-{os.getuid()}").symlink_to(temporary / "mine")
    with pytest.raises(ConfigurationError, match="belongs to another user"):
        scratch_folder(7)
    assert not list((temporary / "mine").iterdir())


def test_scratch_folder_is_taken_from_the_environment(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCRATCH_VARIABLE, str(temporary / "given"))
    assert scratch_folder(7) == temporary / "given"


@pytest.mark.parametrize("absent", ["scratch", "parts"])
def test_a_node_without_the_folders_of_the_run_is_named(temporary: Path, absent: str) -> None:
    """It makes none of its own: peers on other nodes would wait for what is put there."""
    folders = {name: temporary / name for name in ("scratch", "parts")}
    for name in folders.keys() - {absent}:
        folders[name].mkdir()
    words = f"{folders[absent]}: is not there on the node {platform.node()}; expected a folder"
    with pytest.raises(PartitionError, match=re.escape(words)):
        WorkerClients(None, **folders).find(CONFIG, job="job-1", client=0, run_id=7)
    assert not folders[absent].exists()
