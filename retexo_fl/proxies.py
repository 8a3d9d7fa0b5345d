"""Proxies that the environment names: which of them is in the way, and how to do without.

HTTP clients of this package and of Flower are httpx's, which obey ``HTTPS_PROXY``, ``HTTP_PROXY``,
``ALL_PROXY`` and ``NO_PROXY``, in capitals or not.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import httpx

from retexo_fl.errors import ConfigurationError

#: What httpx raises for a proxy that it cannot use.
_UNUSABLE: Final = (ImportError, ValueError, httpx.InvalidURL)
_NAMES: Final = ("http_proxy", "https_proxy", "all_proxy")


def http_client(**options: Any) -> httpx.Client:
    """Return ``httpx.Client(**options)``, as Flower makes one.

    Raises:
        ConfigurationError: The environment names a proxy that it cannot use.
    """
    try:
        return httpx.Client(**options)
    except _UNUSABLE as error:
        raise ConfigurationError(_unusable(os.environ) or f"proxy: {error}") from error


def variable_for(scheme: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the variable that names the proxy of a URL's scheme; empty: the system names it."""
    for wanted in (f"{scheme}_proxy", "all_proxy"):
        if name := _spelled(wanted, environment):
            return name
    return ""


def without_proxy(host: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return what to set, as a shell takes it, for a host to be reached without a proxy."""
    name = _name_of_exceptions(environment)
    hosts = ",".join(filter(None, (environment.get(name), host)))
    return f"{name}={shlex.quote(hosts)}"


def place_of(proxy: str) -> str:
    """Return a proxy without user and password, or as much of its text as is no secret."""
    with suppress(httpx.InvalidURL):
        url = httpx.URL(proxy if "://" in proxy else f"http://{proxy}")
        return str(url.copy_with(username=None, password=None))
    return proxy.rpartition("@")[2]


def unusable_variables(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables that name proxies which httpx cannot use here."""
    found = []
    for wanted in _NAMES:
        name = _spelled(wanted, environment)
        if name:
            proxy = environment[name]
            try:
                httpx.Client(proxy=proxy if "://" in proxy else f"http://{proxy}").close()
            except _UNUSABLE:
                found.append(name)
    return tuple(found)


def _unusable(environment: Mapping[str, str]) -> str:
    """Say which variable is in the way; it is in every host's, whatever NO_PROXY says of one."""
    names = unusable_variables(environment)
    if not names:
        return ""
    proxy = place_of(environment[names[0]])
    more = ""
    if proxy.startswith("socks"):
        more = ", or pip install 'httpx[socks]' to go through it"
    return (
        f"{names[0]}: names {proxy}, a proxy that cannot be used here; set "
        f"{_name_of_exceptions(environment)}='*', which is for all hosts (one host does not help), "
        f"or unset {names[0]}{more}"
    )


def _name_of_exceptions(environment: Mapping[str, str]) -> str:
    # Small letters win.
    return "no_proxy" if "no_proxy" in environment else "NO_PROXY"


def _spelled(name: str, environment: Mapping[str, str]) -> str:
    """Return a variable as it is spelled where it is set; small letters win."""
    if name in environment:
        return name if environment[name] else ""
    return name.upper() if environment.get(name.upper()) else ""
