"""The aggregate program and `take_packets` on the same packets at random: they never differ."""

from __future__ import annotations

import itertools

import numpy as np

from retexo_fl.additions.kernel_path.packets.layout import SKIP
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from tests.support.aggregate_twin import OpenStream, Twins, places, with_forms
from tests.support.fuzzed_packets import fuzzed_packets
from tests.support.kernel import require_bpf

_PACKETS = 10_000
#: After so many both begin anew: else nearly all good packets are duplicates.
_ROUND = 500
_CELLS = 512


def _open_streams(twins: Twins, generator: np.random.Generator) -> list[OpenStream]:
    """Open streams of awkward shapes; two of them make up an exchange."""
    twins.reset()
    shapes = (
        (StreamShape(37, 64, 22), 0),
        (StreamShape(90, 5, 22), 0),
        (StreamShape(11, 257, 7), 1),
        (StreamShape(530, 16, 1), 1),
        (StreamShape(37, 60, 86, in_bytes=True), 0),
        (StreamShape(150, 5, 7, in_bytes=True), 1),
    )
    streams = []
    for number, (shape, region) in enumerate(shapes):
        rows = generator.choice(
            places((_CELLS - 20) // shape.row_cells, shape.row_cells), shape.rows
        )
        rows[generator.random(shape.rows) < 0.1] = SKIP
        rows = with_forms(generator, rows) if shape.in_bytes else rows
        streams.append(
            twins.open_stream(number, shape, rows, region=region, atomic=number % 2 == 1)
        )
    twins.expect(int(generator.integers(1, 6)), region=0)
    twins.expect(int(generator.integers(1, 40)), region=1)
    return streams


def run_against_each_other(packets: int, seed: int) -> dict[str, int]:
    """Give so many packets to both; return what they counted."""
    generator = np.random.default_rng(seed)
    with Twins(cells=_CELLS, streams=6) as twins:
        for start in range(0, packets, _ROUND):
            fuzzed = fuzzed_packets(generator, _open_streams(twins, generator))
            for index, packet in enumerate(itertools.islice(fuzzed, min(_ROUND, packets - start))):
                twins.take(packet)
                if index % 25 == 0:
                    twins.check_tables()
            twins.check_tables()
        return twins.counted()


def test_program_and_twin_agree_on_packets_at_random() -> None:
    require_bpf()
    counted = run_against_each_other(_PACKETS, seed=5)
    # What was drawn reaches every way through both.
    assert set(counted) == {
        "passed",
        "data_new",
        "data_duplicate",
        "malformed",
        "bad_checksum",
        "foreign",
        "acks_sent",
        "pings",
        "events",
        "user_acks",
    }
    assert min(counted[name] for name in ("data_new", "malformed", "foreign", "acks_sent")) > 500
