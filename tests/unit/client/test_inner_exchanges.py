from __future__ import annotations

import numpy as np

from retexo_fl.client.inner_exchanges import fixed_outgoing, vectors_received
from retexo_fl.exchange import to_dense
from retexo_fl.training.rounds import InnerExchange

ONES = np.ones((2, 1), dtype=np.float32)


def exchange(*, is_exact: bool = False, shares: bool = True) -> InnerExchange:
    numbers = np.array([[2.0**30 + 1], [1.0]])
    return InnerExchange(
        label="backward-1",
        purpose="train",
        outgoing={3: numbers, 1: np.array([[0.1]])},
        expected={1: 2, 3: 2},
        width=1,
        targets={3: np.array([5, -1]), 1: np.array([0, 5])} if shares else None,
        is_exact=is_exact,
    )


def test_only_fixed_rounds_what_is_sent() -> None:
    asked = exchange()
    for codec in ("lossless", "dense"):
        assert fixed_outgoing(asked, codec) is None
    fixed = fixed_outgoing(asked, "fixed")
    assert fixed is not None
    # 31 bits on a grid of 2**7: halves go to even steps.
    assert to_dense(fixed.vectors[3]).tolist() == [[2.0**30], [0.0]]
    assert to_dense(fixed.vectors[1]).tolist() == [[0.0]]
    assert (fixed.exponent, fixed.integers(3).tolist()) == (-6, [[2**24], [0]])


def test_numbers_of_vectors_are_never_rounded() -> None:
    assert fixed_outgoing(exchange(is_exact=True), "fixed") is None


def test_only_fixed_adds_what_is_received() -> None:
    blocks = {3: ONES * 2, 1: ONES * 3}
    for codec in ("lossless", "dense"):
        assert vectors_received(exchange(), blocks, codec) is blocks
    assert vectors_received(exchange(shares=False), blocks, "fixed") is blocks
    found = vectors_received(exchange(), blocks, "fixed")
    assert {peer: rows.tolist() for peer, rows in found.items()} == {
        1: [[3.0], [5.0]],
        3: [[0.0], [2.0]],
    }
