"""The arena: places never overlap, are empty when handed out, and come back in the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from retexo_fl.additions.kernel_path.endpoint.arena import TableArena
from retexo_fl.additions.kernel_path.endpoint.ranges import RangeAllocator
from retexo_fl.additions.kernel_path.endpoint.records import IncomingStream, StreamGrant
from retexo_fl.additions.kernel_path.packets.layout import NOT_YET, SKIP, Tables
from retexo_fl.errors import ChannelUnavailable, LocalProtocolError

_WIDTH = 20
_ROW_CELLS = 2


def _tables(cells: int = 64, streams: int = 6, regions: int = 4) -> Tables:
    tables = Tables.allocate(
        cells=cells, seen_blocks=12, slots=48, streams=streams, regions=regions
    )
    # What another exchange left.
    tables.acc[:] = 7
    tables.seen[:] = 7
    return tables


def _open(
    arena: TableArena,
    key: bytes,
    *,
    streams: int = 1,
    cache_key: bytes | None = None,
) -> None:
    arena.open_exchange(
        key,
        job=3,
        stage=5,
        width=_WIDTH,
        streams_expected=streams,
        cache_key=cache_key,
    )


def _stream(sender: int = 0, places: tuple[int, ...] = (0,)) -> IncomingStream:
    return IncomingStream(
        sender=sender,
        rows=len(places),
        width=_WIDTH,
        packet_cells=2,
        places=np.array(places, np.int64),
    )


def _take_all(tables: Tables, grant: StreamGrant) -> None:
    """Do what taking every packet of a stream does to the counts."""
    record = tables.streams[grant.stream]
    region = tables.regions[record["region"]]
    region["done"] += record["packets"] - record["done"]
    record["done"] = record["packets"]
    if region["done"] == region["expected"]:
        region["complete"] = 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_ranges_never_overlap_and_all_come_back(steps: list[tuple[bool, int]]) -> None:
    ranges = RangeAllocator(32)
    held: list[tuple[int, int]] = []
    for takes, number in steps:
        if takes:
            start = ranges.take(number)
            if start is not None:
                held.append((start, number))
        elif held:
            ranges.give_back(*held.pop(number % len(held)))
        used = sorted(index for start, size in held for index in range(start, start + size))
        assert len(set(used)) == len(used)
        assert all(0 <= index < 32 for index in used)
        assert ranges.free == 32 - len(used)
    for each in held:
        ranges.give_back(*each)
    assert ranges.take(32) == 0


class _ArenaStory(RuleBasedStateMachine):
    """Exchanges opened, filled, closed and revived in any order in tables that are small."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = _tables(cells=24)
        self.arena = TableArena(self.tables, cache_bytes=640)
        self.next_key = 0
        self.rows: dict[bytes, int] = {}
        self.grants: dict[bytes, StreamGrant] = {}
        self.values: dict[bytes, int] = {}

    @rule(rows=st.integers(1, 5), cache=st.sampled_from([None, b"a", b"b"]))
    def open(self, rows: int, cache: bytes | None) -> None:
        key = self._new_key()
        try:
            _open(self.arena, key, cache_key=cache)
        except ChannelUnavailable:
            return
        try:
            handle = self.arena.add_rows(key, rows)
            grant = self.arena.open_stream(key, _stream(places=tuple(range(rows))), handle)
        except ChannelUnavailable:
            self.arena.close_exchange(key)
            return
        view = self.arena.rows(key, handle)
        assert view.shape == (rows, _WIDTH)
        assert not view.any()
        view[:] = self.next_key
        self.rows[key], self.grants[key], self.values[key] = rows, grant, self.next_key

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.rows)))
        _take_all(self.tables, self.grants[key])
        assert self.arena.progress(key).complete

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.rows)))
        self.arena.close_exchange(key)
        del self.rows[key], self.grants[key], self.values[key]

    @rule(cache=st.sampled_from([b"a", b"b"]))
    def revive(self, cache: bytes) -> None:
        key = self._new_key()
        if self.arena.revive(cache, key):
            assert self.arena.progress(key).complete
            rows = self.arena.rows(key, 0)
            assert (rows == rows[0, 0]).all()
            self.rows[key], self.values[key] = len(rows), int(rows[0, 0])
            (stream,) = self.arena.progress(key).by_stream
            self.grants[key] = self.arena.open_stream(
                key, _stream(stream[0], tuple(range(len(rows)))), stream[1]
            )

    @invariant()
    def rows_are_their_own(self) -> None:
        for key, value in self.values.items():
            assert (self.arena.rows(key, 0) == value).all()
            assert self.tables.streams[self.grants[key].stream]["token"] == self.grants[key].token

    def teardown(self) -> None:
        for key in list(self.rows):
            self.arena.close_exchange(key)
        # Whatever is kept gives way to one that needs everything.
        _open(self.arena, b"last")
        self.arena.add_rows(b"last", 12)

    def _new_key(self) -> bytes:
        self.next_key += 1
        return self.next_key.to_bytes(4, "big")


TestArenaStory = _ArenaStory.TestCase


def test_a_stream_is_written_for_who_takes_packets() -> None:
    tables = _tables()
    arena = TableArena(tables, cache_bytes=0)
    _open(arena, b"k", streams=2)
    first, second = arena.add_rows(b"k", 3), arena.add_rows(b"k", 2)
    assert not arena.rows(b"k", first).any()
    grant = arena.open_stream(b"k", _stream(4, (1, -1, 0, 1)), second)
    record = tables.streams[grant.stream]
    base = int(record["slot_base"])
    start = 3 * _ROW_CELLS
    assert tables.slots[base : base + 4].tolist() == [start + 2, SKIP, start, start + 2]
    assert [int(record[name]) for name in ("rows", "row_cells", "packet_cells", "packets")] == [
        4,
        2,
        2,
        4,
    ]
    assert [int(record[name]) for name in ("job", "stage", "sender")] == [3, 5, 4]
    assert not tables.seen[int(record["seen_base"])].any()
    assert tables.regions[int(record["region"])]["expected"] == NOT_YET
    assert arena.open_stream(b"k", _stream(4, (1, -1, 0, 1)), second) == grant
    arena.open_stream(b"k", _stream(5, (0,)), first)
    assert tables.regions[int(record["region"])]["expected"] == 5
    progress = arena.progress(b"k")
    assert (progress.complete, progress.packets_expected, progress.packets_done) == (False, 5, 0)


def test_streams_without_packets_complete_an_exchange() -> None:
    arena = TableArena(_tables(), cache_bytes=0)
    _open(arena, b"k")
    arena.open_stream(b"k", _stream(places=()), arena.add_rows(b"k", 0))
    assert arena.progress(b"k").complete
    _open(arena, b"none", streams=0)
    assert arena.progress(b"none").complete


def test_closed_exchange_still_acknowledges_and_answers_no_get() -> None:
    tables = _tables()
    arena = TableArena(tables, cache_bytes=0)
    _open(arena, b"k")
    grant = arena.open_stream(b"k", _stream(), arena.add_rows(b"k", 1))
    _take_all(tables, grant)
    arena.close_exchange(b"k")
    record = tables.streams[grant.stream]
    assert record["token"] == grant.token
    assert tables.regions[int(record["region"])]["complete"] == 0
    # Its rows are free, and its stream as soon as its place is needed.
    for key in (b"a", b"b", b"c", b"d"):
        _open(arena, key)
    assert record["token"] == 0
    assert arena.add_rows(b"a", 32) == 0


def test_an_exchange_that_is_not_complete_is_closed_at_once() -> None:
    tables = _tables()
    arena = TableArena(tables, cache_bytes=10**6)
    _open(arena, b"k", cache_key=b"c")
    grant = arena.open_stream(b"k", _stream(), arena.add_rows(b"k", 1))
    arena.close_exchange(b"k")
    assert tables.streams[grant.stream]["token"] == 0
    assert not arena.revive(b"c", b"again")
    assert (arena.cache.hits, arena.cache.misses) == (0, 1)


def test_the_cache_gives_up_what_was_unused_longest() -> None:
    tables = _tables()
    arena = TableArena(tables, cache_bytes=2 * _ROW_CELLS * 64)
    for name in (b"a", b"b", b"c"):
        _open(arena, name, cache_key=b"cached " + name)
        grant = arena.open_stream(name, _stream(), arena.add_rows(name, 1))
        _take_all(tables, grant)
        arena.close_exchange(name)
        if name == b"b":
            assert arena.revive(b"cached a", b"a once more")
            arena.close_exchange(b"a once more")
    assert [arena.cache.has(b"cached " + name) for name in (b"a", b"b", b"c")] == [
        True,
        False,
        True,
    ]
    assert arena.cache.evictions == 1


def test_nothing_is_reused_before_the_taker_of_packets_lets_go() -> None:
    tables = _tables(cells=4)
    settled: list[bool] = []
    arena = TableArena(tables, cache_bytes=0, settle=lambda: settled.append(True))
    _open(arena, b"k")
    arena.add_rows(b"k", 2)
    arena.close_exchange(b"k")
    assert not settled
    _open(arena, b"again")
    arena.add_rows(b"again", 2)
    assert settled == [True]


@pytest.mark.parametrize(
    ("incoming", "handle", "message"),
    [
        (_stream(places=(0, 3)), 0, "expected 2 places from -1 to 2"),
        (_stream(places=(-2,)), 0, "expected 1 places from -1 to 2"),
        (_stream(), 1, "no block of rows 1"),
        (_stream(2), 0, "all 1 streams are open"),
    ],
)
def test_what_does_not_fit_an_exchange_is_named(
    incoming: IncomingStream, handle: int, message: str
) -> None:
    arena = TableArena(_tables(), cache_bytes=0)
    _open(arena, b"k")
    arena.add_rows(b"k", 3)
    if incoming.sender:
        arena.open_stream(b"k", _stream(1), 0)
    with pytest.raises(LocalProtocolError, match=message):
        arena.open_stream(b"k", incoming, handle)


def test_no_room_is_named_and_takes_nothing() -> None:
    tables = _tables(cells=16)
    arena = TableArena(tables, cache_bytes=0)
    _open(arena, b"k", streams=9)
    handle = arena.add_rows(b"k", 8)
    with pytest.raises(ChannelUnavailable, match="table of cells has no room for 2 more"):
        arena.add_rows(b"k", 1)
    with pytest.raises(ChannelUnavailable, match="table of slots has no room for 50 more"):
        arena.open_stream(b"k", _stream(places=(0,) * 50), handle)
    for sender in range(6):
        arena.open_stream(b"k", _stream(sender), handle)
    with pytest.raises(ChannelUnavailable, match="table of streams has no room for 1 more"):
        arena.open_stream(b"k", _stream(6), handle)
