"""Damage: bytes changed, cut, repeated, moved, and numbers and words put in their place."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

#: Numbers at which comparisons turn and sizes run over, as texts and as bytes put them.
_NUMBERS: Final = (0, 1, 2, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63)
_TEXTS: Final = (
    *(b"-1", b"1e400", b"-0.0", b"NaN", b"Infinity", b"null", b"true", b"[]", b"{}", b'""', b"''"),
    *(b"9" * 30, b"9" * 400, b"9" * 5000, b"[" * 3000, b'{"":' * 1500, b"\\ud800", b"\xff\xfe"),
    *(b"\x00", b"\n", b"\r\n", b",", b'"', b"=", b"[[a]]", b"0x10", b"1_000", b"\xef\xbb\xbf"),
    *(str(number).encode() for number in _NUMBERS),
)
_DIGITS: Final = re.compile(rb"\d+")
#: Bytes of one repeated piece, so that what is made stays small.
_MOST_REPEATED: Final = 2000

#: In the place of a value of JSON or TOML.
_ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**53, 2**63, 10**30, 10**400, -0.5, 1.5, 1e308),
    *(float("nan"), float("inf"), "", "x", "9" * 50, "\ud800", "a\nb", "=", [], [[]], [1, 2, 3]),
    *([None], ["x"], {}, {"": 1}, {"a": []}),
)

Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(rng: random.Random, seeds: Sequence[bytes], words: Sequence[bytes] = ()) -> bytes:
    """Return one of ``seeds`` with one to four changes.

    Args:
        rng: Decides everything.
        seeds: Inputs that are in order.
        words: What the format at hand knows, to be put in beside texts for all formats.
    """
    data = bytearray(seeds[int(rng.random() * len(seeds))])
    if words and rng.random() < 0.2:
        _put(rng, data, words)
    for _ in range(1 + int(rng.random() ** 3 * 4)):
        _CHANGES[int(rng.random() * len(_CHANGES))](rng, data, seeds)
    return bytes(data)


def with_odd_value(rng: random.Random, value: Any) -> Any:
    """Return a value of JSON or TOML with one thing in it changed, left out or added."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.05:
        return copy.deepcopy(_ODD[int(rng.random() * len(_ODD))])
    places = list(value) if isinstance(value, dict) else range(len(value))
    place = places[int(rng.random() * len(places))]
    made = copy.copy(value)
    chance = rng.random()
    if chance < 0.08:
        del made[place]
    elif chance < 0.12 and isinstance(made, dict):
        made[f"{place}x"] = made[place]
    else:
        made[place] = with_odd_value(rng, made[place])
    return made


def _at(rng: random.Random, data: bytearray) -> int:
    return int(rng.random() * len(data))


def _bit(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    if data:
        data[_at(rng, data)] ^= 1 << int(rng.random() * 8)


def _byte(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    if data:
        data[_at(rng, data)] = int(rng.random() * 256)


def _number(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    """Overwrite 1, 2, 4 or 8 bytes with a number, little-endian or big."""
    size = 1 << int(rng.random() * 4)
    number = _NUMBERS[int(rng.random() * len(_NUMBERS))] % 256**size
    begin = _at(rng, data)
    data[begin : begin + size] = number.to_bytes(size, "little" if rng.random() < 0.7 else "big")


def _cut_off(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    del data[_at(rng, data) :]


def _cut_out(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    begin = _at(rng, data)
    del data[begin : begin + 1 + int(rng.random() ** 3 * 100)]


def _repeat(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    begin = _at(rng, data)
    piece = data[begin : begin + 1 + int(rng.random() ** 2 * 64)]
    times = 1 + int(rng.random() ** 4 * _MOST_REPEATED) // max(1, len(piece))
    data[begin:begin] = piece * times


def _splice(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = seeds[int(rng.random() * len(seeds))]
    begin = int(rng.random() * len(other))
    at = _at(rng, data)
    piece = other[begin : begin + 1 + int(rng.random() * 200)]
    data[at : at + int(rng.random() * len(piece))] = piece


def _swap(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    one, two, size = _at(rng, data), _at(rng, data), 1 + int(rng.random() * 16)
    first, second = bytes(data[one : one + size]), bytes(data[two : two + size])
    data[one : one + len(second)] = second
    data[two : two + len(first)] = first


def _text(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    _put(rng, data, _TEXTS)


def _digits(rng: random.Random, data: bytearray, _seeds: Sequence[bytes]) -> None:
    """Put another text in the place of a number that is written in digits."""
    found = _DIGITS.search(data, _at(rng, data))
    if found is not None:
        data[found.start() : found.end()] = _TEXTS[int(rng.random() * len(_TEXTS))]


def _put(rng: random.Random, data: bytearray, texts: Sequence[bytes]) -> None:
    begin = _at(rng, data)
    text = texts[int(rng.random() * len(texts))]
    data[begin : begin + int(rng.random() * 2) * len(text)] = text


_CHANGES: Final[tuple[Change, ...]] = (
    *(_bit, _byte, _number, _number, _cut_off, _cut_out),
    *(_repeat, _splice, _swap, _text, _digits, _digits),
)
