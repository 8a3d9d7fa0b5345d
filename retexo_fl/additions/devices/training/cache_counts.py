"""Counts of cached rows on their way from devices to the client, and in its log."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from retexo_fl.additions.devices.training.device_rows import ReadRows
from retexo_fl.client.log_lines import line
from retexo_fl.run_log.cached_rows import CachedRows

logger = logging.getLogger(__name__)

#: Names of a share's numbers, each with that of its device behind: workers of the CPU have one.
_HITS: Final = "hits"
_MISSES: Final = "misses"
_COPIED: Final = "copied_bytes"
_CPU: Final = "cpu"


def counts_as_numbers(read: ReadRows) -> dict[str, float]:
    """Return what was counted of a share as numbers of :class:`.ShareSums`; nothing without cache.

    Devices of one name are added up.
    """
    if read.hits is None:
        return {}
    device = read.rows.device
    counts = (
        (_HITS, read.hits),
        (_MISSES, len(read.rows) - read.hits),
        (_COPIED, read.copied_bytes),
    )
    return {f"{name} {device}": float(count) for name, count in counts}


class CacheCounter:
    """Adds up what a client's devices count, of each round and of each device since it was made.

    Args:
        client: Index, for its log.
    """

    def __init__(self, client: int) -> None:
        self._client = client
        self._round = CachedRows()
        self._by_device: dict[str, CachedRows] = {}

    def add(self, numbers: Mapping[str, float]) -> None:
        """Add the numbers of a mini-batch, as all devices together have them."""
        devices = {name.partition(" ")[2] for name in numbers} - {""}
        if not devices:
            return
        batch = CachedRows(batches=1)
        for device in sorted(devices):
            hits, misses, copied = (
                int(numbers[f"{name} {device}"]) for name in (_HITS, _MISSES, _COPIED)
            )
            is_cpu = device == _CPU
            read = CachedRows(
                rows=hits + misses,
                hits=hits,
                misses=misses,
                gpu_bytes=0 if is_cpu else copied,
                cpu_bytes=copied if is_cpu else 0,
            )
            batch += read
            before = self._by_device.get(device, CachedRows())
            self._by_device[device] = before + read + CachedRows(batches=1)
        self._round += batch

    def taken(self) -> tuple[int, ...]:
        """Return what was added since this was last asked for (:attr:`.CachedRows.numbers`).

        Nothing without a cache.
        """
        counted, self._round = self._round, CachedRows()
        return counted.numbers if counted.batches else ()

    def log(self) -> None:
        """Write a line for each device, and begin anew."""
        by_device, self._by_device = self._by_device, {}
        for device, read in by_device.items():
            logger.info(
                line(
                    "cache",
                    client=self._client,
                    device=device,
                    batches=read.batches,
                    rows=read.rows,
                    hits=read.hits,
                    misses=read.misses,
                    copied_bytes=read.gpu_bytes + read.cpu_bytes,
                )
            )
