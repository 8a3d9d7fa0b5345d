"""Command-line options made from the configuration's keys, so that the two cannot differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias

import typer
from rich.markup import escape

from retexo_fl.cli.help_text import styled
from retexo_fl.config import Scalar, default_values, field_of, key_infos, key_of, parse_value
from retexo_fl.config.profiles import PROFILES

Values = dict[str, Scalar]

#: Headings of a list of options and the keys below each.
Panels = Mapping[str, Iterable[str]]

#: Of commands that take all keys.
PROFILE_OPTION: Final = typer.Option(
    help=f"Set of keys that a file and options override ({', '.join(PROFILES)}). "
    "Default: lean for gcn (2 to 4 layers), sage (2 or 3), gin, gat and rel-* (2) that learn "
    "classes by lazy training, unless another option rules it out; else retexo, or end-to-end for "
    "algorithms that train all layers together. The run prints which.",
    metavar="NAME",
)
#: Of commands that print what they found as one JSON value.
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
#: Of commands that write what may take the place of what is there.
Overwrite: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace earlier output of the same command, and nothing else."
    ),
]
#: Of commands that train or predict in Flower's simulation; where Ray is, is no matter of a run.
RayAddress: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help=(
            "With --engine flower: existing Ray cluster (`ray start`). Default: "
            "RAY_ADDRESS, or a private Ray."
        ),
        metavar="HOST:PORT",
        show_default=False,
        rich_help_panel="Where it runs",
    ),
]
#: Of commands that read a client's own tables, which have no configuration.
UnlabelledValues: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Labels that mean 'unlabelled', in addition to an empty cell.",
        metavar="A,B",
    ),
]
Delimiter: TypeAlias = Annotated[
    str,
    typer.Option(
        help=("Field separator of CSV tables: comma, semicolon, tab or pipe; detected by default."),
        metavar="MARK",
    ),
]
Decimal: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Decimal mark of CSV tables: point or comma; detected by default.", metavar="MARK"
    ),
]
Encoding: TypeAlias = Annotated[
    str,
    typer.Option(
        help="Encoding of CSV tables, such as windows-1252; detected by default.", metavar="NAME"
    ),
]
_NO_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType({})
_TYPE_METAVARS: Final[Mapping[type, str]] = MappingProxyType(
    {bool: "true|false", int: "N", float: "X", str: "NAME"}
)


def config_command(
    app: typer.Typer,
    name: str,
    panels: Panels,
    *,
    help_text: str,
    epilog: str,
    defaults: Mapping[str, str] = _NO_DEFAULTS,
    repeated: bool = False,
) -> Callable[[Callable[..., Any]], None]:
    """Register a command that takes configuration keys as options.

    The decorated function gets ``values``, the keys that the user gave, and its other parameters
    (which must be keyword-only and declared for typer) as they are. ``defaults`` says in words what
    a key is that is not given, where that is not the key's own default. With ``repeated`` an option
    may be given several times: its key is the list of these values then.
    """
    key_parameters = [
        _parameter(key, panel, defaults.get(key), repeated=repeated)
        for panel, keys in panels.items()
        for key in keys
    ]

    def register(function: Callable[..., Any]) -> None:
        own = [
            parameter
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.name != "values"
        ]

        def command(**given: Any) -> Any:
            texts = {key_of(item.name): given.pop(item.name) for item in key_parameters}
            values = {k: _values(k, text) for k, text in texts.items() if text not in (None, [])}
            return function(values, **given)

        parameters = [*own, *key_parameters]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {item.name: item.annotation for item in parameters}
        app.command(name, help=styled(help_text), epilog=epilog)(command)

    return register


def _values(key: str, text: str | list[str]) -> Scalar | list[Scalar]:
    """Return the value of a key, or the values of one that was given several times."""
    if isinstance(text, str) or len(text) == 1 or key_infos()[key].several:
        return parse_value(key, ",".join([text] if isinstance(text, str) else text))
    return [parse_value(key, one) for one in text]


def _parameter(key: str, panel: str, default: str | None, *, repeated: bool) -> inspect.Parameter:
    option = typer.Option(
        f"--{key}",
        help=_help(key, default),
        metavar=_metavar(key),
        show_default=False,
        rich_help_panel=panel,
    )
    # All are read as text: the configuration parses and checks values, for files and options alike.
    return inspect.Parameter(
        field_of(key),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            (list[str] if repeated or key_infos()[key].several else str) | None, option
        ],
    )


def _metavar(key: str) -> str:
    own = key_infos()[key].metavar or ("SECS" if key.endswith("-s") else "")
    return own or _TYPE_METAVARS[type(default_values()[key])]


def _help(key: str, default: str | None) -> str:
    info, value = key_infos()[key], default_values()[key]
    sentence = info.help.removesuffix(".")
    if info.brief:
        sentence += f" ({info.brief})"
    own = f"{value:g}" if isinstance(value, float) else str(value)
    own = own.lower() if isinstance(value, bool) else own
    shown = own if default is None else default
    return styled(f"{sentence}.") + (f" [dim]\\[default: {escape(shown)}][/dim]" if shown else "")
