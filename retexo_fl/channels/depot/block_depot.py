"""One client's outgoing and incoming blocks on disk; the network empties the one, fills the other.

What is written outlives the process; outgoing blocks are forced to the disk and outlive a power
cut, too. Blocks that were lost or damaged are noticed by their checksums and asked for again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.depot.files import DepotFiles
from retexo_fl.channels.depot.incoming import Inbox
from retexo_fl.channels.depot.outgoing import DeliveryTimes, Outbox, OutgoingBlock, Owed
from retexo_fl.channels.gate import Admission, Gate
from retexo_fl.errors import ChannelUnavailable, LocalProtocolError, PeerRefused
from retexo_fl.exchange.frames import Buffer
from retexo_fl.exchange.link.messages import Offer
from retexo_fl.exchange.link.reasons import Reason, refused

_LOG = logging.getLogger(__name__)


class BlockDepot:
    """The outbox and inbox of one client; satisfies :class:`~retexo_fl.channels.base.Channel`.

    Every method may be called from any thread.

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

    # ---- what the agent does ----------------------------------------------------------------

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        """Keep a block for ``key.receiver`` until it has acknowledged it.

        Returns:
            Bytes of the frames; 0 for a block that is already there or was delivered.

        Raises:
            ChannelUnavailable: It could not be written; nothing of it is left.
            LocalProtocolError: It is not a block of this client.
        """
        if key.sender != self.client:
            raise LocalProtocolError(
                f"client {self.client} cannot send a block of client {key.sender}"
            )
        begun_s = time.monotonic()
        with self._writing:
            with self._changed:
                if key in self._outbox.blocks:
                    return 0
            with self._disk(f"written for client {key.receiver}"):
                block = OutgoingBlock.write(self._files.outgoing(key), frames)
            with self._changed:
                self._outbox.add(key, block)
                self._times.begin(key, block.num_bytes, begun_s)
        self._wake()
        return block.num_bytes

    def receive_block(self, key: BlockKey) -> bytes | None:
        """Return what has arrived of a block; what is missing is asked for from then on.

        Raises:
            ChannelUnavailable: What has arrived cannot be read.
        """
        if key.receiver != self.client:
            return None
        with self._changed:
            block = self._inbox.blocks.get(key)
        stream = b""
        if block is not None:
            with self._disk(f"read of client {key.sender}"):
                stream = block.read()
        if block is None or not block.is_whole:
            self._ask_for(key)
        return stream or None

    def senders(
        self, job: str, layer: int, weights_digest: bytes, *, receiver: int
    ) -> frozenset[int]:
        """See :class:`~retexo_fl.channels.base.Channel`."""
        if receiver != self.client:
            return frozenset()
        with self._changed:
            return self._inbox.senders(job, layer, weights_digest)

    def pile(self, job: str, layer: int, weights_digest: bytes) -> None:
        """See :class:`~retexo_fl.channels.base.Channel`; peers are in other processes."""

    def forget_job(self, job: str, client: int) -> None:
        """Drop a job's blocks of both directions and its gate; other clients' are not here.

        Raises:
            ChannelUnavailable: The files could not be moved away.
        """
        if client != self.client:
            return
        with self._writing, self._changed:
            self._gates.pop(job, None)
            keys = {*self._outbox.blocks, *self._inbox.blocks, *self._inbox.asked_of_job(job)}
            self._drop([key for key in keys if key.job == job])
            with self._disk("removed"):
                self._files.discard_job(job)
        self._files.empty_waste()

    def admit_job(self, job: str, gate: Gate) -> None:
        """Let blocks of a job arrive from now on, as ``gate`` admits them."""
        with self._changed:
            self._gates[job] = gate
        self._wake()

    def drop_blocks(self, job: str, keys: Iterable[BlockKey]) -> None:
        """Remove blocks of a job that are no longer needed, in both directions.

        Raises:
            ChannelUnavailable: A file could not be removed.
        """
        with self._writing, self._changed:
            self._drop([key for key in keys if key.job == job])

    def wait_for(self, keys: Collection[BlockKey], timeout_s: float) -> frozenset[BlockKey]:
        """Wait until blocks have arrived whole; return those that have not when time is over."""
        with self._changed:
            for key in keys:
                self._ask_for(key)
            self._changed.wait_for(lambda: not self._inbox.missing(keys), timeout=timeout_s)
            return self._inbox.missing(keys)

    def owed(self) -> Mapping[int, Owed]:
        """Return by peer what it has not acknowledged."""
        with self._changed:
            return self._outbox.owed()

    def deliveries(self) -> list[dict[str, Any]]:
        """Return by job and layer how long peers took to acknowledge what was sent."""
        with self._changed:
            return self._times.facts()

    def on_outgoing(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, from any thread, when there is something new to send to a peer."""
        with self._changed:
            self._wakers.append(wake)

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

    # ---- what the network does --------------------------------------------------------------

    def jobs(self) -> frozenset[str]:
        """Return the jobs of which blocks are here."""
        with self._changed:
            return frozenset(key.job for key in (*self._outbox.blocks, *self._inbox.blocks))

    def knows_job(self, job: str) -> bool:
        """Return whether blocks of a job may arrive."""
        with self._changed:
            return job in self._gates

    def num_owed(self, peer: int) -> int:
        """Return how many blocks a peer has not acknowledged."""
        with self._changed:
            return self._outbox.num_owed(peer)

    def offers(self, peer: int) -> list[Offer]:
        """Return every block that a peer has not acknowledged, oldest first."""
        with self._changed:
            return self._outbox.offers(peer)

    def offered(self, key: BlockKey) -> None:
        """Note that a block was offered: its next offer waits to be asked for."""
        with self._changed:
            if key in self._outbox.blocks:
                self._outbox.blocks[key].was_offered = True

    def read_frame(self, key: BlockKey, sequence: int) -> bytes | None:
        """Return a frame of an outgoing block, or None if it is not there any more.

        Raises:
            ChannelUnavailable: Its file cannot be read now, or is damaged: then the block is
                dropped, to be sent again.
        """
        with self._changed:
            block = self._outbox.blocks.get(key)
        if block is None or sequence >= block.num_frames:
            return None
        with self._disk(f"read for client {key.receiver}"):
            try:
                return block.read_frame(key, sequence)
            except ChannelUnavailable:
                with self._writing, self._changed:
                    if self._outbox.blocks.get(key) is not block:
                        return None
                    self._drop([key])
                raise

    def delivered(self, key: BlockKey, *, is_there: bool = True) -> bool:
        """Note that the peer has a block, or has not; return whether that changed."""
        with self._changed:
            is_news = self._outbox.mark(key, delivered=is_there)
            if is_news:
                self._keep_mark(key)
            times = self._times.end(key, time.monotonic()) if is_there else None
        if is_news and not is_there:
            self._wake()
        if times is not None and times.nothing_owed:
            _LOG.info(
                "delivered job=%s layer=%d blocks=%d bytes=%d seconds=%.4f",
                *(key.job, key.layer, times.blocks, times.size_bytes, times.seconds),
            )
        return is_news

    def asks(self, peer: int) -> frozenset[BlockKey]:
        """Return the blocks of a peer that were looked for here before they had arrived."""
        with self._changed:
            return self._inbox.asks(peer)

    def awaits(self, peer: int) -> bool:
        """Return whether a block of a peer was looked for before it had arrived."""
        with self._changed:
            return self._inbox.asks_of(peer)

    def admission(self, offer: Offer) -> Admission:
        """Ask the job's gate what an offered block must be; does not touch the disk.

        Raises:
            PeerRefused: It may not come.
            RemoteProtocolError: Likewise.
        """
        admission = self._gate(offer.key.job).admission(offer.key)
        if offer.num_bytes > admission.max_bytes:
            raise refused(
                Reason.OVERSIZE,
                f"client {offer.key.sender} offers a block of {offer.num_bytes} bytes, expected "
                f"at most {admission.max_bytes}",
            )
        return admission

    def stored_bytes(self, key: BlockKey) -> int:
        """Return how much of a peer's block is here."""
        with self._changed:
            block = self._inbox.blocks.get(key)
        return 0 if block is None else block.num_bytes

    def begin(self, offer: Offer, admission: Admission | None = None) -> int | None:
        """Return the frame from which an offered block is wanted; None if it is here.

        Args:
            offer: The block.
            admission: What :meth:`admission` returned for it; asked again if not given.

        Raises:
            PeerRefused: It may not come.
            PartitionError: The peer lists other edges than this part.
            ChannelUnavailable: It cannot be kept.
        """
        key, admission = offer.key, admission or self.admission(offer)
        with self._changed:
            # The job may have been forgotten since it was asked.
            self._gate(key.job)
            block = self._inbox.opened(key)
        if block.is_whole:
            return None
        with self._disk(f"kept of client {key.sender}"):
            block.admit(admission, offer.num_frames)
        return None if block.is_whole else block.next_sequence

    def add_frame(self, key: BlockKey, frame: Buffer) -> bool:
        """Check and keep the next frame of a block that is arriving; return whether it is whole.

        Raises:
            RetexoError: As :meth:`ArrivingBlock.add`.
        """
        with self._changed:
            block = self._inbox.blocks.get(key)
        if block is None:
            raise PeerRefused(f"a block of client {key.sender} was dropped while it arrived")
        with self._disk(f"kept of client {key.sender}"):
            is_whole = block.add(frame)
        if is_whole:
            with self._changed:
                self._inbox.asked_no_more(key)
                self._changed.notify_all()
                hearers = tuple(self._hearers)
            for hear in hearers:
                hear()
        return is_whole

    # ---- inside -----------------------------------------------------------------------------

    def _load(self) -> None:
        for key, path in self._files.blocks("outbox"):
            block = OutgoingBlock.restored(path)
            if block is None:
                _LOG.warning("a block for client %s is damaged: dropped", key.receiver)
                OutgoingBlock(path=path, starts=(0,)).remove()
            else:
                self._outbox.add(key, block)
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
