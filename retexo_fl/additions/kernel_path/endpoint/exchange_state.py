"""What a receiver keeps for an exchange: places in the tables, blocks of rows, streams; a cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from retexo_fl.additions.kernel_path.endpoint.table_space import Place
from retexo_fl.additions.kernel_path.packets.layout import CELL_BYTES, CELL_VALUES
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStream:
    """A stream's grant, its shape, and its places: its record, its seen blocks, its slots."""

    index: int
    token: int
    shape: StreamShape
    places: list[Place]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """One region with its blocks of rows and its streams; open under any number of keys.

    Attributes:
        region: Its record.
        job: Of all its streams.
        stage: Of all its streams.
        width: Values of a vector.
        streams_expected: How many streams make it whole.
        cache_key: Under which it is kept when it is closed, if it is.
        keys: Under which it is open.
        blocks: First cell and rows of each block; a handle counts them.
        streams: By sender, handle and number.
    """

    region: int
    job: int
    stage: int
    width: int
    streams_expected: int
    cache_key: bytes | None
    keys: set[bytes]
    blocks: list[tuple[int, int]] = field(default_factory=list)
    streams: dict[tuple[int, int, int], OpenStream] = field(default_factory=dict)

    @property
    def row_cells(self) -> int:
        """Cells of a vector."""
        return -(-self.width // CELL_VALUES)

    @property
    def terms(self) -> tuple[object, ...]:
        """What has to be the same when it is opened again."""
        return (self.job, self.stage, self.width, self.streams_expected)

    @property
    def row_bytes(self) -> int:
        """Bytes of all its rows."""
        return sum(rows for _, rows in self.blocks) * self.row_cells * CELL_BYTES

    def accumulators(self) -> list[Place]:
        """Return where its rows lie."""
        cells = self.row_cells
        return [Place("cells", start, rows * cells) for start, rows in self.blocks]


class ExchangeCache:
    """Exchanges by cache key, the last one used at the end.

    Args:
        max_bytes: Limit for the rows of exchanges that are open under no key.
        is_complete: Says whether an exchange is.
    """

    def __init__(self, *, max_bytes: int, is_complete: Callable[[Exchange], bool]) -> None:
        self.max_bytes = max_bytes
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._is_complete = is_complete
        self._by_key: OrderedDict[bytes, Exchange] = OrderedDict()

    def offer(self, exchange: Exchange) -> None:
        """Take an exchange in, unless it has no cache key or another has the same."""
        if exchange.cache_key is not None:
            self._by_key.setdefault(exchange.cache_key, exchange)

    def has(self, cache_key: bytes) -> bool:
        """Return whether there is a complete one; no is counted as a miss."""
        exchange = self._by_key.get(cache_key)
        found = exchange is not None and self._is_complete(exchange)
        self.misses += not found
        return found

    def use(self, cache_key: bytes) -> Exchange | None:
        """Return a complete one; counted as a hit or a miss."""
        if not self.has(cache_key):
            return None
        self.hits += 1
        self._by_key.move_to_end(cache_key)
        return self._by_key[cache_key]

    def keeps(self, exchange: Exchange) -> bool:
        """Return whether an exchange that is not open any more stays, as the newest."""
        key = exchange.cache_key
        if key is None or self._by_key.get(key) is not exchange:
            return False
        if not self._is_complete(exchange) or exchange.row_bytes > self.max_bytes:
            del self._by_key[key]
            return False
        self._by_key.move_to_end(key)
        return True

    def excess(self) -> list[Exchange]:
        """Take out what is over the limit, longest unused first."""
        idle = self._idle()
        surplus_bytes = sum(exchange.row_bytes for exchange in idle) - self.max_bytes
        out = []
        for exchange in idle:
            if surplus_bytes <= 0:
                break
            surplus_bytes -= exchange.row_bytes
            out.append(self._evict(exchange))
        return out

    def oldest(self) -> Exchange | None:
        """Take out the one that is not open and was unused longest."""
        idle = self._idle()
        return self._evict(idle[0]) if idle else None

    def _idle(self) -> list[Exchange]:
        return [exchange for exchange in self._by_key.values() if not exchange.keys]

    def _evict(self, exchange: Exchange) -> Exchange:
        assert exchange.cache_key is not None
        del self._by_key[exchange.cache_key]
        self.evictions += 1
        return exchange
