"""Where a SuperLink is: HOST:PORT, or a URL of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from retexo_fl.errors import ConfigurationError

_MAX_PORT: Final = 65_535
_MOST_SHOWN: Final = 60
#: Schemes of a server's address, and whether they mean TLS; all Flower APIs have one port.
_TLS_BY_SCHEME: Final = {"": None, "grpc": None, "http": False, "https": True, "grpcs": True}
_NOT_IN_HOSTS: Final = frozenset("[]/@?# ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a SuperLink is.

    Attributes:
        host: A name, an IPv4 or an IPv6 address, without brackets.
        port: Of TCP.
        tls: What the scheme of a URL says of it; None where none was given.
    """

    host: str
    port: int
    tls: bool | None = None

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Read HOST:PORT, or a URL of it as people have it from elsewhere.

        Raises:
            ConfigurationError: It is neither; ``name`` is that of the key or option.
        """
        scheme, colon, rest = text.partition("://")
        if not colon:
            scheme, rest = "", text
        if scheme.lower() not in _TLS_BY_SCHEME:
            raise ConfigurationError(
                f"{name}: got {text[:_MOST_SHOWN]!r}; expected HOST:PORT, or https://HOST:PORT"
            )
        host, port = host_and_port(rest.removesuffix("/"), name)
        return cls(host=host, port=port, tls=_TLS_BY_SCHEME[scheme.lower()])

    def __str__(self) -> str:
        """Write it as HOST:PORT."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def host_and_port(text: str, name: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 address is in brackets.

    Raises:
        ConfigurationError: It is not of that form.
    """
    host, _, port = text.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    is_bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_bracketed else host
    if ":" in bare and not is_bracketed:
        raise ConfigurationError(
            f"{name}: got {text[:_MOST_SHOWN]!r}; expected an IPv6 address in brackets, "
            "[ADDRESS]:PORT"
        )
    has_host = bare and (not is_bracketed or ":" in bare) and not set(bare) & _NOT_IN_HOSTS
    if not has_host or not is_number or not 0 < int(port) <= _MAX_PORT:
        raise ConfigurationError(f"{name}: got {text[:_MOST_SHOWN]!r}; expected HOST:PORT")
    return bare, int(port)
