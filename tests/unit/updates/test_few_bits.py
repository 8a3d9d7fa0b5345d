"""Updates as whole numbers: what they are on average, at most, and on the wire."""

from __future__ import annotations

import hashlib
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retexo_fl.errors import RemoteProtocolError, TrainingDiverged
from retexo_fl.updates import (
    FewBits,
    PlainUpdates,
    UpdateKey,
    WeightChanges,
    update_codec,
    weights_name,
)
from retexo_fl.updates.grid import BITS, BLOCK, Grid, block_rms
from tests.support.update_codec_contract import KEY, UpdateCodecContract

MOST = {8: 127, 4: 7, 2: 1, 1: 1}


class TestEightBits(UpdateCodecContract):
    codec, exact = FewBits(update_bits=8), False


class TestOneBit(UpdateCodecContract):
    codec, exact = FewBits(update_bits=1), False


class TestChanges(UpdateCodecContract):
    codec = PlainUpdates(weights=WeightChanges(4))


def step_of(codec: FewBits, update: np.ndarray) -> np.ndarray:
    exponents = np.frombuffer(codec.steps(codec.measure(update, update), b""), np.int8)
    return np.repeat(2.0 ** exponents.astype(float), BLOCK)[: len(update)]


@pytest.mark.parametrize("bits", BITS)
def test_the_mean_of_a_million_draws_is_the_update(bits: int) -> None:
    codec, update = FewBits(update_bits=bits), np.array([0.0, 0.3, -0.7, 1e-3, 0.01], np.float32)
    many = np.tile(update, 1000)
    steps = codec.steps(codec.measure(many, many), b"")
    total = np.zeros(5)
    for number in range(200):
        key = replace(KEY, round=number)
        coded = codec.encode_update(many, key, steps)
        total += codec.decode_update(coded, key, steps).reshape(-1, 5).sum(axis=0)
    step = step_of(codec, many)[0]
    # Of 200,000 draws each; six times the largest standard deviation of their mean.
    np.testing.assert_allclose(total / 200_000, update, atol=6 * step / np.sqrt(200_000))


@given(
    update=arrays(
        np.float32,
        st.integers(1, 3 * BLOCK),
        elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
    ),
    bits=st.sampled_from(BITS),
    client=st.integers(0, 5),
)
def test_errors_are_bounded_by_a_step(update: np.ndarray, bits: int, client: int) -> None:
    codec, key = FewBits(update_bits=bits), replace(KEY, client=client)
    steps = codec.steps(codec.measure(update, update), b"")
    found = codec.decode_update(codec.encode_update(update, key, steps), key, steps)
    assert np.isfinite(found).all()
    step = step_of(codec, update)
    within = np.abs(update) <= MOST[bits] * step
    error = np.abs(found.astype(float) - update)
    assert (error[within] <= (2 if bits == 1 else 1) * step[within]).all()
    # What a shared grid does not reach is cut at its end.
    assert (np.abs(found[~within]) == (MOST[bits] * step)[~within].astype(np.float32)).all()
    # Own steps reach everything.
    own = codec.decode_update(codec.encode_update(update, key, b""), key, b"")
    largest = np.abs(update).max(initial=0.0).astype(float) + 2.0**-93
    assert (np.abs(own.astype(float) - update) <= 4 * largest / MOST[bits]).all()


@pytest.mark.parametrize("bits", BITS)
def test_sums_are_exact_in_any_order(bits: int) -> None:
    codec, rng = FewBits(update_bits=bits), np.random.default_rng(0)
    updates = rng.normal(size=(20, 700)).astype(np.float32)
    steps = codec.steps(np.max([codec.measure(one, one) for one in updates], axis=0), b"")
    decoded = []
    for client, one in enumerate(updates):
        key = replace(KEY, client=client)
        decoded.append(codec.decode_update(codec.encode_update(one, key, steps), key, steps))
    forward = np.sum(decoded, axis=0, dtype=np.float32)
    other = np.zeros(700, np.float32)
    for place in rng.permutation(20):
        other += decoded[place]
    np.testing.assert_array_equal(forward, other)


@pytest.mark.parametrize(("bits", "most"), [(8, 1.0), (4, 0.5), (2, 0.25), (1, 0.125)])
def test_a_value_takes_no_more_bits_than_asked_for(bits: int, most: float) -> None:
    update = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    codec = FewBits(update_bits=bits)
    steps = codec.steps(codec.measure(update, update), b"")
    assert len(steps) == 40
    assert len(codec.encode_update(update, KEY, steps)) <= 10_000 * most + 8
    # In the first round with its steps; zeros take next to nothing.
    assert len(codec.encode_update(update, KEY, b"")) <= 10_000 * most + 8 + 40
    assert bits == 1 or len(codec.encode_update(0 * update, KEY, steps)) < 10_000 * most / 4


def test_blocks_have_steps_of_their_own_and_none_is_lost() -> None:
    codec = FewBits(update_bits=8)
    update = np.concatenate([np.full(BLOCK, 1e3), np.full(BLOCK, 50.0), np.zeros(3)])
    step = step_of(codec, update)
    assert step[0] > 10 * step[BLOCK]
    # What is zero in this round may be as large as a sixty-fourth of the others in the next.
    assert step[-1] * 127 > 500 / 64
    assert step_of(codec, np.zeros(5)).max() < 1e-29


def test_what_is_not_finite_is_refused_before_it_is_sent() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(TrainingDiverged, match="client 4: stage 1, round 2: .*learning-rate"):
            FewBits(update_bits=4).encode_update(np.array([1.0, value]), KEY, b"")


def test_codecs_by_their_bits() -> None:
    assert type(update_codec(update_bits=32, weight_bits=32)) is PlainUpdates
    assert not update_codec(update_bits=8, weight_bits=32).weights.sends_changes
    assert update_codec(update_bits=32, weight_bits=8).weights.sends_changes


# ---- what a client may send instead --------------------------------------------------------------

UPDATE = np.random.default_rng(1).normal(size=300).astype(np.float32)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_was_coded_last_is_decoded_as_its_bytes_are(bits: int, dtype: type) -> None:
    rng = np.random.default_rng(0)
    first: np.ndarray = rng.normal(size=3 * BLOCK + 5).astype(dtype)
    codec = Grid(bits)
    for steps in (b"", codec.steps(np.full(4, 0.7))):
        coded = codec.encode(first, "first", steps)
        at_once = codec.decode(coded, steps)
        others = {codec.encode(first, f"{n}", steps).tobytes() for n in range(130)}
        assert coded.tobytes() not in others
        later = codec.decode(coded, steps)
        assert (later.dtype, later.tobytes()) == (at_once.dtype, at_once.tobytes())


def refused(coded: bytes, told: str, *, bits: int = 8, steps: bytes = b"") -> None:
    with pytest.raises(RemoteProtocolError, match=told) as caught:
        FewBits(update_bits=bits).decode_update(np.frombuffer(coded, np.uint8), KEY, steps)
    assert "\n" not in str(caught.value)


def test_a_malformed_update_is_refused_by_name() -> None:
    good = FewBits(update_bits=8).encode_update(UPDATE, KEY, b"").tobytes()
    refused(b"", "0 bytes; expected a head")
    refused(b"\x02" + good[1:], "form 2.*expected form 1")
    refused(good, "8 bits.*expected form 1, 4 bits", bits=4)
    refused(good[:3] + b"\x08" + good[4:], "flags 8")
    refused(good, "flags 1", steps=b"\x00\x00")
    refused(good[:-20], "expected 300|ends before")
    refused(good + b"\x00", "301 bytes of numbers; expected 300")
    # Two steps, then numbers.
    beyond = good[:10] + b"\xff" + good[11:]
    refused(beyond, "numbers above 127")
    refused(good[:4] + (2**31).to_bytes(4, "little") + good[8:], "2147483648 values")


def test_steps_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="got 3 steps for 300 values; expected 2"):
        FewBits(update_bits=8).encode_update(UPDATE, KEY, b"\x00\x01\x02")


def test_a_bomb_takes_no_memory() -> None:
    codec = FewBits(update_bits=8)
    coded = bytearray(codec.encode_update(np.zeros(2_000_000, np.float32), KEY, b"").tobytes())
    assert len(coded) < 300_000
    coded[4:8] = (256).to_bytes(4, "little")
    refused(bytes(coded[:9] + coded[8 + 7813 :]), "257 bytes of numbers; expected 256")


@given(data=st.binary(max_size=80), bits=st.sampled_from(BITS))
def test_noise_is_refused_or_decoded(data: bytes, bits: int) -> None:
    codec = FewBits(update_bits=bits)
    with suppress(RemoteProtocolError):
        found = codec.decode_update(np.frombuffer(data, np.uint8), KEY, b"")
        assert np.isfinite(found).all()


@pytest.mark.parametrize("count", [1, 300, 2**13 - 3, 2**13 + 3, 2**14 + 3, 2**15 + 3])
def test_bytes_are_those_of_a_generator_of_the_key_and_of_a_whole_deflate(count: int) -> None:
    """What is made in less time is made to the same bytes, between other keys and lengths."""
    values = np.random.default_rng(count).normal(size=count).astype(np.float32)
    grid, keys = Grid(8), ("a", "b", "a")
    steps = grid.steps(block_rms(values))
    coded = [grid.encode(values, key, steps).tobytes() for key in keys]
    assert hash(coded[0]) == hash(coded[2])
    key = np.frombuffer(hashlib.blake2b(b"b", digest_size=16).digest(), "<u8")
    drawn = np.random.Generator(np.random.Philox(key=key.astype(np.uint64))).random(count)
    exponents = np.repeat(np.frombuffer(steps, np.int8).astype(float), BLOCK)[:count]
    numbers = np.floor(values / 2.0**exponents + drawn).clip(-127, 127).astype(int) + 127
    packed = numbers.astype(np.uint8).tobytes()
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    deflated = coder.compress(packed) + coder.flush()
    # Of long bytes no difference is looked for.
    is_same = coded[1][8:] == min(deflated, packed, key=len)
    assert is_same


def test_another_key_draws_anew() -> None:
    codec = FewBits(update_bits=4)
    others = (replace(KEY, seed=7), replace(KEY, stage=7), replace(KEY, round=7))
    keys = (KEY, *others, replace(KEY, client=7))
    coded = {codec.encode_update(UPDATE, key, b"").tobytes() for key in keys}
    assert len(coded) == 5
    same = UpdateKey(seed=3, job="job-of-a-resume", stage=1, round=2, client=4)
    assert codec.encode_update(UPDATE, same, b"").tobytes() in coded


# ---- weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", BITS)
def test_what_one_change_leaves_is_part_of_the_next(bits: int) -> None:
    codec, rng = WeightChanges(bits), np.random.default_rng(0)
    weights = rng.normal(size=700).astype(np.float32)
    held = None
    sizes, errors = [], []
    for _ in range(12):
        coded = codec.encode(weights, held)
        assert codec.changed(coded) == (b"" if held is None else weights_name(held))
        held = codec.decode(coded, held)
        sizes.append(coded.nbytes)
        errors.append(float(np.abs(held - weights).max()))
    assert sizes[0] == weights.nbytes
    # A name, a head, three steps, and the numbers.
    assert max(sizes[1:]) <= 8 + 8 + 3 + 700 * bits / 8 + 1
    assert errors[0] == 0
    # Weights that stay where they are are reached ever more closely.
    weights = weights + rng.normal(size=700).astype(np.float32)
    for _ in range(12, 40):
        coded = codec.encode(weights, held)
        held = codec.decode(coded, held)
        errors.append(float(np.abs(held - weights).max()))
    assert errors[-1] < 0.2 * errors[12]


def test_a_change_is_refused_where_it_does_not_fit() -> None:
    codec = WeightChanges(8)
    held = np.ones(300, np.float32)
    change = codec.encode(held + 1, held)
    with pytest.raises(RemoteProtocolError, match="got a change of weights; expected weights"):
        codec.decode(change, None)
    with pytest.raises(RemoteProtocolError, match=r"shape \(300,\); expected .* shape \(4,\)"):
        codec.decode(change, np.ones(4, np.float32))
    with pytest.raises(RemoteProtocolError, match="float32 .*expected float64"):
        codec.decode(change, np.ones(300))


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_blocks_of_which_nothing_is_read_are_zeros_and_take_little(bits: int) -> None:
    codec = FewBits(update_bits=bits)
    update = np.random.default_rng(0).normal(size=8 * BLOCK).astype(np.float32)
    steps = codec.steps(codec.measure(update, update), b"")
    blocks = np.array([0, 2, 3, 4, 5, 7])
    fewer = codec.without(steps, blocks)
    whole, coded = (codec.encode_update(update, KEY, told) for told in (steps, fewer))
    decoded = codec.decode_update(coded, KEY, fewer).reshape(8, BLOCK)
    np.testing.assert_array_equal(decoded.any(axis=1), ~np.isin(np.arange(8), blocks))
    # Of the others nothing changes.
    kept = codec.decode_update(whole, KEY, steps).reshape(8, BLOCK)
    np.testing.assert_array_equal(decoded[[1, 6]], kept[[1, 6]])
    # A quarter is left, in somewhat longer codes, and a bit for each byte of the rest.
    assert len(coded) < 0.45 * len(whole) + 6 * BLOCK * bits / 64


def test_where_zero_is_no_number_nothing_is_left_out() -> None:
    codec = FewBits(update_bits=1)
    assert codec.without(b"123", np.array([1])) == b"123"
    # In a first round senders have steps of their own.
    assert FewBits(update_bits=8).without(b"", np.array([1])) == b""
    assert PlainUpdates().without(b"", np.array([1])) == b""


def test_clients_of_a_process_decode_a_change_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    held = random.normal(size=3 * BLOCK).astype(np.float32)
    after = held + random.normal(size=3 * BLOCK).astype(np.float32)
    codec = WeightChanges(4)
    coded = codec.encode(after, held)
    expected = held + Grid(4).decode(coded[8:])
    decoded: list[int] = []
    decode = Grid.decode

    def counting(self: Grid, *given: Any) -> np.ndarray:
        decoded.append(1)
        return decode(self, *given)

    monkeypatch.setattr(Grid, "decode", counting)
    found = [WeightChanges(4).decode(coded.copy(), held.copy()) for _ in range(3)]
    assert len(decoded) == 1
    for weights in found:
        assert weights.tobytes() == expected.tobytes()
        assert weights is found[0]
        with pytest.raises(ValueError, match="read-only"):
            weights[0] = 0.0
    # By content: of other weights, or by another change, it is another array.
    assert (codec.decode(coded, held + 1) != expected).all()
    assert codec.decode(codec.encode(after + 1, held), held).tobytes() != expected.tobytes()
    assert codec.decode(coded, held).tobytes() == expected.tobytes()
