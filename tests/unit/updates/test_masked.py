"""Updates as whole numbers: their steps follow where they grow or shrink by much."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.updates import UpdateKey
from retexo_fl.updates.digest import array_digest
from retexo_fl.updates.masked import MaskedUpdates

SIZE = 600


def rounds(bits: int, clients: int, scales: list[float]) -> list[tuple[int, float]]:
    """Return of each round how many values were cut, and the sum's largest error.

    The error is in parts of what one client's values are, 1 on average.
    """
    codec, drawn = MaskedUpdates(update_bits=bits), np.random.default_rng(0)
    updates = drawn.normal(size=(clients, SIZE))
    steps = codec.first_steps(SIZE, most_train=100, terms=clients)
    found = []
    for number, scale in enumerate(scales, start=1):
        total = np.zeros(0, np.int64)
        for client, update in enumerate(updates):
            key = UpdateKey(seed=0, job="job", stage=0, round=number, client=client)
            coded = codec.encode_update(scale * update, key, steps)
            total = coded if not client else total + coded
        decoded = codec.decode_update(total, key, steps)
        measured = codec.measure(decoded, total)
        error = float(np.abs(decoded - scale * updates.sum(axis=0)).max()) / scale
        found.append((int(measured[-1]), error))
        steps = codec.steps(measured, steps)
    return found


@pytest.mark.parametrize("bits", [32, 8, 4, 2, 1])
@pytest.mark.parametrize("clients", [4, 10, 65])
def test_a_thousandfold_update_is_cut_once(bits: int, clients: int) -> None:
    found = rounds(bits, clients, [1, 1, 1000, 1000, 1000])
    cut = [count for count, _ in found]
    assert cut[:2] == [0, 0]
    # All that is larger than what was seen is cut; with 32 bits there was room to spare.
    assert cut[2] > (0.3 if bits == 32 else 0.98) * clients * SIZE
    assert cut[3:] == [0, 0]
    # Then it is as well resolved as before it grew.
    assert found[4][1] <= 1.5 * found[1][1]


@pytest.mark.parametrize("clients", [3, 100])
@pytest.mark.parametrize("nodes", [0, 1, 5000])
def test_the_first_grid_reaches_the_largest_update_and_not_much_further(
    clients: int, nodes: int
) -> None:
    """Of a node 16, as the documents say; a step is a power of two."""
    codec = MaskedUpdates(update_bits=8)
    key = UpdateKey(seed=0, job="job", stage=0, round=1, client=0)
    steps = codec.first_steps(SIZE, most_train=nodes, terms=clients)
    largest = 16.0 * max(nodes, 1)
    assert codec.encode_update(np.full(SIZE, largest), key, steps)[-1] == 0
    assert codec.encode_update(np.full(SIZE, 2.001 * largest), key, steps)[-1] == SIZE


@pytest.mark.parametrize(("bits", "share"), [(32, 0.0), (8, 0.01), (1, 0.01)])
def test_a_hundredth_of_few_bits_may_be_cut(bits: int, share: float) -> None:
    assert MaskedUpdates(update_bits=bits).cut_share == share


@pytest.mark.parametrize("steps", [b"", b"\x20\0\0\0", b"\x10\3\0\0\0", b"\x20\0\0\0\0"])
def test_what_are_no_steps_is_refused(steps: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="^steps"):
        MaskedUpdates.shared(steps)
    MaskedUpdates.shared(b"\x20" + (2**20).to_bytes(4, "little"))
    with pytest.raises(RemoteProtocolError, match="steps are of 32 bits and 1048577 clients"):
        MaskedUpdates.shared(b"\x20" + (2**20 + 1).to_bytes(4, "little"))


def test_steps_of_another_number_of_values_are_refused() -> None:
    codec = MaskedUpdates()
    key = UpdateKey(seed=0, job="job", stage=0, round=1, client=4)
    steps = codec.first_steps(256, most_train=1, terms=3)
    with pytest.raises(RemoteProtocolError, match="got 1 steps for 257 values"):
        codec.encode_update(np.zeros(257), key, steps)
    for numbers in (1, 259):
        with pytest.raises(RemoteProtocolError, match=f"a masked update has {numbers} numbers"):
            codec.decode_update(np.zeros(numbers, np.int64), key, steps)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_cut_to_zero_and_counted(value: float) -> None:
    codec = MaskedUpdates()
    key = UpdateKey(seed=0, job="job", stage=0, round=1, client=4)
    steps = codec.first_steps(256, most_train=1, terms=3)
    update = np.ones(256)
    clear = codec.encode_update(update, key, steps)
    numbers = codec.encode_update(np.where(np.arange(256) == 7, value, update), key, steps)
    assert numbers[7] == 0
    assert np.array_equal(np.delete(numbers[:256], 7), np.delete(clear[:256], 7))
    assert numbers[-1] == 1


@pytest.mark.parametrize(("clients", "later"), [(10, 3), (1000, 3)])
def test_steps_shrink_with_updates(clients: int, later: int) -> None:
    found = rounds(8, clients, [1000, 1000, 1, 1, 1, 1])
    assert found[2 + later][1] <= 1.5 * found[1][1]


@pytest.mark.parametrize("clients", [3, 1000, 2**20])
def test_powers_of_all_clients_add_up_within_64_bits(clients: int) -> None:
    """Each tells the largest one: the sum must not wrap around."""
    codec = MaskedUpdates(update_bits=8)
    key = UpdateKey(seed=0, job="job", stage=0, round=2, client=0)
    first = codec.first_steps(SIZE, most_train=1, terms=clients)
    steps = codec.steps(np.array([1e9, 1e9, 1e9, 0.0]), first)
    coded = codec.encode_update(np.full(SIZE, 1e30), key, steps)
    assert 0 < int(coded[SIZE]) * clients < 2**63
    shared, _ = codec.shared(steps)
    grown = codec.steps(np.array([float(int(c) * clients) for c in coded[SIZE:]]), steps)
    assert (codec.shared(grown)[0].grid.reach(grown[5:]) >= 2 * shared.grid.reach(steps[5:])).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1, 256, 70_000])
def test_numbers_are_those_of_float64_also_where_they_are_cut(dtype: str, size: int) -> None:
    """Float32 scaled by powers of two; the bound of ten clients is none of its numbers."""
    codec, drawn = MaskedUpdates(), np.random.default_rng(3)
    steps = codec.first_steps(size, most_train=2, terms=10)
    shared, exponents = codec.shared(steps)
    reach = shared.grid.reach(exponents)[0]
    update = reach * drawn.normal(size=size).astype(dtype) * 10.0 ** -drawn.integers(0, 12, size)
    update[0] = reach * (1 + 1e-9)
    key = UpdateKey(seed=0, job="job", stage=0, round=1, client=0)
    coded = codec.encode_update(update.astype(dtype), key, steps)
    scaled = update.astype(dtype).astype(np.float64) * shared.grid.most / reach
    most = shared.grid.most
    assert coded[:size].tolist() == np.clip(np.rint(scaled), -most, most).astype(np.int64).tolist()
    assert coded[-1] == (np.abs(scaled) > most).sum() > 0


def test_a_digest_is_of_the_bytes_that_are_there() -> None:
    """What was hashed last is not hashed again; other bytes, or another part of them, are."""

    def plain(weights: np.ndarray) -> bytes:
        return hashlib.sha256(str(weights.dtype).encode() + weights.tobytes()).digest()

    content = np.arange(64, dtype=np.float32).tobytes()
    whole = np.frombuffer(content, np.float32)
    own = whole.copy()
    for weights in (whole, whole[:32], whole[32:], whole[::2], whole.view(np.int32), own, whole):
        assert array_digest(weights) == plain(weights)
        behind = hashlib.sha256(b"before" + str(weights.dtype).encode() + weights.tobytes())
        assert array_digest(weights, b"before") == behind.digest() != array_digest(weights)
    assert array_digest(np.frombuffer(bytes(256), np.float32)) == plain(0 * whole)
    for mutable in (own, np.frombuffer(bytearray(content), np.float32)):
        assert array_digest(mutable) == plain(whole)
        mutable[3] = 7
        assert array_digest(mutable) == plain(mutable) != plain(whole)


def test_arrays_that_come_in_turn_are_hashed_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a round, clients that train and clients that only evaluate are asked in client order."""
    sent = [np.frombuffer(bytes([value]) * 256, np.float32) for value in (1, 2)]
    expected = [array_digest(weights.copy()) for weights in sent]
    hashed: list[bytes] = []
    sha256 = hashlib.sha256

    def noted(content: bytes) -> object:
        hashed.append(content)
        return sha256(content)

    monkeypatch.setattr(hashlib, "sha256", noted)
    for _ in range(5):
        assert [array_digest(weights) for weights in sent] == expected
    assert len(hashed) == len(sent)


@pytest.mark.parametrize("bits", [32, 8])
def test_blocks_of_which_nothing_is_read_are_zeros_also_in_the_next_rounds(bits: int) -> None:
    codec = MaskedUpdates(update_bits=bits)
    updates = np.random.default_rng(0).normal(size=(4, SIZE))
    steps = codec.first_steps(SIZE, most_train=100, terms=4)
    for number in (1, 2, 3):
        steps = codec.without(steps, np.array([0, 2]))
        key = UpdateKey(seed=0, job="job", stage=0, round=number, client=0)
        total = np.sum([codec.encode_update(update, key, steps) for update in updates], axis=0)
        decoded = codec.decode_update(total, key, steps)
        assert not decoded[:256].any()
        assert not decoded[512:].any()
        np.testing.assert_allclose(decoded[256:512], updates.sum(axis=0)[256:512], atol=0.3)
        measured = codec.measure(decoded, total)
        assert measured[-1] == 0
        steps = codec.steps(measured, steps)
