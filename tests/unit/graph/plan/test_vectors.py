"""Rows and sums of rows: gathered, and gradients carried back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from retexo_fl.exchange import to_dense
from retexo_fl.graph import OutgoingVectors
from retexo_fl.graph.plan.vectors import IncomingVectors, PartialSums, PeerPlan, with_sums

NODES, WIDTH = 6, 3
MATRIX = np.arange(NODES * WIDTH, dtype=np.float64).reshape(NODES, WIDTH)


def send(rows: list[int], *sums: list[int]) -> OutgoingVectors:
    if not sums:
        return OutgoingVectors(rows=np.array(rows, dtype=np.int64))
    return OutgoingVectors(
        rows=np.array(rows, dtype=np.int64),
        sums=PartialSums(
            indptr=np.concatenate(([0], np.cumsum([len(members) for members in sums]))),
            members=np.array([member for members in sums for member in members]),
        ),
    )


MEMBERS = st.lists(st.integers(0, NODES - 1), min_size=1, unique=True).map(sorted)
SENDS = st.builds(
    lambda rows, sums: send(sorted(rows), *sums),
    st.sets(st.integers(0, NODES - 1)),
    st.lists(MEMBERS, max_size=4),
)


def operator(vectors: OutgoingVectors) -> np.ndarray:
    """Return the (s, n) matrix that makes the vectors."""
    return np.asarray(vectors.gather(np.eye(NODES)))


def test_gather_puts_rows_before_sums() -> None:
    vectors = send([4, 5], [0, 2], [1])
    assert vectors.count == 4
    found = vectors.gather(MATRIX)
    np.testing.assert_array_equal(found, [MATRIX[4], MATRIX[5], MATRIX[0] + MATRIX[2], MATRIX[1]])


@given(SENDS)
def test_gather_of_sparse_rows_equals_dense(vectors: OutgoingVectors) -> None:
    values = MATRIX.astype(np.float32) % 5 - 2
    found, dense = vectors.gather(csr_array(values)), vectors.gather(values)
    assert isinstance(found, csr_array)
    assert found.dtype == dense.dtype == np.float32
    assert found.shape == dense.shape == (vectors.count, WIDTH)
    np.testing.assert_array_equal(found.toarray(), dense)
    # What the codecs expect of CSR blocks.
    assert found.data.all()
    assert all(
        (np.diff(found.indices[a:b]) > 0).all()
        for a, b in zip(found.indptr[:-1], found.indptr[1:], strict=True)
    )


def test_gather_leaves_out_what_cancels() -> None:
    values = csr_array(np.array([[1.0, 2.0], [-1.0, 3.0]]))
    sums = PartialSums(indptr=np.array([0, 2]), members=np.array([0, 1]))
    vectors = OutgoingVectors(rows=np.zeros(0, dtype=np.int64), sums=sums)
    found = vectors.gather(values)
    assert isinstance(found, csr_array)
    assert (found.indices.tolist(), found.data.tolist()) == ([1], [5.0])


@given(st.lists(SENDS, min_size=1, max_size=4), st.booleans())
def test_what_all_peers_get_is_what_each_does(sends: list[OutgoingVectors], sparse: bool) -> None:
    values = (MATRIX.astype(np.float32) % 5 - 2) / 3
    values[values == 0] = -0.0
    matrix = csr_array(values) if sparse else values
    peers = [
        PeerPlan(
            peer=2 * place,
            num_edges=1,
            digest=b"",
            send=vectors,
            receive=IncomingVectors(slots=np.zeros(0, np.int64)),
        )
        for place, vectors in enumerate(sends)
    ]
    stacked, places = with_sums(matrix, peers)
    assert isinstance(stacked, csr_array) == sparse
    for peer, where in places.items():
        found, expected = stacked[where], sends[peer // 2].gather(matrix)
        assert to_dense(found).tobytes() == to_dense(expected).tobytes()


@given(SENDS)
def test_spread_is_the_transpose_of_gather(vectors: OutgoingVectors) -> None:
    gradients = np.arange(vectors.count * WIDTH, dtype=np.float64).reshape(-1, WIDTH)
    into = MATRIX.copy()
    vectors.spread(gradients, into)
    np.testing.assert_array_equal(into, MATRIX + operator(vectors).T @ gradients)


def test_spread_keeps_the_dtype() -> None:
    into = np.zeros((NODES, WIDTH), dtype=np.float32)
    send([1], [1, 2]).spread(np.ones((2, WIDTH), dtype=np.float32), into)
    assert into[:3, 0].tolist() == [0.0, 2.0, 1.0]
