"""What a client sends under masks, worked out from the page of the protocol.

With HMAC, X25519 and ChaCha20 alone: nothing of ``retexo_fl.masking``
computes what is expected.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from retexo_fl.masking.keys import Label
from retexo_fl.masking.ring import Ring
from tests.support.masked_sums import MaskedClients, sums_of

NARROW, WIDE, COUNTS = 11, 3, 2
SECRET_BYTES = 16


def eight(number: int) -> bytes:
    return number.to_bytes(8, "little")


def keyed(secret: bytes, what: bytes, *pieces: bytes) -> bytes:
    return hmac.new(secret, what + b"\0" + b"".join(pieces), hashlib.sha256).digest()


def pair_secret(clients: MaskedClients, client: int, other: int) -> bytes:
    private = X25519PrivateKey.from_private_bytes(clients.secrets[client].private)
    own, partner = private.public_key().public_bytes_raw(), clients.publics.by_client[other]
    agreed = private.exchange(X25519PublicKey.from_public_bytes(partner))
    return keyed(agreed, b"retexo masking pair 1", *sorted((own, partner)))


def label_digest(label: Label, client_keys: Sequence[bytes]) -> bytes:
    """Bind everything that decides the sum."""
    keys = hashlib.sha256(b"retexo masking keys 1")
    for client, key in enumerate(client_keys):
        keys.update(eight(client) + key)
    name = f"{label.purpose} {label.attempt}/{label.stage}/{label.round}"
    said = hashlib.sha256(b"retexo masked sum 3")
    for piece in (
        label.job.encode(),
        label.config,
        name.encode(),
        label.agreement,
        b"".join(map(eight, label.cohort)),
        " ".join(sorted(label.uses)).encode(),
        keys.digest(),
        label.form,
        label.weights,
    ):
        said.update(eight(len(piece)) + piece)
    return said.digest()


def mask(seed: bytes, bits: int) -> list[np.ndarray]:
    """Return a mask's numbers of 64 bits, of a ring in 32, and its counts in 32."""
    key = hashlib.sha256(b"retexo mask 1" + seed).digest()
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None)
    stream = cipher.encryptor().update(bytes(8 * WIDE + 4 * NARROW + 4 * COUNTS))
    return [
        np.frombuffer(stream, "<u8", WIDE).astype(object),
        np.frombuffer(stream, "<u4", NARROW, 8 * WIDE).astype(object) % 2**bits,
        np.frombuffer(stream, "<u4", COUNTS, 8 * WIDE + 4 * NARROW).astype(object) % 2**20,
    ]


@pytest.mark.parametrize(("count", "client"), [(3, 0), (5, 2), (5, 4), (65, 31)])
def test_a_client_sends_its_numbers_with_the_masks_of_the_protocol(count: int, client: int) -> None:
    clients, bits = MaskedClients(count), 17
    drawn = np.random.default_rng(count)
    numbers = sums_of(
        Ring(bits),
        drawn.integers(-(2**12), 2**12, NARROW),
        drawn.integers(-(2**40), 2**40, WIDE),
        drawn.integers(0, 9, COUNTS),
        Ring(20),
    )
    label = clients.label()
    digest = label_digest(label, [clients.publics.by_client[one] for one in range(count)])

    seeds = {}
    for other in {*range(count)} - {client}:
        secret = pair_secret(clients, client, other)
        # The other end has the same.
        assert secret == pair_secret(clients, other, client)
        seeds[other] = keyed(secret, b"mask", digest)[:SECRET_BYTES]
    expected = [
        numbers.wide.astype(object),
        numbers.narrow.astype(object),
        numbers.counts.astype(object),
    ]
    for other, seed in seeds.items():
        sign = -1 if other < client else 1
        expected = [one + sign * more for one, more in zip(expected, mask(seed, bits), strict=True)]

    hidden = clients.holders[client].hide(label, numbers)
    sent = (hidden.wide, hidden.narrow, hidden.counts)
    for found, wanted, modulus in zip(sent, expected, (2**64, 2**bits, 2**20), strict=True):
        assert found.tolist() == (wanted % modulus).tolist()
