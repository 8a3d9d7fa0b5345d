"""Extension points: a configuration string is a built-in name or ``module:attribute``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from retexo_fl.errors import PluginError

#: How a model begins that is a convolution of PyG: the form of a plug-in, but no user's module.
PYG: Final = "pyg:"
_OWN_SCHEME: Final = re.compile(r"x-[a-z0-9-]{1,30}", re.ASCII)


def is_plugin(text: str) -> bool:
    """Return whether ``text`` has the form ``module:attribute`` of an extension."""
    module, colon, attribute = text.partition(":")
    return (
        bool(colon)
        and all(part.isidentifier() for part in module.split("."))
        and all(part.isidentifier() for part in attribute.split("."))
    )


def is_own_scheme(scheme: str) -> bool:
    """Return whether a scheme of addresses is that of a transport from outside: ``x-NAME``."""
    return _OWN_SCHEME.fullmatch(scheme) is not None


def load_plugin(kind: str, text: str) -> object:
    """Import what ``module:attribute`` names.

    Args:
        kind: What is being looked for, for the error's sentence.
        text: ``module:attribute``; the attribute may be dotted.

    Raises:
        PluginError: The module cannot be imported, or has no such attribute.
    """
    module_name, _, path = text.partition(":")
    try:
        found: object = import_module(module_name)
    except ImportError as error:
        raise PluginError(f"{kind} {text!r}: cannot import {module_name!r} ({error})") from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise PluginError(f"{kind} {text!r}: {module_name!r} has no {path!r}") from error
    return found


def load_callable(kind: str, text: str, *parameters: str) -> Callable[..., Any]:
    """Import a function or class that is to be called with some positional arguments.

    Args:
        kind: What is being looked for, for the error's sentence.
        text: ``module:attribute``.
        parameters: What the arguments are, for the error's sentence; there may be none.

    Raises:
        PluginError: It cannot be imported, or cannot be called in this way.
    """
    found = load_plugin(kind, text)
    expected = f"expected a callable ({', '.join(parameters)})"
    if not callable(found) or inspect.isabstract(found):
        what = "an abstract class" if callable(found) else type(found).__name__
        raise PluginError(f"{kind} {text!r}: got {what}; {expected}")
    try:
        inspect.signature(found).bind(*parameters)
    except TypeError as error:
        raise PluginError(f"{kind} {text!r}: {expected} ({error})") from error
    except ValueError:  # written in C, without a signature
        pass
    return found
