from __future__ import annotations

import pytest

from retexo_fl.errors import ConfigurationError
from retexo_fl.proxies import (
    http_client,
    place_of,
    unusable_variables,
    variable_for,
    without_proxy,
)


@pytest.mark.parametrize(
    ("environment", "scheme", "name"),
    [
        ({}, "http", ""),
        ({"HTTPS_PROXY": "p:1", "ALL_PROXY": "q:1"}, "https", "HTTPS_PROXY"),
        ({"HTTPS_PROXY": "p:1", "ALL_PROXY": "q:1"}, "http", "ALL_PROXY"),
        ({"HTTP_PROXY": "p:1", "http_proxy": "q:1"}, "http", "http_proxy"),
        # Set to nothing it takes back the one in capitals.
        ({"HTTP_PROXY": "p:1", "http_proxy": "", "all_proxy": "q:1"}, "http", "all_proxy"),
    ],
)
def test_variable_is_the_one_that_httpx_obeys(
    environment: dict[str, str], scheme: str, name: str
) -> None:
    assert variable_for(scheme, environment) == name


@pytest.mark.parametrize(
    ("environment", "host", "setting"),
    [
        ({}, "vm", "NO_PROXY=vm"),
        ({"NO_PROXY": "a.example,b"}, "vm", "NO_PROXY=a.example,b,vm"),
        ({"NO_PROXY": "a", "no_proxy": "b"}, "vm", "no_proxy=b,vm"),
        ({}, "2001:db8::1", "NO_PROXY=2001:db8::1"),
        ({"NO_PROXY": "a b"}, "vm", "NO_PROXY='a b,vm'"),
    ],
)
def test_host_is_added_to_the_variable_that_counts(
    environment: dict[str, str], host: str, setting: str
) -> None:
    assert without_proxy(host, environment) == setting


def test_password_of_a_proxy_is_not_told() -> None:
    assert place_of("http://me:secret@proxy:3128") == "http://proxy:3128"
    assert place_of("me:secret@proxy:3128") == "http://proxy:3128"
    assert "secret" not in place_of("http://me:secret@[bad")


def test_proxies_that_cannot_be_used_are_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"HTTP_PROXY": "p:1", "HTTPS_PROXY": "ftp://p:1", "all_proxy": "socks5://u:x@p:9"}
    assert unusable_variables(environment) == ("HTTPS_PROXY", "all_proxy")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("ALL_PROXY", "socks5://u:x@p:9")
    # httpx makes the proxy's transport whoever is asked.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ConfigurationError, match=r"^ALL_PROXY: names socks5://p:9.*NO_PROXY='\*'"):
        http_client()
    monkeypatch.setenv("NO_PROXY", "*")
    http_client().close()
