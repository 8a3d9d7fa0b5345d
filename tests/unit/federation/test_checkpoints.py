from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from retexo_fl.errors import CheckpointError
from retexo_fl.federation import checkpoints
from retexo_fl.federation.checkpoints import (
    Checkpoint,
    CheckpointWriter,
    LedgerFile,
    Piece,
    read_checkpoint,
    write_checkpoint,
)
from retexo_fl.ledger import SERVER, Account, TrafficLedger, Volume

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


def _account(client: int) -> Account:
    return Account(
        attempt=1,
        kind="control",
        layer=0,
        purpose="train",
        client=client,
        peer=SERVER,
        direction="in",
    )


def test_what_a_crash_left_behind_a_checkpoint_is_written_over(tmp_path: Path) -> None:
    ledger, file = TrafficLedger(), LedgerFile(tmp_path)
    for client in range(2):
        ledger.add(_account(client), Volume(messages=1, raw=5))
        named = file.next_piece(ledger)
        file.write(named)
    (path,) = tmp_path.iterdir()
    with path.open("ab") as left:
        left.write(b"1,control,0,train,7,-1,in,9,9,9,9\n1,contr")
    again = LedgerFile(tmp_path)
    read = again.read(named.facts)
    assert read.lines() == ledger.lines()
    read.add(_account(1), Volume(messages=1, raw=5))
    appended = again.next_piece(read)
    assert (appended.number, appended.begin) == (named.number, named.facts["bytes"])
    again.write(appended)
    assert path.stat().st_size == appended.facts["bytes"]
    assert LedgerFile(tmp_path).read(appended.facts).lines() == read.lines()


TIMEOUT_S = 300.0
#: What the account had changed by.
NOTHING = Piece(number=1, begin=9, content=b"", crc32=0)


@dataclass
class Disk:
    """Takes what is written as slowly as the test wants, by a clock that the test moves."""

    now_s: float = 0.0
    write_s: float = 0.0
    full: bool = False
    free: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    written: list[tuple[int, list[float]]] = field(default_factory=list)

    def write(self, checkpoint: Checkpoint, ledger: Piece) -> None:
        assert ledger is NOTHING
        self.begun.set()
        assert self.free.wait(TIMEOUT_S)
        self.now_s += self.write_s
        if self.full:
            raise CheckpointError("run/checkpoint: could not be written (No space left on device)")
        self.written.append((checkpoint.facts["round"], checkpoint.tensors["weights"].tolist()))

    @property
    def rounds(self) -> list[int]:
        return [number for number, _ in self.written]


@pytest.fixture
def disk() -> Disk:
    disk = Disk()
    disk.free.set()
    return disk


@pytest.fixture
def writer(disk: Disk) -> Iterator[CheckpointWriter]:
    writer = CheckpointWriter(disk.write, now_s=lambda: disk.now_s)
    yield writer
    disk.free.set()
    writer.close()


def state(number: int) -> Checkpoint:
    return Checkpoint(facts={"round": number}, tensors={"weights": np.full(2, float(number))})


def train(writer: CheckpointWriter, disk: Disk, rounds: int, round_s: float) -> None:
    for number in range(1, rounds + 1):
        disk.now_s += round_s
        if writer.is_due():
            writer.write(state(number), NOTHING)


def test_first_round_is_on_the_disk_before_the_second_begins(
    writer: CheckpointWriter, disk: Disk
) -> None:
    train(writer, disk, rounds=1, round_s=0.01)
    assert disk.rounds == [1]


@pytest.mark.parametrize(
    ("round_s", "expected"),
    [(0.01, [1, 51, 101, 151]), (0.3, [1, 3, 5, 7, 9]), (0.6, [*range(1, 11)])],
)
def test_states_are_written_twice_a_second_at_most(
    writer: CheckpointWriter, disk: Disk, round_s: float, expected: list[int]
) -> None:
    train(writer, disk, rounds=160 if round_s == 0.01 else 10, round_s=round_s)
    writer.wait()
    assert disk.rounds == expected


def test_training_goes_on_while_a_state_is_written(writer: CheckpointWriter, disk: Disk) -> None:
    train(writer, disk, rounds=1, round_s=0.01)
    disk.free.clear()
    disk.begun.clear()
    disk.now_s += 0.5
    weights = np.ones(2)
    writer.write(Checkpoint(facts={"round": 2}, tensors={"weights": weights}), NOTHING)
    assert disk.begun.wait(TIMEOUT_S)
    weights += 1.0  # the next round's step
    disk.now_s += 0.3
    assert not writer.is_due()
    assert disk.rounds == [1]
    disk.free.set()
    writer.wait()
    assert disk.written[-1] == (2, [1.0, 1.0])


def test_long_rounds_are_on_the_disk_before_the_next_begins(
    writer: CheckpointWriter, disk: Disk
) -> None:
    for number in range(1, 5):
        train(writer, disk, rounds=1, round_s=1.5)
        assert len(disk.rounds) == number


def test_no_more_than_a_second_of_rounds_is_ever_at_stake(
    writer: CheckpointWriter, disk: Disk
) -> None:
    disk.write_s = 0.7
    train(writer, disk, rounds=1, round_s=0.1)
    safe_s = disk.now_s - disk.write_s
    for number in range(2, 40):
        before = len(disk.rounds)
        disk.now_s += 0.1
        if writer.is_due():
            reached_s = disk.now_s
            writer.write(state(number), NOTHING)
            # A write takes so long that it would not be safe in time: the training waits.
            assert len(disk.rounds) == before + 1
            safe_s = reached_s
        assert disk.now_s - disk.write_s - safe_s <= 1.0
    assert len(disk.rounds) > 3


def test_training_waits_for_a_disk_that_has_become_slow(
    writer: CheckpointWriter, disk: Disk
) -> None:
    train(writer, disk, rounds=1, round_s=0.01)
    disk.free.clear()
    disk.now_s += 0.5
    writer.write(state(2), NOTHING)
    disk.now_s += 0.6
    assert writer.is_due()
    waiting = threading.Thread(target=writer.write, args=(state(3), NOTHING))
    waiting.start()
    assert disk.rounds == [1]
    disk.free.set()
    waiting.join(TIMEOUT_S)
    writer.wait()
    assert disk.rounds == [1, 2, 3]


@pytest.mark.parametrize(
    "then", [CheckpointWriter.wait, lambda writer: writer.write(state(3), NOTHING)]
)
def test_full_disk_ends_the_run_by_name(
    writer: CheckpointWriter, disk: Disk, then: Callable[[CheckpointWriter], None]
) -> None:
    train(writer, disk, rounds=1, round_s=0.01)
    disk.full = True
    disk.now_s += 0.5
    writer.write(state(2), NOTHING)
    with pytest.raises(CheckpointError, match="run/checkpoint: could not be written"):
        then(writer)
    writer.close()


def test_a_failure_is_of_no_account_when_all_is_over(writer: CheckpointWriter, disk: Disk) -> None:
    train(writer, disk, rounds=1, round_s=0.01)
    disk.full = True
    writer.write(state(2), NOTHING)
    writer.close()
    writer.wait()
    assert disk.rounds == [1]


def test_failure_is_noticed_at_the_next_round(writer: CheckpointWriter, disk: Disk) -> None:
    train(writer, disk, rounds=1, round_s=0.01)
    disk.full = True
    disk.now_s += 0.5
    writer.write(state(2), NOTHING)

    def go_on() -> None:
        # Each look is a round of the training; the thread fails within some of them.
        for _ in range(10**6):
            writer.is_due()

    with pytest.raises(CheckpointError, match="No space left"):
        go_on()


def test_close_ends_what_is_under_way_and_raises_nothing(
    writer: CheckpointWriter, disk: Disk
) -> None:
    train(writer, disk, rounds=1, round_s=0.01)
    disk.full = True
    disk.now_s += 0.5
    writer.write(state(2), NOTHING)
    writer.close()
    assert not any(thread.name.startswith("checkpoint") for thread in threading.enumerate())
