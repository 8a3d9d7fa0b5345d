"""Mailboxes in a folder, for clients in different processes of one machine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from retexo_fl.channels.base import BlockKey
from retexo_fl.errors import ChannelUnavailable
from retexo_fl.files import write_whole


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

    def forget_job(self, job: str, client: int) -> None:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        shutil.rmtree(self._folder / job / str(client), ignore_errors=True)

    def _path(self, key: BlockKey) -> Path:
        digest = key.weights_digest[:8].hex()
        name = f"{key.layer}-{digest}-{key.sender}.frames"
        return self._folder / key.job / str(key.receiver) / name
