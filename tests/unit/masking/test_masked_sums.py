"""Sums under masks: what they come to, for every set of clients that may vanish."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from retexo_fl.errors import RemoteProtocolError, SecureAggregationRefused
from retexo_fl.masking.holder import MaskHolder, MaskMemory, sealed_bytes
from retexo_fl.masking.keys import PublicKeys, SecretKeys
from retexo_fl.masking.ring import Ring
from retexo_fl.masking.shamir import SHARE_BYTES
from retexo_fl.masking.step import SharedStep
from retexo_fl.masking.streams import Form, Sums, key_stream, long_words
from retexo_fl.masking.unmasking import unmask
from tests.support.masked_sums import (
    MaskedClients,
    added,
    lists,
    plain_sum,
    random_numbers,
)


def subsets(of: range | tuple[int, ...], least: int) -> Iterator[tuple[int, ...]]:
    for size in range(least, len(of) + 1):
        yield from combinations(of, size)


@pytest.mark.parametrize("count", [3, 4, 10, 70])
def test_pairwise_masks_cancel_where_all_answer(count: int) -> None:
    clients, numbers = MaskedClients(count), random_numbers(count)
    sent = clients.hide(clients.label(opens=False), numbers)
    assert all(not hidden.shares for hidden in sent.values())
    assert lists(added(sent, range(count))) == plain_sum(numbers, range(count))


def test_the_first_words_are_one_number_whose_sum_carries() -> None:
    """Words that were added one by one would tell the server how often they overflow."""
    clients, rng = MaskedClients(5), np.random.default_rng(3)
    long, most = 3, 1 << 64 * 3
    given = [int.from_bytes(rng.bytes(24), "little") for _ in range(5)]
    numbers = []
    for number in given:
        wide = np.concatenate([long_words(number, long).view(np.int64), [1, -2]])
        numbers.append(Sums.of(Ring(9), np.arange(4), wide, np.arange(2), Ring(7), long=long))
    for number, included in enumerate((range(5), range(1, 5))):
        label = clients.label(opens=number > 0, round_number=number)
        sent = clients.hide(label, numbers)
        found = clients.opened(label, sent, included) if number else added(sent, included)
        assert found.long == sum(given[client] for client in included) % most
        narrow, wide = found.signed()
        assert wide[long:].tolist() == [len(included), -2 * len(included)]
        assert narrow.tolist() == [n * len(included) for n in range(4)]
        # What is sent is none of the client's words.
        assert sent[2].sums.long != given[2]


@pytest.mark.parametrize("count", [4, 5, 6])
def test_every_set_of_clients_and_of_openers_gives_the_sum(count: int) -> None:
    clients, numbers = MaskedClients(count), random_numbers(count, narrow=7, wide=2)
    tried = 0
    for number, included in enumerate(subsets(range(count), 3), start=1):
        label = clients.label(round_number=number)
        sent = clients.hide(label, numbers)
        expected = plain_sum(numbers, included)
        for openers in subsets(label.openers, label.threshold):
            assert lists(clients.opened(label, sent, included, openers)) == expected
            tried += 1
    assert tried > 4 * count


@pytest.mark.parametrize(
    ("count", "narrow"), [(100, 40), pytest.param(1000, 3, marks=pytest.mark.system)]
)
def test_masks_of_neighbours_on_a_ring_come_off(count: int, narrow: int) -> None:
    clients, numbers = MaskedClients(count), random_numbers(count, narrow=narrow, bits=17)
    label = clients.label()
    assert all(len(label.neighbours(client)) == 64 for client in range(count))
    assert all(
        client in label.neighbours(other) for client in (0, 7) for other in label.neighbours(client)
    )
    assert len(label.openers) == 15
    sent = clients.hide(label, numbers)
    included = [client for client in range(count) if client % 10]
    assert lists(clients.opened(label, sent, included)) == plain_sum(numbers, included)


def test_fewer_openers_than_the_threshold_open_nothing() -> None:
    clients, numbers = MaskedClients(6), random_numbers(6)
    label = clients.label()
    sent = clients.hide(label, numbers)
    told = {
        opener: clients.holders[opener].open(
            label, range(5), {c: sent[c].shares[opener] for c in range(5)}
        )
        for opener in range(label.threshold - 1)
    }
    with pytest.raises(AssertionError):
        unmask(label, added(sent, range(5)), range(5), told)
    # An opener that guesses does not help either: shares do not fit, or give another sum.
    told[5] = bytes(len(told[0]))
    with pytest.raises(RemoteProtocolError, match="do not fit together"):
        unmask(label, added(sent, range(5)), range(5), told)


@pytest.mark.parametrize("at", [0, 8, 31])
def test_an_opener_that_tells_another_share_is_named(at: int) -> None:
    """A change of the lowest bit of a share changes the seed by little."""
    clients, numbers = MaskedClients(7), random_numbers(7)
    label = clients.label()
    sent = clients.hide(label, numbers)
    told = {
        opener: clients.holders[opener].open(
            label, range(6), {c: sent[c].shares[opener] for c in range(6)}
        )
        for opener in label.openers
    }
    lie = bytearray(told[4])
    lie[64 + at] ^= 1
    told[4] = bytes(lie)
    with pytest.raises(
        RemoteProtocolError, match="client 4: told a share of client 1's masks that does not fit"
    ):
        unmask(label, added(sent, range(6)), range(6), told)
    # One of six, where five are needed: that is seen, but not whose it is.
    del told[6]
    with pytest.raises(
        RemoteProtocolError,
        match="client 1: shares of a mask do not fit together, as clients 0, 1, 2, 3, 4, 5 told",
    ):
        unmask(label, added(sent, range(6)), range(6), told)
    # Without it all is well.
    told[6] = clients.holders[6].open(label, range(6), {c: sent[c].shares[6] for c in range(6)})
    del told[4]
    total = added(sent, range(6))
    unmask(label, total, range(6), told)
    assert lists(total) == plain_sum(numbers, range(6))


def test_shares_of_two_masks_differ_by_nothing_that_their_seeds_tell() -> None:
    """Each seed of each label has noise of its own; else shares differ as the seeds do."""
    clients, numbers = MaskedClients(4), random_numbers(4)
    told: list[dict[int, bytes]] = []
    for label in (clients.label(), clients.label(round_number=2)):
        sent = clients.hide(label, numbers)
        shares = {o: {c: sent[c].shares[o] for c in range(3)} for o in label.openers}
        told.append({o: clients.holders[o].open(label, range(3), shares[o]) for o in shares})
    # Of client 0 the mask of its own and that with client 3, which is missing, in both rounds.
    seeds = [(which, place) for which in told for place in (0, SHARE_BYTES)]
    for (one, at), (other, place) in combinations(seeds, 2):
        differences = {
            (
                int.from_bytes(one[opener][at : at + SHARE_BYTES], "little")
                - int.from_bytes(other[opener][place : place + SHARE_BYTES], "little")
            )
            % (2**255 - 19)
            for opener in range(4)
        }
        assert len(differences) == 4


def test_a_share_too_few_from_an_opener_is_named() -> None:
    clients, numbers = MaskedClients(3), random_numbers(3)
    label = clients.label()
    sent = clients.hide(label, numbers)
    told = {
        opener: clients.holders[opener].open(
            label, range(3), {c: sent[c].shares[opener] for c in range(3)}
        )
        for opener in range(3)
    }
    told[1] = told[1][:-1]
    with pytest.raises(RemoteProtocolError, match="client 1: told 95 bytes of shares; expected 96"):
        unmask(label, added(sent, range(3)), range(3), told)


def test_the_same_question_gets_the_same_numbers() -> None:
    clients, numbers = MaskedClients(4), random_numbers(4)
    label = clients.label()
    first, again = (clients.holders[2].hide(label, numbers[2]) for _ in range(2))
    assert lists(first.sums) == lists(again.sums)


@pytest.mark.parametrize(
    "other",
    [
        {"weights": b"v" * 32},
        {"asked": (0, 1, 2)},
        {"form": b"another"},
        {"opens": False},
        {"round_number": 0},
    ],
)
def test_a_second_label_at_a_place_is_refused(other: dict[str, object]) -> None:
    clients, numbers = MaskedClients(4), random_numbers(4)
    clients.holders[2].hide(clients.label(), numbers[2])
    with pytest.raises(SecureAggregationRefused, match="this or a later sum was answered"):
        clients.holders[2].hide(clients.label(**other), numbers[2])  # type: ignore[arg-type]


def test_other_numbers_under_one_label_are_refused_also_after_a_restart() -> None:
    clients, numbers = MaskedClients(4), random_numbers(4)
    clients.holders[2].hide(clients.label(), numbers[2])
    restarted = MaskHolder(2, clients.secrets[2], clients.publics, memory=clients.memories[2])
    with pytest.raises(SecureAggregationRefused, match="was answered for other weights"):
        restarted.hide(clients.label(), numbers[1])
    assert restarted.hide(clients.label(), numbers[2])


def test_a_second_set_is_never_opened_whatever_the_trial() -> None:
    clients, numbers = MaskedClients(5), random_numbers(5)
    label = clients.label()
    sent = clients.hide(label, numbers)
    clients.opened(label, sent, (0, 1, 2, 3))
    with pytest.raises(SecureAggregationRefused, match="a sum over other clients was opened"):
        clients.opened(label, sent, (0, 1, 2))
    again = clients.label(trial=1)
    sent = clients.hide(again, numbers)
    with pytest.raises(SecureAggregationRefused, match="a sum over other clients was opened"):
        clients.opened(again, sent, (0, 1, 2, 3, 4))
    assert lists(clients.opened(again, sent, (0, 1, 2, 3))) == plain_sum(numbers, range(4))


def test_split_views_reach_no_threshold() -> None:
    """A server that shows openers two sets gets too few shares for either, or for one only."""
    clients, numbers = MaskedClients(6), random_numbers(6)
    label = clients.label()
    sent = clients.hide(label, numbers)
    told: dict[tuple[int, ...], list[int]] = {(0, 1, 2, 3): [], (0, 1, 2, 4): []}
    for opener in label.openers:
        for included, openers in told.items():
            shares = {c: sent[c].shares[opener] for c in included}
            try:
                clients.holders[opener].open(label, included, shares)
            except SecureAggregationRefused:
                continue
            openers.append(opener)
    assert sum(len(openers) >= label.threshold for openers in told.values()) == 1


@pytest.mark.parametrize(
    ("included", "sentence"),
    [
        ((0, 1), "open a sum of 2 clients; expected 3 at least"),
        ((0, 1, 1, 2), "not a set"),
        ((2, 1, 0), "not a set"),
        ((0, 1, 2, 9), "not a set"),
    ],
)
def test_what_is_no_set_to_open_is_refused(included: tuple[int, ...], sentence: str) -> None:
    clients, numbers = MaskedClients(4), random_numbers(4)
    label = clients.label()
    sent = clients.hide(label, numbers)
    shares = {c: sent[min(c, 3)].shares[0] for c in included}
    with pytest.raises(SecureAggregationRefused, match=sentence):
        clients.holders[0].open(label, included, shares)


def test_an_owner_may_ask_for_more_clients() -> None:
    clients, numbers = MaskedClients(4, least_clients=5), random_numbers(4)
    with pytest.raises(SecureAggregationRefused, match="a sum of 4 clients; expected 5 at least"):
        clients.holders[0].hide(clients.label(), numbers[0])


def test_a_sum_that_was_opened_is_not_opened_for_other_weights() -> None:
    """Clients that work for the server would seal their shares again."""
    clients, numbers = MaskedClients(5), random_numbers(5)
    label, other = clients.label(), clients.label(weights=b"v" * 32)
    clients.opened(label, clients.hide(label, numbers), (0, 1, 2))
    colluding = [
        MaskHolder(client, clients.secrets[client], clients.publics, memory=MaskMemory())
        for client in range(3)
    ]
    shares = {c: colluding[c].hide(other, numbers[c]).shares[4] for c in range(3)}
    with pytest.raises(SecureAggregationRefused, match="a second one would tell the difference"):
        clients.holders[4].open(other, (0, 1, 2), shares)


@pytest.mark.parametrize(
    ("asked", "openers", "threshold"),
    [(3, 3, 3), (4, 4, 3), (5, 5, 4), (6, 6, 5), (9, 9, 7), (15, 15, 11), (16, 15, 11)],
)
def test_more_than_two_thirds_of_the_openers_open(asked: int, openers: int, threshold: int) -> None:
    label = MaskedClients(3).label(asked=range(asked))
    assert (len(label.openers), label.threshold) == (openers, threshold)


def test_a_label_binds_every_word_of_it() -> None:
    clients = MaskedClients(4)
    label = clients.label()
    place = label.place
    others = [
        replace(label, keys=b"other"),
        replace(label, form=b"other"),
        replace(label, weights=b"other"),
        replace(label, job="other"),
        replace(label, asked=(0, 1, 2)),
        replace(label, opens=False),
        replace(label, place=replace(place, attempt=7)),
        replace(label, place=replace(place, stage=7)),
        replace(label, place=replace(place, round=7)),
        replace(label, place=replace(place, trial=7)),
        replace(label, place=replace(place, purpose="evaluate")),
        # Where one word ends and the next begins is bound, too.
        replace(label, form=label.form + label.weights[:1], weights=label.weights[1:]),
    ]
    assert len({each.digest for each in (label, *others)}) == len(others) + 1
    # The same keys, the last of another client.
    keys = [*clients.publics.by_client.values()]
    renamed = PublicKeys(by_client=dict(zip((0, 1, 2, 4), keys, strict=True)))
    assert renamed.digest != clients.publics.digest


def test_among_whom_does_not_change_where_nobody_may_be_missing() -> None:
    """The sum of a later round without one client would differ by its numbers."""
    clients, numbers = MaskedClients(5), random_numbers(5)
    clients.holders[2].hide(clients.label(opens=False), numbers[2])
    fewer = clients.label(opens=False, round_number=2, asked=(0, 1, 2, 3))
    with pytest.raises(SecureAggregationRefused, match="other clients are asked than before"):
        clients.holders[2].hide(fewer, numbers[2])
    restarted = MaskHolder(2, clients.secrets[2], clients.publics, memory=clients.memories[2])
    with pytest.raises(SecureAggregationRefused, match="other clients are asked than before"):
        restarted.hide(fewer, numbers[2])
    assert restarted.hide(clients.label(opens=False, round_number=2), numbers[2])
    # Where clients may drop out, who is asked may differ: openers tell of one set only.
    assert restarted.hide(clients.label(round_number=3, asked=(0, 1, 2, 3)), numbers[2])


@pytest.mark.parametrize("asked", [(0, 1), (1, 2, 3), (0, 0, 1), (2, 1, 0), (0, 1, 9)])
def test_who_is_asked_must_be_clients_with_keys_the_client_among_them(
    asked: tuple[int, ...],
) -> None:
    clients, numbers = MaskedClients(4), random_numbers(4)
    with pytest.raises(SecureAggregationRefused):
        clients.holders[0].hide(clients.label(asked=asked), numbers[0])


def test_shares_of_another_round_or_client_are_refused() -> None:
    clients, numbers = MaskedClients(4), random_numbers(4)
    label, later = clients.label(), clients.label(round_number=2)
    sent, of_later = clients.hide(label, numbers), clients.hide(later, numbers)
    shares = {c: sent[c].shares[0] for c in range(4)}
    # The last one client 0 has sealed itself, for client 2: the other direction has another key.
    for wrong in (
        *(of_later[2].shares[0], sent[1].shares[0], sent[2].shares[1], b"short"),
        sent[0].shares[2],
    ):
        with pytest.raises(SecureAggregationRefused, match="shares of client 2 were not sealed"):
            clients.holders[0].open(label, range(4), shares | {2: wrong})


def test_another_key_than_its_own_is_refused() -> None:
    secrets, other = SecretKeys.draw(), SecretKeys.draw()
    publics = PublicKeys(by_client={0: other.public, 1: other.public, 2: other.public})
    with pytest.raises(SecureAggregationRefused, match="another masking key than the client's own"):
        MaskHolder(0, secrets, publics, memory=MaskMemory())


def test_a_label_of_other_keys_is_refused() -> None:
    clients, others, numbers = MaskedClients(4), MaskedClients(4), random_numbers(4)
    with pytest.raises(SecureAggregationRefused, match="other masking keys are named"):
        clients.holders[0].hide(others.label(), numbers[0])


def test_sealed_shares_have_their_size() -> None:
    clients, numbers = MaskedClients(5), random_numbers(5)
    hidden = clients.holders[0].hide(clients.label(), numbers[0])
    assert {len(shares) for shares in hidden.shares.values()} == {sealed_bytes(4)}


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
    key = hashlib.sha256(b"retexo mask 1" + seed).digest()
    stream = key_stream(key, 8 * form.wide + 2 * narrow + 4 * form.counts)
    begin = 8 * form.wide
    assert (masked.wide == np.frombuffer(stream, "<u8", form.wide)).all()
    assert (masked.narrow == np.frombuffer(stream, "<u2", narrow, begin) % 2**12).all()
    assert (masked.counts == np.frombuffer(stream, "<u4", 7, begin + 2 * narrow) % 2**20).all()
    masked.subtract_mask(seed)
    assert not any(numbers.any() for numbers in (masked.wide, masked.narrow, masked.counts))


def test_counts_are_masked_and_noted_as_other_numbers_are() -> None:
    clients, counts = MaskedClients(3), np.array([3, 0, 5])
    nothing = np.zeros(0, np.int64)
    numbers = [Sums.of(Ring(2), nothing, nothing, n * counts, Ring(8)) for n in range(3)]
    label = clients.label(opens=False)
    sent = clients.hide(label, numbers)
    assert added(sent, range(3)).signed_counts().tolist() == [9, 0, 15]
    assert all((sent[n].sums.counts != numbers[n].counts).any() for n in range(3))
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
        numbers = [Sums.of(Ring(32), np.full(2**16, value), np.zeros(8, np.int64))] * 3
        label = clients.label(opens=False, round_number=number)
        masked = clients.holders[0].hide(label, numbers[0]).sums.narrow.tobytes()
        counts = np.bincount(np.frombuffer(masked, np.uint8), minlength=256)
        expected = len(masked) / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < 255 + 6 * 22.6
        plain = np.bincount(np.frombuffer(numbers[0].narrow.tobytes(), np.uint8), minlength=256)
        assert float(((plain - expected) ** 2 / expected).sum()) > 10**6


def test_masks_of_two_rounds_share_nothing() -> None:
    clients, numbers = MaskedClients(3), random_numbers(3, bits=32, narrow=1000)
    first, second = (
        clients.holders[0].hide(clients.label(opens=False, round_number=r), numbers[0]).sums.narrow
        for r in (1, 2)
    )
    assert (first == second).sum() <= 2


def test_what_is_not_secret_does_not_give_a_mask() -> None:
    """A mask of two seeds is searched for among guesses: of public bytes, or cut to 12 bits."""
    clients = MaskedClients(3)
    numbers = [Sums.of(Ring(32), np.zeros(4, np.int64), np.zeros(1, np.int64))] * 3
    label = clients.label(opens=False)
    guesses = [label.digest[:16], clients.publics.digest[:16], clients.secrets[1].public[:16]]
    guesses += [n.to_bytes(16, "little") for n in range(2**12)]
    assert not _explained(clients.holders[0].hide(label, numbers[0]).sums, guesses)
    # The same search finds masks of seeds that are among the guesses.
    weak = numbers[0].form.zeros()
    weak.add_mask(guesses[7])
    weak.add_mask(guesses[4000])
    assert _explained(weak, guesses)


def _explained(masked: Sums, guesses: list[bytes]) -> bool:
    """Say whether the numbers are masks of two guessed seeds, added."""
    rows = []
    for seed in guesses:
        mask = masked.form.zeros()
        mask.add_mask(seed)
        rows.append(mask.narrow)
    known = {row.tobytes() for row in rows}
    return any((masked.narrow - row).astype(np.uint32).tobytes() in known for row in rows)
