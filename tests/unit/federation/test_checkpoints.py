from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from retexo_fl.errors import CheckpointError
from retexo_fl.federation import checkpoints
from retexo_fl.federation.checkpoints import Checkpoint, read_checkpoint, write_checkpoint

CHECKPOINT = Checkpoint(
    facts={"job": "job-1", "round": 3, "ledger": "a,b\n1,2\n"},
    tensors={"weights": np.arange(5, dtype=np.float64), "adam.step": np.array(3.0, np.float32)},
)


def test_read_returns_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, CHECKPOINT)
    read = read_checkpoint(path)
    assert {**CHECKPOINT.facts, "version": checkpoints.CHECKPOINT_VERSION} == read.facts
    for name, expected in CHECKPOINT.tensors.items():
        np.testing.assert_array_equal(read.tensors[name], expected)
        assert read.tensors[name].dtype == expected.dtype
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kept_bytes", [0, 7, 40, 200])
def test_read_names_a_truncated_file(tmp_path: Path, kept_bytes: int) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, CHECKPOINT)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(CheckpointError, match="checkpoint: damaged"):
        read_checkpoint(path)


def test_read_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_checkpoint(tmp_path / "none")


def test_read_refuses_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "CHECKPOINT_VERSION", 9)
        write_checkpoint(path, CHECKPOINT)
    with pytest.raises(CheckpointError, match="version 9; expected 3"):
        read_checkpoint(path)


def test_read_names_any_altered_byte(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, CHECKPOINT)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=r"checkpoint: (damaged|version)"):
            read_checkpoint(path)


@pytest.mark.parametrize("facts", ["[]", "7", "null", '"x"', "[" * 10**5])
def test_read_names_facts_that_are_no_object(tmp_path: Path, facts: str) -> None:
    path = tmp_path / "checkpoint"
    tensors = dict(CHECKPOINT.tensors)
    crc = checkpoints.checksum(facts, tensors)
    path.write_bytes(save(tensors, metadata={"facts": facts, "crc32": crc}))
    with pytest.raises(CheckpointError, match="checkpoint: damaged"):
        read_checkpoint(path)


def test_write_that_fails_leaves_the_former_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, CHECKPOINT)
    before = path.read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))  # as a disk that is full
    try:
        with pytest.raises(CheckpointError, match="could not be written"):
            write_checkpoint(path, Checkpoint(facts={}, tensors={"weights": np.zeros(9000)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
