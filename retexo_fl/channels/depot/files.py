"""Where a depot's files are: every name follows from a block's key, and the key from the name."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from retexo_fl.channels.base import BlockKey

_BLOCK_NAME: Final = re.compile(r"(\d{1,10})-([0-9a-f]{64})\.frames")


@dataclass(frozen=True, slots=True, kw_only=True)
class DepotFiles:
    """The folder of one client's depot.

    ``outbox/PEER/JOB/LAYER-DIGEST.frames`` is a block for a peer, beside it ``.delivered`` once the
    peer has it; ``inbox/PEER/JOB/LAYER-DIGEST.frames`` is what has arrived of a peer's block.
    """

    root: Path
    client: int

    def outgoing(self, key: BlockKey) -> Path:
        """Return the file of a block for a peer."""
        return self._path("outbox", key.receiver, key)

    def incoming(self, key: BlockKey) -> Path:
        """Return the file of a peer's block."""
        return self._path("inbox", key.sender, key)

    def blocks(self, box: str) -> Iterator[tuple[BlockKey, Path]]:
        """Yield every block of ``inbox`` or ``outbox``; half-written files are removed.

        Raises:
            OSError: The folder cannot be read.
        """
        for folder in sorted((self.root / box).glob("*/*")):
            for path in sorted(folder.iterdir()):
                if path.suffix == ".part":
                    path.unlink(missing_ok=True)
                key = self._key(box, path)
                if key is not None:
                    yield key, path

    def discard_job(self, job: str) -> None:
        """Move a job's files of both sides to the waste, so that no half job is found again.

        Raises:
            OSError: They could not be moved away.
        """
        waste = self.root / "waste"
        for box in ("inbox", "outbox"):
            for folder in (self.root / box).glob(f"*/{_job_name(job)}"):
                waste.mkdir(exist_ok=True)
                # A job of the same name may have been discarded a moment ago.
                name = f"{box}-{folder.parent.name}-{folder.name[:100]}-{secrets.token_hex(8)}"
                folder.rename(waste / name)

    def empty_waste(self) -> None:
        """Remove what was discarded."""
        shutil.rmtree(self.root / "waste", ignore_errors=True)

    def _path(self, box: str, peer: int, key: BlockKey) -> Path:
        name = f"{key.layer}-{key.weights_digest.hex()}.frames"
        return self.root / box / str(peer) / _job_name(key.job) / name

    def _key(self, box: str, path: Path) -> BlockKey | None:
        match = _BLOCK_NAME.fullmatch(path.name)
        peer = path.parent.parent.name
        if match is None or not (peer.isascii() and peer.isdecimal()):
            return None
        is_incoming = box == "inbox"
        return BlockKey(
            job=unquote(path.parent.name),
            layer=int(match[1]),
            weights_digest=bytes.fromhex(match[2]),
            sender=int(peer) if is_incoming else self.client,
            receiver=self.client if is_incoming else int(peer),
        )


def delivered_mark(path: Path) -> Path:
    """Return the file beside an outgoing block that marks it as delivered."""
    return path.with_suffix(".delivered")


def _job_name(job: str) -> str:
    """Write 1 to 64 printable ASCII characters as one folder name, never ``.`` or ``..``."""
    return quote(job, safe="").replace(".", "%2E").replace("~", "%7E")
