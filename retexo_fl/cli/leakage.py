"""``retexo leakage``: what a training reveals to its server and its peers, before it is started."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from retexo_fl.api.settling import Asked
from retexo_fl.cli.help_text import examples
from retexo_fl.cli.options import PROFILE_OPTION, AsJson, Overwrite, Values, config_command
from retexo_fl.cli.sentences import complain, printable, tell_json
from retexo_fl.cli.tables import figures, show
from retexo_fl.config import PLACE_KEYS, panels
from retexo_fl.errors import CheckpointError, ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

    from retexo_fl.leakage.figures import Finding, Leakage

_HELP = """Show what a training reveals to server and peers, by playing attacks here.

PATH is a folder of parts, or the directory of a run whose training is played again. Without it \
the options name a graph, as for `retexo run`. Trains in this process, watches what each party \
receives, and plays attacks on that: labels, rows and members from updates; edges inside other \
parts from rows; single rows under a cover. Each figure is beside what a guess reaches, what \
masked sums leave of it, and what a peer without any row reaches. Verdicts say which attacks beat \
guessing. With --out also writes leakage.json and leakage.html there.
"""
_EXAMPLES = examples(
    "retexo leakage",
    "retexo leakage parts --out audit",
    "retexo leakage runs/first --out audit",
    "retexo leakage --nodes nodes.csv --edges edges.csv --clients 3 --json",
)
_PANELS = {
    panel: kept
    for panel, keys in panels().items()
    if (kept := [key for key in keys if key not in PLACE_KEYS | {"engine", "partitions"}])
}
_NAMES: Final = ("leakage.json", "leakage.html")
#: Columns of a sentence.
_WIDTH: Final = 80


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    config_command(app, "leakage", _PANELS, help_text=_HELP, epilog=_EXAMPLES)(_leakage)


def _leakage(  # noqa: PLR0913 - each is an option
    values: Values,
    *,
    path: Annotated[
        Path | None,
        typer.Argument(help="A folder of parts, or a run directory.", metavar="[PATH]"),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of the keys below; options win.", metavar="FILE")
    ] = None,
    profile: Annotated[str | None, PROFILE_OPTION] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for leakage.json and leakage.html.", metavar="DIR")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Train even if memory is not enough.")
    ] = False,
) -> None:
    from retexo_fl.leakage.audit import audit

    asked = _asked(values, path, config, profile)
    if out is not None:
        _check_out(out, overwrite=overwrite)
    found = audit(asked, tell=(lambda _: None) if quiet else complain, quiet=quiet, force=force)
    if out is not None:
        _write(found, out)
    if as_json:
        tell_json(found.as_json())
    else:
        _show(found, out)


def _asked(values: Values, path: Path | None, config: Path | None, profile: str | None) -> Asked:
    """Return what is asked for: by options, beside a folder of parts or a run's configuration.

    Raises:
        ConfigurationError: Nothing of the kind is at the path, or a run and a file are given.
    """
    if path is None:
        return Asked(values=values, file=config, profile=profile)
    run_config = path / "config.toml"
    if run_config.is_file():
        if config is not None or profile is not None:
            raise ConfigurationError(
                f"{'config' if config is not None else 'profile'}: cannot be given with a run, "
                "which has its own; expected options alone"
            )
        return Asked(values={**values, "out": "", "resume": ""}, file=run_config)
    if not path.is_dir():
        raise ConfigurationError(
            f"{path}: not there; expected a folder of parts (retexo partition make), or a run"
        )
    return Asked(values={**values, "partitions": str(path)}, file=config, profile=profile)


def _check_out(out: Path, *, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigurationError(f"out: {out} is no folder; expected one for {_NAMES[0]}")
    there = [name for name in _NAMES if (out / name).exists()]
    if there and not overwrite:
        raise ConfigurationError(
            f"out: {out / there[0]} is there; expected another folder, or --overwrite"
        )


def _write(found: Leakage, out: Path) -> None:
    from retexo_fl.files import write_whole
    from retexo_fl.leakage.page import render

    texts = (json.dumps(found.as_json(), indent=2) + "\n", render(found))
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in zip(_NAMES, texts, strict=True):
            write_whole(out / name, [text.encode(errors="backslashreplace")])
    except OSError as error:
        raise CheckpointError(f"{out}: could not be written ({error.strerror})") from error


def _show(found: Leakage, out: Path | None) -> None:
    places = [] if out is None else [f"report          {printable(str(out / _NAMES[1]))}"]
    skipped = [f"not played: {one}" for one in found.not_played]
    warnings = [f"warning: {one}" for one in found.warnings]
    verdicts = [f"verdict: {one}" for one in found.verdicts()]
    show(
        _head(found),
        _table(found, "server", "masked"),
        _table(found, "peers", "no rows"),
        *_edges(found.findings),
        *_by_size(found.findings),
        *("\n".join(textwrap.wrap(one, _WIDTH)) for one in [*verdicts, *warnings, *skipped]),
        *places,
    )


def _head(found: Leakage) -> str:
    figures_told = ", ".join(f"{name} {value:.4f}" for name, value in found.accuracy.items())
    sums = "masked" if found.is_masked else "not masked"
    return f"{printable(found.dataset)}: sums {sums}; test figure {figures_told}"


def _table(found: Leakage, reader: str, beside: str) -> Table:
    who = "the server" if reader == "server" else reader
    table = figures(f"what {who} can read", "measure", "guess", "clear", beside, left=2)
    for one in found.findings:
        if one.reader == reader:
            defended = one.masked if reader == "server" else one.cut
            cells = (one.guess, one.clear, defended)
            table.add_row(one.attack, one.measure, *map(_figure, cells))
    return table


def _edges(findings: tuple[Finding, ...]) -> list[Table]:
    """Return how well peers rank edges, with whatever crosses and with nothing."""
    from retexo_fl.leakage.figures import edge_rows
    from retexo_fl.leakage.peer_attacks import MEASURES

    rows = edge_rows(findings, MEASURES)
    if not rows:
        return []
    table = figures("edges inside a part", *MEASURES)
    for name, values in rows:
        table.add_row(name, *map(_figure, values))
    return [table]


def _by_size(findings: tuple[Finding, ...]) -> list[Table]:
    """Return how figures depend on how many train nodes a client has, where that differs."""
    rows = [(one.attack, row) for one in findings for row in one.by.get("by_train_nodes", [])]
    if len({row["train_nodes"] for _, row in rows}) < 2:
        return []
    table = figures("looked for", "train nodes", "clients", "clear", "masked", left=2)
    for attack, row in rows:
        table.add_row(
            *(attack, row["train_nodes"], str(row["clients"])),
            *map(_figure, (row["clear"], row["masked"])),
        )
    return [table]


def _figure(value: float | None) -> str:
    return "same" if value is None else f"{value:.2f}"
