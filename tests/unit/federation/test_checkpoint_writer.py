from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from retexo_fl.errors import CheckpointError
from retexo_fl.federation.checkpoint_writer import CheckpointWriter
from retexo_fl.federation.checkpoints import Checkpoint
from retexo_fl.federation.ledger_file import Piece

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


def test_full_disk_ends_the_run_by_name(writer: CheckpointWriter, disk: Disk) -> None:
    train(writer, disk, rounds=1, round_s=0.01)
    disk.full = True
    disk.now_s += 0.5
    writer.write(state(2), NOTHING)
    with pytest.raises(CheckpointError, match="run/checkpoint: could not be written"):
        writer.wait()
    writer.close()


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
