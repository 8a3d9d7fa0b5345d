"""``retexo bluetooth pair | trust | list | scan | remove``: devices that know each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
import typer

from retexo_fl.additions.bluetooth.tables import (
    facts,
    paired,
    print_json,
    show_found,
    show_list,
    waiting,
)
from retexo_fl.cli.groups import CommandGroup
from retexo_fl.cli.help_text import examples, styled
from retexo_fl.cli.sentences import complain, tell

if TYPE_CHECKING:
    from retexo_fl.additions.bluetooth.bluez import Adapter, Bluez

_HELP = """Bluetooth devices of this machine: pair them once, then agents connect by themselves.

Exit code 2 if a part of Bluetooth is missing; the error names it and its remedy.
"""
_PAIR_HELP = """Pair with a device, once, and trust it.

On one device: `retexo bluetooth pair --accept`; on the other: `retexo bluetooth pair ADDRESS` \
with the address that the first shows. The connection is encrypted, but not authenticated: agents \
authenticate each other by their own keys. With `--confirm` on both devices each shows six digits \
for a person to compare.
"""
_PAIR_EXAMPLES = examples(
    "retexo bluetooth pair --accept --seconds 120",
    "retexo bluetooth pair B8:27:EB:12:34:56",
    "retexo bluetooth pair B8:27:EB:12:34:56 --confirm",
)
_TRUST_HELP = """Let a paired device use this machine's Bluetooth services without confirmation.

Pairing does this as well; `--revoke` undoes it.
"""
_TRUST_EXAMPLES = examples(
    "retexo bluetooth trust B8:27:EB:12:34:56", "retexo bluetooth trust B8:27:EB:12:34:56 --revoke"
)
_LIST_HELP = """Show this machine's adapters and the devices that are paired."""
_LIST_EXAMPLES = examples("retexo bluetooth list", "retexo bluetooth list --json")
_SCAN_HELP = """Look for devices that can be discovered, and show them.

Running agents are not listed: they accept connections, but are not discoverable.
"""
_SCAN_EXAMPLES = examples("retexo bluetooth scan", "retexo bluetooth scan --seconds 20 --json")
_REMOVE_HELP = """Remove a paired device and its key.

If either of two devices has lost its key, remove the other on both, then pair them again.
"""
_REMOVE_EXAMPLES = examples("retexo bluetooth remove B8:27:EB:12:34:56")

_Device = Annotated[str, typer.Argument(help="The device's address.", metavar="ADDRESS")]
_AdapterOption = Annotated[
    str,
    typer.Option(
        "--adapter",
        help="Name or address of the adapter to use, instead of the first that is on.",
        metavar="NAME",
        show_default=False,
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_MAX_SECONDS: Final = 3600.0


def add_to(app: typer.Typer) -> None:
    """Register the commands, as a group."""
    group = typer.Typer(
        cls=CommandGroup,
        no_args_is_help=True,
        help=_HELP,
        rich_markup_mode="rich",
        epilog=examples("retexo bluetooth pair --accept", "retexo bluetooth list"),
    )
    for function, help_text, epilog in (
        (_pair, _PAIR_HELP, _PAIR_EXAMPLES),
        (_trust, _TRUST_HELP, _TRUST_EXAMPLES),
        (_list, _LIST_HELP, _LIST_EXAMPLES),
        (_scan, _SCAN_HELP, _SCAN_EXAMPLES),
        (_remove, _REMOVE_HELP, _REMOVE_EXAMPLES),
    ):
        name = function.__name__.removeprefix("_")
        group.command(name, help=styled(help_text), epilog=epilog)(function)
    app.add_typer(group, name="bluetooth")


def _pair(
    *,
    address: Annotated[
        str,
        typer.Argument(
            help="The device; with --accept, the only one allowed to pair.",
            metavar="[ADDRESS]",
            show_default=False,
        ),
    ] = "",
    is_waiting: Annotated[
        bool, typer.Option("--accept", help="Wait for another device to pair with this one.")
    ] = False,
    is_confirmed: Annotated[
        bool, typer.Option("--confirm", help="Compare six digits; needs a person at each device.")
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(help="How long to look or wait.", metavar="SECS", min=1.0, max=_MAX_SECONDS),
    ] = 120.0,
    adapter: _AdapterOption = "",
    as_json: _Json = False,
) -> int:
    from retexo_fl.additions.bluetooth.pairing import PairingAgent, accept, pair

    if not address and not is_waiting:
        raise click.UsageError("ADDRESS: missing; expected a device's address, or --accept")
    wanted = _checked(address) if address else ""

    async def work(bluez: Bluez, chosen: Adapter) -> int:
        agent = PairingAgent(compare=_compare if is_confirmed else None, only=wanted)
        if not is_waiting:
            device = await pair(bluez, chosen, wanted, agent, seconds)
        else:
            if not as_json:
                tell(waiting(chosen, seconds))
            device = await accept(bluez, chosen, agent, seconds)
        is_proved = device.address in agent.compared
        if as_json:
            print_json({**facts(device), "digits_compared": is_proved})
        else:
            tell(paired(device, is_proved=is_proved))
        return 0

    return _with_bluez(adapter, work)


def _trust(
    address: _Device,
    *,
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke the trust.")] = False,
    adapter: _AdapterOption = "",
    as_json: _Json = False,
) -> int:
    wanted = _checked(address)

    async def work(bluez: Bluez, chosen: Adapter) -> int:
        device = await bluez.known(chosen, wanted)
        if not device.is_paired and not revoke:
            complain(
                f"error: {wanted}: not paired with {chosen.name}; expected a paired device "
                f"(retexo bluetooth pair {wanted})"
            )
            return 2
        await bluez.trust(device, is_trusted=not revoke)
        if as_json:
            print_json(facts(await bluez.known(chosen, wanted)))
        else:
            tell(f"{wanted}: {'no longer trusted' if revoke else 'trusted'}")
        return 0

    return _with_bluez(adapter, work)


def _list(*, adapter: _AdapterOption = "", as_json: _Json = False) -> int:
    async def work(bluez: Bluez) -> int:
        adapters = await bluez.adapters()
        if adapter:
            adapters = (await bluez.adapter(adapter),)
        devices = [it for own in adapters for it in await bluez.devices(own) if it.is_paired]
        if as_json:
            own = [facts(adapter) for adapter in adapters]
            print_json({"adapters": own, "devices": [facts(device) for device in devices]})
        else:
            show_list(adapters, devices)
        return 0

    return _run(work)


def _scan(
    *,
    seconds: Annotated[
        float,
        typer.Option(help="How long to look.", metavar="SECS", min=1.0, max=_MAX_SECONDS),
    ] = 10.0,
    adapter: _AdapterOption = "",
    as_json: _Json = False,
) -> int:
    from importlib.util import find_spec

    async def work(bluez: Bluez, chosen: Adapter) -> int:
        devices = await bluez.scan(chosen, seconds)
        show_found([facts(device) for device in devices], as_json=as_json)
        return 0

    async def work_without() -> int:
        from retexo_fl.additions.bluetooth.pybluez import discover

        found = await discover(adapter, seconds)
        show_found([{"address": it, "name": name} for it, name in found], as_json=as_json)
        return 0

    if find_spec("dbus_fast") is None and find_spec("bluetooth") is not None:
        return _run_named(work_without)
    return _with_bluez(adapter, work)


def _remove(address: _Device, *, adapter: _AdapterOption = "", as_json: _Json = False) -> int:
    wanted = _checked(address)

    async def work(bluez: Bluez, chosen: Adapter) -> int:
        device = await bluez.known(chosen, wanted)
        await bluez.remove(chosen, device)
        if as_json:
            print_json({"address": wanted, "removed": True})
        else:
            tell(f"{wanted}: removed")
        return 0

    return _with_bluez(adapter, work)


def _with_bluez(adapter: str, work: Callable[[Bluez, Adapter], Awaitable[int]]) -> int:
    async def chosen(bluez: Bluez) -> int:
        return await work(bluez, await bluez.adapter(adapter))

    return _run(chosen)


def _run(work: Callable[[Bluez], Awaitable[int]]) -> int:
    async def connected() -> int:
        from retexo_fl.additions.bluetooth.bluez import Bluez
        from retexo_fl.additions.bluetooth.bus import system_bus

        async with system_bus() as bus:
            return await work(Bluez(bus))

    return _run_named(connected)


def _run_named(work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Do the work; what this machine lacks is the user's to get, so it ends as bad input does."""
    from retexo_fl.errors import ChannelUnavailable

    try:
        return asyncio.run(work())
    except ChannelUnavailable as error:
        complain(f"error: {error}")
        return 2


def _checked(address: str) -> str:
    from retexo_fl.additions.bluetooth.bluez import parse_device

    wanted = parse_device(address)
    if not wanted:
        raise click.UsageError(f"ADDRESS: got {address!r}; expected one as B8:27:EB:12:34:56")
    return wanted


def _compare(device: str, digits: str) -> bool:
    """Ask the person at this device; no answer counts as no."""
    try:
        return typer.confirm(f"Does {device} show {digits} as well?", err=True)
    except (typer.Abort, EOFError):
        return False
