"""Configuration keys as Python writes them: in snake case, with paths, lists and classes."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from retexo_fl.api.settling import Asked
from retexo_fl.config import (
    Scalar,
    default_values,
    field_of,
    free_keys,
    key_infos,
    key_of,
    panels,
)
from retexo_fl.dates import date_text
from retexo_fl.errors import ConfigurationError, PluginError
from retexo_fl.plugins import load_plugin

if TYPE_CHECKING:
    from retexo_fl.graph.parts.partition import GraphPartition

#: A folder of parts, or all parts of one graph.
Partitions: TypeAlias = "str | Path | Sequence[GraphPartition]"

_WEIGHTS: Final = "class-weights"
#: What separates the items of a list, by key.
_SEPARATORS: Final = MappingProxyType(
    {"fanouts": "/", "devices": ",", _WEIGHTS: ",", "nodes": ",", "edges": ","}
)
#: Known to one process alone.
_MAIN: Final = "__main__:"
#: Of what PyTorch has modules.
_MODULE: Final = "torch.nn.modules.module:Module"


Function = TypeVar("Function", bound=Callable[..., Any])


def takes_keys(function: Function) -> Function:
    """Have ``help`` and completion of a function that is there show its keys and their defaults.

    Those who read code know them by :mod:`.options`.
    """
    signature = inspect.signature(function)
    own = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
    names = {item.name for item in own}
    kinds = {item.name for item in signature.parameters.values()} - names
    among = free_keys() - {"out", "last-rounds"} if "moved" in kinds else key_infos().keys()
    shown = {
        heading: [key for key in keys if key in among and field_of(key) not in {*names, "resume"}]
        for heading, keys in panels().items()
    }
    lines = [inspect.cleandoc(function.__doc__ or ""), "", "Keys and their defaults:"]
    for heading, keys in shown.items():
        lines += ["", f"{heading}:"] if keys else []
        lines += [
            f"    {field_of(key)} = {default_values()[key]!r}\n        {_told(key)}" for key in keys
        ]
    function.__doc__ = "\n".join(lines)
    found = [
        inspect.Parameter(
            field_of(key), inspect.Parameter.KEYWORD_ONLY, default=default_values()[key]
        )
        for keys in shown.values()
        for key in keys
    ]
    function.__signature__ = signature.replace(parameters=[*own, *found])  # type: ignore[attr-defined]
    return function


def _told(key: str) -> str:
    info = key_infos()[key]
    sentence = info.help.removesuffix(".") + (f" ({info.brief})" if info.brief else "") + "."
    return "\n        ".join(textwrap.wrap(sentence, 88, break_on_hyphens=False))


def values_of(keys: Mapping[str, object]) -> dict[str, Scalar]:
    """Return keys as a configuration has them.

    Args:
        keys: Names in snake or kebab case; None is the same as leaving the key out. Values may also
            be paths, dates, NumPy scalars, lists of ``fanouts``, ``devices`` and ``class_weights``,
            a mapping of class names for the latter, and classes or functions where the key takes
            ``module:attribute``.

    Raises:
        ConfigurationError: There is no such key, or it takes no such value.
    """
    values = {}
    for name, value in keys.items():
        key = key_of(name)
        field_of(key)
        if value is not None:
            values[key] = _scalar(key, value)
    return values


def asked_for(
    keys: Mapping[str, object],
    *,
    config: str | Path | None = None,
    profile: str | None = None,
    graph: object | None = None,
    partitions: Partitions | None = None,
) -> Asked:
    """Return what a caller asks for; see :func:`retexo_fl.run`.

    Raises:
        ConfigurationError: There is no such key, or it takes no such value.
    """
    keys, graph = with_frames(dict(keys), graph)
    parts: Sequence[GraphPartition] | None = None
    if isinstance(partitions, str | Path):
        keys = {**keys, "partitions": partitions}
    else:
        parts = partitions
    return Asked(
        values=values_of(keys),
        file=None if config is None else Path(config),
        profile=profile,
        graph=graph,
        parts=parts,
    )


def with_frames(
    keys: dict[str, object], graph: object | None
) -> tuple[dict[str, object], object | None]:
    """Return ``nodes`` and ``edges`` as a graph, where one of them is a DataFrame.

    Raises:
        ConfigurationError: There is another graph beside them.
    """
    from retexo_fl.graph.sources.tables import is_frame

    given = (keys.get("nodes"), keys.get("edges"))
    if not any(map(is_frame, given)):
        return keys, graph
    if graph is not None:
        raise ConfigurationError("nodes: cannot be given with graph; expected one of the two")
    return {key: value for key, value in keys.items() if key not in ("nodes", "edges")}, given


def check_importable(values: Mapping[str, Scalar], *, where: str) -> None:
    """Refuse what another process cannot import: classes and functions of this script or notebook.

    Args:
        values: From :func:`values_of`.
        where: What takes place in other processes, for the error.

    Raises:
        ConfigurationError: Names the key.
    """
    for key, value in values.items():
        if isinstance(value, str) and value.startswith(_MAIN):
            raise ConfigurationError(
                f"{key}: {value.removeprefix(_MAIN)} is known to this process alone, and {where} "
                "takes others; expected it in a module that can be imported"
            )


def _scalar(key: str, value: object) -> Scalar:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping) and key == _WEIGHTS:
        value = [f"{name}:{_scalar('', weight)}" for name, weight in value.items()]
    text = str(value) if isinstance(value, Path) else date_text(value)
    if text is not None:
        return text
    if isinstance(value, list | tuple) and key in _SEPARATORS:
        return _SEPARATORS[key].join(str(_scalar("", item)) for item in value)
    if key == "model" and _is_module(value):
        return _layer(value)
    if isinstance(value, type) or inspect.isroutine(value):
        return _importable(key, value)
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        return _scalar(key, item())
    if key in key_infos() and key_infos()[key].extensible:
        raise ConfigurationError(
            f"{key}: got an object of class {type(value).__name__}, which has no name to import it "
            "by; expected a name, or a class or function at the top level of a module, as such or "
            "as module:attribute"
        )
    raise ConfigurationError(
        f"{key}: got {type(value).__name__}; expected text, a number, true or false, a path, or a "
        "class or function where module:attribute may stand"
    )


def _is_module(value: object) -> bool:
    """Return whether it is a module of PyTorch, or a class of such; PyTorch is not imported."""
    bases = (value if isinstance(value, type) else type(value)).__mro__
    return any(f"{base.__module__}:{base.__qualname__}" == _MODULE for base in bases)


def _layer(value: Any) -> str:
    """Return the name of a layer's class.

    Raises:
        ConfigurationError: It is a module that is made already.
    """
    from retexo_fl.layers.named import name_of

    if isinstance(value, type):
        return name_of(value) or _importable("model", value)
    named = name_of(type(value)) or "gcn or pyg:GATv2Conv"
    raise ConfigurationError(
        f"model: got an object of class {type(value).__name__}, and a run makes its layers itself, "
        f"as many and as wide as layers and hidden say; expected a layer's name or class: {named}"
    )


def _importable(key: str, found: Any) -> str:
    """Return the name of a class or function by which this process finds it again."""
    text = f"{found.__module__}:{found.__qualname__}"
    try:
        is_found = load_plugin(key, text) is found
    except PluginError:
        is_found = False
    if not is_found:
        raise ConfigurationError(
            f"{key}: {found.__qualname__} cannot be found by its name; expected a class or "
            "function at the top level of a module (module:attribute), script or notebook"
        )
    return text
