"""Mailboxes in a folder, for clients in different processes of one machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from retexo_fl.channels.base import BlockKey
from retexo_fl.errors import ChannelUnavailable
from retexo_fl.files import write_whole

_ENDING: Final = ".frames"


class SpoolChannel:
    """A block is a file ``FOLDER/JOB/RECEIVER/LAYER-DIGEST-SENDER.frames``.

    Files are written beside and renamed, so a reader sees a whole block or none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        path = self._path(key)
        if path.exists():
            return 0
        try:
            return write_whole(path, frames)
        except OSError as error:
            raise ChannelUnavailable(
                f"spool {self._folder}: a block for client {key.receiver} could not be written "
                f"({error.strerror})"
            ) from error

    def receive_block(self, key: BlockKey) -> bytes | None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ChannelUnavailable(
                f"spool {self._folder}: a block of client {key.sender} could not be read "
                f"({error.strerror})"
            ) from error

    def senders(
        self, job: str, layer: int, weights_digest: bytes, *, receiver: int
    ) -> frozenset[int]:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        begin = _name_of_exchange(layer, weights_digest)
        try:
            names = [path.name for path in self._inbox(job, receiver).iterdir()]
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise ChannelUnavailable(
                f"spool {self._folder}: the blocks for client {receiver} cannot be listed "
                f"({error.strerror})"
            ) from error
        blocks = (name for name in names if name.startswith(begin) and name.endswith(_ENDING))
        found = (name.removeprefix(begin).removesuffix(_ENDING) for name in blocks)
        return frozenset(int(sender) for sender in found if sender.isdecimal())

    def pile(self, job: str, layer: int, weights_digest: bytes) -> None:
        """See :class:`~retexo_fl.channels.base.Channel`; blocks cross."""

    def forget_job(self, job: str, client: int) -> None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        shutil.rmtree(self._inbox(job, client), ignore_errors=True)

    def _inbox(self, job: str, receiver: int) -> Path:
        return self._folder / job / str(receiver)

    def _path(self, key: BlockKey) -> Path:
        begin = _name_of_exchange(key.layer, key.weights_digest)
        return self._inbox(key.job, key.receiver) / f"{begin}{key.sender}{_ENDING}"


def _name_of_exchange(layer: int, weights_digest: bytes) -> str:
    """Return how the names of an exchange's files begin."""
    return f"{layer}-{weights_digest[:8].hex()}-"
