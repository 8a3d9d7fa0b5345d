"""Sums under masks: what they come to, and what of one client they do not tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retexo_fl.errors import RemoteProtocolError, SecureAggregationRefused
from retexo_fl.masking.holder import MaskHolder
from retexo_fl.masking.keys import PublicKeys, SecretKeys
from retexo_fl.masking.ring import Ring
from retexo_fl.masking.step import SharedStep
from retexo_fl.masking.streams import Form, Sums, key_stream, long_words
from tests.support.masked_sums import (
    MaskedClients,
    added,
    lists,
    plain_sum,
    random_numbers,
    sums_of,
)


@pytest.mark.parametrize("count", [3, 4, 10, 65])
def test_masks_cancel_where_all_answer_and_not_where_one_is_missing(count: int) -> None:
    clients, numbers = MaskedClients(count), random_numbers(count)
    sent = clients.hide(clients.label(), numbers)
    assert lists(added(sent)) == plain_sum(numbers, range(count))
    del sent[1]
    assert lists(added(sent))[1] != plain_sum(numbers, {*range(count)} - {1})[1]


def test_the_first_words_are_one_number_whose_sum_carries() -> None:
    """Words that were added one by one would tell the server how often they overflow."""
    clients, rng = MaskedClients(5), np.random.default_rng(3)
    long, most = 3, 1 << 64 * 3
    given = [int.from_bytes(rng.bytes(24), "little") for _ in range(5)]
    numbers = []
    for number in given:
        wide = np.concatenate([long_words(number, long).view(np.int64), [1, -2]])
        numbers.append(sums_of(Ring(9), np.arange(4), wide, np.arange(2), Ring(7), long=long))
    sent = clients.hide(clients.label(), numbers)
    found = added(sent)
    assert found.long == sum(given) % most
    narrow, wide, _ = found.signed()
    assert wide[long:].tolist() == [5, -10]
    assert narrow.tolist() == [5 * n for n in range(4)]
    # What is sent is none of the client's words.
    assert sent[2].long != given[2]


def test_the_same_question_gets_the_same_numbers() -> None:
    clients, numbers = MaskedClients(4), random_numbers(4)
    label = clients.label()
    first, again = (clients.holders[2].hide(label, numbers[2]) for _ in range(2))
    assert lists(first) == lists(again)


@pytest.mark.parametrize(
    "other",
    [
        {"weights": b"v" * 32},
        {"form": b"another"},
        {"round_number": 0},
    ],
)
def test_a_second_label_at_a_place_is_refused(other: dict[str, object]) -> None:
    clients, numbers = MaskedClients(4), random_numbers(4)
    clients.holders[2].hide(clients.label(), numbers[2])
    with pytest.raises(SecureAggregationRefused, match="this or a later sum was answered"):
        clients.holders[2].hide(clients.label(**other), numbers[2])  # type: ignore[arg-type]


def test_other_numbers_under_one_label_are_refused() -> None:
    clients, numbers = MaskedClients(4), random_numbers(4)
    holder = clients.holders[2]
    holder.hide(clients.label(), numbers[2])
    with pytest.raises(SecureAggregationRefused, match="was answered for other weights"):
        holder.hide(clients.label(), numbers[1])
    assert holder.hide(clients.label(), numbers[2])


def test_a_label_binds_every_word_of_it() -> None:
    clients = MaskedClients(4)
    label = clients.label()
    others = [
        replace(label, keys=b"other"),
        replace(label, form=b"other"),
        replace(label, weights=b"other"),
        replace(label, job="other"),
        replace(label, config=b"other"),
        replace(label, agreement=b"other"),
        replace(label, cohort=(0, 1, 2)),
        replace(label, uses=frozenset({"train"})),
        replace(label, attempt=7),
        replace(label, stage=7),
        replace(label, round=7),
        replace(label, purpose="evaluate"),
        # Where one word ends and the next begins is bound, too.
        replace(label, form=label.form + label.weights[:1], weights=label.weights[1:]),
    ]
    assert len({each.digest for each in (label, *others)}) == len(others) + 1
    # The same keys, the last of another client.
    keys = [*clients.publics.by_client.values()]
    renamed = PublicKeys(by_client=dict(zip((0, 1, 2, 4), keys, strict=True)))
    assert renamed.digest != clients.publics.digest


def test_another_key_than_its_own_is_refused() -> None:
    secrets, other = SecretKeys.draw(), SecretKeys.draw()
    publics = PublicKeys(by_client={0: other.public, 1: other.public, 2: other.public})
    with pytest.raises(SecureAggregationRefused, match="another masking key than the client's own"):
        MaskHolder(0, secrets, publics)


@pytest.mark.parametrize("bits", [2, 3, 8, 11, 12, 16, 17, 32, 33, 64])
def test_numbers_of_a_ring_pack_and_come_back(bits: int) -> None:
    ring, count = Ring(bits), 1001
    drawn = np.random.default_rng(bits).integers(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1) - 1, count)
    numbers = ring.wrapped(drawn)
    packed = ring.pack(numbers)
    assert len(packed) == ring.size(count)
    assert len(packed) <= -(-bits * count // 8) + 4
    assert (ring.unpack(packed, count) == numbers).all()
    assert (ring.signed(numbers) == drawn).all()
    with pytest.raises(RemoteProtocolError, match="masked numbers have"):
        ring.unpack(packed.tobytes() + b"x", count)


@pytest.mark.parametrize(
    ("most", "terms", "bits"),
    [(127, 10, 12), (127, 1000, 18), (1, 3, 3), (7, 5, 7), (2**27, 10, 32)],
)
def test_the_ring_is_the_smallest_that_holds_sums(most: int, terms: int, bits: int) -> None:
    ring = Ring.of_sums(most, terms)
    assert ring.bits == bits
    assert most * terms <= ring.most
    assert most * terms > Ring(bits - 1).most if bits > 2 else True


@pytest.mark.parametrize("narrow", [0, 3, 70_001])
def test_a_mask_is_one_key_stream_whatever_is_made_of_it_at_a_time(narrow: int) -> None:
    """Of numbers of three widths, the widest first, and more than are made at a time."""
    form = Form(ring=Ring(12), narrow=narrow, wide=20_001, counts=7, counter=Ring(20))
    masked, seed = form.zeros(), b"s" * 16
    masked.add_masks([seed])
    zeros = bytes(8 * form.wide + 2 * narrow + 4 * form.counts)
    stream = key_stream(b"retexo mask 1", seed).update(zeros)
    begin = 8 * form.wide
    assert (masked.wide == np.frombuffer(stream, "<u8", form.wide)).all()
    assert (masked.narrow == np.frombuffer(stream, "<u2", narrow, begin) % 2**12).all()
    assert (masked.counts == np.frombuffer(stream, "<u4", 7, begin + 2 * narrow) % 2**20).all()
    masked.add_masks([], [seed])
    assert not any(numbers.any() for numbers in (masked.wide, masked.narrow, masked.counts))


def test_counts_are_masked_and_noted_as_other_numbers_are() -> None:
    clients, counts = MaskedClients(3), np.array([3, 0, 5])
    nothing = np.zeros(0, np.int64)
    numbers = [sums_of(Ring(2), nothing, nothing, n * counts, Ring(8)) for n in range(3)]
    label = clients.label()
    sent = clients.hide(label, numbers)
    assert added(sent).signed()[2].tolist() == [9, 0, 15]
    assert all((sent[n].counts != numbers[n].counts).any() for n in range(3))
    with pytest.raises(SecureAggregationRefused, match="was answered for other weights"):
        clients.holders[2].hide(label, numbers[1])


@pytest.mark.parametrize("bits", [24, 32, 40])
@pytest.mark.parametrize("largest", [0.0, 1e-300, 0.9, 1.0, 3e7, -300.0])
def test_a_step_is_the_finest_that_holds_a_sum(bits: int, largest: float) -> None:
    if largest < 0:
        # It would fit if nothing were rounded.
        largest += 2.0 ** (bits - 1)
    step = SharedStep.of_sum(largest, terms=1000, bits=bits)
    assert SharedStep.read(step.told) == step
    # Each of a thousand is off by half a step at most.
    assert largest / step.unit + 500 <= step.ring.most
    assert 2 * largest / step.unit + 1000 > step.ring.most or step.exponent == -100


@pytest.mark.parametrize("told", [None, b"", b"\x20", b"\x01\x00", b"\x41\x00", b"\x20\x7f"])
def test_what_is_no_step_is_refused(told: bytes | None) -> None:
    with pytest.raises(RemoteProtocolError, match="step of masked sums"):
        SharedStep.read(told)


def test_masks_of_a_zero_and_of_a_large_update_look_alike() -> None:
    """Chi-square of the masked bytes: 255 degrees of freedom, mean 255, deviation 22.6."""
    clients = MaskedClients(3)
    for number, value in enumerate((0, 2**31 - 1), start=1):
        numbers = [sums_of(Ring(32), np.full(2**16, value), np.zeros(8, np.int64))] * 3
        label = clients.label(round_number=number)
        masked = clients.holders[0].hide(label, numbers[0]).narrow.tobytes()
        counts = np.bincount(np.frombuffer(masked, np.uint8), minlength=256)
        expected = len(masked) / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < 255 + 6 * 22.6
        plain = np.bincount(np.frombuffer(numbers[0].narrow.tobytes(), np.uint8), minlength=256)
        assert float(((plain - expected) ** 2 / expected).sum()) > 10**6


def test_masks_of_two_rounds_share_nothing() -> None:
    clients, numbers = MaskedClients(3), random_numbers(3, bits=32, narrow=1000)
    first, second = (
        clients.holders[0].hide(clients.label(round_number=r), numbers[0]).narrow for r in (1, 2)
    )
    assert (first == second).sum() <= 2


def test_what_is_not_secret_does_not_give_a_mask() -> None:
    """A mask of two seeds is searched for among guesses: of public bytes, or cut to 12 bits."""
    clients = MaskedClients(3)
    numbers = [sums_of(Ring(32), np.zeros(4, np.int64), np.zeros(1, np.int64))] * 3
    label = clients.label()
    guesses = [label.digest[:16], clients.publics.digest[:16], clients.secrets[1].public[:16]]
    guesses += [n.to_bytes(16, "little") for n in range(2**12)]
    assert not _explained(clients.holders[0].hide(label, numbers[0]), guesses)
    # The same search finds masks of seeds that are among the guesses.
    weak = numbers[0].form.zeros()
    weak.add_masks([guesses[7], guesses[4000]])
    assert _explained(weak, guesses)


def _explained(masked: Sums, guesses: list[bytes]) -> bool:
    """Say whether the numbers are masks of two guessed seeds, added."""
    rows = []
    for seed in guesses:
        mask = masked.form.zeros()
        mask.add_masks([seed])
        rows.append(mask.narrow)
    known = {row.tobytes() for row in rows}
    return any((masked.narrow - row).astype(np.uint32).tobytes() in known for row in rows)
