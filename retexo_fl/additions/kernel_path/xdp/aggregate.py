"""The aggregate program, loaded with tables of given sizes, and its tables as arrays."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.layout import (
    BLOCK_WORDS,
    CELL_VALUES,
    COUNTER_NAMES,
    REGION,
    STREAM,
    Tables,
)
from retexo_fl.additions.kernel_path.xdp.libbpf import BpfMap, BpfObject, BpfProgram, RingBuffer
from retexo_fl.additions.kernel_path.xdp.library import possible_cpus
from retexo_fl.errors import ChannelUnavailable

#: The longest packet that the program takes: what fits in the page of a frame (MTU 3,498).
MAX_CELLS: Final = 53
#: Cells of a packet at the MTU of Ethernet, 1,500 bytes.
ETHERNET_CELLS: Final = 22
OBJECT: Final = Path(__file__).with_name("programs") / "aggregate.bpf.o"
_COUNTER_PLACES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSizes:
    """How many entries each table has; see ``exchange.datagrams.layout.Tables``.

    Attributes:
        cells: Accumulators of 16 values, 64 bytes each.
        seen_blocks: Blocks of 512 packets, 64 bytes each.
        slots: Vectors of all streams, 8 bytes each.
        streams: Streams that are open at a time.
        regions: Exchanges that are open or kept at a time.
    """

    cells: int
    seen_blocks: int
    slots: int
    streams: int
    regions: int


class AggregateProgram:
    """The program in the kernel, not attached to anything yet.

    Args:
        port: UDP port whose packets it takes.
        sizes: Of its tables. The kernel takes the memory at once.
        address: IPv4 address to which packets must be; None for any.
        max_cells: Longest packet taken, 1 to 53.

    Attributes:
        tables: The maps' own memory: what the program writes is seen here, and the other way.
        program: What to attach, or to run on a frame.
        completions: Gets the number of a region when the last of its packets was taken.

    Raises:
        ChannelUnavailable: No libbpf, no privilege, no memory, or a kernel that is too old.
    """

    def __init__(
        self,
        port: int,
        sizes: TableSizes,
        *,
        address: str | None = None,
        max_cells: int = ETHERNET_CELLS,
    ) -> None:
        if not 1 <= max_cells <= MAX_CELLS:
            raise ChannelUnavailable(
                f"xdp: packets of {max_cells} cells, expected 1 to {MAX_CELLS}; lower the MTU"
            )
        self._object = BpfObject(OBJECT)
        try:
            self._object.set_constant("PORT", port)
            self._object.set_constant("MAX_CELLS", max_cells)
            if address is not None:
                wanted = int.from_bytes(socket.inet_aton(address), "little")
                self._object.set_constant("ADDRESS", wanted)
            self._load(sizes)
        except BaseException:
            self._object.close()
            raise
        self.completions = RingBuffer(self._object.maps["completions"])

    @property
    def program(self) -> BpfProgram:
        """See the class."""
        return self._object.programs["aggregate"]

    def expect_several_contexts(self, several: bool) -> None:
        """Return whether several processors may run the program at a time; they then use locks.

        Streams can ask for it alone, by ``atomic`` in their record.
        """
        self._several_contexts[0] = several

    def counters(self) -> dict[str, int]:
        """Return what was counted since the program was loaded, by ``COUNTER_NAMES``."""
        sums = self._counts.sum(axis=0, dtype=np.uint64)
        return dict(zip(COUNTER_NAMES, map(int, sums), strict=False))

    def close(self) -> None:
        """Close the program; it stays as long as it is attached, and the arrays stay valid."""
        self.completions.close()
        self._object.close()

    def _load(self, sizes: TableSizes) -> None:
        maps = self._object.maps
        for name, entries in (
            ("acc", sizes.cells),
            ("seen", sizes.seen_blocks),
            ("slots", sizes.slots),
            ("streams", sizes.streams),
            ("regions", sizes.regions),
            ("counts", possible_cpus()),
        ):
            maps[name].resize(entries)
        self._object.load()
        self.tables = _tables(maps)
        self._counts: NDArray[np.uint64] = maps["counts"].array(
            np.dtype((np.uint64, _COUNTER_PLACES))
        )
        self._several_contexts: NDArray[np.uint32] = self._object.variables(".bss").array(np.uint32)


def _tables(maps: dict[str, BpfMap]) -> Tables:
    acc: NDArray[Any] = maps["acc"].array(np.dtype((np.int32, CELL_VALUES)))
    seen: NDArray[Any] = maps["seen"].array(np.dtype((np.uint64, BLOCK_WORDS)))
    return Tables(
        acc=acc,
        seen=seen,
        slots=maps["slots"].array(np.uint64),
        streams=maps["streams"].array(STREAM),
        regions=maps["regions"].array(REGION),
    )
