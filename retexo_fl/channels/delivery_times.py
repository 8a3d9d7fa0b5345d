"""How long peers take to acknowledge blocks, by job and layer; not thread-safe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from retexo_fl.channels.base import BlockKey

#: Jobs whose deliveries are kept, the latest ones.
_JOBS_KNOWN: Final = 8


@dataclass(slots=True, kw_only=True)
class Deliveries:
    """The blocks of one job and layer that this process sent.

    Attributes:
        blocks: How many were acknowledged.
        size_bytes: Bytes of their frames.
        seconds: Time in which one or several of them were not acknowledged, from sending to the
            acknowledgement; with everything between: connections, waits, the peer's disk.
        longest_s: The longest that one was not acknowledged.
    """

    blocks: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    _owed: dict[BlockKey, tuple[float, int]] = field(default_factory=dict)
    _since_s: float = 0.0

    @property
    def nothing_owed(self) -> bool:
        """Whether everything so far was acknowledged."""
        return not self._owed

    def begin(self, key: BlockKey, size_bytes: int, now_s: float) -> None:
        """Note that a block waits for its acknowledgement from now on."""
        if not self._owed:
            self._since_s = now_s
        self._owed.setdefault(key, (now_s, size_bytes))

    def end(self, key: BlockKey, now_s: float, *, delivered: bool) -> bool:
        """Note that a block waits no more; return whether it did, since :meth:`begin`."""
        if key not in self._owed:
            return False
        begun_s, size_bytes = self._owed.pop(key)
        if delivered:
            self.blocks += 1
            self.size_bytes += size_bytes
            self.longest_s = max(self.longest_s, now_s - begun_s)
        if not self._owed:
            self.seconds += now_s - self._since_s
        return True


class DeliveryTimes:
    """Deliveries by job and layer, of this process alone: those of a killed one are not timed.

    They stay when a job is over, for a later report.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Deliveries] = {}

    def begin(self, key: BlockKey, size_bytes: int, now_s: float) -> None:
        """Note that a block was sent; the oldest jobs beyond the limit are then dropped."""
        found = self._found.setdefault((key.job, key.layer), Deliveries())
        jobs = list(dict.fromkeys(job for job, _ in self._found))
        for job in jobs[:-_JOBS_KNOWN]:
            self._forget(job)
        found.begin(key, size_bytes, now_s)

    def end(self, key: BlockKey, now_s: float, *, delivered: bool = True) -> Deliveries | None:
        """Note that a block was acknowledged or dropped; return its layer's, None if unknown."""
        found = self._found.get((key.job, key.layer))
        if found is None or not found.end(key, now_s, delivered=delivered):
            return None
        return found

    def facts(self) -> list[dict[str, Any]]:
        """Return one entry for each job and layer."""
        return [
            {
                "job": job,
                "layer": layer,
                "blocks": one.blocks,
                "bytes": one.size_bytes,
                "seconds": round(one.seconds, 6),
                "longest_s": round(one.longest_s, 6),
            }
            for (job, layer), one in sorted(self._found.items())
        ]

    def _forget(self, job: str) -> None:
        self._found = {place: one for place, one in self._found.items() if place[0] != job}
