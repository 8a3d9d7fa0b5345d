"""Who has which part of a receiver's tables: exchanges, their rows and streams, and the cache."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint.exchange_state import (
    Exchange,
    ExchangeCache,
    OpenStream,
)
from retexo_fl.additions.kernel_path.endpoint.records import (
    ExchangeProgress,
    IncomingStream,
    StreamGrant,
    StreamProgress,
)
from retexo_fl.additions.kernel_path.endpoint.stream_records import describe_stream, first_cells
from retexo_fl.additions.kernel_path.endpoint.table_space import Place, TableSpace
from retexo_fl.additions.kernel_path.packets.layout import (
    CELL_VALUES,
    MAX_PACKET_CELLS,
    NOT_YET,
    Tables,
)
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.errors import LocalProtocolError


class TableArena:
    """Hands out the parts of ``tables`` and keeps complete regions for those who ask again.

    A complete exchange that is closed leaves its streams open until their place is needed: a
    sender whose last acknowledgement was lost still gets it. One with a cache key keeps its rows,
    too. Not thread-safe.

    Args:
        tables: What packets are taken into, by whomever.
        cache_bytes: Most that the rows of closed exchanges may take.
        max_cells: Longest packet that is taken.
        atomic: Streams' values must be added by atomic instructions.
        settle: Returns when no packet is being taken that found its stream open before; None where
            the caller sees to that. What was given back is not used again before.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        cache_bytes: int,
        max_cells: int = MAX_PACKET_CELLS,
        atomic: bool = False,
        settle: Callable[[], None] | None = None,
    ) -> None:
        self._tables = tables
        self._max_cells = max_cells
        self._atomic = atomic
        self._space = TableSpace(tables, make_room=self._make_room, settle=settle)
        self._open: dict[bytes, Exchange] = {}
        self._finished: deque[Exchange] = deque()
        self.cache = ExchangeCache(max_bytes=cache_bytes, is_complete=self._is_complete)

    # ---- what an exchange is made of -------------------------------------------------------------

    def open_exchange(
        self,
        key: bytes,
        *,
        job: int,
        stage: int,
        width: int,
        streams_expected: int,
        cache_key: bytes | None,
    ) -> None:
        """Begin a region; see :meth:`DatagramEndpoint.open_exchange`."""
        terms = (job, stage, width, streams_expected)
        if (present := self._open.get(key)) is not None:
            if present.terms != terms:
                raise LocalProtocolError(f"exchange {key.hex()}: opened before with other values")
            return
        (place,) = self._space.take(regions=1)
        exchange = Exchange(
            region=place.start,
            job=job,
            stage=stage,
            width=width,
            streams_expected=streams_expected,
            cache_key=cache_key,
            keys={key},
        )
        self._open[key] = exchange
        self.cache.offer(exchange)
        region = self._tables.regions[exchange.region]
        region["expected"] = NOT_YET if streams_expected else 0
        region["done"] = 0
        region["generation"] += 1
        region["complete"] = 0 if streams_expected else 1

    def add_rows(self, key: bytes, rows: int) -> int:
        """Return the handle of a block of ``rows`` accumulator rows, all zero (or lowest)."""
        exchange = self._exchange(key)
        (place,) = self._space.take(cells=rows * exchange.row_cells)
        self._tables.acc[place.start : place.start + place.size] = 0
        exchange.blocks.append((place.start, rows))
        return len(exchange.blocks) - 1

    def open_stream(
        self, key: bytes, incoming: IncomingStream, handle: int, *, token: int | None = None
    ) -> StreamGrant:
        """Open a stream into a block of rows; see :meth:`DatagramEndpoint.open_stream`."""
        exchange = self._exchange(key)
        shape = StreamShape.in_room(
            incoming.rows,
            incoming.width,
            incoming.packet_cells,
            in_bytes=incoming.forms is not None,
        )
        present = exchange.streams.get((incoming.sender, handle, incoming.number))
        if present is not None:
            if present.shape != shape:
                raise LocalProtocolError(
                    f"{_name(key, incoming)}: opened before with another shape"
                )
            return StreamGrant(token=present.token, stream=present.index)
        if incoming.width != exchange.width:
            raise LocalProtocolError(
                f"{_name(key, incoming)}: width {incoming.width}, expected {exchange.width}"
            )
        if incoming.packet_cells > self._max_cells:
            raise LocalProtocolError(
                f"{_name(key, incoming)}: packets of {incoming.packet_cells} cells, expected at "
                f"most {self._max_cells}"
            )
        start, rows = self._block(key, exchange, handle)
        slots = first_cells(incoming, start, rows, exchange.row_cells)
        if len(exchange.streams) >= exchange.streams_expected:
            raise LocalProtocolError(
                f"{_name(key, incoming)}: all {exchange.streams_expected} streams are open"
            )
        places = self._space.take(streams=1, seen=shape.seen_blocks, slots=len(slots))
        stream = OpenStream(
            index=places[0].start,
            token=secrets.randbits(64) or 1 if token is None else token,
            shape=shape,
            places=places,
        )
        exchange.streams[incoming.sender, handle, incoming.number] = stream
        self._write(exchange, stream, incoming, slots)
        self._is_complete(exchange)
        return StreamGrant(token=stream.token, stream=stream.index)

    def _write(
        self,
        exchange: Exchange,
        stream: OpenStream,
        incoming: IncomingStream,
        slots: NDArray[np.uint64],
    ) -> None:
        """Fill a stream's records, its token last: packets come from then on."""
        describe_stream(
            self._tables, exchange, stream, incoming=incoming, slots=slots, atomic=self._atomic
        )
        if len(exchange.streams) == exchange.streams_expected:
            # Before the last stream is open: the taker of its last packet must see that it is.
            total = sum(each.shape.packets for each in exchange.streams.values())
            self._tables.regions[exchange.region]["expected"] = total
        self._tables.streams[stream.index]["token"] = stream.token

    # ---- what became of it -----------------------------------------------------------------------

    def progress(self, key: bytes) -> ExchangeProgress:
        """Say how much of an exchange has been taken."""
        exchange = self._exchange(key)
        complete = self._is_complete(exchange)
        region = self._tables.regions[exchange.region]
        expected = int(region["expected"])
        by_stream = {}
        for name, stream in exchange.streams.items():
            record = self._tables.streams[stream.index]
            by_stream[name] = StreamProgress(
                packets=stream.shape.packets,
                done=int(record["done"]),
                duplicates=int(record["duplicates"]),
            )
        return ExchangeProgress(
            complete=complete,
            packets_expected=None if expected == NOT_YET else expected,
            packets_done=int(region["done"]),
            by_stream=by_stream,
        )

    def rows(self, key: bytes, handle: int) -> NDArray[np.int32]:
        """Return a (rows, width) view of a block."""
        exchange = self._exchange(key)
        start, rows = self._block(key, exchange, handle)
        cells = self._tables.acc[start : start + rows * exchange.row_cells]
        return cells.reshape(rows, exchange.row_cells * CELL_VALUES)[:, : exchange.width]

    def _is_complete(self, exchange: Exchange) -> bool:
        region = self._tables.regions[exchange.region]
        if region["done"] == region["expected"]:
            # Also where the last stream has no packet, whose arrival would set it.
            region["complete"] = 1
            return True
        return False

    # ---- its end, and what is kept ---------------------------------------------------------------

    def close_exchange(self, key: bytes) -> None:
        """Free an exchange, or keep what may be asked for again; unknown keys are no error."""
        exchange = self._open.pop(key, None)
        if exchange is None:
            return
        exchange.keys.discard(key)
        if exchange.keys:
            return
        if self.cache.keeps(exchange):
            for surplus in self.cache.excess():
                self._free(surplus)
        elif self._is_complete(exchange):
            self._finish(exchange)
        else:
            self._free(exchange)

    def revive(self, cache_key: bytes, key: bytes) -> bool:
        """Open a cached exchange under ``key``, complete as it is; False where there is none."""
        if key in self._open:
            raise LocalProtocolError(f"exchange {key.hex()}: open already")
        exchange = self.cache.use(cache_key)
        if exchange is None:
            return False
        exchange.keys.add(key)
        self._open[key] = exchange
        return True

    def _make_room(self) -> bool:
        """Free the oldest that is not in use; False where there is none."""
        if self._finished:
            self._free(self._finished.popleft())
            return True
        exchange = self.cache.oldest()
        if exchange is not None:
            self._free(exchange)
        return exchange is not None

    def _finish(self, exchange: Exchange) -> None:
        """Keep a complete exchange's streams: they acknowledge and, all being seen, add nothing."""
        self._tables.regions[exchange.region]["complete"] = 0
        self._space.give_back(exchange.accumulators())
        exchange.blocks.clear()
        for stream in exchange.streams.values():
            slots = stream.places.pop()
            self._space.give_back([slots])
        self._finished.append(exchange)

    def _free(self, exchange: Exchange) -> None:
        for stream in exchange.streams.values():
            self._tables.streams[stream.index]["token"] = 0
        for stream in exchange.streams.values():
            self._space.give_back(stream.places)
        self._tables.regions[exchange.region]["complete"] = 0
        self._space.give_back([*exchange.accumulators(), Place("regions", exchange.region, 1)])

    def _exchange(self, key: bytes) -> Exchange:
        if (exchange := self._open.get(key)) is None:
            raise LocalProtocolError(f"exchange {key.hex()}: not open")
        return exchange

    @staticmethod
    def _block(key: bytes, exchange: Exchange, handle: int) -> tuple[int, int]:
        if not 0 <= handle < len(exchange.blocks):
            raise LocalProtocolError(f"exchange {key.hex()}: no block of rows {handle}")
        return exchange.blocks[handle]


def _name(key: bytes, incoming: IncomingStream) -> str:
    return f"exchange {key.hex()}, stream of {incoming.sender}"
