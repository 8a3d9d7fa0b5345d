"""What ``retexo bluetooth`` shows: adapters, devices, what came of a pairing."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from retexo_fl.cli.sentences import printable, tell
from retexo_fl.cli.tables import figures, show

if TYPE_CHECKING:
    from retexo_fl.additions.bluetooth.bluez import Adapter, Device


def waiting(adapter: Adapter, seconds: float) -> str:
    """Return what to do at the other device while this one waits."""
    return (
        f"{adapter.name} waits for {seconds:g} s; on the other device: "
        f"retexo bluetooth pair {adapter.address}"
    )


def paired(device: Device, *, is_proved: bool) -> str:
    """Return what came of a pairing, and what it is worth."""
    proof = (
        "Encrypted and authenticated: both devices showed the same digits."
        if is_proved
        else "Encrypted, not authenticated: agents authenticate each other by their own keys."
    )
    return f"{device.address} {device.name}: paired with {device.adapter} and trusted\n{proof}"


def facts(item: Adapter | Device) -> dict[str, Any]:
    """Return what is known of an adapter or a device, for programs to read."""
    return {
        name.removeprefix("is_"): value for name, value in asdict(item).items() if name != "path"
    }


def print_json(facts: object) -> None:
    """Print facts for programs to read."""
    typer.echo(json.dumps(facts, indent=2))


def show_list(adapters: tuple[Adapter, ...], devices: list[Device]) -> None:
    """Print the adapters and the devices that are paired."""
    own = figures("adapter", "address", "name", "state", left=4)
    for it in adapters:
        own.add_row(it.name, it.address, printable(it.alias), _state(it))
    known = figures("paired", "name", "adapter", "trusted", "connected", left=5)
    for device in devices:
        known.add_row(
            device.address,
            printable(device.name),
            device.adapter,
            _yes(device.is_trusted),
            _yes(device.is_connected),
        )
    hint = "No device is paired: retexo bluetooth pair --help"
    show(own if adapters else "No adapter.", known if devices else hint)


def show_found(found: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print what a scan has found."""
    if as_json:
        print_json(found)
        return
    if not found:
        tell("No discoverable device found; on the other one: retexo bluetooth pair --accept")
        return
    table = figures("device", "name", "paired", "agent", "dBm", left=4)
    for it in found:
        table.add_row(
            it["address"],
            printable(it["name"]),
            _yes(it.get("paired")),
            _yes(it.get("offers_service")),
            "-" if it.get("rssi_dbm") is None else str(it["rssi_dbm"]),
        )
    show(table)


def _state(adapter: Adapter) -> str:
    if not adapter.is_powered:
        return "off"
    return "on, discoverable" if adapter.is_discoverable else "on"


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[value]
