"""What passes between server and clients of this process, and between its clients.

Messages are taken at Flower's ``Grid``, blocks at the channels. What a run draws (names of jobs,
keys of masks) is drawn from a stream of the case's own, so that contents can be compared, too.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict

from retexo_fl.channels import BlockKey, MemoryChannel, SpoolChannel
from retexo_fl.exchange.shared_rows import RowPile, SharedRows
from retexo_fl.federation import checkpoints
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.support.fickle_training import node_of
from tests.support.thread_grid import ThreadGrid

_GRIDS: Final = (InlineGrid, ThreadGrid)
_CHANNELS: Final = (MemoryChannel, SpoolChannel)
_DIGITS: Final = 16

#: Bytes and digest of each value, by ``record/key``.
Fields = dict[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message stands in a training: attempt, stage and round, as in its group."""

    kind: str
    client: int
    group: str

    @classmethod
    def of(cls, message: Message) -> Place:
        """Read what a message to a client says."""
        facts = message.metadata
        return cls(facts.message_type, facts.dst_node_id - node_of(0), facts.group_id)

    @property
    def stage(self) -> int:
        """Index of the stage, -1 before the first."""
        return int(self.group.split(".")[1])

    @property
    def round(self) -> int:
        """Number of the round, from 1; 0 outside of rounds."""
        return int(self.group.split(".")[2])


@dataclass(slots=True)
class Tap:
    """What has passed.

    Attributes:
        messages: To a client, each with what it answered: None where nothing came.
        blocks: Sender, receiver, stage, bytes, digest.
        before: Called with every message before it leaves.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    before: Callable[[Place], object] = lambda place: None


@contextmanager
def tapped(seed: str) -> Iterator[Tap]:
    """Note what passes; ``seed`` names the stream that random bytes come from."""
    tap, drawn = Tap(), _Drawn(seed)
    with pytest.MonkeyPatch.context() as patch:
        for grid in _GRIDS:
            _tap_grid(patch, grid, tap)
        for channel in _CHANNELS:
            _tap_channel(patch, channel, tap)
        _tap_pile(patch, tap)
        patch.setattr(os, "urandom", drawn.bytes)
        patch.setattr(secrets, "token_hex", lambda size: drawn.bytes(size).hex())
        # Every round is kept, however short: a resume goes on where the message was not sent.
        patch.setattr(checkpoints, "MOST_LOST_S", 0.0)
        yield tap


def _tap_grid(patch: pytest.MonkeyPatch, grid: Any, tap: Tap) -> None:
    push, pull = grid.push_messages, grid.pull_messages
    open_questions: dict[str, dict[str, Any]] = {}

    def push_messages(self: Any, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        contents = {id(message.content): message.content for message in sent}
        asked = {name: fields_of(content) for name, content in contents.items()}
        for message in sent:
            tap.before(Place.of(message))
        names = list(push(self, sent))
        for name, message in zip(names, sent, strict=True):
            note = {**asdict(Place.of(message)), "asked": asked[id(message.content)]}
            open_questions[name] = note | {"answer": None}
            tap.messages.append(open_questions[name])
        return names

    def pull_messages(self: Any, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(pull(self, message_ids))
        for reply in replies:
            content = {} if reply.has_error() else fields_of(reply.content)
            open_questions[reply.metadata.reply_to_message_id]["answer"] = content
        return replies

    patch.setattr(grid, "push_messages", push_messages)
    patch.setattr(grid, "pull_messages", pull_messages)


def _tap_channel(patch: pytest.MonkeyPatch, channel: Any, tap: Tap) -> None:
    send = channel.send_block

    def send_block(self: Any, key: BlockKey, frames: Sequence[bytes]) -> int | None:
        content = b"".join(frames)
        tap.blocks.append((key.sender, key.receiver, key.layer, len(content), _digest(content)))
        moved: int | None = send(self, key, frames)
        return moved

    patch.setattr(channel, "send_block", send_block)


def _tap_pile(patch: pytest.MonkeyPatch, tap: Tap) -> None:
    """Note rows that are shared in this process as the blocks that they stand for."""
    add = RowPile.add

    def added(self: RowPile, shared: SharedRows) -> list[int]:
        fresh = add(self, shared)
        for receiver in fresh:
            content = b"".join(shared.encoded(receiver).frames)
            noted = shared.sender, receiver, self.layer, len(content), _digest(content)
            tap.blocks.append(noted)
        return fresh

    patch.setattr(RowPile, "add", added)


class _Drawn:
    """Bytes that look random, and are the same in every process."""

    def __init__(self, seed: str) -> None:
        self._seed, self._draws = seed, 0

    def bytes(self, size: int) -> bytes:
        self._draws += 1
        name = f"{self._seed} {self._draws}".encode()
        return hashlib.shake_256(name).digest(size)


def fields_of(content: RecordDict) -> Fields:
    """Return the bytes and the digest of every value of a message."""
    found: Fields = {}
    for record_name, record in content.items():
        for key, value in record.items():
            name = f"{record_name}/{key}"
            if isinstance(value, Array):
                said = f"{value.dtype} {list(value.shape)} ".encode()
                found[name] = len(value.data), _digest(said + value.data)
            else:
                found[name] = _size(value), _digest(f"{type(value).__name__} {value!r}".encode())
    return dict(sorted(found.items()))


def _size(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple):
        return 8 * len(value)
    return int(np.dtype(type(value)).itemsize)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
