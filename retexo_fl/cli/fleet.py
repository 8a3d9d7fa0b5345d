"""``retexo fleet new | check | up | down``: all machines of a federation by one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from retexo_fl.cli.findings import tell_findings
from retexo_fl.cli.groups import CommandGroup
from retexo_fl.cli.help_text import examples, styled
from retexo_fl.cli.options import AsJson
from retexo_fl.cli.sentences import tell
from retexo_fl.units import format_counted

if TYPE_CHECKING:
    from retexo_fl.fleet.description import Fleet
    from retexo_fl.fleet.making import Made

_EXAMPLES = examples(
    "retexo fleet new FLEET.toml",
    "retexo fleet new FLEET.toml --out clinics",
    "retexo fleet check clinics",
    "retexo fleet up FLEET.toml --local",
    "retexo fleet down clinics",
)
_NEW_HELP = """Make what all machines of a federation get, by one file that describes them.

Into one folder: for each client a bundle with its agent.toml, roster, keys and units, for the \
server its certificate and the SuperNodes' public keys, each with a README of three lines. With \
`keys = "here"` all keys are made here; else each owner makes its own, and this command joins the \
member files that came back into members/. Run it again after a change of the file, or when files \
have come: it makes what is missing and leaves keys and bundles that are there as they are.
"""
_CHECK_HELP = """Compare bundles, and what is installed and runs here, with the file.

Names a wrong key, an old roster, a missing unit, files that others may read, and keys of an \
agent.toml that differ. On a client's machine it looks at the services of its clients as well, and \
asks an agent that runs. Exit code 1 if something is wrong; nothing is changed.
"""
_UP_HELP = """Start all of a fleet as processes of this machine, for a rehearsal.

SuperLink, agents and SuperNodes with the file's limits, on the loopback at free ports, with keys \
of their own, over the parts that part-here names; below the fleet's folder, in local/, with their \
logs. Returns when all are ready, or ends them all; `retexo fleet down` ends them later.
"""
_DOWN_HELP = """End what `retexo fleet up` started on this machine, and nothing else."""
_MOST_NAMED = 3
_Place: TypeAlias = Annotated[
    Path,
    typer.Argument(help="The fleet's file, or the folder made from it.", metavar="FLEET.toml|DIR"),
]
_Out: TypeAlias = Annotated[
    Path | None,
    typer.Option("--out", help="The fleet's folder, if it is not beside the file.", metavar="DIR"),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands, as a group."""
    group = typer.Typer(
        cls=CommandGroup,
        no_args_is_help=True,
        help="Set up all machines of a federation by one file.",
        rich_markup_mode="rich",
        epilog=_EXAMPLES,
    )
    group.command("new", help=styled(_NEW_HELP), epilog=_EXAMPLES)(_new)
    group.command("up", help=styled(_UP_HELP), epilog=_EXAMPLES)(_up)
    group.command("down", help=styled(_DOWN_HELP), epilog=_EXAMPLES)(_down)
    group.command("check", help=styled(_CHECK_HELP), epilog=_EXAMPLES)(_check)
    app.add_typer(group, name="fleet")


def _new(
    file: Annotated[Path, typer.Argument(help="The fleet's file.", metavar="FLEET.toml")],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write; default: beside the file, with the fleet's name.",
            metavar="DIR",
        ),
    ] = None,
) -> None:
    from retexo_fl.fleet.description import read_fleet
    from retexo_fl.fleet.making import make_fleet

    fleet = read_fleet(file)
    folder = (out or file.parent / fleet.name).absolute()
    is_new = not folder.exists()
    made = make_fleet(fleet, folder)
    told = [f"{format_counted(len(fleet.clients), 'client')} in {folder}"]
    told += [] if is_new else _changes(made)
    names = {one.name for one in fleet.clients}
    told += [
        f"left over  {path.relative_to(folder)}: not in the file; take it out of the SuperLink"
        for path in sorted((folder / "clients").iterdir())
        if path.name not in names
    ]
    told += [f"missing    {line}" for line in made.missing]
    told += _long_paths(fleet, folder)
    tell("\n".join(told))


def _check(place: _Place, *, out: _Out = None, as_json: AsJson = False) -> int:
    from retexo_fl.fleet.checking import check_fleet

    fleet, folder = _opened(place, out)
    return tell_findings(
        check_fleet(fleet, folder), "the fleet is not as its file says", as_json=as_json
    )


def _up(
    place: _Place,
    *,
    out: _Out = None,
    local: Annotated[
        bool,
        typer.Option(
            "--local", help="On this machine; required, since there is no other place yet."
        ),
    ] = False,
) -> None:
    from retexo_fl.errors import ConfigurationError
    from retexo_fl.fleet.local import bring_up
    from retexo_fl.fleet.making import SERVER_TLS

    if not local:
        raise ConfigurationError(
            "up: missing --local; expected it (other machines are started by their README)"
        )
    if place.is_dir():
        raise ConfigurationError(
            f"{place}: is a folder; expected the fleet's file, to whose own part-here is relative"
        )
    fleet, folder = _opened(place, out)
    running, where = bring_up(fleet, folder)
    tell(
        f"{format_counted(len(running.clients), 'client')} and the SuperLink run in {where}\n"
        f"retexo run --superlink {running.server} --root-certificates "
        f"{where / SERVER_TLS / 'ca.crt'} --clients {len(running.clients)}"
    )


def _down(place: _Place, *, out: _Out = None) -> None:
    from retexo_fl.fleet.local import take_down

    _, folder = _opened(place, out)
    ended = take_down(folder)
    tell(f"ended {', '.join(ended)}" if ended else "nothing runs")


def _opened(place: Path, out: Path | None) -> tuple[Fleet, Path]:
    """Return a fleet, and the folder that was made of it."""
    from retexo_fl.errors import ConfigurationError
    from retexo_fl.fleet.description import read_fleet
    from retexo_fl.fleet.making import FLEET_FILE

    fleet = read_fleet(place / FLEET_FILE if place.is_dir() else place)
    folder = place if place.is_dir() else out or place.parent / fleet.name
    if not (folder / FLEET_FILE).exists():
        raise ConfigurationError(f"{folder}: no fleet; expected what retexo fleet new made")
    return fleet, folder.absolute()


def _long_paths(fleet: Fleet, folder: Path) -> list[str]:
    """Return a line where agents could not listen in the bundles as they lie here."""
    from retexo_fl.agent.settings import MAX_SOCKET_BYTES
    from retexo_fl.fleet.making import bundle

    # Those of services are elsewhere.
    paths = (folder / bundle(one) / one.agent["socket"] for one in fleet.clients)
    path = max((str(it) for it in paths), key=lambda it: len(it.encode()))
    size = len(path.encode())
    if size <= MAX_SOCKET_BYTES:
        return []
    return [
        f"long path  {path} has {size} bytes; an agent takes {MAX_SOCKET_BYTES}: it can run where "
        "its bundle has a shorter path"
    ]


def _changes(made: Made) -> list[str]:
    """Return a line for each bundle that is new, and for each kind of file that changed."""
    from retexo_fl.fleet.making import FLEET_FILE

    parts = [Path(name).parts for name in made.changed if name != FLEET_FILE]
    new = {its[1] for its in parts if its[0] == "clients" and its[1] in made.new}
    told = [f"new        clients/{name}" for name in sorted(new)]
    whose: dict[str, list[str]] = {}
    for its in parts:
        if its[:2] == ("server", "supernodes"):
            told.append(f"register   {'/'.join(its)} (server/README)")
        elif its[0] != "clients":
            told.append(f"changed    {'/'.join(its)}")
        elif its[1] not in new:
            whose.setdefault(its[-1], []).append(its[1])
    for name, clients in sorted(whose.items()):
        shown = ", ".join(clients) if len(clients) <= _MOST_NAMED else f"{len(clients)} clients"
        told.append(f"changed    {name} of {shown}")
    return told or ["nothing changed"]
