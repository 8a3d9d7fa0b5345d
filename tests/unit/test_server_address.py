from __future__ import annotations

import pytest

from retexo_fl.errors import ConfigurationError
from retexo_fl.server_address import ServerAddress


@pytest.mark.parametrize(
    ("text", "host", "tls", "written"),
    [
        ("vm:8000", "vm", None, "vm:8000"),
        ("https://vm:8000", "vm", True, "vm:8000"),
        ("HTTPS://vm:8000/", "vm", True, "vm:8000"),
        ("grpcs://vm:8000", "vm", True, "vm:8000"),
        ("http://vm:8000", "vm", False, "vm:8000"),
        ("grpc://vm:8000", "vm", None, "vm:8000"),
        ("[2001:db8::1]:8000", "2001:db8::1", None, "[2001:db8::1]:8000"),
        ("https://[::1]:8000", "::1", True, "[::1]:8000"),
    ],
)
def test_address_is_read_as_people_have_it(
    text: str, host: str, tls: bool | None, written: str
) -> None:
    found = ServerAddress.parse(text, "superlink")
    assert (found.host, found.port, found.tls, str(found)) == (host, 8000, tls, written)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("vm", "expected HOST:PORT$"),
        ("https://vm", "expected HOST:PORT$"),
        ("https://vm:8000/path", "expected HOST:PORT$"),
        ("https://me@vm:8000", "expected HOST:PORT$"),
        ("[vm]:8000", "expected HOST:PORT$"),
        ("vm:0", "expected HOST:PORT$"),
        ("vm:65536", "expected HOST:PORT$"),
        ("ftp://vm:8000", "expected HOST:PORT, or https://HOST:PORT$"),
        ("::1:8000", r"expected an IPv6 address in brackets, \[ADDRESS\]:PORT$"),
        ("https://2001:db8::1:8000", "expected an IPv6 address in brackets"),
    ],
)
def test_what_is_no_address_is_refused_by_name(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^superlink: got '.*'; {sentence}"):
        ServerAddress.parse(text, "superlink")
