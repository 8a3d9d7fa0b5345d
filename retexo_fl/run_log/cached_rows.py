"""What mini-batches read of features where some are cached, of one client or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.units import format_bytes, format_count, format_counted, format_share

#: Sums of all clients stay below 64 bits.
_MOST: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRows:
    """Rows that mini-batches asked for on devices with a cache, and what was copied for them.

    Attributes:
        batches: Mini-batches.
        rows: Rows asked for: hits and misses.
        hits: Rows that the cache had. The cache of ``gns`` is drawn on a CPU, too, which reads the
            rows of all nodes in the same memory.
        misses: All others.
        gpu_bytes: Copied from the host to GPUs: misses, and what filled caches.
        cpu_bytes: Copied within the host's memory by CPUs, from where workers share it: all rows.
    """

    batches: int = 0
    rows: int = 0
    hits: int = 0
    misses: int = 0
    gpu_bytes: int = 0
    cpu_bytes: int = 0

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Self:
        """Read :attr:`numbers` as another machine sends them.

        Raises:
            RemoteProtocolError: They are more or fewer, or no counts.
        """
        are_counts = all(0 <= number <= _MOST and number == int(number) for number in numbers)
        expected = len(cls().numbers)
        if len(numbers) != expected or not are_counts:
            raise RemoteProtocolError(
                f"cached is {list(numbers)[: expected + 1]}; expected {expected} counts"
            )
        batches, hits, misses, gpu_bytes, cpu_bytes = map(int, numbers)
        return cls(
            batches=batches,
            rows=hits + misses,
            hits=hits,
            misses=misses,
            gpu_bytes=gpu_bytes,
            cpu_bytes=cpu_bytes,
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """What a client sends of it: mini-batches, hits, misses, bytes to GPUs, bytes by CPUs."""
        return self.batches, self.hits, self.misses, self.gpu_bytes, self.cpu_bytes

    def __add__(self, other: CachedRows) -> CachedRows:
        """Return the sums of both."""
        return CachedRows.of([a + b for a, b in zip(self.numbers, other.numbers, strict=True)])

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        share = format_share(self.hits / self.rows if self.rows else None)
        copied = [
            f"{format_bytes(size)} copied {where}"
            for size, where in ((self.gpu_bytes, "to GPUs"), (self.cpu_bytes, "by CPUs"))
            if size
        ]
        return ", ".join(
            [
                f"{format_counted(self.rows, 'row')} read in mini-batches",
                f"{format_count(self.hits)} cached ({share}), {format_count(self.misses)} not",
                *copied,
            ]
        )
