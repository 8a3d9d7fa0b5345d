"""What a depot holds in memory and its lock; loaded from disk when a process begins."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.delivery_times import DeliveryTimes
from retexo_fl.channels.depot.files import DepotFiles
from retexo_fl.channels.depot.inbox import Inbox
from retexo_fl.channels.depot.outbox import Outbox
from retexo_fl.channels.depot.outgoing import OutgoingBlock
from retexo_fl.channels.gate import Gate
from retexo_fl.errors import ChannelUnavailable
from retexo_fl.exchange.link.reasons import Reason, refused

_LOG = logging.getLogger(__name__)


class DepotState:
    """Outbox, inbox and gates of one client.

    Args:
        folder: Belongs to this depot alone; what an earlier process left there is taken over.
        client: Client index.

    Raises:
        ChannelUnavailable: The folder cannot be used.
    """

    def __init__(self, folder: Path, client: int) -> None:
        self.client = client
        self._files = DepotFiles(root=folder, client=client)
        self._changed = threading.Condition(threading.RLock())
        self._writing = threading.Lock()
        self._outbox = Outbox()
        self._times = DeliveryTimes()
        self._inbox = Inbox(self._files)
        self._gates: dict[str, Gate] = {}
        self._wakers: list[Callable[[], None]] = []
        self._hearers: list[Callable[[], None]] = []
        with self._disk("used", subject="the folder"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._files.empty_waste()
            self._load()

    def on_arrival(self, hear: Callable[[], None]) -> None:
        """Call ``hear``, from any thread, for each block that has arrived whole."""
        with self._changed:
            self._hearers.append(hear)

    def has_sent(self, key: BlockKey) -> bool:
        """Return whether a block of this client was sent, be it taken or not."""
        with self._changed:
            return key in self._outbox.blocks

    def has_arrived(self, key: BlockKey) -> bool:
        """Return whether a block has arrived whole; it is not asked for."""
        with self._changed:
            return self._inbox.has_whole(key)

    def _load(self) -> None:
        for key, path in self._files.blocks("outbox"):
            found = OutgoingBlock.found(path)
            if found is None:
                _LOG.warning("a block for client %s is damaged: dropped", key.receiver)
                OutgoingBlock(path=path, starts=(0,)).remove()
            else:
                self._outbox.add(key, found)
        self._inbox.load()

    def _ask_for(self, key: BlockKey) -> None:
        with self._changed:
            is_news = self._inbox.ask_for(key)
        if is_news:
            self._wake()

    def _gate(self, job: str) -> Gate:
        with self._changed:
            gate = self._gates.get(job)
        if gate is None:
            raise refused(Reason.JOB, f"client {self.client} does not know the job {job!r}")
        return gate

    def _keep_mark(self, key: BlockKey) -> None:
        """Keep on disk whether the peer has a block; a mark that is lost is made up for later."""
        try:
            self._outbox.blocks[key].keep_mark()
        except OSError as error:
            _LOG.warning(
                "outbox: could not note that client %d has a block (%s); asked after a restart",
                *(key.receiver, error.strerror),
            )

    def _drop(self, keys: Iterable[BlockKey]) -> None:
        for key in keys:
            sent, arrived = self._outbox.pop(key), self._inbox.pop(key)
            self._times.end(key, time.monotonic(), delivered=False)
            with self._disk("removed"):
                if sent is not None:
                    sent.remove()
                if arrived is not None:
                    arrived.remove()

    def _wake(self) -> None:
        for wake in tuple(self._wakers):
            wake()

    @contextmanager
    def _disk(self, what: str, *, subject: str = "a block") -> Iterator[None]:
        """Name what the operating system would not do."""
        try:
            yield
        except OSError as error:
            raise ChannelUnavailable(
                f"depot {self._files.root}: {subject} could not be {what} ({error.strerror})"
            ) from error
