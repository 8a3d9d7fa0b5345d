"""``retexo keys member | roster | sign | release``: what owners agree on, and its files."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retexo_fl.cli.help_text import examples
from retexo_fl.cli.sentences import tell
from retexo_fl.units import format_counted

if TYPE_CHECKING:
    from retexo_fl.agent.settings import AgentSettings
    from retexo_fl.channels.federation import Federation
    from retexo_fl.channels.owner_words import Release
    from retexo_fl.channels.roster import Roster

_EXAMPLES = examples(
    "retexo keys member --config agent.toml",
    "retexo keys roster member*.toml --tolerated 1 --out proposed.toml",
    "retexo keys sign proposed.toml --config agent.toml",
    "retexo keys roster proposed.toml signature*.toml --out roster.toml",
    "retexo keys roster member*.toml --former roster.toml --out proposed.toml",
)
_MEMBER_HELP = """Promise what this client brings to masked sums, in its member.toml.

For an agreement of all owners, each before `retexo keys roster`. Says which uses the part has \
enough nodes of, has a digest of the part that nobody else can compute, and commits to a number of \
this owner's from which, with those of all others, the cohorts will be drawn. Beside the key it \
keeps agreement-secret, which stays on this machine, and goes with a new key of the same client.
"""
_SIGN_HELP = """Sign what `retexo keys roster` proposes, as the owner of this client.

Checks that the file has this client's own promise, that its part is still the same, and that it \
does not set apart a few of those whom this client was added up with before. Writes a signature \
file beside the key, which tells this owner's number: once for each promise.
"""
_RELEASE_HELP = """Agree that this client may leave its cohort alone, or fall silent.

The difference between a sum with and one without it is then this client's. Without a release the \
cohort ends with it. --after-days holds it back until nobody has heard of the client for so long.
"""
_ROSTER_HELP = """Join the files of all clients into one roster, the same for every client.

Of member files alone it is a roster. Where owners have promised what they bring \
(`retexo keys member`) it is also a proposal, which each signs (`retexo keys sign`); of a proposal \
and all signatures it is the federation file that masked sums need. Then compare what \
`retexo keys show` prints.
"""
_Config = Annotated[Path, typer.Option("--config", metavar="FILE", help="The agent's settings.")]
_DEFAULT = Path("/etc/retexo/agent.toml")
#: Of a digest, for people to compare: nobody finds two files that share them.
_SHOWN_BYTES = 20


def add_to(group: typer.Typer) -> None:
    """Register the commands."""
    group.command("roster", help=_ROSTER_HELP, epilog=_EXAMPLES)(_roster)
    group.command("member", help=_MEMBER_HELP, epilog=_EXAMPLES)(_member)
    group.command("sign", help=_SIGN_HELP, epilog=_EXAMPLES)(_sign)
    group.command("release", help=_RELEASE_HELP, epilog=_EXAMPLES)(_release)


def agreed(federation: Federation) -> str:
    """Return what owners agree on, and who has not signed it."""
    from retexo_fl.units import clients_named

    missing = sorted(federation.roster.members.keys() - federation.signatures.keys())
    if missing:
        return (
            f"{_terms_told(federation)}\nto be signed {_digits(federation.proposal)}\n"
            f"not signed   {clients_named(missing)}"
        )
    cohorts = [
        f"cohort       {', '.join(map(str, cohort.members))}: "
        f"{', '.join(sorted(cohort.uses)) or 'nothing'}"
        for cohort in federation.agreement.cohorts
    ]
    return "\n".join(
        [_terms_told(federation), *cohorts, f"agreed       {_digits(federation.agreement.digest)}"]
    )


def _refuse_existing(path: Path) -> None:
    """Check that a file is new.

    Raises:
        IdentityError: There is something of this name.
    """
    from retexo_fl.errors import IdentityError

    if path.exists():
        raise IdentityError(f"{path}: exists; expected a new file")


def _write(path: Path, content: Roster | Federation | Release) -> None:
    """Write a file, whole or not at all."""
    from retexo_fl.files import write_whole

    write_whole(path, [content.text().encode()])


def _member(
    *,
    config: _Config = _DEFAULT,
    address: Annotated[
        list[str] | None,
        typer.Option(
            help="Address for peers, the best first; as in member.toml if not given.",
            metavar="ADDRESS",
        ),
    ] = None,
    links: Annotated[
        bool, typer.Option("--links", help="Learn edges (task links) instead of node labels.")
    ] = False,
    relation: Annotated[
        str,
        typer.Option(
            "--relation",
            help="With --links on a typed graph: the relation whose edges are learned.",
            metavar="NAME",
        ),
    ] = "",
    without_part: Annotated[
        bool,
        typer.Option(
            "--without-part",
            help="Promise features only, before there is a part: for `retexo features share`.",
        ),
    ] = False,
) -> None:
    from dataclasses import replace

    from retexo_fl.agent.promises import NO_PART, brought_by
    from retexo_fl.channels.identity import Identity
    from retexo_fl.channels.owner_secret import OwnerSecret
    from retexo_fl.channels.roster import MEMBER_FILE, Member, Roster
    from retexo_fl.errors import ConfigurationError

    if relation and not links:
        raise ConfigurationError("relation: missing --links; expected both, or neither")
    settings = _settings(config)
    identity = Identity.load(Path(settings.key), Path(settings.certificate))
    brings, digest = frozenset({"nodes"}), NO_PART
    if not without_part:
        brings, digest = brought_by(
            Path(settings.partition), identity.client, settings, links=links, relation=relation
        )
    path = Path(settings.key).with_name(MEMBER_FILE)
    known = Roster.read(path).members.get(identity.client) if path.exists() else None
    member = known or Member(
        client=identity.client, certificate_pem=identity.certificate_pem, addresses=()
    )
    promise = OwnerSecret.beside_or_new(identity.key_path).promise(brings, digest)
    _write(
        path,
        Roster.of(
            [
                replace(
                    member,
                    certificate_pem=identity.certificate_pem,
                    addresses=tuple(address) if address else member.addresses,
                    promise=promise,
                )
            ]
        ),
    )
    tell(f"client {identity.client} brings {', '.join(sorted(brings))}\n{path}")


def _roster(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Member files of all clients, with releases; or a proposal and signatures.",
            metavar="FILE...",
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(help="The roster to write.", metavar="FILE")],
    former: Annotated[
        Path | None,
        typer.Option(help="The federation file before this one, if any.", metavar="FILE"),
    ] = None,
    least: Annotated[
        int | None,
        typer.Option(
            help="Least number of honest clients with data in a sum; default 3.", metavar="N"
        ),
    ] = None,
    tolerated: Annotated[
        int | None,
        typer.Option(
            help="Number of clients of a cohort that may collude with the server; default 0.",
            metavar="N",
            min=0,
        ),
    ] = None,
    cohort_size: Annotated[
        int | None,
        typer.Option(
            help="Approximate size of new cohorts; default depends on the number of clients.",
            metavar="N",
            min=0,
        ),
    ] = None,
    silent: Annotated[
        list[str] | None,
        typer.Option(
            help="Date since which a released client has been silent.", metavar="CLIENT=DATE"
        ),
    ] = None,
) -> None:
    from retexo_fl.channels.federation import Federation, Pieces

    _refuse_existing(out)
    pieces = Pieces.read(files)
    terms = {"least": least, "tolerated": tolerated, "cohort_size": cohort_size}
    given: dict[str, Any] = {name: value for name, value in terms.items() if value is not None}
    since = _silences(silent or [])
    if pieces.proposal is not None:
        if given or former or since:
            raise _unusable("a proposal has its terms", "no option but --out beside it")
        agreed = pieces.proposal.with_signatures(pieces.signatures)
        agreed.roster.refuse_shared_addresses()
        # Raises where an owner's signature is missing.
        tell(_agreed_in_short(agreed))
        _write(out, agreed)
        tell(f"{format_counted(len(agreed.roster.members), 'client')} in {out}")
        return
    roster = pieces.roster
    roster.refuse_shared_addresses()
    promised = any(member.promise is not None for member in roster.members.values())
    if not promised and not given and former is None and not pieces.releases:
        _write(out, roster)
        tell(f"{format_counted(len(roster.members), 'client')} in {out}")
        return
    proposed = Federation.proposed(
        roster,
        former=None if former is None else _federation(former),
        releases=pieces.releases,
        silent_since=since,
        date=datetime.datetime.now(datetime.UTC).date(),
        **given,
    )
    _write(out, proposed)
    tell(
        f"{format_counted(len(roster.members), 'client')} in {out}\n"
        f"to be signed  {_digits(proposed.proposal)}\n"
        "Each owner: retexo keys sign"
    )


def _sign(
    file: Annotated[Path, typer.Argument(help="The proposal to sign.", metavar="FILE")],
    *,
    config: _Config = _DEFAULT,
) -> None:
    from retexo_fl.agent.agreed import OwnersFile
    from retexo_fl.channels.identity import Identity

    settings = _settings(config)
    identity = Identity.load(Path(settings.key), Path(settings.certificate))
    federation = _federation(file)
    signed = OwnersFile(settings, identity).sign(federation)
    path = signed.write_beside(identity.key_path)
    tell(f"{_terms_told(federation)}\nsigned  {_digits(federation.proposal)}\n{path}")


def _release(
    *,
    config: _Config = _DEFAULT,
    after_days: Annotated[
        int,
        typer.Option(
            help="Release only after this many days of silence.",
            metavar="N",
            min=0,
            max=36_500,
        ),
    ] = 0,
    out: Annotated[Path, typer.Option(help="File for the release.", metavar="FILE")],
) -> None:
    from retexo_fl.channels.identity import Identity
    from retexo_fl.channels.owner_words import Release

    _refuse_existing(out)
    settings = _settings(config)
    identity = Identity.load(Path(settings.key), Path(settings.certificate))
    brought = _federation(Path(settings.roster)).brought
    if identity.client not in brought:
        raise _unusable(f"client {identity.client} is not in {settings.roster}", "its roster")
    release = Release.sign(identity, brought[identity.client].part, after_days)
    _write(out, release)
    when = f"after {format_counted(after_days, 'day')} of silence" if after_days else "at once"
    tell(f"client {identity.client} may leave its cohort {when}\n{out}")


def _settings(config: Path) -> AgentSettings:
    from retexo_fl.agent.settings import read_settings

    return read_settings(config)


def _federation(path: Path) -> Federation:
    from retexo_fl.channels.federation import Federation

    federation = Federation.read(path)
    if federation is None:
        raise _unusable(f"{path}: is a roster alone", "what owners agree on (retexo keys member)")
    return federation


def _silences(texts: list[str]) -> dict[int, datetime.date]:
    from retexo_fl.dates import day_of

    found = {}
    for text in texts:
        client, _, date = text.partition("=")
        day = day_of(date)
        if not client.isdecimal() or day is None:
            raise _unusable(f"--silent {text[:40]!r}", "CLIENT=DATE, such as 4=2024-03-01")
        found[int(client)] = day
    return found


def _unusable(what: str, expected: str) -> Exception:
    from retexo_fl.errors import AgreementError

    return AgreementError(f"{what}; expected {expected}")


def _terms_told(federation: Federation) -> str:
    size = federation.cohort_size or "by their number"
    lines = [
        f"date         {federation.date}",
        f"least        {federation.least} honest clients in a sum",
        f"tolerated    {federation.tolerated} of a cohort that may work with the server",
        f"cohort size  {size}",
    ]
    lines += [
        f"released     client {release.client}, silent since {release.silent_since}"
        if release.after_days
        else f"released     client {release.client}"
        for release in federation.releases
    ]
    return "\n".join(lines)


def _agreed_in_short(federation: Federation) -> str:
    count = format_counted(len(federation.agreement.cohorts), "cohort")
    return f"{count}, agreed  {_digits(federation.agreement.digest)}"


def _digits(digest: bytes) -> str:
    """Return digits that two people can compare."""
    return digest[:_SHOWN_BYTES].hex(" ", 2)
