"""What the doctor says of Bluetooth on a machine that has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retexo_fl.additions.bluetooth.examination import examine, judge_listening
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.identity import make_identity
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.doctor.client import examine_ports
from retexo_fl.doctor.finding import Verdict
from retexo_fl.doctor.peers import examine_peers
from tests.support.without_bluetooth import take_bluetooth_away


@pytest.fixture(autouse=True)
def _none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    take_bluetooth_away(monkeypatch, tmp_path)


def test_where_nobody_wants_it_one_line_says_what_is_missing() -> None:
    (found,) = examine((), ("tcp://10.0.0.1:7411",))
    assert (found.thing, found.verdict) == ("bluetooth", Verdict.ABSENT)
    assert re.match("the kernel .*Bluetooth; .*Python .*Bluetooth", found.seen)
    assert "modprobe" in found.advice


@pytest.mark.parametrize(
    ("listen", "known"), [(("bluetooth:",), ()), ((), ("bluetooth://AA:BB:CC:DD:EE:FF/3",))]
)
def test_where_wanted_each_missing_part_comes_with_its_remedy(
    listen: tuple[str, ...], known: tuple[str, ...]
) -> None:
    found = {item.thing: item for item in examine(listen, known)}
    assert {"bluetooth kernel", "bluetooth python", "bluetooth bluetoothd"} <= found.keys()
    for item in found.values():
        assert item.verdict is Verdict.DOUBTFUL
        assert item.advice
    assert "platypush-pybluez" in found["bluetooth python"].advice


def test_a_demanded_address_is_bad_and_an_automatic_one_is_not() -> None:
    demanded, automatic = judge_listening("bluetooth://any/3"), judge_listening("bluetooth:")
    assert demanded.verdict is Verdict.BAD
    assert demanded.seen.startswith("the kernel has no Bluetooth")
    assert "bluetooth:" in demanded.advice
    assert automatic.verdict is Verdict.DOUBTFUL
    assert "without Bluetooth" in automatic.seen


def test_an_address_that_is_none_is_bad() -> None:
    settings = AgentSettings(
        partition="p",
        state="s",
        socket="a",
        key="k",
        certificate="c",
        roster="r",
        listen=("bluetooth://any/31", "tcp://127.0.0.1:0"),
    )
    wrong, right = examine_ports(settings, running=False)
    assert wrong.verdict is Verdict.BAD
    assert "channel from 1 to 30" in wrong.seen
    assert right.verdict is Verdict.GOOD


def test_a_peer_with_a_bluetooth_address_cannot_be_tried_here(tmp_path: Path) -> None:
    own, other = make_identity(tmp_path / "own", 0), make_identity(tmp_path / "other", 1)
    address = "bluetooth://AA:BB:CC:DD:EE:FF/3"
    member = Member(client=1, certificate_pem=other.certificate_pem, addresses=(address,))
    (found,) = examine_peers(own, Roster.of([member]), [1])
    assert found.verdict is Verdict.DOUBTFUL
    assert found.seen.startswith(f"{address}: the kernel has no Bluetooth")
    assert found.seen.count(address) == 1
