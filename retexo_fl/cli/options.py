"""Command-line options made from the configuration's keys, so that the two cannot differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from retexo_fl.config import Scalar, default_values, field_of, key_infos, key_of

Values = dict[str, Scalar]

#: Keys that say which graph is trained on and how it is split.
GRAPH_KEYS = ("dataset", "data-dir", "clients", "partitioner", "split", "seed")


def config_command(
    app: typer.Typer, name: str, keys: Iterable[str], *, help_text: str, epilog: str = ""
) -> Callable[[Callable[..., Any]], None]:
    """Register a command that takes configuration keys as options.

    The decorated function gets ``values``, the keys that the user gave, and its other parameters
    (which must be keyword-only and declared for typer) as they are.
    """
    key_parameters = [_parameter(key) for key in keys]

    def register(function: Callable[..., Any]) -> None:
        own = [
            parameter
            for parameter in inspect.signature(function, eval_str=True).parameters.values()
            if parameter.name != "values"
        ]

        def command(**given: Any) -> Any:
            values = {
                key_of(parameter.name): given.pop(parameter.name) for parameter in key_parameters
            }
            return function({k: v for k, v in values.items() if v is not None}, **given)

        parameters = [*own, *key_parameters]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {item.name: item.annotation for item in parameters}
        app.command(name, help=help_text, epilog=epilog or None)(command)

    return register


def _parameter(key: str) -> inspect.Parameter:
    default, info = default_values()[key], key_infos()[key]
    shown = str(default) if default != "" else False
    option = typer.Option(f"--{key}", help=f"{info.help} ({info.expected})", show_default=shown)
    if info.expected == "text":
        option = typer.Option(f"--{key}", help=info.help, show_default=shown)
    return inspect.Parameter(
        field_of(key),
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[type(default) | None, option],
    )
