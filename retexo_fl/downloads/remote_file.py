"""What a file of the internet is known by, and how long getting it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Called with how many bytes have come and how many are announced (None: not known).
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file that is known by its content.

    Attributes:
        name: Its name, without folders.
        url: Where it is.
        sha256: 64 hexadecimal digits; None where none has been published.
        size_bytes: Its size; None where that has not been published.
    """

    name: str
    url: str
    sha256: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long and how much a download may take. Chosen; not tuned.

    Attributes:
        connect_s: For a connection, its TLS handshake included.
        silence_s: Until the next bytes.
        total_s: For one file, all attempts together.
        redirects: Hops to other addresses.
        retries: Further attempts after a connection that failed or broke.
        pause_s: Before the first retry; twice that before the second.
        most_bytes: For a file whose size is not known.
    """

    connect_s: float = 15.0
    silence_s: float = 30.0
    total_s: float = 900.0
    redirects: int = 5
    retries: int = 2
    pause_s: float = 1.0
    most_bytes: int = 2**25
