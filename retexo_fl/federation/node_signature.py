"""The headers by which a SuperLink knows a node: its public key, and the time, signed.

As Flower's ``NodeAuthHttpInterceptor`` makes them. The package of that one loads a web server, by
which an agent would take 13 MB more for as long as it runs.
"""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext


class NodeSignature:
    """An interceptor of Flower's client that signs each request.

    Args:
        key: The node's private key.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self._public_key = _text(public_key_to_bytes(key.public_key()))

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send a request with the headers of this moment."""
        time = now().isoformat()
        context.request.headers.update(
            {
                FLEET_HTTP_PUBLIC_KEY_HEADER: self._public_key,
                TIMESTAMP_HEADER: time,
                FLEET_HTTP_SIGNATURE_HEADER: _text(sign_message(self._key, time.encode())),
            }
        )
        return call_next(context)


def _text(value: bytes) -> str:
    return b64encode(value).decode("ascii")
