"""A node's signature of its requests is Flower's, without the web server that Flower's loads."""

from __future__ import annotations

from base64 import b64decode
from datetime import datetime

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.client import ProtobufClientInterceptor, ProtobufRequestContext
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from retexo_fl.federation.node_signature import NodeSignature


def headers_of(interceptor: ProtobufClientInterceptor) -> dict[str, str]:
    request = httpx.Request("POST", "http://127.0.0.1/v1/fleet/pull-messages")
    context = ProtobufRequestContext(
        rpc_method="PullMessages", message=PullMessagesRequest(), request=request
    )
    before = set(request.headers)
    answered = interceptor.intercept(context, lambda _: httpx.Response(200))
    assert answered.status_code == 200
    return {name: request.headers[name] for name in set(request.headers) - before}


def test_requests_are_signed_as_flower_signs_them() -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    ours, flowers = (
        headers_of(one)
        for one in (NodeSignature(key), NodeAuthHttpInterceptor(key, key.public_key()))
    )
    assert ours.keys() == flowers.keys()
    assert ours[FLEET_HTTP_PUBLIC_KEY_HEADER] == flowers[FLEET_HTTP_PUBLIC_KEY_HEADER]
    for headers in (ours, flowers):
        moment = datetime.fromisoformat(headers[TIMESTAMP_HEADER])
        assert abs((datetime.now(moment.tzinfo) - moment).total_seconds()) < 60
        public_key = bytes_to_public_key(b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER]))
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER])
        assert verify_signature(public_key, headers[TIMESTAMP_HEADER].encode(), signature)
