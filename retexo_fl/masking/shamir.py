"""Shamir's sharing of 16-byte secrets: any ``threshold`` shares tell them, fewer tell nothing.

Over the field of 2**255 - 19 elements. Source: Shamir, How to share a secret, CACM 1979.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from retexo_fl.errors import RemoteProtocolError

_FIELD: Final = 2**255 - 19
SECRET_BYTES: Final = 16
SHARE_BYTES: Final = 32
#: Of noise for each share that does not suffice; more than an element has, so that all are equally
#: likely.
NOISE_BYTES: Final = 48


def split(secret: bytes, threshold: int, places: int, noise: bytes) -> list[bytes]:
    """Return one share of 32 bytes for each of the places 1 to ``places``.

    Args:
        secret: 16 bytes.
        threshold: So many shares tell it.
        places: How many there are.
        noise: (threshold - 1) times 48 bytes, secret and used for nothing else.
    """
    assert len(secret) == SECRET_BYTES
    assert 1 <= threshold <= places
    assert len(noise) == (threshold - 1) * NOISE_BYTES
    terms = [int.from_bytes(secret, "little")]
    terms += [
        int.from_bytes(noise[at : at + NOISE_BYTES], "little") % _FIELD
        for at in range(0, len(noise), NOISE_BYTES)
    ]
    return [_value(terms, place).to_bytes(SHARE_BYTES, "little") for place in range(1, places + 1)]


class Joiner:
    """Joins shares of the same places, of as many secrets as there are.

    Args:
        places: From 1, each once; at least the threshold.
    """

    def __init__(self, places: Sequence[int]) -> None:
        assert len({*places}) == len(places)
        self._weights = [_weight(place, places) for place in places]

    def join(self, shares: Sequence[bytes]) -> bytes:
        """Return the secret of 16 bytes.

        Args:
            shares: By place, in their order.

        Raises:
            RemoteProtocolError: They are not shares of one secret.
        """
        terms = zip(self._weights, shares, strict=True)
        value = sum(w * int.from_bytes(share, "little") for w, share in terms) % _FIELD
        if value >> 8 * SECRET_BYTES:
            raise RemoteProtocolError("shares of a mask do not fit together")
        return value.to_bytes(SECRET_BYTES, "little")


def _value(terms: Sequence[int], place: int) -> int:
    value = 0
    for term in reversed(terms):
        value = (value * place + term) % _FIELD
    return value


def _weight(place: int, places: Sequence[int]) -> int:
    """Return Lagrange's coefficient of a place, for the value at 0."""
    top = low = 1
    for other in places:
        if other != place:
            top, low = top * other % _FIELD, low * (other - place) % _FIELD
    return top * pow(low, -1, _FIELD) % _FIELD
