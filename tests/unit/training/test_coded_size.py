from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.exchange import Vectors, encode_block, fixed_vectors, to_csr, to_dense
from retexo_fl.graph import BoundaryPlan
from retexo_fl.training.coded_size import (
    RowSizes,
    all_sent_bytes,
    lossless_bytes,
    own_features,
    rounded_features,
    sent_bytes,
)
from tests.support.data import cora_dir
from tests.unit.exchange.blocks import any_vectors, header_of

FRAME = 2**20


def _bytes(rows: np.ndarray, frame_bytes: int = FRAME) -> int:
    sizes = {lossless_bytes(form, frame_bytes=frame_bytes) for form in (rows, to_csr(rows))}
    assert len(sizes) == 1
    return sizes.pop()


def _binary(rows: int, width: int, *columns: int) -> np.ndarray:
    block = np.zeros((rows, width), dtype=np.float32)
    block[:, list(columns)] = 1
    return block


def test_dense_rows_take_their_array() -> None:
    rows = np.arange(1, 61, dtype=np.float32).reshape(3, 20)
    assert _bytes(rows) == 3 * 20 * 4
    assert _bytes(rows.astype(np.float64)) == 3 * 20 * 8


def test_equal_values_take_bits() -> None:
    rows = _binary(5, 20, *range(10))
    assert _bytes(rows) == 5 * 3
    # One value for each of four rows; the fifth has none.
    scaled = rows * np.array([[2], [3], [1], [0], [5]], dtype=np.float32)
    assert _bytes(scaled) == 5 * 3 + 4 * 4


def test_rows_without_zeros_take_bits_and_a_value_that_is_not_one() -> None:
    assert _bytes(np.ones((3, 20), dtype=np.float32)) == 3 * 3
    assert _bytes(np.full((3, 20), 2, dtype=np.float32)) == 3 * 3 + 3 * 4


def test_few_ones_take_gaps() -> None:
    # A count a row; skipped: 3, 0, 0, then 993, which is 3 * 255 + 228.
    assert _bytes(_binary(2, 1000, 3, 4, 5, 999)) == 2 * (1 + 3 + (1 + 3))


def test_wide_rows_take_columns() -> None:
    # Gaps of 60,000 take 1 + 235 bytes, a column number two.
    assert _bytes(_binary(2, 65_536, 60_000)) == 2 * (1 + 2)
    assert _bytes(_binary(2, 65_537, 60_000)) == 2 * (1 + 4)


def test_different_values_take_one_each() -> None:
    rows = np.zeros((2, 100), dtype=np.float64)
    rows[0, 5], rows[0, 6], rows[1, 7] = 1, 2, 3
    assert _bytes(rows) == 2 + 3 + 3 * 8


def test_many_nonzeros_have_a_longer_count() -> None:
    # 510 of 10,000 next to each other: a count of 3 bytes, 509 gaps of 0, the first of 9,490.
    rows = _binary(1, 10_000, *range(9_490, 10_000))
    assert _bytes(rows) == 3 + 510 + 9_490 // 255


def test_each_frame_takes_its_own_coding() -> None:
    # 256 bytes hold 6 rows of 40 bytes; ones are bits, others are written out.
    rows = np.ones((12, 10), dtype=np.float32)
    rows[6:] = np.arange(1, 61, dtype=np.float32).reshape(6, 10)
    assert _bytes(rows, 256) == 6 * 2 + 6 * 40


def test_negative_zero_is_a_value() -> None:
    rows = np.zeros((1, 8), dtype=np.float32)
    rows[0, 0] = -0.0
    assert _bytes(rows) == 1 + 4


def test_no_vectors_take_nothing() -> None:
    assert _bytes(np.zeros((0, 7), dtype=np.float32)) == 0
    assert lossless_bytes(csr_array((0, 7), dtype=np.float64), frame_bytes=FRAME) == 0


@given(any_vectors())
def test_prediction_is_what_the_codec_writes(vectors: Vectors) -> None:
    limit = max(256, vectors.shape[1] * 8)
    block = encode_block(header_of(vectors), vectors, max_frame_bytes=limit)
    assert lossless_bytes(vectors, frame_bytes=limit) == block.traffic.payload_bytes


@given(any_vectors(), st.lists(st.lists(st.integers(0, 10**6)), max_size=4), st.booleans())
def test_blocks_of_some_rows_take_what_each_does_by_itself(
    vectors: Vectors, drawn: list[list[int]], fits: bool
) -> None:
    count, width = vectors.shape
    limit = 2**20 if fits else max(256, width * 8)
    blocks = [np.array(rows if count else [], np.int64) % max(1, count) for rows in drawn]
    expected = [lossless_bytes(vectors[rows], frame_bytes=limit) for rows in blocks]
    assert RowSizes.of(vectors).blocks_bytes(blocks, limit) == expected


@given(any_vectors(), any_vectors())
def test_rounding_is_that_of_fixed(one: Vectors, other: Vectors) -> None:
    assume(max(np.abs(to_dense(v)).max(initial=0.0) for v in (one, other)) < 2.0**127)
    expected = fixed_vectors({0: one, 1: other}).vectors
    for peer, found in enumerate(rounded_features([one, other])):
        assert isinstance(found, csr_array) == isinstance(expected[peer], csr_array)
        assert found.dtype == expected[peer].dtype
        assert to_dense(found).tobytes() == to_dense(expected[peer]).tobytes()


@pytest.mark.parametrize("kind", ["rows", "cover"])
@pytest.mark.parametrize("codec", ["dense", "lossless", "fixed", "fixed8"])
@pytest.mark.parametrize("dataset", ["cora", "synthetic:nodes=300,features=9"])
def test_what_is_sent_takes_the_bytes_of_the_rows_as_the_layer_scales_them(
    kind: str, codec: str, dataset: str
) -> None:
    keys = {"dataset": dataset, "data-dir": str(cora_dir()), "clients": 3}
    part = make_parts(make_config(keys))[1]
    plan = BoundaryPlan.from_partition(part, kind)
    features = to_dense(part.features).astype(np.float32)
    for model, factors in (("sage", 1.0), ("gcn", 1 / np.sqrt(part.degrees + 1.0))):
        how: dict[str, Any] = {**{"model": model, "normalisation": "none", "dtype": "float32"}}
        scaled = features * np.broadcast_to(factors, part.num_inner).astype(np.float32)[:, None]
        np.testing.assert_array_equal(to_dense(own_features(part, **how)), scaled)
        gathered = [peer.send.gather(scaled) for peer in plan.peers]
        is_grid = codec == "fixed8" and dataset != "cora"
        if codec.startswith("fixed"):
            bits = 8 if codec == "fixed8" else 24
            fixed = fixed_vectors(dict(enumerate(gathered)), bits)
            assert fixed.bits == (8 if is_grid else 24)
            gathered = [to_dense(rounded) for rounded in fixed.vectors.values()]
        expected = [
            rows.nbytes
            if codec == "dense"
            else 2 * len(range(0, len(rows), FRAME // rows[:1].nbytes)) + rows.size + len(rows)
            if is_grid
            else lossless_bytes(rows, frame_bytes=FRAME)
            for rows in gathered
        ]
        assert sent_bytes(part, plan, **how, codec=codec, frame_bytes=FRAME) == expected


@pytest.mark.parametrize("codec", ["dense", "lossless", "fixed", "fixed8"])
def test_parts_that_are_looked_at_together_send_what_each_sends(codec: str) -> None:
    sparse = "synthetic:nodes=6000,edges=15000,features=300,classes=7,words=5"
    parts = make_parts(make_config({"dataset": sparse, "clients": 60}))
    # They are more than one group, of which one is ended by dense rows beside sparse ones.
    assert isinstance(parts[3].features, csr_array)
    dense = replace(parts[3], features=to_dense(parts[3].features))
    parts = [*parts[:3], dense, *parts[4:]]
    plans = [BoundaryPlan.from_partition(part, "cover") for part in parts]
    how: dict[str, Any] = {"model": "sage", "normalisation": "none", "dtype": "float32"}
    how |= {"codec": codec, "frame_bytes": FRAME}
    alone = [sent_bytes(part, plan, **how) for part, plan in zip(parts, plans, strict=True)]
    assert list(all_sent_bytes(parts, plans, **how)) == alone
    assert sum(map(len, alone)) > 60
