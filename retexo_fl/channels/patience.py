"""How long to wait after failures: longer each time, and never all at once."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from retexo_fl.channels.addresses import scheme_of
from retexo_fl.channels.base import BlockKey
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.exchange.link.messages import RefusalCode


def loop_time_s() -> float:
    """Return the time of the running event loop, which may be virtual."""
    return asyncio.get_running_loop().time()


def looks_every_s(limits: LinkLimits, addresses: Sequence[str]) -> float:
    """Return how often a peer that is away and wanted is looked for in the long run.

    One attempt tries all addresses, so the channel with the most frequent attempts decides.

    Args:
        limits: Of this client's network.
        addresses: Of the peer.
    """
    if limits.look_every_s is not None:
        return limits.look_every_s
    channels = {scheme_of(address) for address in addresses}
    most_s = (limits.on(channel).retry_most_s for channel in channels)
    return min(most_s, default=limits.retry_most_s)


@dataclass(slots=True)
class Backoff:
    """Doubles from ``first_s`` to ``most_s`` with every failure.

    ``name`` spreads the waits of different peers over a quarter of their length, the same way in
    every run.
    """

    first_s: float
    most_s: float
    name: str
    failures: int = 0
    until_s: float = 0.0

    def failed(self, now_s: float) -> None:
        """Wait from now on."""
        wait_s = min(self.most_s, self.first_s * 2.0 ** min(self.failures, 30))
        part = zlib.crc32(f"{self.name} {self.failures}".encode()) / 2**32
        self.failures += 1
        self.until_s = now_s + wait_s * (1.0 - part / 4)

    def succeeded(self) -> None:
        """Forget the failures."""
        self.failures, self.until_s = 0, 0.0


@dataclass(slots=True)
class Holds:
    """Blocks that a peer refused: when each may be offered again.

    Of a job that the peer has not admitted, one block is offered now and then; when it is wanted,
    all are.
    """

    first_s: float
    most_s: float
    _jobs: dict[str, Backoff] = field(default_factory=dict)
    _blocks: dict[BlockKey, Backoff] = field(default_factory=dict)

    def refused(self, key: BlockKey, code: RefusalCode, now_s: float) -> None:
        """Hold a block, or all of its job, longer than the last time."""
        if code is RefusalCode.JOB:
            self._jobs.setdefault(key.job, self._backoff(key.job)).failed(now_s)
        else:
            name = f"{key.job} {key.layer} {key.weights_digest.hex()}"
            self._blocks.setdefault(key, self._backoff(name)).failed(now_s)

    def may_offer(self, key: BlockKey, now_s: float) -> bool:
        """Return whether a block may be offered now; of a held job it is then the only one."""
        block, job = self._blocks.get(key), self._jobs.get(key.job)
        if block is not None and now_s < block.until_s:
            return False
        if job is None:
            return True
        if now_s < job.until_s:
            return False
        # The others wait for the answer to this one, which may never come.
        job.until_s = now_s + max(self.first_s, self.most_s / 4)
        return True

    def released(self, key: BlockKey) -> None:
        """Note that the peer requested or has a block."""
        self._jobs.pop(key.job, None)
        self._blocks.pop(key, None)

    def release_job(self, job: str) -> None:
        """Note that the peer has admitted a job."""
        self._jobs.pop(job, None)
        self._blocks = {key: held for key, held in self._blocks.items() if key.job != job}

    def keep_only(self, keys: Collection[BlockKey]) -> None:
        """Forget blocks that need not be sent any more, and jobs without any."""
        jobs = {key.job for key in keys}
        self._blocks = {key: held for key, held in self._blocks.items() if key in keys}
        self._jobs = {job: held for job, held in self._jobs.items() if job in jobs}

    def next_s(self, now_s: float) -> float:
        """Return when the next held block may be offered; infinity if none is held."""
        held = (*self._jobs.values(), *self._blocks.values())
        return min((one.until_s for one in held if one.until_s > now_s), default=float("inf"))

    def _backoff(self, name: str) -> Backoff:
        return Backoff(self.first_s, self.most_s, name)
