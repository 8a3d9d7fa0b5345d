"""Extension points: a configuration string is a built-in name or ``module:attribute``.

Where nobody names a module, a package that is installed may have joined one under the name.
"""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any, Final

from retexo_fl.errors import PluginError, PluginFailed, RetexoError

#: How a model begins that is a convolution of PyG: the form of a plug-in, but no user's module.
PYG: Final = "pyg:"
#: Groups of entry points: commands of ``retexo``, and transports by the scheme of their addresses.
COMMANDS: Final = "retexo_fl.commands"
TRANSPORTS: Final = "retexo_fl.transports"
_OWN_SCHEME: Final = re.compile(r"x-[a-z0-9-]{1,30}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Loaded:
    kind: str
    text: str
    files: frozenset[str]

    @property
    def name(self) -> str:
        return f"{self.kind} {self.text!r}"

    def made(self, code: CodeType) -> bool:
        """Return whether a function is the plug-in itself, or defined within it."""
        path = self.text.partition(":")[2]
        return f"{code.co_qualname}.".startswith(f"{path}.")


#: Marks what a callback has raised.
_OUTSIDE: Final = "raised_outside_plugins"
#: What this process has loaded, in that order.
_LOADED: Final[dict[tuple[str, str], _Loaded]] = {}


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


def joined(group: str, name: str) -> str | None:
    """Return the ``module:attribute`` that an installed package joins under a name.

    It takes the metadata of all that is installed, so ask for names that nobody else knows. Where a
    process was started nothing is installed.

    Args:
        group: Of entry points: :data:`COMMANDS` or :data:`TRANSPORTS`.
        name: In it.

    Raises:
        PluginError: The package names something else there.
    """
    from importlib.metadata import distributions

    here = Path.cwd()
    places = [place for place in sys.path if Path(place).is_absolute() and Path(place) != here]
    for package in distributions(path=places):
        for entry in package.entry_points.select(group=group, name=name):
            if not is_plugin(entry.value):
                raise PluginError(
                    f"{package.name}: its entry point {name} of {group} is {entry.value!r}; "
                    "expected module:attribute"
                )
            return entry.value
    return None


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
    except RetexoError:
        raise
    except Exception as error:
        place = _place_of_import(error)
        raise PluginError(
            f"{kind} {text!r}: cannot import {module_name!r}: {_words(error)} ({place})"
        ) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise PluginError(f"{kind} {text!r}: {module_name!r} has no {path!r}") from error
    _LOADED[kind, text] = _Loaded(kind, text, _files_of(found, module_name))
    return found


def mark_outside(error: Exception) -> None:
    """Have what a callback has raised keep its class, also where its file holds a plug-in, too."""
    setattr(error, _OUTSIDE, True)


@contextmanager
def named_plugin_errors(named: type[RetexoError] = PluginFailed) -> Iterator[None]:
    """Have an exception that a plug-in raises in the body end as :func:`plugin_failure`.

    An exception that passed no line of a plug-in's file is left as it is.

    Args:
        named: Class of the error that it becomes.
    """
    try:
        yield
    except RetexoError:
        raise
    except Exception as error:
        failure = plugin_failure(error, named)
        if failure is None:
            raise
        raise failure from error


def plugin_failure(
    error: BaseException, named: type[RetexoError] = PluginFailed, *, tells_text: bool = True
) -> RetexoError | None:
    """Return an error that says which plug-in raised an exception, and in which of its lines.

    Args:
        error: With the traceback of where it was raised.
        named: Class of what is returned.
        tells_text: It has the exception's text, which may hold what the plug-in was given; else the
            exception's class alone.

    Returns:
        None for an exception that passed no line of a plug-in's file.
    """
    if getattr(error, _OUTSIDE, False):
        return None
    files = {file for loaded in _LOADED.values() for file in loaded.files}
    frames = [
        (frame.f_code, line_number)
        for frame, line_number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename in files
    ]
    if not frames:
        return None
    code, line_number = frames[-1]
    of_file = [item for item in _LOADED.values() if code.co_filename in item.files]
    # A file may hold several; the one that was called is nearest to the caller.
    called = [item for entered, _ in frames for item in of_file if item.made(entered)]
    names = [called[0].name] if called else [item.name for item in of_file]
    what = _words(error) if tells_text else type(error).__name__
    # The name alone: where a client keeps its files is not for the server.
    place = f"{Path(code.co_filename).name}:{line_number}"
    return named(f"{' or '.join(names)}: {what} ({place}, in {code.co_name})")


def _files_of(found: object, module_name: str) -> frozenset[str]:
    """Return the files in which a plug-in's functions are defined; a notebook's cells are such."""
    members = [found, *vars(found).values()] if isinstance(found, type) else [found]
    codes = (getattr(inspect.unwrap(item), "__code__", None) for item in members if callable(item))
    files = {code.co_filename for code in codes if isinstance(code, CodeType)}
    return frozenset(files | {str(getattr(import_module(module_name), "__file__", None))})


def _place_of_import(error: Exception) -> str:
    """Return the line at which the import of a module ended."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"


def _words(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
