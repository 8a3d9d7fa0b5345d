"""``retexo keys``: who the clients are to each other, and what their owners agree on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retexo_fl.cli import keys_agreed
from retexo_fl.cli.groups import CommandGroup
from retexo_fl.cli.help_text import examples
from retexo_fl.cli.keys_agreed import agreed
from retexo_fl.cli.sentences import tell

if TYPE_CHECKING:
    from retexo_fl.channels.roster import Member

_EXAMPLES = examples(
    "retexo keys new --client 0 --address tcp://10.0.0.1:7411 --out /etc/retexo",
    "retexo keys roster member0.toml member1.toml --out roster.toml",
    "retexo keys show roster.toml",
)
_NEW_HELP = """Make the key and certificate of one client, and its entry for the roster.

Writes key.pem, which stays on this machine, certificate.pem and member.toml, which goes to \
the other clients. Never overwrites a key.
"""


def add_to(app: typer.Typer) -> None:
    """Register the commands, as a group."""
    group = typer.Typer(
        cls=CommandGroup,
        no_args_is_help=True,
        help="Manage clients' keys, the roster, and the owners' agreement on masked sums.",
        rich_markup_mode="rich",
        epilog=_EXAMPLES,
    )
    group.command("new", help=_NEW_HELP, epilog=_EXAMPLES)(_new)
    group.command("show", epilog=_EXAMPLES)(_show)
    keys_agreed.add_to(group)
    app.add_typer(group, name="keys")


def _new(
    *,
    client: Annotated[int, typer.Option(help="Client index.", metavar="N", min=0)],
    out: Annotated[Path, typer.Option(help="Folder for the files.", metavar="DIR")],
    address: Annotated[
        list[str] | None,
        typer.Option(
            help="Address for peers, the best first; omit if only this client can connect.",
            metavar="ADDRESS",
        ),
    ] = None,
) -> None:
    from retexo_fl.channels.identity import KEY_FILE, fingerprint
    from retexo_fl.channels.roster import make_member

    member = make_member(out, client, tuple(address or ()))
    tell(f"client {client}: {fingerprint(member.certificate_pem)}\n{out / KEY_FILE}")


def _show(
    file: Annotated[
        Path, typer.Argument(help="A certificate, a member or a roster.", metavar="FILE")
    ],
) -> None:
    """Print who is in a file: fingerprint, addresses and validity; and what owners agree on."""
    from retexo_fl.channels.federation import Federation
    from retexo_fl.channels.identity import client_of, parse_certificate, read_certificate
    from retexo_fl.channels.roster import Member, Roster

    federation = None
    if file.suffix == ".toml":
        members = list(Roster.read(file).members.values())
        federation = Federation.read(file)
    else:
        pem = read_certificate(file)
        client = client_of(parse_certificate(pem, str(file)), str(file))
        members = [Member(client=client, certificate_pem=pem, addresses=())]
    for member in members:
        tell(_described(member))
    if federation is not None:
        tell(agreed(federation))


def _described(member: Member) -> str:
    from retexo_fl.channels.identity import fingerprint, parse_certificate

    certificate = parse_certificate(member.certificate_pem, f"client {member.client}")
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    addresses = " ".join(member.addresses) or "none"
    return (
        f"client {member.client}\n"
        f"fingerprint  {fingerprint(member.certificate_pem)}\n"
        f"addresses    {addresses}\n"
        f"valid        {begin:%Y-%m-%d} to {end:%Y-%m-%d}"
    )
