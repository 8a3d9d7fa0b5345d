"""What a copy of the package lacks; `tests/system/test_without_additions.py` has such copies."""

from __future__ import annotations

import pytest

from retexo_fl.addition import ADDITIONS, DEVICES, KERNEL_PATH, Addition
from retexo_fl.errors import ConfigurationError


def test_this_checkout_has_all() -> None:
    assert all(addition.is_here for addition in ADDITIONS)


def test_an_addition_serves_its_own_schemes_alone() -> None:
    assert KERNEL_PATH.serves("xdp://10.0.0.1:7412")
    assert not KERNEL_PATH.serves("xdpx://10.0.0.1:7412")
    assert not KERNEL_PATH.serves("tcp://10.0.0.1:7411")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, ""),
        ({"sampler": "none", "devices": "cpu", "rounds": 2}, ""),
        ({"devices": "auto"}, ""),
        ({"devices": "cpu:1"}, "devices: cpu:1"),
        ({"sampler": "gns", "devices": "auto"}, "sampler: gns"),
    ],
)
def test_the_key_of_a_run_that_takes_a_room_is_named(
    values: dict[str, object], wanted: str
) -> None:
    assert DEVICES.wanted_by(values) == wanted
    assert KERNEL_PATH.wanted_by(values) == ""


@pytest.mark.parametrize("room", ["nowhere", "left"])
def test_what_takes_a_room_that_is_not_there_is_refused(
    room: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    import retexo_fl.additions

    # What git leaves of a room: a folder of compiled files.
    place = tmp_path_factory.mktemp("additions")
    (place / "left" / "__pycache__").mkdir(parents=True)
    monkeypatch.setattr(
        retexo_fl.additions, "__path__", [*retexo_fl.additions.__path__, str(place)]
    )
    lacking = Addition(room=room, title="way to the moon", schemes=("moon",))
    with pytest.raises(ConfigurationError) as raised:
        lacking.module("rocket", "listen: moon:")
    assert str(raised.value) == (
        "listen: moon:: this installation has no way to the moon; expected the folder "
        f"retexo_fl/additions/{room} of a complete retexo-fl"
    )
