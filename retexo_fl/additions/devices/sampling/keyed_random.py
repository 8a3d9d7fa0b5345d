"""Random numbers keyed by what they are for, so that no order of calls and no process matters.

A key is a 64-bit state of splitmix64. Going down from a key by a number gives that number's output
of the generator as the next key: seed, epoch, batch, layer and node each take one step. What is
drawn at the end are the outputs of the last key's own stream.

Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), with
the constants of Stafford's variant 13.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from retexo_fl.additions.devices.sampling.compiled import compiled

_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)
_30: Final = np.uint64(30)
_27: Final = np.uint64(27)
_31: Final = np.uint64(31)
_11: Final = np.uint64(11)
_UNIT: Final = 2.0**-53


def keyed_state(purpose: str, *numbers: int) -> np.uint64:
    """Return the key of a purpose and numbers, such as seed, epoch, batch and layer.

    Args:
        purpose: A name; the numbers of two purposes are unrelated.
        numbers: At least 0, in this order.
    """
    digest = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
    state = np.uint64(int.from_bytes(digest, "little"))
    for number in numbers:
        state = np.uint64(below(state, number))
    return state


@compiled
def mixed(state: np.uint64) -> np.uint64:
    """Scramble 64 bits, one to one."""
    state = (state ^ (state >> _30)) * _FIRST
    state = (state ^ (state >> _27)) * _SECOND
    return state ^ (state >> _31)


@compiled
def advanced(state: np.uint64) -> np.uint64:
    """Step a stream on; ``mixed`` of the new state is its next output."""
    return state + _STEP


@compiled
def below(state: np.uint64, number: int) -> np.uint64:
    """Go down from a key by a number of at least 0."""
    return mixed(state + _STEP * (np.uint64(number) + np.uint64(1)))


@compiled
def unit(bits: np.uint64) -> float:
    """Turn 64 random bits into a multiple of 2^-53 in [0, 1)."""
    return float(bits >> _11) * _UNIT


@compiled
def bounded(bits: np.uint64, bound: int) -> int:
    """Turn 64 random bits into an integer in [0, bound), uniform to within 2^-53 times the bound.

    The product is rounded down where it is not exact, so that it never reaches the bound.
    """
    return int(unit(bits) * bound)
