"""An edge that only one of two clients lists ends a run before anything is trained."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from retexo_fl.channels import BlockKey, MemoryChannel
from retexo_fl.errors import PartitionError
from retexo_fl.graph import GraphPartition, open_partition, write_partition
from tests.support.cli import TINY, CommandLine
from tests.support.edge_lists import (
    CutEdge,
    cut_edges,
    make_parts_with,
    with_cut_edges,
    without_first,
)
from tests.support.runs import configured, train_over


@pytest.fixture
def retexo(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


def with_none(part: GraphPartition) -> GraphPartition:
    return with_cut_edges(part, [])


def with_another(part: GraphPartition) -> GraphPartition:
    first, *others = cut_edges(part)
    return with_cut_edges(part, [CutEdge(first.row + 1, first.owner, first.key), *others])


CASES = [
    (without_first, "client 0 .*2 edges.*client 1.* 1"),
    (with_none, "client 0 .*2 edges.*client 1.* none"),
    (with_another, "client 0 and client 1 .*2 edges.*not the same ones"),
]


@pytest.mark.parametrize(("change", "pattern"), CASES)
def test_a_run_ends_with_one_line_and_leaves_nothing(
    retexo: CommandLine,
    tmp_path: Path,
    change: Callable[[GraphPartition], GraphPartition],
    pattern: str,
) -> None:
    parts = make_parts_with(tmp_path, change)
    told = retexo.refused("run", "--partitions", parts, "--out", tmp_path / "run", *TINY)
    assert re.fullmatch(f"{pattern}\\b.*; .*boundary tables.*", told)
    assert not (tmp_path / "run").exists()
    # Once the parts are mended, the same command trains.
    whole = make_parts_with(tmp_path / "mended", lambda part: part)
    retexo.done("run", "--partitions", whole, "--out", tmp_path / "run", *TINY)


@pytest.mark.parametrize(("change", "pattern"), CASES)
def test_partition_check_names_the_edge(
    retexo: CommandLine,
    tmp_path: Path,
    change: Callable[[GraphPartition], GraphPartition],
    pattern: str,
) -> None:
    parts = make_parts_with(tmp_path, change)
    told = retexo.refused("partition", "check", parts / "part-0", parts / "part-1")
    assert re.search(rf"{pattern}\b", told)
    assert told.endswith(("part-0 only", "part-1 only"))


class SlowLink(MemoryChannel):
    """Delivers what one client sends a while after it was sent."""

    def __init__(self, sender: int, delay_s: float) -> None:
        super().__init__()
        self._sender, self._delay_s = sender, delay_s
        self._sent_at = float("inf")

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        if key.sender == self._sender:
            self._sent_at = time.monotonic()
        return super().send_block(key, frames)

    def receive_block(self, key: BlockKey) -> bytes | None:
        return super().receive_block(key) if self._has_arrived(key.sender) else None

    def senders(
        self, job: str, layer: int, weights_digest: bytes, *, receiver: int
    ) -> frozenset[int]:
        there = super().senders(job, layer, weights_digest, receiver=receiver)
        return frozenset(sender for sender in there if self._has_arrived(sender))

    def _has_arrived(self, sender: int) -> bool:
        return sender != self._sender or time.monotonic() > self._sent_at + self._delay_s


def test_a_block_after_completion_is_found_at_the_deadline(
    tmp_path: Path,
) -> None:
    parts = make_parts_with(tmp_path, with_none)
    config = configured(
        tmp_path / "run", partitions=parts, clients=2, rounds=2, exchange_deadline_s=1.0
    )
    with pytest.raises(PartitionError, match="client 0 lists 2 edges to client 1, .* none"):
        train_over(config, SlowLink(0, delay_s=0.4))


def test_one_missing_edge_of_thousands_is_found(retexo: CommandLine, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    retexo.done("partition", "make", "--clients", "3", "--out", parts)
    part = open_partition(parts / "part-1")
    shutil.rmtree(parts / "part-1")
    edges = cut_edges(part)
    write_partition(with_cut_edges(part, edges[:-1]), parts / "part-1")
    listed = sum(edge.owner == edges[-1].owner for edge in edges)
    told = retexo.refused("run", "--partitions", parts, "--out", tmp_path / "run", *TINY)
    client, other = sorted((1, edges[-1].owner))
    counts = (listed - 1, listed) if client == 1 else (listed, listed - 1)
    expected = f"client {client} .* {counts[0]} edges .*client {other}.* {counts[1]}; .*tables.*"
    assert re.fullmatch(expected, told)
    assert listed > 1000
