"""A Ray cluster that is there: which one a simulation is to run on, and whether it answers."""

from __future__ import annotations

import os
import socket
from typing import Final

from retexo_fl.errors import ConfigurationError
from retexo_fl.server_address import ServerAddress, host_and_port

VARIABLE: Final = "RAY_ADDRESS"
#: Of Ray's own words for an address: a cluster of one's own.
_OWN: Final = "local"
#: For a connection, and then for an answer to it.
_PATIENCE_S: Final = 5.0
#: In protobuf: that the server as a whole is serving.
_SERVING: Final = b"\x08\x01"


def ray_address_of(given: str | None, engine: str) -> str:
    """Return where the Ray cluster of a simulation is; empty for one of its own.

    Args:
        given: ``HOST:PORT``; None for what ``RAY_ADDRESS`` says, if anything. With an engine
            that has no Ray the variable is of no concern.
        engine: Of the run.

    Raises:
        ConfigurationError: It is not of that form, or was given for another engine.
    """
    if given is not None and engine != "flower":
        raise ConfigurationError(
            f"ray-address: got engine {engine}; expected engine flower with it"
        )
    name, text = "ray-address", given
    if text is None:
        name, text = VARIABLE, os.environ.get(VARIABLE, "")
        if engine != "flower" or text in {"", _OWN}:
            return ""
    host, port = host_and_port(text, name)
    return str(ServerAddress(host=host, port=port))


def check_answers(address: str) -> None:
    """Find that a cluster answers, which Flower would not say before a minute.

    Args:
        address: From :func:`ray_address_of`.

    Raises:
        ConfigurationError: Nothing answers there, or something else than Ray.
    """
    host, port = host_and_port(address, "ray-address")
    expected = "expected the HOST:PORT that `ray start` says on the head node"
    try:
        socket.create_connection((host, port), timeout=_PATIENCE_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigurationError(
            f"ray-address: nothing answers at {address} ({reason}); {expected}"
        ) from error
    # With certificates of its own it says who it is to Ray alone.
    if os.environ.get("RAY_USE_TLS", "0") in {"0", ""} and not _serves(address):
        raise ConfigurationError(
            f"ray-address: what answers at {address} is no Ray cluster; {expected}"
        )


def _serves(address: str) -> bool:
    """Ask by gRPC's health checks, which the head of a cluster answers."""
    import grpc

    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            return bool(check(b"", timeout=_PATIENCE_S, wait_for_ready=True) == _SERVING)
        except grpc.RpcError as error:
            # A cluster that wants a token refuses, and so is there.
            refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
            return error.code() in refused
