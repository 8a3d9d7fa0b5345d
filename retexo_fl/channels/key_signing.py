"""Signatures by the key of a client's certificate, which others find in their roster file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from retexo_fl.channels.identity import Identity, load_key, parse_certificate
from retexo_fl.channels.roster import Roster
from retexo_fl.errors import SecureAggregationRefused
from retexo_fl.masking.agreement import Agreement
from retexo_fl.masking.keys import Counters

_HALF_BYTES: Final = 32
_SCHEME: Final = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterSigner:
    """Implements :class:`.KeySigner` with ECDSA on P-256, r and s of 32 bytes each.

    Attributes:
        identity: This client's.
        roster: Returns the roster of the owner's file.
        agreement: See :class:`.KeySigner`; likewise ``brings`` and ``counters``.
        others: Remembers the counters of others, by client with the digests of their certificates,
            for a client.
    """

    identity: Identity
    roster: Callable[[], Roster]
    agreement: Callable[[], Agreement]
    brings: Callable[[], frozenset[str]]
    counters: Callable[[], Counters]
    others: Callable[[Mapping[int, tuple[bytes, Counters]], int], None]

    def sign(self, text: bytes) -> bytes:
        """See :class:`.KeySigner`."""
        return signature_of(self.identity, text)

    def check(self, signed: Mapping[int, tuple[bytes, bytes]]) -> None:
        """See :class:`.KeySigner`."""
        known = self.roster().members
        for client, (text, signature) in signed.items():
            if client == self.identity.client:
                self._check(client, self.identity.certificate_pem, text, signature)
            elif client in known:
                self._check(client, known[client].certificate_pem, text, signature)
            else:
                raise SecureAggregationRefused(
                    f"client {self.identity.client}: client {client} is not in the roster file; "
                    "expected all clients of a run there under secure-aggregation masked"
                )

    def remember(self, counters: Mapping[int, Counters]) -> None:
        """See :class:`.KeySigner`."""
        known, own = self.roster().members, self.identity.client
        told = {c: (known[c].digest, its) for c, its in counters.items() if c != own}
        self.others(told, own)

    def _check(self, client: int, pem: str, text: bytes, signature: bytes) -> None:
        if not is_signed(pem, text, signature):
            raise SecureAggregationRefused(
                f"client {self.identity.client}: the masking key of client {client} is not signed "
                "by the key that the roster file names"
            )


def signature_of(identity: Identity, text: bytes) -> bytes:
    """Return 64 bytes, r then s, by the key of a client.

    Raises:
        IdentityError: The key cannot be used.
    """
    r, s = decode_dss_signature(load_key(identity.key_path).sign(text, _SCHEME))
    return r.to_bytes(_HALF_BYTES, "big") + s.to_bytes(_HALF_BYTES, "big")


def is_signed(pem: str, text: bytes, signature: bytes) -> bool:
    """Return whether the key of a certificate signed a text.

    Raises:
        IdentityError: It is no certificate.
    """
    public = parse_certificate(pem, "certificate").public_key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    r, s = (
        int.from_bytes(half, "big") for half in (signature[:_HALF_BYTES], signature[_HALF_BYTES:])
    )
    try:
        public.verify(encode_dss_signature(r, s), text, _SCHEME)
    except InvalidSignature:
        return False
    return True
