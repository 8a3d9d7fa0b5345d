"""Transports of an agent's owner: named in its settings, imported once, refused by name."""

from __future__ import annotations

import pytest

from retexo_fl.agent.settings import AgentSettings
from retexo_fl.agent.transports import own_transports
from retexo_fl.channels.addresses import check_address, scheme_of, source_of
from retexo_fl.channels.transports.tcp import TcpTransport
from retexo_fl.errors import ConfigurationError, IdentityError, PluginError


class Half:
    """Connects, and cannot listen."""

    async def connect(self, address: str, peer: int) -> None:
        raise NotImplementedError


def settings(*transports: str, listen: tuple[str, ...] = ()) -> AgentSettings:
    places = dict.fromkeys(("partition", "state", "socket", "key", "certificate", "roster"), "x")
    return AgentSettings(**places, transports=transports, listen=listen)  # type: ignore[arg-type]


def test_a_transport_is_made_for_its_scheme() -> None:
    made = own_transports(
        settings("x-wire=retexo_fl.channels.transports.tcp:TcpTransport", listen=("x-wire:here",))
    )
    assert list(made) == ["x-wire"]
    assert isinstance(made["x-wire"], TcpTransport)
    assert own_transports(settings()) == {}


@pytest.mark.parametrize(
    ("plugin", "told"),
    [
        ("nobody_has_this:thing", "transport 'nobody_has_this:thing': .*import"),
        ("retexo_fl.channels.transports.tcp:Nothing", "has no 'Nothing'"),
        ("retexo_fl.channels.transports.tcp:TcpStream", "expected a callable"),
        (f"{__name__}:Half", "Half without listen; expected a Transport"),
    ],
)
def test_what_is_no_transport_is_refused_by_name(plugin: str, told: str) -> None:
    with pytest.raises(PluginError, match=told):
        own_transports(settings(f"x-wire={plugin}"))


@pytest.mark.parametrize("text", ["tcp=a:b", "x-wire", "x-wire=a", "x-=a:b", "X-WIRE=a:b", "=a:b"])
def test_a_scheme_of_an_owner_begins_with_x(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match="^transports: .*; expected .*x-NAME=module:attribute"
    ):
        settings(text)


def test_an_address_needs_its_transport_only_to_be_listened_at() -> None:
    with pytest.raises(ConfigurationError, match="^listen: x-wire:here: .*; expected x-wire="):
        settings("x-other=a:b", listen=("x-wire:here",))
    # In a roster it may stand for those who have one.
    check_address("x-wire:here")
    assert scheme_of("x-wire://there/7") == "x-wire"
    assert source_of("x-wire:here") == "x-wire:here"
    for address in ("x-wire: here", "x-wire:hère", "x_wire:here", "xwire:here"):
        with pytest.raises(IdentityError):
            check_address(address)
