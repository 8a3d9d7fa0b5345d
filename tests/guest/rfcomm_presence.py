"""What is told of a machine with Bluetooth: its adapters, on and off, and who may listen where."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retexo_fl.additions.bluetooth import transport
from retexo_fl.additions.bluetooth.agent import bluetooth_transport
from retexo_fl.additions.bluetooth.examination import examine, judge_listening
from retexo_fl.additions.bluetooth.hci import local_adapters
from retexo_fl.additions.bluetooth.presence import missing_for_sockets
from retexo_fl.additions.bluetooth.transport import BluetoothTransport
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.agent.transports import reachable_at
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.identity import Identity, make_identity
from retexo_fl.channels.network import PeerNetwork
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.doctor.finding import Verdict
from retexo_fl.doctor.peers import examine_peers
from retexo_fl.errors import ChannelUnavailable, ConfigurationError
from tests.guest.air import DEVICES, FIRST, SECOND, Air

STRANGE = "bluetooth://00:11:22:33:44:55/9"
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def air() -> Iterator[Air]:
    with Air() as made:
        made.pair()
        yield made


@contextmanager
def _switched_off(air: Air) -> Iterator[None]:
    for device in DEVICES:
        air.switch(device, on=False)
    try:
        yield
    finally:
        for device in DEVICES:
            air.switch(device, on=True)


def _settings(*listen: str) -> AgentSettings:
    return AgentSettings(
        partition="part",
        state="state",
        socket="agent.sock",
        key="key.pem",
        certificate="certificate.pem",
        roster="roster.toml",
        listen=listen,
    )


@pytest.mark.usefixtures("air")
def test_no_socket_lacks_anything_and_the_adapters_are_told() -> None:
    assert missing_for_sockets() == ()
    told = [(adapter.name, adapter.address, adapter.is_up) for adapter in local_adapters()]
    assert told == [("hci0", FIRST, True), ("hci1", SECOND, True)]
    assert reachable_at(["bluetooth:", "bluetooth://any/3"]) == (
        f"bluetooth://{FIRST}",
        f"bluetooth://{FIRST}/3",
    )


def test_adapters_switched_off_are_named_with_the_remedy(air: Air) -> None:
    with _switched_off(air):
        (missing,) = missing_for_sockets()
        assert str(missing) == "hci0, hci1 are switched off (bluetoothctl power on)"
        with pytest.raises(ConfigurationError, match="are switched off"):
            bluetooth_transport(_settings("bluetooth://any/3"))
        bluetooth_transport(_settings("bluetooth:"))
        found = {item.thing: item.verdict for item in examine(["bluetooth:"], [])}
        assert found["bluetooth adapter"] is Verdict.DOUBTFUL
        with pytest.raises(ChannelUnavailable, match="are switched off"):
            asyncio.run(BluetoothTransport().connect(f"bluetooth://{FIRST}/9", 0))


@pytest.mark.usefixtures("air")
def test_the_address_of_an_adapter_that_is_not_here_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"this machine has {FIRST}, {SECOND}"):
        bluetooth_transport(_settings(STRANGE))
    assert judge_listening(STRANGE).verdict is Verdict.BAD


def test_an_adapter_that_comes_later_is_noticed(air: Air, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_LOOK_AGAIN_S", 0.2)

    async def story() -> None:
        listener = await BluetoothTransport().listen("bluetooth:")
        with _switched_off(air), pytest.raises(ChannelUnavailable, match="are switched off"):
            await listener.accept()
        # The next part that an automatic address needs is bluetoothd, which this machine lacks.
        with pytest.raises(ChannelUnavailable, match="goes on without it: ") as caught:
            await listener.accept()
        assert "switched off" not in str(caught.value)

    asyncio.run(asyncio.wait_for(story(), WITHIN_S))


def _member(identity: Identity, *addresses: str) -> Member:
    return Member(
        client=identity.client, certificate_pem=identity.certificate_pem, addresses=addresses
    )


@pytest.mark.usefixtures("air")
def test_the_doctor_shakes_hands_with_a_peer(tmp_path: Path) -> None:
    own, peer = make_identity(tmp_path / "0", 0), make_identity(tmp_path / "1", 1)
    address = f"bluetooth://{FIRST}/9"
    roster = Roster.of([_member(own), _member(peer, address)])
    silent = Roster.of([_member(own), _member(peer, f"bluetooth://{FIRST}/11")])

    async def story() -> None:
        network = PeerNetwork(
            peer,
            roster,
            BlockDepot(tmp_path / "depot", 1),
            listen=(address,),
            transports={"bluetooth": BluetoothTransport(adapter=FIRST)},
        )
        ready = asyncio.Event()
        running = asyncio.create_task(network.run(ready))
        await ready.wait()
        assert judge_listening(address).seen == "Address already in use"
        (good,) = await asyncio.to_thread(lambda: list(examine_peers(own, roster, [1])))
        assert good.seen == f"{address} answers; each accepts the other's certificate"
        (doubtful,) = await asyncio.to_thread(lambda: list(examine_peers(own, silent, [1])))
        assert "no agent listens at this channel" in doubtful.seen
        running.cancel()

    asyncio.run(asyncio.wait_for(story(), WITHIN_S))
